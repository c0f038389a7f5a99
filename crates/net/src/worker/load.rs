//! What other programs use of this machine, as the operating system tells it.

use std::fs;
use std::time::{Duration, Instant};

/// Asking takes some tens of microseconds, and the system counts in hundredths of a second: not oftener than this.
const EVERY: Duration = Duration::from_millis(100);

/// Processor time since the machine was started, in the system's ticks.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ticks {
    /// Of all processors, whatever they did.
    total: u64,
    /// Of all processors, at work.
    busy: u64,
    /// Of this process.
    own: u64,
}

/// Follows what others use of this machine. Where the system does not say, nothing is known.
#[derive(Debug, Default)]
pub(super) struct Load {
    asked: Option<Instant>,
    ticks: Option<Ticks>,
    cpu: Option<f32>,
    memory: Option<f32>,
}

impl Load {
    /// The shares, from 0 to 1, of the processors' time that others used lately, and of the memory that is in use.
    pub(super) fn shares(&mut self) -> (Option<f32>, Option<f32>) {
        if self.asked.is_none_or(|asked| asked.elapsed() >= EVERY) {
            self.asked = Some(Instant::now());
            let read = |path| fs::read_to_string(path).unwrap_or_default();
            let now = ticks(&read("/proc/stat"), &read("/proc/self/stat"));
            self.cpu = self.ticks.zip(now).and_then(|(before, now)| used_by_others(before, now)).or(self.cpu);
            self.ticks = now;
            self.memory = memory_in_use(&read("/proc/meminfo"));
        }
        (self.cpu, self.memory)
    }
}

fn ticks(machine: &str, process: &str) -> Option<Ticks> {
    let fields = machine.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are counted as users already.
    let fields: Vec<u64> = fields.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    let [_, _, _, idle, waiting, ..] = fields[..] else { return None };
    let total: u64 = fields.iter().sum();
    // The program's name stands in brackets and may hold anything, blanks and brackets included.
    let (_, rest) = process.rsplit_once(')')?;
    let mut rest = rest.split_whitespace().skip(11);
    let mut next = || rest.next()?.parse::<u64>().ok();
    Some(Ticks { total, busy: total - idle - waiting, own: next()? + next()? })
}

/// `None` if no tick has passed.
fn used_by_others(before: Ticks, now: Ticks) -> Option<f32> {
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
    fn others_are_what_is_busy_less_oneself() {
        let machine = |busy: u64, idle: u64| format!("cpu  {busy} 0 0 {idle} 5 0 0 0 0 0\ncpu0 1 2 3\n");
        let process = |user: u64| format!("7 (odd ) name) S 1 1 1 0 -1 0 0 0 0 0 {user} 10 0 0 20 0");
        let before = ticks(&machine(100, 900), &process(40)).unwrap();
        assert_eq!(before, Ticks { total: 1005, busy: 100, own: 50 });
        let now = ticks(&machine(180, 1020), &process(60)).unwrap();
        // 200 ticks, 80 of them at work, 20 of those for us.
        assert_eq!(used_by_others(before, now), Some(0.3));
        assert_eq!(used_by_others(now, now), None);
        assert_eq!(ticks("", &process(1)), None);
        assert_eq!(ticks("cpu  1 x", &process(1)), None);
        assert_eq!(ticks(&machine(1, 1), "7 no brackets"), None);
    }

    #[test]
    fn memory_is_what_is_not_available() {
        let text = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    250 kB\n";
        assert_eq!(memory_in_use(text), Some(0.75));
        assert_eq!(memory_in_use("MemTotal: 0 kB\nMemAvailable: 0 kB\n"), None);
        assert_eq!(memory_in_use(""), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_says() {
        let mut load = Load::default();
        let (_, memory) = load.shares();
        assert!((0.0..=1.0).contains(&memory.unwrap()));
    }
}
