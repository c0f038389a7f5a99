//! The workers' current activity, for the progress line of a real run.

use std::collections::VecDeque;

use paceline_core::{Decision, Event, Time, WorkerActivities, WorkerActivity, WorkerId};

/// Seconds over which the sample rate is measured.
const RATE_WINDOW: f64 = 2.0;

/// How many workers are named; others are only counted.
const MAX_NAMES: usize = 3;

/// Tracks the work of all workers.
#[derive(Debug, Default)]
pub struct ActivityLine {
    activities: WorkerActivities,
    samples: u64,
    /// Time and samples processed until then, over the last [`RATE_WINDOW`].
    history: VecDeque<(f64, u64)>,
}

impl ActivityLine {
    /// Processes an event and its decisions.
    pub fn observe(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        if let Event::Asked { task, .. } | Event::Reported { task, .. } = event {
            let activity = self.activities.of(task.worker);
            self.samples += activity.running().map_or(0, |running| u64::from(running.assignment.samples));
        }
        self.activities.observe(now, event, decisions, |_| {});
    }

    /// The workers that others wait for, the recent samples per second, and the range of batch sizes if they differ.
    pub fn parts(&mut self, now: Time) -> Vec<String> {
        let mut parts = Vec::new();
        let running =
            |(worker, activity): (WorkerId, &WorkerActivity)| Some((worker, activity.running()?.assignment.samples));
        let working: Vec<(WorkerId, u32)> = self.activities.present().filter_map(running).collect();
        if !working.is_empty() && working.len() < self.activities.present().count() {
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
    use paceline_core::{Action, Assignment, Reason, Report, TaskId, Version, Work};

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
            activity.observe(second(0), &Event::Joined { worker: WorkerId(worker) }, &[assign(worker, samples)]);
        }
        assert_eq!(activity.parts(second(0)), ["batches of 10 to 30"]);
        activity.observe(second(0), &Event::Reported { task: task(1, 0), report: Report::default() }, &[]);
        assert_eq!(activity.parts(second(1)), ["waiting for worker 0, 2", "10 samples/s", "batches of 10 to 30"]);
        activity.observe(second(0), &Event::Left { worker: WorkerId(2) }, &[]);
        assert_eq!(activity.parts(second(2)), ["waiting for worker 0", "5 samples/s"]);
        for worker in 3..8 {
            activity.observe(second(0), &Event::Joined { worker: WorkerId(worker) }, &[assign(worker, 10)]);
        }
        assert_eq!(activity.parts(second(2))[0], "waiting for worker 0, 3, 4 and 3 more");
    }
}
