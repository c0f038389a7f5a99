//! What every worker did, moment by moment, from the event stream.

use std::collections::HashMap;
use std::ops::Range;

use paceline_core::{Action, Decision, Event, Reason, Report, Span, TaskId, Time, WorkerId};
use paceline_runtime::Observer;

/// What a worker is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Work that counted, or was not settled when the run ended.
    Computing,
    /// Nothing to do, or an answer to wait for.
    Waiting,
    /// Moving parameters and updates.
    Communicating,
    /// Work for nothing: interrupted, discarded or lost with its worker.
    Dropped,
    /// Not there.
    Gone,
}

/// A stretch of a worker's time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stretch {
    /// From when.
    pub from: Time,
    /// Until when.
    pub to: Time,
    /// What it was at.
    pub state: Activity,
    /// Why.
    pub reason: Option<Reason>,
}

/// A step of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimelineStep {
    /// When.
    pub at: Time,
    /// Of how many updates.
    pub updates: usize,
    /// Why then.
    pub reason: Reason,
}

/// The stretches of all workers and the steps of the model.
#[derive(Debug, Default)]
pub struct Timeline {
    /// Each worker's stretches, by rank, without gaps or overlaps from its first moment on.
    pub workers: Vec<Vec<Stretch>>,
    /// The steps in order.
    pub steps: Vec<TimelineStep>,
    /// When the last event was.
    pub end: Time,
    tracks: Vec<WorkerTrack>,
    /// Where the stretches of tasks are whose updates are not settled yet.
    unsettled: HashMap<TaskId, Range<usize>>,
}

/// What a worker is at, as long as that goes on.
#[derive(Debug, Default)]
struct WorkerTrack {
    /// So far its time is told.
    told: Time,
    now: Now,
    queued: Option<(TaskId, Reason)>,
}

#[derive(Debug, Default, Clone, Copy)]
enum Now {
    #[default]
    Away,
    Idle(Option<Reason>),
    Busy {
        task: TaskId,
        reason: Reason,
        /// How many stretches there were when it began.
        first: usize,
    },
}

impl Timeline {
    fn track(&mut self, worker: WorkerId) -> &mut WorkerTrack {
        if worker.index() >= self.tracks.len() {
            self.tracks.resize_with(worker.index() + 1, WorkerTrack::default);
            self.workers.resize_with(worker.index() + 1, Vec::new);
        }
        &mut self.tracks[worker.index()]
    }

    /// Tells a worker's time up to `until`.
    fn tell(&mut self, worker: WorkerId, until: Time, state: Activity, reason: Option<Reason>) {
        let track = self.track(worker);
        let from = track.told;
        if until > from {
            track.told = until;
            self.workers[worker.index()].push(Stretch { from, to: until, state, reason });
        }
    }

    /// Tells what a worker was at until now, when that ends without a report.
    fn close(&mut self, worker: WorkerId, now: Time, busy_as: Activity, why: Option<Reason>) {
        match self.track(worker).now {
            Now::Away => self.tell(worker, now, Activity::Gone, None),
            Now::Idle(reason) => self.tell(worker, now, Activity::Waiting, reason),
            Now::Busy { reason, .. } => self.tell(worker, now, busy_as, why.or(Some(reason))),
        }
    }

    fn begin(&mut self, task: TaskId, reason: Reason) {
        let first = self.workers[task.worker.index()].len();
        self.track(task.worker).now = Now::Busy { task, reason, first };
    }

    /// What a worker says it did since it was last heard of. How much of the rest was communication is known; that half
    /// of it came before the computing is assumed.
    fn heard(&mut self, worker: WorkerId, now: Time, report: &Report) {
        let Now::Busy { reason, .. } = self.track(worker).now else { return };
        let told = self.track(worker).told;
        let whole = now.since(told);
        let computing = Span(report.compute.0.min(whole.0));
        let querying = Span(report.querying.0.min(whole.0 - computing.0));
        let moving = Span(whole.0 - computing.0 - querying.0);
        let begun = told + Span(moving.0 / 2);
        self.tell(worker, begun, Activity::Communicating, Some(reason));
        self.tell(worker, begun + computing, Activity::Computing, Some(reason));
        self.tell(worker, begun + computing + querying, Activity::Waiting, Some(reason));
        self.tell(worker, now, Activity::Communicating, Some(reason));
    }

    fn reported(&mut self, task: TaskId, now: Time, report: &Report) {
        self.heard(task.worker, now, report);
        let stretches = self.workers[task.worker.index()].len();
        let track = self.track(task.worker);
        if let Now::Busy { task: present, first, .. } = track.now
            && present == task
        {
            track.now = Now::Idle(None);
            let queued = track.queued.take();
            self.unsettled.insert(task, first..stretches);
            if let Some((task, reason)) = queued {
                self.begin(task, reason);
            }
        }
    }

    fn decided(&mut self, now: Time, decision: &Decision) {
        let reason = decision.reason;
        match &decision.action {
            Action::Commit { updates, .. } => {
                self.steps.push(TimelineStep { at: now, updates: updates.len(), reason });
                for update in updates.iter() {
                    self.unsettled.remove(&update.task);
                }
            }
            Action::Discard { task } => {
                let stretches = self.unsettled.remove(task).unwrap_or_default();
                let stretches = self.workers.get_mut(task.worker.index()).and_then(|all| all.get_mut(stretches));
                for stretch in stretches.into_iter().flatten().filter(|stretch| stretch.state == Activity::Computing) {
                    (stretch.state, stretch.reason) = (Activity::Dropped, Some(reason));
                }
            }
            Action::Assign(assignment) if assignment.queued => {
                self.track(assignment.task.worker).queued = Some((assignment.task, reason));
            }
            Action::Assign(assignment) => {
                self.close(assignment.task.worker, now, Activity::Dropped, None);
                self.begin(assignment.task, reason);
            }
            Action::Interrupt { task } => {
                self.close(task.worker, now, Activity::Dropped, Some(reason));
                let track = self.track(task.worker);
                (track.now, track.queued) = (Now::Idle(None), None);
            }
            Action::Hold { worker, .. } => {
                let track = self.track(*worker);
                if let Now::Idle(why) = &mut track.now {
                    *why = why.or(Some(reason));
                }
            }
            Action::Continue { task } | Action::Collect { task } => {
                if let Now::Busy { reason: why, .. } = &mut self.track(task.worker).now {
                    *why = reason;
                }
            }
            Action::Wake { .. } => {}
        }
    }

    /// Tells everyone's time up to the last event. Call it once, when there are no more.
    pub fn finish(&mut self) {
        for worker in 0..self.tracks.len() as u32 {
            self.close(WorkerId(worker), self.end, Activity::Computing, None);
        }
    }
}

impl Observer for Timeline {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.end = now;
        match event {
            Event::Joined { worker } => {
                self.close(*worker, now, Activity::Dropped, None);
                self.track(*worker).now = Now::Idle(None);
            }
            Event::Left { worker } => {
                self.close(*worker, now, Activity::Dropped, None);
                let track = self.track(*worker);
                (track.now, track.queued) = (Now::Away, None);
            }
            Event::Asked { task, report, .. } => self.heard(task.worker, now, report),
            Event::Reported { task, report } => self.reported(*task, now, report),
            Event::Committed { .. } | Event::Timer => {}
        }
        decisions.iter().for_each(|decision| self.decided(now, decision));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::{Ledger, SchemeSpec, Setup};

    /// Feeds events to a scheme and draws the outcome.
    fn drawn(scheme: &str, events: &[(u64, Event)]) -> Timeline {
        let spec: SchemeSpec = scheme.parse().unwrap();
        let mut ledger = Ledger::new(spec.build(&Setup { workers: 2, batch: 1, dispatch: None }).unwrap());
        let mut timeline = Timeline::default();
        for &(at, event) in events {
            let decisions = ledger.handle(Time(at), event).unwrap().to_vec();
            timeline.on_turn(Time(at), &event, &decisions);
            for decision in &decisions {
                if let Action::Commit { version, .. } = decision.action {
                    let confirmed = Event::Committed { version, aggregate: None };
                    let decisions = ledger.handle(Time(at), confirmed).unwrap();
                    timeline.on_turn(Time(at), &confirmed, decisions);
                }
            }
        }
        timeline.finish();
        timeline
    }

    fn states(stretches: &[Stretch]) -> Vec<(u64, u64, Activity)> {
        stretches.iter().map(|stretch| (stretch.from.0, stretch.to.0, stretch.state)).collect()
    }

    fn joined(worker: u32) -> Event {
        Event::Joined { worker: WorkerId(worker) }
    }

    fn report(worker: u32, number: u64, compute: u64) -> Event {
        let report = Report { compute: Span(compute), ..Report::default() };
        Event::Reported { task: TaskId { worker: WorkerId(worker), number }, report }
    }

    #[test]
    fn computing_communicating_waiting_and_gone() {
        let left = Event::Left { worker: WorkerId(1) };
        let timeline =
            drawn("bsp", &[(0, joined(0)), (0, joined(1)), (10, report(0, 0, 6)), (30, left), (50, joined(1))]);
        use Activity::*;
        assert_eq!(
            states(&timeline.workers[0]),
            [(0, 2, Communicating), (2, 8, Computing), (8, 10, Communicating), (10, 30, Waiting), (30, 50, Computing)]
        );
        assert_eq!(states(&timeline.workers[1]), [(0, 30, Dropped), (30, 50, Gone)]);
        assert_eq!(timeline.workers[0][3].reason, Some(Reason::Contributed));
        let steps: Vec<(u64, usize)> = timeline.steps.iter().map(|step| (step.at.0, step.updates)).collect();
        assert_eq!(steps, [(30, 1)]);
    }

    #[test]
    fn work_for_nothing_is_told_as_such() {
        // Worker 1's first gradient is of a model that worker 0 has stepped since.
        let events =
            [(0, joined(0)), (0, joined(1)), (10, report(0, 0, 10)), (15, report(1, 0, 15)), (16, report(0, 1, 6))];
        let timeline = drawn("backup:k=1,dispatch=push-wait", &events);
        assert_eq!(states(&timeline.workers[1])[0], (0, 15, Activity::Dropped));
        assert!(matches!(timeline.workers[1][0].reason, Some(Reason::Stale { .. })));
        assert_eq!(states(&timeline.workers[0]), [(0, 10, Activity::Computing), (10, 16, Activity::Computing)]);
        let interrupted = drawn("backup:k=1,dispatch=push-interrupt", &events[..3]);
        assert_eq!(states(&interrupted.workers[1]), [(0, 10, Activity::Dropped)]);
    }
}
