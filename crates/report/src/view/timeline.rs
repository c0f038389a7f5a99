//! What every worker did over time, from the events and decisions of a run.

use std::collections::HashMap;
use std::ops::Range;

use paceline_core::{
    Action, ActivityChange, Assignment, Commit, Decision, Event, Reason, Report, Span, TaskId, TaskProgress, Time,
    WorkerActivities, WorkerId,
};
use paceline_runtime::Observer;

use super::item_log::{ItemLog, Kept};
use super::shares::ActivityShares;

/// What a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Work that was used, or not settled when the run ended.
    Computing,
    /// Idle, or waiting for an answer.
    Waiting,
    /// Receiving parameters or sending updates.
    Communicating,
    /// Work that was not used: interrupted, discarded, or lost with its worker.
    Dropped,
    /// Not connected.
    Absent,
}

impl Activity {
    /// All of them, in the order of a view's data.
    pub const ALL: [Activity; ACTIVITIES] =
        [Activity::Computing, Activity::Waiting, Activity::Communicating, Activity::Dropped, Activity::Absent];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Activity::Computing => "computing",
            Activity::Waiting => "waiting",
            Activity::Communicating => "communicating",
            Activity::Dropped => "dropped",
            Activity::Absent => "absent",
        }
    }
}

/// How many activities there are.
pub const ACTIVITIES: usize = 5;

/// An interval of a worker's time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    /// Its start.
    pub from: Time,
    /// Its end.
    pub to: Time,
    /// What the worker did.
    pub state: Activity,
    /// Why.
    pub reason: Option<Reason>,
}

/// A step of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimelineStep {
    /// When.
    pub at: Time,
    /// Number of updates in it.
    pub updates: usize,
    /// Why it was made then.
    pub reason: Reason,
}

/// How much of a timeline is kept.
#[derive(Debug, Clone, Copy)]
pub struct TimelineLimits {
    /// Segments of each worker.
    pub segments: usize,
    /// Which of them.
    pub kept: Kept,
    /// Steps of the model.
    pub steps: usize,
    /// Intervals of the shares of activities, which cover the whole run.
    pub intervals: usize,
}

/// Everything is kept.
impl Default for TimelineLimits {
    fn default() -> Self {
        TimelineLimits { segments: usize::MAX, kept: Kept::Oldest, steps: usize::MAX, intervals: 2 }
    }
}

/// The segments of all workers and the steps of the model.
#[derive(Debug, Clone)]
pub struct Timeline {
    /// Each worker's segments, by rank, without gaps or overlaps.
    pub workers: Vec<ItemLog<Segment>>,
    /// The steps, in order.
    pub steps: ItemLog<TimelineStep>,
    /// The shares of each activity, over the whole run.
    pub shares: ActivityShares,
    /// Seconds of each activity in the whole run, by rank.
    pub totals: Vec<[f64; ACTIVITIES]>,
    /// Time of the last event.
    pub end: Time,
    limits: TimelineLimits,
    activities: WorkerActivities,
    tracks: Vec<WorkerTrack>,
    /// For each task whose update is not settled yet, its segments.
    unsettled: HashMap<TaskId, Range<u64>>,
}

/// A worker's current state.
#[derive(Debug, Clone, Default)]
struct WorkerTrack {
    /// Its segments end here.
    recorded_until: Time,
    state: WorkerActivityState,
}

#[derive(Debug, Default, Clone, Copy)]
enum WorkerActivityState {
    #[default]
    Absent,
    Idle(Option<Reason>),
    Busy {
        reason: Reason,
        /// Number of its first segment.
        first: u64,
    },
}

impl Timeline {
    /// A timeline that keeps this much.
    pub fn new(limits: TimelineLimits) -> Self {
        Timeline {
            workers: Vec::new(),
            steps: ItemLog::new(limits.steps, limits.kept),
            shares: ActivityShares::new(limits.intervals),
            totals: Vec::new(),
            end: Time::START,
            limits,
            activities: WorkerActivities::default(),
            tracks: Vec::new(),
            unsettled: HashMap::new(),
        }
    }

    fn track(&mut self, worker: WorkerId) -> &mut WorkerTrack {
        if worker.index() >= self.tracks.len() {
            self.tracks.resize_with(worker.index() + 1, WorkerTrack::default);
            let TimelineLimits { segments, kept, .. } = self.limits;
            self.workers.resize_with(worker.index() + 1, || ItemLog::new(segments, kept));
            self.totals.resize(worker.index() + 1, [0.0; ACTIVITIES]);
        }
        &mut self.tracks[worker.index()]
    }

    /// What the workers do now.
    pub fn activities(&self) -> &WorkerActivities {
        &self.activities
    }

    /// What a worker does now, since when, and why.
    pub fn present(&self, worker: usize) -> (Activity, Time, Option<Reason>) {
        let track = &self.tracks[worker];
        let (activity, reason) = match track.state {
            WorkerActivityState::Absent => (Activity::Absent, None),
            WorkerActivityState::Idle(reason) => (Activity::Waiting, reason),
            WorkerActivityState::Busy { reason, .. } => (Activity::Computing, Some(reason)),
        };
        (activity, track.recorded_until, reason)
    }

    /// How many tasks have an update that is neither committed nor discarded.
    #[cfg(test)]
    pub fn unsettled_tasks(&self) -> usize {
        self.unsettled.len()
    }

    /// All changes so far are known.
    pub fn settle(&mut self) {
        self.workers.iter_mut().for_each(ItemLog::settle);
        self.steps.settle();
        self.shares.settle();
    }

    /// Adds a segment that ends at `until`.
    fn record_until(&mut self, worker: WorkerId, until: Time, state: Activity, reason: Option<Reason>) {
        let track = self.track(worker);
        let from = track.recorded_until;
        if until > from {
            track.recorded_until = until;
            self.workers[worker.index()].push(Segment { from, to: until, state, reason });
            self.totals[worker.index()][state as usize] += until.since(from).seconds();
            self.shares.add(worker.index(), from, until, state);
        }
    }

    /// Ends the current segment now, without a report. A busy worker's segment becomes `busy_as`.
    fn end_segment(&mut self, worker: WorkerId, now: Time, busy_as: Activity, why: Option<Reason>) {
        match self.track(worker).state {
            WorkerActivityState::Absent => self.record_until(worker, now, Activity::Absent, None),
            WorkerActivityState::Idle(reason) => self.record_until(worker, now, Activity::Waiting, reason),
            WorkerActivityState::Busy { reason, .. } => self.record_until(worker, now, busy_as, why.or(Some(reason))),
        }
    }

    /// Adds segments for the time since the last one, from a worker's report. What was neither computing nor querying
    /// was communication; half of it is assumed to come before the computing.
    fn on_report(&mut self, worker: WorkerId, now: Time, report: &Report) {
        let WorkerActivityState::Busy { reason, .. } = self.track(worker).state else { return };
        let recorded_until = self.track(worker).recorded_until;
        let whole = now.since(recorded_until);
        let computing = Span(report.compute.0.min(whole.0));
        let querying = Span(report.querying.0.min(whole.0 - computing.0));
        let moving = Span(whole.0 - computing.0 - querying.0);
        let compute_start = recorded_until + Span(moving.0 / 2);
        self.record_until(worker, compute_start, Activity::Communicating, Some(reason));
        self.record_until(worker, compute_start + computing, Activity::Computing, Some(reason));
        self.record_until(worker, compute_start + computing + querying, Activity::Waiting, Some(reason));
        self.record_until(worker, now, Activity::Communicating, Some(reason));
    }

    fn on_change(&mut self, now: Time, event: &Event, change: ActivityChange<'_>) {
        match change {
            ActivityChange::Joined(worker) => {
                self.end_segment(worker, now, Activity::Dropped, None);
                self.track(worker).state = WorkerActivityState::Idle(None);
            }
            ActivityChange::Left(worker, _) => {
                self.end_segment(worker, now, Activity::Dropped, None);
                self.track(worker).state = WorkerActivityState::Absent;
            }
            ActivityChange::Reported(&TaskProgress { assignment: Assignment { task, .. }, .. }) => {
                if let Event::Reported { report, .. } = event {
                    self.on_report(task.worker, now, report);
                }
                let segments = self.workers[task.worker.index()].next();
                let track = self.track(task.worker);
                if let WorkerActivityState::Busy { first, .. } = track.state {
                    track.state = WorkerActivityState::Idle(None);
                    self.unsettled.insert(task, first..segments);
                }
            }
            ActivityChange::Interrupted(TaskProgress { assignment, .. }, reason) => {
                let worker = assignment.task.worker;
                self.end_segment(worker, now, Activity::Dropped, Some(reason));
                self.track(worker).state = WorkerActivityState::Idle(None);
            }
            ActivityChange::Started { task: &TaskProgress { assignment, reason, .. }, .. } => {
                let worker = assignment.task.worker;
                self.end_segment(worker, now, Activity::Dropped, None);
                let first = self.workers[worker.index()].next();
                self.track(worker).state = WorkerActivityState::Busy { reason, first };
            }
        }
    }

    fn on_decision(&mut self, now: Time, decision: &Decision) {
        let reason = decision.reason;
        match &decision.action {
            Action::Commit(Commit { updates, .. }) => {
                self.steps.push(TimelineStep { at: now, updates: updates.len(), reason });
                for update in updates.iter() {
                    self.unsettled.remove(&update.task);
                }
            }
            Action::Discard { task } => {
                let worker = task.worker.index();
                for number in self.unsettled.remove(task).unwrap_or_default() {
                    let Some(segment) = self.workers[worker].change(number) else { continue };
                    if segment.state == Activity::Computing {
                        (segment.state, segment.reason) = (Activity::Dropped, Some(reason));
                        let (from, to) = (segment.from, segment.to);
                        self.shares.change(worker, from, to, Activity::Computing, Activity::Dropped);
                        self.totals[worker][Activity::Computing as usize] -= to.since(from).seconds();
                        self.totals[worker][Activity::Dropped as usize] += to.since(from).seconds();
                    }
                }
            }
            Action::Hold { worker, .. } => {
                let track = self.track(*worker);
                if let WorkerActivityState::Idle(why) = &mut track.state {
                    *why = why.or(Some(reason));
                }
            }
            Action::Continue { task } | Action::Collect { task } => {
                if let WorkerActivityState::Busy { reason: why, .. } = &mut self.track(task.worker).state {
                    *why = reason;
                }
            }
            Action::Assign(_) | Action::Interrupt { .. } | Action::Wake { .. } => {}
        }
    }

    /// Ends all segments at the last event. Call it once, after all events.
    pub fn finish(&mut self) {
        for worker in 0..self.tracks.len() as u32 {
            self.end_segment(WorkerId(worker), self.end, Activity::Computing, None);
        }
    }
}

impl Timeline {
    /// Takes in an event and its decisions, and calls `on_change` for every change of what a worker does.
    pub fn observe(
        &mut self,
        now: Time,
        event: &Event,
        decisions: &[Decision],
        mut on_change: impl FnMut(ActivityChange<'_>),
    ) {
        self.end = now;
        if let Event::Asked { task, report, .. } = event {
            self.on_report(task.worker, now, report);
        }
        let mut activities = std::mem::take(&mut self.activities);
        activities.observe(now, event, decisions, |change| {
            self.on_change(now, event, change);
            on_change(change);
        });
        self.activities = activities;
        decisions.iter().for_each(|decision| self.on_decision(now, decision));
    }
}

impl Observer for Timeline {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.observe(now, event, decisions, |_| {});
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::{Ledger, SchemeSpec, Setup, Version, Work};

    /// Feeds events to a scheme, and returns the timeline.
    fn timeline_of(scheme: &str, events: &[(u64, Event)]) -> Timeline {
        let spec: SchemeSpec = scheme.parse().unwrap();
        let mut ledger = Ledger::new(spec.build(&Setup::new(2, 1)).unwrap());
        let mut timeline = Timeline::new(TimelineLimits::default());
        for (at, event) in events {
            let decisions = ledger.handle(Time(*at), event.clone()).unwrap().to_vec();
            timeline.on_turn(Time(*at), event, &decisions);
            for decision in &decisions {
                if let Action::Commit(Commit { version, .. }) = decision.action {
                    let confirmed = Event::Committed { version, aggregate: None };
                    let decisions = ledger.handle(Time(*at), confirmed.clone()).unwrap();
                    timeline.on_turn(Time(*at), &confirmed, decisions);
                }
            }
        }
        timeline.finish();
        timeline
    }

    fn states(segments: &ItemLog<Segment>) -> Vec<(u64, u64, Activity)> {
        segments.iter().map(|segment| (segment.from.0, segment.to.0, segment.state)).collect()
    }

    fn joined(worker: u32) -> Event {
        Event::Joined { worker: WorkerId(worker) }
    }

    fn report(worker: u32, number: u64, compute: u64) -> Event {
        let report = Report { compute: Span(compute), ..Report::default() };
        Event::Reported { task: TaskId { worker: WorkerId(worker), number }, report }
    }

    #[test]
    fn a_report_splits_time_into_activities() {
        let left = Event::Left { worker: WorkerId(1) };
        let timeline =
            timeline_of("bsp", &[(0, joined(0)), (0, joined(1)), (10, report(0, 0, 6)), (30, left), (50, joined(1))]);
        use Activity::*;
        assert_eq!(
            states(&timeline.workers[0]),
            [(0, 2, Communicating), (2, 8, Computing), (8, 10, Communicating), (10, 30, Waiting), (30, 50, Computing)]
        );
        assert_eq!(states(&timeline.workers[1]), [(0, 30, Dropped), (30, 50, Absent)]);
        assert_eq!(timeline.workers[0].iter().nth(3).unwrap().reason, Some(Reason::Contributed));
        let steps: Vec<(u64, usize)> = timeline.steps.iter().map(|step| (step.at.0, step.updates)).collect();
        assert_eq!(steps, [(30, 1)]);
    }

    #[test]
    fn unused_work_is_marked_as_dropped() {
        // Worker 1's first gradient is stale: worker 0's has been committed since.
        let events =
            [(0, joined(0)), (0, joined(1)), (10, report(0, 0, 10)), (15, report(1, 0, 15)), (16, report(0, 1, 6))];
        let timeline = timeline_of("backup:k=1,dispatch=push-wait", &events);
        assert_eq!(states(&timeline.workers[1])[0], (0, 15, Activity::Dropped));
        assert!(matches!(timeline.workers[1].iter().next().unwrap().reason, Some(Reason::Stale { .. })));
        assert_eq!(states(&timeline.workers[0]), [(0, 10, Activity::Computing), (10, 16, Activity::Computing)]);
        let interrupted = timeline_of("backup:k=1,dispatch=push-interrupt", &events[..3]);
        assert_eq!(states(&interrupted.workers[1]), [(0, 10, Activity::Dropped)]);
    }

    #[test]
    fn a_task_queued_behind_an_interrupted_one_is_shown() {
        let task = |number| TaskId { worker: WorkerId(0), number };
        let assign = |number, queued| {
            let (version, work) = (Version(0), Work::Gradient);
            let assignment = Assignment { task: task(number), version, work, samples: 1, offset: 0, queued };
            Decision { action: Action::Assign(assignment), reason: Reason::Free }
        };
        let interrupt = Decision { action: Action::Interrupt { task: task(0) }, reason: Reason::Contributed };
        let mut timeline = Timeline::new(TimelineLimits::default());
        timeline.on_turn(Time(0), &joined(0), &[assign(0, false), assign(1, true)]);
        timeline.on_turn(Time(10), &Event::Timer, &[interrupt]);
        timeline.on_turn(Time(30), &report(0, 1, 20), &[]);
        timeline.finish();
        assert_eq!(states(&timeline.workers[0]), [(0, 10, Activity::Dropped), (10, 30, Activity::Computing)]);
    }
}
