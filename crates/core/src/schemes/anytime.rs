//! `anytime`: every worker iterates on a replica for the same time, then the replicas are averaged (Ferdinand and Draper,
//! 2018).
//!
//! The time is about as long as all workers together need for τ iterations each, on average, and such that as many workers
//! as possible end an iteration then. It begins for a worker when its model has arrived. A worker ends with the iteration
//! whose end is closest to its deadline. When everybody's deadline has passed, who is
//! still busy drops the iteration at hand; who has done none is interrupted, and its replica counts as standing still.

use serde::{Deserialize, Serialize};

use super::{SchemeEntry, SchemeError, Setting, SettingDefault, Settings, Setup, StepKind};
use crate::recent::RecentValues;
use crate::{
    CommitRequest, CommitStep, LocalLength, LocalWork, Question, Reason, ReplicaStart, RestoreError, Scheme, Span,
    TaskId, Time, Turn, Until, Update, Work, WorkerId,
};

/// How many iterations and rounds a worker's usual times are the medians of.
const RECENT: usize = 5;

/// A time that a worker reports counts as at most this many seconds, so that every deadline can come.
const LONGEST: f64 = 1e6;

/// How many mean iterations a round waits for workers that are still busy at their deadline.
const PATIENCE: f64 = 0.5;

/// A round takes this multiple of τ mean iterations at least …
const SHORTEST: f64 = 0.75;

/// … and this one at most.
const LONGEST_FACTOR: f64 = 4.0 / 3.0;

/// How many times between the two are compared.
const COMPARED: u32 = 32;

/// The time near `usual` in which workers with these iterations wait least, relative to it. Whoever is more than `patience` late
/// drops an iteration.
fn fitting_time(iterations: &[f64], usual: f64, patience: f64) -> f64 {
    let fit = |time: f64| {
        let (mut done, mut end) = (0.0, 0.0_f64);
        for &seconds in iterations {
            let count = (time / seconds).round();
            if count * seconds > time + patience {
                done += count - 1.0;
            } else {
                (done, end) = (done + count, end.max(count * seconds));
            }
        }
        // Of two times that fit equally well, the one closer to the usual time is taken.
        let distance = (time / usual).max(usual / time);
        let used = if end > 0.0 { done / end / (1.0 + 0.1 * (distance - 1.0)) } else { 0.0 };
        (used, end)
    };
    let factor = |step: u32| SHORTEST + (LONGEST_FACTOR - SHORTEST) * f64::from(step) / f64::from(COMPARED);
    let fits = (0..=COMPARED).map(|step| fit(usual * factor(step)));
    let (used, end) = fits.max_by(|a, b| a.0.total_cmp(&b.0)).expect("several times are compared");
    if used > 0.0 { end } else { usual }
}

/// One worker's iterations.
#[derive(Serialize, Deserialize)]
struct LocalPace {
    /// The seconds of its latest iterations.
    iterations: RecentValues,
    /// The seconds that its latest models took to arrive.
    delays: RecentValues,
    /// When its task was assigned.
    assigned: Time,
    /// When its present iteration began, as far as is known.
    #[serde(default)]
    since: Time,
    /// How many iterations it has done in this round.
    done: u32,
    /// Its update was requested.
    collected: bool,
}

impl LocalPace {
    fn new() -> Self {
        let recent = || RecentValues::new(RECENT);
        LocalPace {
            iterations: recent(),
            delays: recent(),
            assigned: Time::START,
            since: Time::START,
            done: 0,
            collected: false,
        }
    }

    /// Whether its update is on its way, or its present iteration is expected to end by this time.
    fn arrives_by(&self, last: Time) -> bool {
        let ends = self.iterations.median().map(|seconds| self.since + Span::from_seconds(seconds));
        self.collected || ends.is_some_and(|ends| ends <= last)
    }

    /// When it ends in a round of this time.
    fn deadline(&self, began: Time, time: Span) -> Time {
        began + Span::from_seconds(self.delays.median().unwrap_or(0.0)) + time
    }
}

#[derive(Serialize, Deserialize)]
struct Anytime {
    tau: f64,
    rate: f32,
    batch: u32,
    workers: Vec<LocalPace>,
    /// When the round began.
    began: Time,
    /// How long everybody works; `None` before anything is known.
    time: Option<Span>,
    /// When whoever is still busy ends.
    last: Time,
    /// This round's updates so far, and the iterations in them.
    arrived: Vec<(TaskId, u32)>,
    /// It is to be replaced. Not saved: who replaces it says so again.
    #[serde(skip)]
    retired: bool,
}

impl Anytime {
    fn worker(&mut self, worker: WorkerId) -> &mut LocalPace {
        while worker.index() >= self.workers.len() {
            self.workers.push(LocalPace::new());
        }
        &mut self.workers[worker.index()]
    }

    /// Plans the time of the round from what is known. A worker of unknown speed counts as standing still.
    fn plan(&mut self, turn: &mut Turn<'_>) {
        let paces = || turn.workers().filter_map(|worker| self.workers.get(worker.index()));
        let iterations: Vec<f64> = paces().filter_map(|pace| pace.iterations.median()).collect();
        let speed: f64 = iterations.iter().map(|seconds| 1.0 / seconds).sum();
        if speed <= 0.0 {
            return;
        }
        let iteration = turn.live() as f64 / speed;
        let time = Span::from_seconds(fitting_time(&iterations, self.tau * iteration, PATIENCE * iteration));
        let latest = paces().map(|pace| pace.deadline(self.began, time)).max().unwrap_or(self.began);
        self.last = latest + Span::from_seconds(PATIENCE * iteration);
        self.time = Some(time);
        self.wake(turn);
    }

    fn wake(&self, turn: &mut Turn<'_>) {
        turn.wake(Span(self.last.since(turn.now()).0.max(1)), Reason::RoundDeadline { at: self.last });
    }

    fn assign(&mut self, turn: &mut Turn<'_>, worker: WorkerId, reason: Reason) {
        let pace = self.worker(worker);
        (pace.assigned, pace.done, pace.collected) = (turn.now(), 0, false);
        pace.since = turn.now() + Span::from_seconds(pace.delays.median().unwrap_or(0.0));
        let work = LocalWork { start: ReplicaStart::Model, length: LocalLength::AskAndContinue };
        turn.assign_work(worker, Work::Local(work), self.batch, reason);
    }

    fn collect(&mut self, turn: &mut Turn<'_>, worker: WorkerId, deadline: Time) {
        self.worker(worker).collected = true;
        turn.collect(worker, Reason::RoundDeadline { at: deadline });
    }

    /// Everybody who has an update sends it; the others are interrupted. If nobody has one, the round is as much longer.
    fn end_work(&mut self, turn: &mut Turn<'_>) {
        let running: Vec<WorkerId> = turn.workers().filter(|&worker| turn.running(worker).is_some()).collect();
        let has_update = |worker: &WorkerId| self.workers[worker.index()].done > 0;
        if self.arrived.is_empty() && !running.iter().any(has_update) {
            self.last = turn.now() + Span::from_seconds(turn.now().since(self.began).seconds().min(LONGEST));
            self.wake(turn);
            return;
        }
        for worker in running {
            match &self.workers[worker.index()] {
                LocalPace { collected: true, .. } => {}
                LocalPace { done: 0, .. } => turn.interrupt(worker, Reason::RoundDeadline { at: self.last }),
                _ => self.collect(turn, worker, self.last),
            }
        }
        self.advance(turn);
    }

    /// Ends the round if nobody works any more, and settles every worker. Nobody waits for those who won't be in time.
    fn advance(&mut self, turn: &mut Turn<'_>) {
        let is_working = |worker: &WorkerId| turn.running(*worker).is_some();
        let working: Vec<WorkerId> = turn.workers().filter(is_working).collect();
        let in_time = |worker: &WorkerId| self.workers[worker.index()].arrives_by(self.last);
        let is_planned = self.time.is_some() && !self.arrived.is_empty();
        if is_planned && !working.is_empty() && !working.iter().any(in_time) {
            self.end_work(turn);
            return;
        }
        if !working.is_empty() || turn.live() == 0 {
            while let Some(worker) = turn.next_unsettled() {
                turn.hold(worker, Until::Commit, Reason::Contributed);
            }
            return;
        }
        let before = turn.version();
        self.average(turn);
        if !self.retired || turn.version() == before {
            self.begin(turn);
        }
    }

    /// Averages the replicas. Those of workers that have done nothing equal the model.
    fn average(&mut self, turn: &mut Turn<'_>) {
        if self.arrived.is_empty() {
            return;
        }
        let (tasks, iterations): (Vec<TaskId>, Vec<u32>) = self.arrived.drain(..).unzip();
        let iterations = iterations.into_iter().map(u64::from).sum();
        let rate = self.rate * tasks.len() as f32 / turn.live() as f32;
        let reason = Reason::Averaged { workers: tasks.len() as u32, iterations };
        turn.commit(CommitRequest::of(&tasks).step(CommitStep::Average { rate, share: 1.0 }), reason);
    }

    fn begin(&mut self, turn: &mut Turn<'_>) {
        (self.began, self.time) = (turn.now(), None);
        for worker in turn.workers().collect::<Vec<_>>() {
            self.assign(turn, worker, Reason::NewVersion);
        }
        self.plan(turn);
    }
}

impl Scheme for Anytime {
    fn retire(&mut self) {
        self.retired = true;
    }

    fn save(&self) -> Option<String> {
        serde_json::to_string(self).ok()
    }

    fn restore(&mut self, state: &str) -> Result<(), RestoreError> {
        *self = serde_json::from_str(state)?;
        Ok(())
    }

    fn on_joined(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        if turn.workers().all(|worker| turn.running(worker).is_none()) {
            (self.began, self.time) = (turn.now(), None);
        }
        self.assign(turn, worker, Reason::Joined);
    }

    fn on_left(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.arrived.retain(|(task, _)| task.worker != worker);
        self.advance(turn);
    }

    fn on_asked(&mut self, turn: &mut Turn<'_>, question: &Question) {
        let worker = question.task.worker;
        let seconds = question.report.compute.seconds().min(LONGEST);
        let pace = self.worker(worker);
        if question.iterations > pace.done {
            let is_new = pace.iterations.last().is_none();
            pace.iterations.push(seconds);
            if question.iterations == 1 {
                pace.delays.push((turn.now().since(pace.assigned).seconds() - seconds).clamp(0.0, LONGEST));
            }
            (pace.done, pace.since) = (question.iterations, turn.now());
            if is_new || self.time.is_none() {
                self.plan(turn);
            }
        }
        let (Some(time), pace) = (self.time, &self.workers[worker.index()]) else { return };
        let deadline = pace.deadline(self.began, time);
        let usual = pace.iterations.median().unwrap_or(0.0);
        if deadline.since(turn.now()).seconds() < 0.5 * usual {
            self.collect(turn, worker, deadline);
        }
    }

    fn on_reported(&mut self, turn: &mut Turn<'_>, update: &Update) {
        self.arrived.push((update.task, update.iterations));
        self.advance(turn);
    }

    fn on_timer(&mut self, turn: &mut Turn<'_>) {
        if self.time.is_some() && self.last <= turn.now() {
            self.end_work(turn);
        } else {
            self.advance(turn);
        }
    }
}

pub(super) const ENTRY: SchemeEntry = SchemeEntry::new(
    "anytime",
    "every worker iterates locally until a common deadline, then replicas are averaged",
    [124, 135, 255],
    build,
)
.stepping_by(StepKind::Averaged)
.settings(&[
    Setting::number("tau", "local iterations per worker and round, on average", 1.0, 1e6)
        .default(SettingDefault::Number(4.0)),
    Setting::number("rate", "global learning rate: how far the model moves towards the mean replica", 0.001, 1000.0)
        .default(SettingDefault::Number(1.5)),
])
.variants(&["tau=1", "tau=2.5,rate=0.5"]);

fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    Ok(Box::new(Anytime {
        tau: settings.number("tau")?,
        rate: settings.number("rate")? as f32,
        batch: setup.batch,
        workers: Vec::new(),
        began: Time::START,
        time: None,
        last: Time::START,
        arrived: Vec::new(),
        retired: false,
    }))
}
