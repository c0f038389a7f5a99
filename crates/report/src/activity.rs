//! Who is at work and who is waited for, as a line that is looked at while a run goes on.

use std::collections::{BTreeMap, VecDeque};

use paceline_core::{Action, Decision, Event, Time, WorkerId};

/// Over how many seconds samples are counted for their rate.
const STRETCH: f64 = 2.0;

/// Of more than so many the others are only counted.
const NAMES: usize = 3;

/// What a worker has to do, in samples.
#[derive(Debug, Default)]
struct CurrentWork {
    present: Option<u32>,
    queued: Option<u32>,
}

/// Follows everyone's work.
#[derive(Debug, Default)]
pub struct ActivityLine {
    posts: BTreeMap<WorkerId, CurrentWork>,
    samples: u64,
    /// When how many samples had been worked through, over the last stretch.
    marks: VecDeque<(f64, u64)>,
}

impl ActivityLine {
    /// Takes note of an event and the decisions it led to.
    pub fn observe(&mut self, event: &Event, decisions: &[Decision]) {
        match event {
            Event::Joined { worker } => {
                self.posts.insert(*worker, CurrentWork::default());
            }
            Event::Left { worker } => {
                self.posts.remove(worker);
            }
            Event::Asked { task, .. } | Event::Reported { task, .. } => {
                let Some(post) = self.posts.get_mut(&task.worker) else { return };
                self.samples += u64::from(post.present.unwrap_or(0));
                if matches!(event, Event::Reported { .. }) {
                    post.present = post.queued.take();
                }
            }
            Event::Committed { .. } | Event::Timer => {}
        }
        for decision in decisions {
            match &decision.action {
                Action::Assign(assignment) => {
                    let Some(post) = self.posts.get_mut(&assignment.task.worker) else { continue };
                    let place = if post.present.is_some() { &mut post.queued } else { &mut post.present };
                    *place = Some(assignment.samples);
                }
                Action::Interrupt { task } => {
                    let Some(post) = self.posts.get_mut(&task.worker) else { continue };
                    post.present = post.queued.take();
                }
                _ => {}
            }
        }
    }

    /// Who keeps others waiting, samples per second lately, and unequal batch sizes.
    pub fn parts(&mut self, now: Time) -> Vec<String> {
        let mut parts = Vec::new();
        let working: Vec<(&WorkerId, u32)> =
            self.posts.iter().filter_map(|(worker, post)| Some((worker, post.present?))).collect();
        if !working.is_empty() && working.len() < self.posts.len() {
            let names: Vec<String> = working.iter().take(NAMES).map(|(worker, _)| worker.0.to_string()).collect();
            let more = match working.len() - names.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            parts.push(format!("waiting for worker {}{more}", names.join(", ")));
        }

        let now = now.seconds();
        while self.marks.len() > 1 && self.marks.front().is_some_and(|(time, _)| now - time > STRETCH) {
            self.marks.pop_front();
        }
        let rate = self.marks.front().filter(|(time, _)| *time < now);
        parts.extend(
            rate.map(|(time, samples)| format!("{:.0} samples/s", (self.samples - samples) as f64 / (now - time))),
        );
        self.marks.push_back((now, self.samples));

        let sizes = working.iter().map(|(_, samples)| samples);
        if let (Some(least), Some(most)) = (sizes.clone().min(), sizes.max())
            && least < most
        {
            parts.push(format!("batches of {least} to {most}"));
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
    fn those_at_work_are_waited_for_by_those_who_are_not() {
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
    fn queued_work_follows_what_is_done_or_dropped() {
        let mut activity = ActivityLine::default();
        activity.observe(&Event::Joined { worker: WorkerId(0) }, &[assign(0, 1), assign(0, 2)]);
        let post = |activity: &ActivityLine| activity.posts.values().map(|post| (post.present, post.queued)).next();
        assert_eq!(post(&activity), Some((Some(1), Some(2))));
        let interrupt = Decision { action: Action::Interrupt { task: task(0, 0) }, reason: Reason::Joined };
        activity.observe(&Event::Timer, &[interrupt]);
        assert_eq!(post(&activity), Some((Some(2), None)));
    }
}
