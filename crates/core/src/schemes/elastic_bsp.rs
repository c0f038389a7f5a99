//! `elastic-bsp`: everyone runs freely up to the next barrier, which is put where waiting is least (Zhao et al., 2021).
//!
//! *Monitoring*: everyone runs freely until two iterations of each worker since the last barrier have been seen; the
//! second counts, for in the first all pull at once and get in each other's way. *Superstep*: from these intervals the
//! [planner](crate::barrier) gives each worker the iteration after which it waits; up to there everyone runs freely.
//! *Barrier*: once the last has pushed that iteration, all pull the same weights, and monitoring begins again.
//!
//! A plan is made anew when a worker comes or goes. A barrier that is badly overdue is moved to where everyone's present
//! iteration ends; if someone is silent even then, those who wait are let go until it is heard of or gone. However wrong
//! a prediction was, the next plan owes nothing to it.

use std::collections::BTreeSet;

use super::{Settings, Setup, SpecError};
use crate::barrier::{Planner, Progression};
use crate::free_running::{Clocks, FreeRunning, Gate, Request, Verdict};
use crate::interval::{Interval, IntervalRule};
use crate::{Reason, Scheme, Span, Time, WorkerId};

/// How many iterations of each worker monitoring sees.
const MONITORED: u32 = 2;

/// A barrier that is late by so many of the longest intervals is badly overdue.
const PATIENCE: u64 = 1;

/// A worker that has been on one iteration for so many of the longest intervals is silent.
const SILENCE: u64 = 4;

/// What is known of a worker.
#[derive(Debug, Clone, Default)]
struct Pace {
    present: bool,
    /// How many iterations monitoring has seen, [`MONITORED`] at most.
    monitored: u32,
    interval: Interval,
    /// Since when it has been on its present iteration; `None` while it waits.
    busy_since: Option<Time>,
    /// How many iterations it has to push before the barrier.
    before_barrier: u32,
}

/// A planned barrier.
#[derive(Debug)]
struct Plan {
    /// When it is to open.
    at: Time,
    /// How long the first to arrive is to wait.
    wait: Span,
    /// When it is badly overdue.
    deadline: Time,
    /// Who has been on one iteration for so long is silent.
    silence: Span,
    /// Who has not pushed all iterations before it.
    awaited: BTreeSet<WorkerId>,
}

impl Plan {
    /// One of those awaited: the first after `worker` in rank, cyclically, so that not all wait for the same one.
    fn awaited_after(&self, worker: WorkerId) -> Option<WorkerId> {
        self.awaited.range(worker..).next().or_else(|| self.awaited.first()).copied()
    }
}

struct ElasticBsp {
    /// The paper's R: how many iterations of each worker are looked ahead.
    horizon: u32,
    rule: IntervalRule,
    paces: Vec<Pace>,
    /// How many workers have not been monitored.
    unmonitored: u32,
    /// `None` while monitoring.
    plan: Option<Plan>,
    /// A plan was given up: those who wait for others may have to go on, or to wait for someone else.
    recall: bool,
    planner: Planner,
    /// The predictions; kept to be filled again.
    progressions: Vec<Progression>,
}

impl ElasticBsp {
    fn new(horizon: u32, rule: IntervalRule) -> Self {
        ElasticBsp {
            horizon,
            rule,
            paces: Vec::new(),
            unmonitored: 0,
            plan: None,
            recall: false,
            planner: Planner::new(),
            progressions: Vec::new(),
        }
    }

    fn pace(&mut self, worker: WorkerId) -> &mut Pace {
        &mut self.paces[worker.index()]
    }

    /// Has a worker be monitored again.
    fn forget(&mut self, worker: WorkerId) {
        if self.pace(worker).monitored == MONITORED {
            self.unmonitored += 1;
        }
        self.pace(worker).monitored = 0;
    }

    fn give_up_plan(&mut self) -> Option<Plan> {
        let plan = self.plan.take();
        self.recall |= plan.is_some();
        plan
    }

    /// Puts the barrier where waiting is least within `horizon` iterations of each worker.
    fn make_plan(&mut self, now: Time, horizon: u32) -> Plan {
        // Times are counted from now, so that even the longest of them can be added up.
        let longest = u64::MAX / (u64::from(horizon) + 1);
        let present = || self.paces.iter().filter(|pace| pace.present);
        self.progressions.clear();
        self.progressions.extend(present().map(|pace| {
            let interval = pace.interval.expected().0.clamp(1, longest);
            // Who has just pushed, or waits, is at the end of an iteration now; who is overdue may be at any moment.
            let next = pace.busy_since.map_or(0, |since| interval.saturating_sub(now.since(since).0));
            Progression { next, interval }
        }));
        let slowest = self.progressions.iter().map(|worker| worker.interval).max().unwrap_or(0);
        let times_slowest = |factor| Span(slowest.saturating_mul(factor));
        let barrier = self.planner.plan_progressions(&self.progressions, horizon);
        let barrier = barrier.expect("there are workers, and their times are in range");

        let at = now + Span(barrier.at);
        let mut awaited = BTreeSet::new();
        let present = (0..).zip(&mut self.paces).filter(|(_, pace)| pace.present);
        for ((rank, pace), planned) in present.zip(&barrier.iterations) {
            pace.before_barrier = if pace.busy_since.is_some() { *planned } else { planned - 1 };
            if pace.before_barrier > 0 {
                awaited.insert(WorkerId(rank));
            }
        }
        let (deadline, silence) = (at + times_slowest(PATIENCE), times_slowest(SILENCE));
        Plan { at, wait: Span(barrier.wait), deadline, silence, awaited }
    }

    /// All are at the barrier: monitoring begins.
    fn open_barrier(&mut self) {
        self.plan = None;
        self.paces.iter_mut().for_each(|pace| pace.monitored = 0);
        self.unmonitored = self.paces.iter().filter(|pace| pace.present).count() as u32;
    }
}

impl Gate for ElasticBsp {
    fn on_joined(&mut self, worker: WorkerId) {
        if worker.index() >= self.paces.len() {
            self.paces.resize_with(worker.index() + 1, Pace::default);
        }
        *self.pace(worker) = Pace { present: true, ..Pace::default() };
        self.unmonitored += 1;
        self.give_up_plan();
    }

    fn on_left(&mut self, worker: WorkerId) {
        self.forget(worker);
        self.unmonitored -= 1;
        self.pace(worker).present = false;
        self.give_up_plan();
    }

    fn on_push(&mut self, worker: WorkerId, now: Time) {
        let rule = self.rule;
        let pace = self.pace(worker);
        if let Some(since) = pace.busy_since.take() {
            pace.interval.observe(now.since(since), rule);
        }
        if pace.monitored < MONITORED {
            pace.monitored += 1;
            if pace.monitored == MONITORED {
                self.unmonitored -= 1;
            }
        }
        let Some(plan) = &mut self.plan else { return };
        let pace = &mut self.paces[worker.index()];
        pace.before_barrier -= 1;
        if pace.before_barrier == 0 {
            plan.awaited.remove(&worker);
        }
    }

    fn review(&mut self, now: Time) -> Request {
        // A badly overdue barrier is not put off further: whoever is there stays.
        let mut horizon = self.horizon;
        if self.plan.as_ref().is_some_and(|plan| now >= plan.deadline)
            && let Some(Plan { awaited, silence, .. }) = self.give_up_plan()
        {
            horizon = 1;
            for worker in awaited {
                if self.pace(worker).busy_since.is_some_and(|since| now.since(since) >= silence) {
                    self.forget(worker);
                }
            }
        }
        let mut wake = None;
        if self.plan.is_none() && self.unmonitored == 0 && self.paces.iter().any(|pace| pace.present) {
            let plan = self.make_plan(now, horizon);
            wake = Some((plan.deadline.since(now), Reason::BarrierDeadline { at: plan.at }));
            self.plan = Some(plan);
        }
        if self.plan.as_ref().is_some_and(|plan| plan.awaited.is_empty()) {
            self.open_barrier();
        }
        Request { recall: std::mem::take(&mut self.recall), wake }
    }

    fn admit(&mut self, worker: WorkerId, _clocks: &Clocks, now: Time) -> Verdict {
        let pace = &mut self.paces[worker.index()];
        let reason = match &self.plan {
            None => Reason::Monitoring { unmonitored: self.unmonitored },
            Some(plan) => match plan.awaited_after(worker).filter(|_| pace.before_barrier == 0) {
                Some(awaited) => {
                    let (at, wait, others) = (plan.at, plan.wait, plan.awaited.len() as u32);
                    return Verdict::Wait(awaited, Reason::AtBarrier { at, wait, others });
                }
                None => Reason::BeforeBarrier { iterations: pace.before_barrier, at: plan.at },
            },
        };
        pace.busy_since = Some(now);
        Verdict::Go(reason)
    }
}

pub(super) fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SpecError> {
    let horizon = settings.optional("r", 15, 1..=1_000_000)?;
    let rules = [("last", IntervalRule::Last), ("ema", IntervalRule::MovingAverage), ("median", IntervalRule::Median)];
    let rule = settings.choice("interval", &rules)?;
    Ok(Box::new(FreeRunning::new(ElasticBsp::new(horizon, rule), setup.batch)))
}
