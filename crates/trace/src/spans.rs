//! Traces as spans: the JSON format of Chrome and of PyTorch's profiler.
//!
//! The reader takes complete events (`"ph": "X"`, with `ts` and `dur` in microseconds) and begin/end pairs (`"B"`,
//! `"E"`) with the requested name, alone or with a step number: `ProfilerStep#12`, `step 12`, `step`. It ignores the
//! copies of a step on a GPU's own lane (category `gpu_user_annotation`). Each process (`pid`) is a worker.

use std::collections::BTreeMap;
use std::io::Read;

use serde::Deserialize;
use serde_json::Value;

use super::{Trace, TraceErrorKind};

/// The name of a step in traces of PyTorch's profiler.
pub const PROFILER_STEP: &str = "ProfilerStep";

/// The fields of the file that are read. A file may also be a bare list of events.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpanFile {
    trace_events: Vec<SpanEntry>,
    distributed_info: Option<DistributedInfo>,
}

#[derive(Deserialize)]
struct DistributedInfo {
    rank: Option<u64>,
}

#[derive(Deserialize)]
struct SpanEntry {
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

/// The sort key of a process: numbers first, then names.
type ProcessKey = (u64, String);

/// Seconds of a process's steps, by step number, then by start in nanoseconds.
type StepTimes = BTreeMap<(u64, u64), f64>;

/// Reads the spans named `wanted`, and the rank of the process if the file contains it.
pub(super) fn read(mut file: impl Read, wanted: &str) -> Result<(Option<u64>, Trace), TraceErrorKind> {
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let list = text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    let SpanFile { trace_events, distributed_info } = if list {
        SpanFile { trace_events: serde_json::from_slice(&text)?, distributed_info: None }
    } else {
        serde_json::from_slice(&text)?
    };
    let mut workers: BTreeMap<ProcessKey, StepTimes> = BTreeMap::new();
    let mut started: BTreeMap<(String, String, String), f64> = BTreeMap::new();
    for event in trace_events {
        let Some(step) = step(&event.name, wanted).filter(|_| !event.cat.starts_with("gpu_")) else { continue };
        let open = (event.pid.to_string(), event.tid.to_string(), event.name.clone());
        let (start, duration) = match (event.ph.as_str(), event.ts, event.dur) {
            ("X", Some(start), Some(duration)) => (start, duration),
            ("B", Some(start), _) => {
                started.insert(open, start);
                continue;
            }
            ("E", Some(end), _) => match started.remove(&open) {
                Some(start) => (start, end - start),
                None => continue,
            },
            _ => continue,
        };
        if !(start.is_finite() && duration.is_finite() && duration > 0.0) {
            return Err(TraceErrorKind::NotASpan { name: event.name, start, duration });
        }
        // Numbered steps are identified by their number, others by their start.
        let key = (step.unwrap_or(0), if step.is_some() { 0 } else { (start * 1e3) as u64 });
        let seconds = workers.entry(process(&event.pid)).or_default().entry(key).or_default();
        // A step may have one span per thread; its time is the longest of them.
        *seconds = seconds.max(duration / 1e6);
    }
    if workers.is_empty() {
        return Err(TraceErrorKind::NoSpans { name: wanted.into() });
    }
    let columns = workers.into_values().map(|steps| steps.into_values().collect()).collect();
    Ok((distributed_info.and_then(|info| info.rank), Trace::new(columns)))
}

/// `None` if the span named `name` is not a step; otherwise the step's number, if it has one.
fn step(name: &str, wanted: &str) -> Option<Option<u64>> {
    let rest = name.strip_prefix(wanted)?;
    if rest.is_empty() {
        return Some(None);
    }
    rest.strip_prefix(['#', ' ', ':', '_'])?.trim().parse().ok().map(Some)
}

fn process(pid: &Value) -> ProcessKey {
    match pid.as_u64() {
        Some(number) => (number, String::new()),
        None => (u64::MAX, pid.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_spans_are_read() {
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
    fn malformed_traces_are_refused() {
        let failed = |text: &str| read(text.as_bytes(), "step").unwrap_err().to_string();
        assert_eq!(failed("[]"), "no span is named 'step': give another name with --span");
        let negative = r#"[{"ph": "X", "name": "step 4", "pid": 1, "ts": 1, "dur": -1}]"#;
        assert_eq!(failed(negative), "span 'step 4' at 1 µs has duration -1 µs; expected more than 0");
        assert!(failed("{\"traceEvents\": 3}").contains("line 1"), "{}", failed("{\"traceEvents\": 3}"));
    }
}
