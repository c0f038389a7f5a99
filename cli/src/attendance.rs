//! Who is at work and who is waited for, as a line that is looked at while a run goes on.

use std::collections::{BTreeMap, VecDeque};

use paceline_core::{Action, Decision, Event, Time, WorkerId};

/// Over how many seconds samples are counted for their rate.
const STRETCH: f64 = 2.0;

/// Of more than so many only the number is said.
const NAMES: usize = 3;

/// What a worker has to do, in samples.
#[derive(Debug, Default)]
struct Post {
    present: Option<u32>,
    queued: Option<u32>,
}

/// Follows everyone's work.
#[derive(Debug, Default)]
pub struct Attendance {
    posts: BTreeMap<WorkerId, Post>,
    samples: u64,
    /// When how many samples had been worked through, over the last stretch.
    marks: VecDeque<(f64, u64)>,
}

impl Attendance {
    /// Takes note of an event and the decisions it led to.
    pub fn observe(&mut self, event: &Event, decisions: &[Decision]) {
        match event {
            Event::Joined { worker } => {
                self.posts.insert(*worker, Post::default());
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

    /// Samples per second lately, unequal batch sizes, and who keeps others waiting.
    pub fn line(&mut self, now: Time) -> String {
        let now = now.seconds();
        while self.marks.len() > 1 && self.marks.front().is_some_and(|(time, _)| now - time > STRETCH) {
            self.marks.pop_front();
        }
        let rate = self.marks.front().filter(|(time, _)| *time < now);
        let mut line = rate.map_or(String::new(), |(time, samples)| {
            format!(", {:.0} samples/s", (self.samples - samples) as f64 / (now - time))
        });
        self.marks.push_back((now, self.samples));

        let working = || self.posts.iter().filter_map(|(worker, post)| Some((worker, post.present?)));
        let sizes = working().map(|(_, samples)| samples);
        if let (Some(least), Some(most)) = (sizes.clone().min(), sizes.max())
            && least < most
        {
            line += &format!(", batches of {least} to {most}");
        }
        match working().count() {
            0 => {}
            all if all == self.posts.len() => {}
            some if some <= NAMES => {
                let names: Vec<String> = working().map(|(worker, _)| worker.to_string()).collect();
                line += &format!(", waiting for {}", names.join(", "));
            }
            some => line += &format!(", waiting for {some} workers"),
        }
        line
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
        let mut attendance = Attendance::default();
        let second = |seconds: u64| Time(seconds * 1_000_000_000);
        for (worker, samples) in [(0, 10), (1, 10), (2, 30)] {
            attendance.observe(&Event::Joined { worker: WorkerId(worker) }, &[assign(worker, samples)]);
        }
        assert_eq!(attendance.line(second(0)), ", batches of 10 to 30");
        attendance.observe(&Event::Reported { task: task(1, 0), report: Report::default() }, &[]);
        assert_eq!(attendance.line(second(1)), ", 10 samples/s, batches of 10 to 30, waiting for worker 0, worker 2");
        attendance.observe(&Event::Left { worker: WorkerId(2) }, &[]);
        assert_eq!(attendance.line(second(2)), ", 5 samples/s, waiting for worker 0");
    }

    #[test]
    fn queued_work_follows_what_is_done_or_dropped() {
        let mut attendance = Attendance::default();
        attendance.observe(&Event::Joined { worker: WorkerId(0) }, &[assign(0, 1), assign(0, 2)]);
        let post = |attendance: &Attendance| attendance.posts.values().map(|post| (post.present, post.queued)).next();
        assert_eq!(post(&attendance), Some((Some(1), Some(2))));
        let interrupt = Decision { action: Action::Interrupt { task: task(0, 0) }, reason: Reason::Joined };
        attendance.observe(&Event::Timer, &[interrupt]);
        assert_eq!(post(&attendance), Some((Some(2), None)));
    }
}
