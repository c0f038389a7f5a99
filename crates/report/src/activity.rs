//! The workers' current activity, for the progress line of a real run.

use std::collections::{BTreeMap, VecDeque};

use paceline_core::{Action, Decision, Event, Time, WorkerId};

/// Seconds over which the sample rate is measured.
const RATE_WINDOW: f64 = 2.0;

/// How many workers are named; others are only counted.
const MAX_NAMES: usize = 3;

/// A worker's tasks, in samples.
#[derive(Debug, Default)]
struct CurrentWork {
    running: Option<u32>,
    queued: Option<u32>,
}

/// Tracks the work of all workers.
#[derive(Debug, Default)]
pub struct ActivityLine {
    workers: BTreeMap<WorkerId, CurrentWork>,
    samples: u64,
    /// Time and samples processed until then, over the last [`RATE_WINDOW`].
    history: VecDeque<(f64, u64)>,
}

impl ActivityLine {
    /// Processes an event and its decisions.
    pub fn observe(&mut self, event: &Event, decisions: &[Decision]) {
        match event {
            Event::Joined { worker } => {
                self.workers.insert(*worker, CurrentWork::default());
            }
            Event::Left { worker } => {
                self.workers.remove(worker);
            }
            Event::Asked { task, .. } | Event::Reported { task, .. } => {
                let Some(work) = self.workers.get_mut(&task.worker) else { return };
                self.samples += u64::from(work.running.unwrap_or(0));
                if matches!(event, Event::Reported { .. }) {
                    work.running = work.queued.take();
                }
            }
            Event::Committed { .. } | Event::Broken { .. } | Event::Timer => {}
        }
        for decision in decisions {
            match &decision.action {
                Action::Assign(assignment) => {
                    let Some(work) = self.workers.get_mut(&assignment.task.worker) else { continue };
                    let slot = if work.running.is_some() { &mut work.queued } else { &mut work.running };
                    *slot = Some(assignment.samples);
                }
                Action::Interrupt { task } => {
                    let Some(work) = self.workers.get_mut(&task.worker) else { continue };
                    work.running = work.queued.take();
                }
                _ => {}
            }
        }
    }

    /// The workers that others wait for, the recent samples per second, and the range of batch sizes if they differ.
    pub fn parts(&mut self, now: Time) -> Vec<String> {
        let mut parts = Vec::new();
        let working: Vec<(&WorkerId, u32)> =
            self.workers.iter().filter_map(|(worker, work)| Some((worker, work.running?))).collect();
        if !working.is_empty() && working.len() < self.workers.len() {
            let names: Vec<String> = working.iter().take(MAX_NAMES).map(|(worker, _)| worker.0.to_string()).collect();
            let more = match working.len() - names.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            parts.push(format!("waiting for worker {}{more}", names.join(", ")));
        }

        let now = now.seconds();
        while self.history.len() > 1 && self.history.front().is_some_and(|(time, _)| now - time > RATE_WINDOW) {
            self.history.pop_front();
        }
        let rate = self.history.front().filter(|(time, _)| *time < now);
        parts.extend(
            rate.map(|(time, samples)| format!("{:.0} samples/s", (self.samples - samples) as f64 / (now - time))),
        );
        self.history.push_back((now, self.samples));

        let sizes = working.iter().map(|(_, samples)| samples);
        if let (Some(smallest), Some(largest)) = (sizes.clone().min(), sizes.max())
            && smallest < largest
        {
            parts.push(format!("batches of {smallest} to {largest}"));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::{Assignment, Reason, Report, TaskId, Version, Work};

    fn task(worker: u32, number: u64) -> TaskId {
        TaskId { worker: WorkerId(worker), number }
    }

    fn assign(worker: u32, samples: u32) -> Decision {
        let task = task(worker, 0);
        let assignment =
            Assignment { task, version: Version(0), work: Work::Gradient, samples, offset: 0, queued: false };
        Decision { action: Action::Assign(assignment), reason: Reason::Joined }
    }

    #[test]
    fn idle_workers_wait_for_busy_ones() {
        let mut activity = ActivityLine::default();
        let second = |seconds: u64| Time(seconds * 1_000_000_000);
        for (worker, samples) in [(0, 10), (1, 10), (2, 30)] {
            activity.observe(&Event::Joined { worker: WorkerId(worker) }, &[assign(worker, samples)]);
        }
        assert_eq!(activity.parts(second(0)), ["batches of 10 to 30"]);
        activity.observe(&Event::Reported { task: task(1, 0), report: Report::default() }, &[]);
        assert_eq!(activity.parts(second(1)), ["waiting for worker 0, 2", "10 samples/s", "batches of 10 to 30"]);
        activity.observe(&Event::Left { worker: WorkerId(2) }, &[]);
        assert_eq!(activity.parts(second(2)), ["waiting for worker 0", "5 samples/s"]);
        for worker in 3..8 {
            activity.observe(&Event::Joined { worker: WorkerId(worker) }, &[assign(worker, 10)]);
        }
        assert_eq!(activity.parts(second(2))[0], "waiting for worker 0, 3, 4 and 3 more");
    }

    #[test]
    fn a_queued_task_starts_when_the_running_one_ends() {
        let mut activity = ActivityLine::default();
        activity.observe(&Event::Joined { worker: WorkerId(0) }, &[assign(0, 1), assign(0, 2)]);
        let work = |activity: &ActivityLine| activity.workers.values().map(|work| (work.running, work.queued)).next();
        assert_eq!(work(&activity), Some((Some(1), Some(2))));
        let interrupt = Decision { action: Action::Interrupt { task: task(0, 0) }, reason: Reason::Joined };
        activity.observe(&Event::Timer, &[interrupt]);
        assert_eq!(work(&activity), Some((Some(2), None)));
    }
}
