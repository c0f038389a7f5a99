//! `elastic-bsp`: workers run freely up to the next barrier, which is planned for the shortest wait (Zhao et al.,
//! 2021).
//!
//! *Monitoring*: workers run freely until each of them has pushed two iterations since the last barrier. The second one
//! is measured, since in the first all workers pull at once and slow each other down. *Superstep*: from these intervals
//! the [planner](crate::barrier) chooses the iteration after which each worker waits. Up to there workers run freely.
//! *Barrier*: when the last worker has pushed its iteration, all workers pull the same version, and monitoring begins
//! again.
//!
//! When a worker joins or leaves, a new plan is made. A barrier that is overdue is planned again for the end of every
//! worker's present iteration. If a worker is silent even then, it is monitored again and the waiting workers run
//! freely until it pushes or leaves. A wrong prediction therefore affects one plan only.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{SchemeEntry, SchemeError, Setting, SettingDefault, Settings, Setup, UpperBound};
use crate::barrier::{Planner, Progression};
use crate::free_running::{Admission, Clocks, FreeRunning, Gate, GateRequest};
use crate::interval::{Interval, IntervalEstimator};
use crate::{Reason, Scheme, Span, Time, Update, WorkerId};

/// How many iterations of each worker are monitored.
const MONITORED: u32 = 2;

/// A barrier is overdue this multiple of the longest interval after its planned time.
const OVERDUE_AFTER: u64 = 1;

/// A worker is silent when one iteration takes this multiple of the longest interval.
const SILENT_AFTER: u64 = 4;

/// One worker's state.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct WorkerProgress {
    present: bool,
    /// How many iterations are monitored so far, [`MONITORED`] at most.
    monitored: u32,
    interval: Interval,
    /// When the present iteration started; `None` while the worker waits.
    busy_since: Option<Time>,
    /// How many iterations the worker still has to push before the barrier.
    before_barrier: u32,
}

/// A planned barrier.
#[derive(Debug, Serialize, Deserialize)]
struct BarrierPlan {
    /// When the barrier opens.
    at: Time,
    /// How long the first worker to arrive waits.
    wait: Span,
    /// When the barrier is overdue.
    deadline: Time,
    /// A worker that takes this long for one iteration is silent.
    silence: Span,
    /// The workers that still have to push iterations before the barrier.
    awaited: BTreeSet<WorkerId>,
}

impl BarrierPlan {
    /// One of the awaited workers: the first after `worker` in rank, cyclically, so that waits are spread over them.
    fn awaited_after(&self, worker: WorkerId) -> Option<WorkerId> {
        self.awaited.range(worker..).next().or_else(|| self.awaited.first()).copied()
    }
}

#[derive(Serialize, Deserialize)]
struct ElasticBsp {
    /// How many iterations of each worker a plan looks ahead (the paper's R).
    horizon: u32,
    estimator: IntervalEstimator,
    workers: Vec<WorkerProgress>,
    /// How many workers are not fully monitored yet.
    unmonitored: u32,
    /// `None` while monitoring.
    plan: Option<BarrierPlan>,
    /// A plan was dropped, so waiting workers must be admitted or held again.
    readmit: bool,
    #[serde(skip)]
    planner: Planner,
    /// The predictions; a buffer that is kept between plans.
    #[serde(skip)]
    progressions: Vec<Progression>,
}

impl ElasticBsp {
    fn new(horizon: u32, estimator: IntervalEstimator) -> Self {
        ElasticBsp {
            horizon,
            estimator,
            workers: Vec::new(),
            unmonitored: 0,
            plan: None,
            readmit: false,
            planner: Planner::new(),
            progressions: Vec::new(),
        }
    }

    fn worker_mut(&mut self, worker: WorkerId) -> &mut WorkerProgress {
        &mut self.workers[worker.index()]
    }

    /// Monitors a worker again.
    fn restart_monitoring(&mut self, worker: WorkerId) {
        if self.worker_mut(worker).monitored == MONITORED {
            self.unmonitored += 1;
        }
        self.worker_mut(worker).monitored = 0;
    }

    fn drop_plan(&mut self) -> Option<BarrierPlan> {
        let plan = self.plan.take();
        self.readmit |= plan.is_some();
        plan
    }

    /// Plans the barrier with the shortest wait within `horizon` iterations of each worker.
    fn make_plan(&mut self, now: Time, horizon: u32) -> BarrierPlan {
        // Times count from now, so that even the longest intervals can be added up.
        let longest = u64::MAX / (u64::from(horizon) + 1);
        let present = || self.workers.iter().filter(|state| state.present);
        self.progressions.clear();
        self.progressions.extend(present().map(|state| {
            let interval = state.interval.expected().0.clamp(1, longest);
            // A worker that has just pushed, or waits, ends an iteration now. An overdue one may end at any moment.
            let next = state.busy_since.map_or(0, |since| interval.saturating_sub(now.since(since).0));
            Progression { next, interval }
        }));
        let slowest = self.progressions.iter().map(|worker| worker.interval).max().unwrap_or(0);
        let times_slowest = |factor| Span(slowest.saturating_mul(factor));
        let barrier = self.planner.plan_progressions(&self.progressions, horizon);
        let barrier = barrier.expect("at least one worker, and all times in range");

        let at = now + Span(barrier.at);
        let mut awaited = BTreeSet::new();
        let present = (0..).zip(&mut self.workers).filter(|(_, state)| state.present);
        for ((rank, state), planned) in present.zip(&barrier.iterations) {
            state.before_barrier = if state.busy_since.is_some() { *planned } else { planned - 1 };
            if state.before_barrier > 0 {
                awaited.insert(WorkerId(rank));
            }
        }
        let (deadline, silence) = (at + times_slowest(OVERDUE_AFTER), times_slowest(SILENT_AFTER));
        BarrierPlan { at, wait: Span(barrier.wait), deadline, silence, awaited }
    }

    /// Opens the barrier, at which all workers have arrived. Monitoring begins.
    fn open_barrier(&mut self) {
        self.plan = None;
        self.workers.iter_mut().for_each(|state| state.monitored = 0);
        self.unmonitored = self.workers.iter().filter(|state| state.present).count() as u32;
    }
}

impl Gate for ElasticBsp {
    fn on_joined(&mut self, worker: WorkerId) {
        if worker.index() >= self.workers.len() {
            self.workers.resize_with(worker.index() + 1, WorkerProgress::default);
        }
        *self.worker_mut(worker) = WorkerProgress { present: true, ..WorkerProgress::default() };
        self.unmonitored += 1;
        self.drop_plan();
    }

    fn on_left(&mut self, worker: WorkerId) {
        self.restart_monitoring(worker);
        self.unmonitored -= 1;
        self.worker_mut(worker).present = false;
        self.drop_plan();
    }

    fn on_push(&mut self, update: &Update, now: Time) {
        let worker = update.task.worker;
        let estimator = self.estimator;
        let state = self.worker_mut(worker);
        if let Some(since) = state.busy_since.take() {
            state.interval.observe(now.since(since), estimator);
        }
        if state.monitored < MONITORED {
            state.monitored += 1;
            if state.monitored == MONITORED {
                self.unmonitored -= 1;
            }
        }
        let Some(plan) = &mut self.plan else { return };
        let state = &mut self.workers[worker.index()];
        state.before_barrier -= 1;
        if state.before_barrier == 0 {
            plan.awaited.remove(&worker);
        }
    }

    fn review(&mut self, now: Time) -> GateRequest {
        // The new plan of an overdue barrier looks one iteration ahead, so workers at the barrier stay there.
        let mut horizon = self.horizon;
        if self.plan.as_ref().is_some_and(|plan| now >= plan.deadline)
            && let Some(BarrierPlan { awaited, silence, .. }) = self.drop_plan()
        {
            horizon = 1;
            for worker in awaited {
                if self.worker_mut(worker).busy_since.is_some_and(|since| now.since(since) >= silence) {
                    self.restart_monitoring(worker);
                }
            }
        }
        let mut wake = None;
        if self.plan.is_none() && self.unmonitored == 0 && self.workers.iter().any(|state| state.present) {
            let plan = self.make_plan(now, horizon);
            wake = Some((plan.deadline.since(now), Reason::BarrierDeadline { at: plan.at }));
            self.plan = Some(plan);
        }
        if self.plan.as_ref().is_some_and(|plan| plan.awaited.is_empty()) {
            self.open_barrier();
        }
        GateRequest { readmit: std::mem::take(&mut self.readmit), wake }
    }

    fn admit(&mut self, worker: WorkerId, _clocks: &Clocks, now: Time) -> Admission {
        let state = &mut self.workers[worker.index()];
        let reason = match &self.plan {
            None => Reason::Monitoring { unmonitored: self.unmonitored },
            Some(plan) => match plan.awaited_after(worker).filter(|_| state.before_barrier == 0) {
                Some(awaited) => {
                    let (at, wait, others) = (plan.at, plan.wait, plan.awaited.len() as u32);
                    return Admission::Wait(awaited, Reason::AtBarrier { at, wait, others });
                }
                None => Reason::BeforeBarrier { iterations: state.before_barrier, at: plan.at },
            },
        };
        state.busy_since = Some(now);
        Admission::Start(reason)
    }
}

pub(super) const ENTRY: SchemeEntry = SchemeEntry::new(
    "elastic-bsp",
    "apply updates on arrival up to a barrier, planned for the shortest predicted wait",
    [255, 76, 2],
    build,
)
.settings(&[
    Setting::count("r", "iterations of each worker to look ahead for the barrier", 1, UpperBound::Value(1_000_000))
        .default(SettingDefault::Count(15)),
    Setting::choice(
        "interval",
        "how the next interval is predicted: the last one, or a mean of the last 5",
        &["last", "ema", "median"],
    ),
])
.variants(&["r=1", "r=4,interval=ema", "r=20,interval=median"]);

fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    let horizon = settings.count("r")?;
    let estimators = [IntervalEstimator::Last, IntervalEstimator::MovingAverage, IntervalEstimator::Median];
    let estimator = settings.choice("interval", estimators)?;
    Ok(Box::new(FreeRunning::new(ElasticBsp::new(horizon, estimator), setup.batch)))
}
