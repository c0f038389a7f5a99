//! Traces as spans on a time line: the JSON that Chrome and PyTorch's profiler write.
//!
//! Read are complete events (`"ph": "X"`, with `ts` and `dur` in microseconds) and begin/end pairs (`"B"`, `"E"`) whose
//! name is the one looked for, alone or with a step's number: `ProfilerStep#12`, `step 12`, `step`. Copies of a step on a
//! GPU's own lane (category `gpu_user_annotation`) are passed over. A worker is a process (`pid`).

use std::collections::BTreeMap;
use std::io::Read;

use serde::Deserialize;
use serde_json::Value;

use super::{Trace, TraceErrorKind};

/// What PyTorch's profiler calls a step.
pub const PROFILER_STEP: &str = "ProfilerStep";

/// The file, as far as it is read; it may also be the list of events alone.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    trace_events: Vec<Entry>,
    distributed_info: Option<DistributedInfo>,
}

#[derive(Deserialize)]
struct DistributedInfo {
    rank: Option<u64>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    name: String,
    #[serde(default)]
    ph: String,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    pid: Value,
    #[serde(default)]
    tid: Value,
    ts: Option<f64>,
    dur: Option<f64>,
}

/// Where a process stands among the others: numbers by size, then names.
type Process = (u64, String);

/// Seconds of a process's steps, by number, then by start in nanoseconds.
type Steps = BTreeMap<(u64, u64), f64>;

/// Reads the spans called `wanted`, and the rank of the process that the file is of, where it says so.
pub(super) fn read(mut file: impl Read, wanted: &str) -> Result<(Option<u64>, Trace), TraceErrorKind> {
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let list = text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    let File { trace_events, distributed_info } = if list {
        File { trace_events: serde_json::from_slice(&text)?, distributed_info: None }
    } else {
        serde_json::from_slice(&text)?
    };
    let mut workers: BTreeMap<Process, Steps> = BTreeMap::new();
    let mut begun: BTreeMap<(String, String, String), f64> = BTreeMap::new();
    for event in trace_events {
        let Some(step) = step(&event.name, wanted).filter(|_| !event.cat.starts_with("gpu_")) else { continue };
        let open = (event.pid.to_string(), event.tid.to_string(), event.name.clone());
        let (start, duration) = match (event.ph.as_str(), event.ts, event.dur) {
            ("X", Some(start), Some(duration)) => (start, duration),
            ("B", Some(start), _) => {
                begun.insert(open, start);
                continue;
            }
            ("E", Some(end), _) => match begun.remove(&open) {
                Some(start) => (start, end - start),
                None => continue,
            },
            _ => continue,
        };
        if !(start.is_finite() && duration.is_finite() && duration > 0.0) {
            return Err(TraceErrorKind::NotASpan { name: event.name, start, duration });
        }
        // Numbered steps are known by their number, others by their start.
        let key = (step.unwrap_or(0), if step.is_some() { 0 } else { (start * 1e3) as u64 });
        let seconds = workers.entry(process(&event.pid)).or_default().entry(key).or_default();
        // A step that stands there several times, once per thread, took as long as the longest.
        *seconds = seconds.max(duration / 1e6);
    }
    if workers.is_empty() {
        return Err(TraceErrorKind::NoSpans { wanted: wanted.into() });
    }
    let columns = workers.into_values().map(|steps| steps.into_values().collect()).collect();
    Ok((distributed_info.and_then(|info| info.rank), Trace::new(columns)))
}

/// The number of a step called `name`, if it has one and is one.
fn step(name: &str, wanted: &str) -> Option<Option<u64>> {
    let rest = name.strip_prefix(wanted)?;
    if rest.is_empty() {
        return Some(None);
    }
    rest.strip_prefix(['#', ' ', ':', '_'])?.trim().parse().ok().map(Some)
}

fn process(pid: &Value) -> Process {
    match pid.as_u64() {
        Some(number) => (number, String::new()),
        None => (u64::MAX, pid.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_processes_in_whatever_form() {
        let text = r#"{"distributedInfo": {"rank": 3}, "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 20, "args": {"name": "python"}},
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#10", "pid": 20, "tid": 1, "ts": 30, "dur": 2000000},
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#9", "pid": 20, "tid": 1, "ts": 5.5, "dur": 1e6},
            {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#9", "pid": 0, "tid": 7, "ts": 5.5, "dur": 9e6},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 20, "tid": 1, "ts": 6, "dur": 10},
            {"ph": "B", "name": "ProfilerStep#1", "pid": 9, "tid": "main", "ts": 0},
            {"ph": "E", "name": "ProfilerStep#1", "pid": 9, "tid": "main", "ts": 500000}]}"#;
        let (rank, trace) = read(text.as_bytes(), PROFILER_STEP).unwrap();
        assert_eq!(rank, Some(3));
        assert_eq!(trace, Trace::new(vec![vec![0.5], vec![1.0, 2.0]]));
        let list = r#"[{"ph": "X", "name": "forward", "pid": "a", "ts": 9, "dur": 3e6},
                       {"ph": "X", "name": "forward", "pid": "a", "ts": 1, "dur": 1e6},
                       {"ph": "X", "name": "forward_hook", "pid": "a", "ts": 1, "dur": 7e6}]"#;
        assert_eq!(read(list.as_bytes(), "forward").unwrap().1, Trace::new(vec![vec![1.0, 3.0]]));
    }

    #[test]
    fn what_is_no_such_trace_is_refused() {
        let failed = |text: &str| read(text.as_bytes(), "step").unwrap_err().to_string();
        assert_eq!(failed("[]"), "there are no spans called 'step'; name others with --span");
        let negative = r#"[{"ph": "X", "name": "step 4", "pid": 1, "ts": 1, "dur": -1}]"#;
        assert_eq!(failed(negative), "span 'step 4' at 1 µs takes -1 µs; expected a time above 0");
        assert!(failed("{\"traceEvents\": 3}").contains("line 1"), "{}", failed("{\"traceEvents\": 3}"));
    }
}
