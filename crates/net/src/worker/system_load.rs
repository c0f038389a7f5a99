//! How much of this machine other processes use, as reported by `/proc`.

use std::fs;
use std::time::{Duration, Instant};

/// The shortest time between two readings. A reading takes some tens of microseconds, and the counters count hundredths
/// of a second.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Processor time since the machine was started, in ticks of the system.
#[derive(Debug, Clone, Copy, PartialEq)]
struct CpuTicks {
    /// All time of all processors.
    total: u64,
    /// The busy time of all processors.
    busy: u64,
    /// The time of this process.
    own: u64,
}

/// Measures how much of this machine other processes use. Values that the system does not report are `None`.
#[derive(Debug, Default)]
pub(super) struct SystemLoad {
    read_at: Option<Instant>,
    ticks: Option<CpuTicks>,
    cpu: Option<f32>,
    memory: Option<f32>,
}

impl SystemLoad {
    /// The share of the processor time that other processes used recently, and the share of the memory in use; both 0
    /// to 1.
    pub(super) fn shares(&mut self) -> (Option<f32>, Option<f32>) {
        if self.read_at.is_none_or(|read_at| read_at.elapsed() >= MIN_INTERVAL) {
            self.read_at = Some(Instant::now());
            let read = |path| fs::read_to_string(path).unwrap_or_default();
            let now = ticks(&read("/proc/stat"), &read("/proc/self/stat"));
            self.cpu = self.ticks.zip(now).and_then(|(before, now)| share_of_others(before, now)).or(self.cpu);
            self.ticks = now;
            self.memory = memory_in_use(&read("/proc/meminfo"));
        }
        (self.cpu, self.memory)
    }
}

fn ticks(machine: &str, process: &str) -> Option<CpuTicks> {
    let fields = machine.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    // user, nice, system, idle, iowait, irq, softirq, steal; guest time is included in user time.
    let fields: Vec<u64> = fields.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    let [_, _, _, idle, waiting, ..] = fields[..] else { return None };
    let total: u64 = fields.iter().sum();
    // The program's name is in parentheses and may itself contain blanks and parentheses.
    let (_, rest) = process.rsplit_once(')')?;
    let mut rest = rest.split_whitespace().skip(11);
    let mut next = || rest.next()?.parse::<u64>().ok();
    Some(CpuTicks { total, busy: total - idle - waiting, own: next()? + next()? })
}

/// `None` if no tick has passed.
fn share_of_others(before: CpuTicks, now: CpuTicks) -> Option<f32> {
    let total = now.total.checked_sub(before.total).filter(|&total| total > 0)?;
    let busy = now.busy.saturating_sub(before.busy);
    let others = busy.saturating_sub(now.own.saturating_sub(before.own));
    Some((others as f32 / total as f32).min(1.0))
}

fn memory_in_use(text: &str) -> Option<f32> {
    let kilobytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<f32>().ok()
    };
    let (total, available) = (kilobytes("MemTotal:")?, kilobytes("MemAvailable:")?);
    (total > 0.0).then(|| (1.0 - available / total).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_processes_use_the_busy_time_less_our_own() {
        let machine = |busy: u64, idle: u64| format!("cpu  {busy} 0 0 {idle} 5 0 0 0 0 0\ncpu0 1 2 3\n");
        let process = |user: u64| format!("7 (odd ) name) S 1 1 1 0 -1 0 0 0 0 0 {user} 10 0 0 20 0");
        let before = ticks(&machine(100, 900), &process(40)).unwrap();
        assert_eq!(before, CpuTicks { total: 1005, busy: 100, own: 50 });
        let now = ticks(&machine(180, 1020), &process(60)).unwrap();
        // 200 ticks, 80 of them busy, 20 of those in this process.
        assert_eq!(share_of_others(before, now), Some(0.3));
        assert_eq!(share_of_others(now, now), None);
        assert_eq!(ticks("", &process(1)), None);
        assert_eq!(ticks("cpu  1 x", &process(1)), None);
        assert_eq!(ticks(&machine(1, 1), "7 no parentheses"), None);
    }

    #[test]
    fn memory_in_use_is_what_is_not_available() {
        let text = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    250 kB\n";
        assert_eq!(memory_in_use(text), Some(0.75));
        assert_eq!(memory_in_use("MemTotal: 0 kB\nMemAvailable: 0 kB\n"), None);
        assert_eq!(memory_in_use(""), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_reports_its_memory() {
        let mut load = SystemLoad::default();
        let (_, memory) = load.shares();
        assert!((0.0..=1.0).contains(&memory.unwrap()));
    }
}
