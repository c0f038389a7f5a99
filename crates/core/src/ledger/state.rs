//! The ledger's state: which workers have joined, what each of them does, and what became of every sample.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use super::law::{Law, Refusal};
use crate::{
    Assignment, Commit, CommitRequest, CommitStep, LocalLength, Report, Share, TaskId, Time, Until, Update, Version,
    Work, WorkerId,
};

/// What became of the samples of all assignments. The other counts always add up to `issued`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SampleCounts {
    /// Assigned.
    pub issued: u64,
    /// In committed updates.
    pub used: u64,
    /// In updates that arrived too late to be used.
    pub stale: u64,
    /// Lost to interruptions, discarded and broken updates and workers that left.
    pub dropped: u64,
    /// Assigned again, because work on them had not started or was stopped to send an earlier result.
    pub reissued: u64,
    /// In running or queued tasks, or in updates that are neither committed nor discarded yet.
    pub outstanding: u64,
}

/// A task that a worker is computing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct RunningTask {
    assignment: Assignment,
    since: Time,
    /// Iterations assigned so far.
    assigned: u32,
    /// Iterations done, as of the last question.
    done: u32,
    /// The worker waits for an answer.
    awaits_answer: bool,
    /// The update was requested with [`collect`](LedgerState::collect).
    collected: bool,
}

impl RunningTask {
    fn new(assignment: Assignment, since: Time) -> Self {
        let assigned = assignment.work.assigned_iterations();
        RunningTask { assignment, since, assigned, done: 0, awaits_answer: false, collected: false }
    }

    fn asks(&self) -> bool {
        self.assignment.work.length().is_some_and(LocalLength::asks)
    }

    fn samples(&self) -> u64 {
        samples_of(&self.assignment, self.assigned)
    }
}

fn samples_of(assignment: &Assignment, iterations: u32) -> u64 {
    u64::from(assignment.samples) * u64::from(iterations)
}

fn queued_samples(assignment: &Assignment) -> u64 {
    samples_of(assignment, assignment.work.assigned_iterations())
}

fn is_positive(value: f32) -> bool {
    value > 0.0 && value < f32::INFINITY
}

/// Sorts updates by rank. `slots` is above all ranks.
fn sort_by_rank(updates: &mut Vec<(TaskId, f64)>, slots: usize) {
    // With an update of most workers, each goes straight to its place.
    if updates.len() > slots / 4 {
        const NONE: u32 = u32::MAX;
        let mut places = vec![NONE; slots];
        let is_free = |(index, (task, _)): (u32, &(TaskId, f64))| {
            std::mem::replace(&mut places[task.worker.index()], index) == NONE
        };
        if (0..).zip(updates.iter()).all(is_free) {
            let mut by_rank = Vec::with_capacity(updates.len());
            by_rank.extend(places.iter().filter(|&&place| place != NONE).map(|&place| updates[place as usize]));
            *updates = by_rank;
            return;
        }
    }
    updates.sort_unstable_by_key(|&(task, _)| task);
}

/// An update's part of the sum of all weights.
fn share(task: TaskId, weight: f64, total: f64) -> Share {
    Share { task, weight: (weight / total) as f32 }
}

fn check_weight(share: &Share, weight: f64) -> Result<(), Law> {
    // A share may be too small for `f32`.
    let is_good = weight > 0.0 && is_positive(share.weight);
    if is_good { Ok(()) } else { Err(Law::BadWeight { task: share.task, weight }) }
}

/// An update that is neither committed nor discarded yet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct ArrivedUpdate {
    task: TaskId,
    version: Version,
    /// The samples of each iteration.
    samples: u32,
    iterations: u32,
    /// Whether it is the result of local iterations.
    local: bool,
    /// A newer version was queued behind the task, so the worker may not have sent the update.
    withheld: bool,
}

impl ArrivedUpdate {
    fn all_samples(&self) -> u64 {
        u64::from(self.samples) * u64::from(self.iterations)
    }
}

/// What one worker does.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
struct WorkerState {
    present: bool,
    running: Option<RunningTask>,
    queued: Option<Assignment>,
    arrived: Vec<ArrivedUpdate>,
    hold: Option<Until>,
    /// Workers that are held until this one reports or leaves. Some of them may no longer be held.
    waiters: Vec<WorkerId>,
    /// How many tasks were assigned.
    tasks: u64,
    /// How many samples of the worker's stream are used.
    drawn: u64,
}

impl WorkerState {
    fn is_idle(&self) -> bool {
        self.present && self.running.is_none()
    }
}

/// Workers that need a decision, in the order in which they came to need it. There are none between turns.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct UnsettledWorkers {
    workers: Vec<WorkerId>,
    /// How many of them are taken.
    #[serde(skip)]
    taken: usize,
}

impl UnsettledWorkers {
    fn push(&mut self, worker: WorkerId) {
        self.workers.push(worker);
    }

    fn take_first(&mut self) -> Option<WorkerId> {
        let Some(&first) = self.workers.get(self.taken) else {
            self.clear();
            return None;
        };
        self.taken += 1;
        Some(first)
    }

    fn clear(&mut self) {
        self.workers.clear();
        self.taken = 0;
    }
}

#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct LedgerState {
    workers: Vec<WorkerState>,
    pub(super) live: usize,
    working: usize,
    pub(super) version: Version,
    pub(super) samples: SampleCounts,
    /// The updates of commits that are not confirmed yet, oldest first, with their samples.
    unconfirmed: VecDeque<SmallVec<[(TaskId, u64); 1]>>,
    /// The updates of the last confirmed commit that are not broken, with their samples.
    confirmed: SmallVec<[(TaskId, u64); 1]>,
    commit_waiters: Vec<WorkerId>,
    timer_waiters: Vec<WorkerId>,
    pub(super) timers: BTreeSet<Time>,
    /// Workers that became idle, or whose wait ended, in this turn.
    unsettled: UnsettledWorkers,
    /// Workers that were held until another one reports, in this turn.
    #[serde(rename = "newly_held")]
    waiters_on_workers: Vec<WorkerId>,
    /// The worker that asked in this turn.
    asker: Option<WorkerId>,
}

impl LedgerState {
    #[inline]
    fn worker_mut(&mut self, worker: WorkerId) -> &mut WorkerState {
        if worker.index() >= self.workers.len() {
            self.workers.resize_with(worker.index() + 1, WorkerState::default);
        }
        &mut self.workers[worker.index()]
    }

    pub(super) fn is_present(&self, worker: WorkerId) -> bool {
        self.workers.get(worker.index()).is_some_and(|state| state.present)
    }

    pub(super) fn is_idle(&self, worker: WorkerId) -> bool {
        self.workers.get(worker.index()).is_some_and(WorkerState::is_idle)
    }

    pub(super) fn running(&self, worker: WorkerId) -> Option<Assignment> {
        self.workers.get(worker.index())?.running.map(|running| running.assignment)
    }

    pub(super) fn running_since(&self, worker: WorkerId) -> Option<Time> {
        self.workers.get(worker.index())?.running.map(|running| running.since)
    }

    pub(super) fn queued(&self, worker: WorkerId) -> Option<Assignment> {
        self.workers.get(worker.index())?.queued
    }

    pub(super) fn hold(&self, worker: WorkerId) -> Option<Until> {
        self.workers.get(worker.index())?.hold
    }

    pub(super) fn is_settled(&self) -> bool {
        self.workers.iter().all(|state| state.arrived.is_empty())
    }

    pub(super) fn outstanding(&self, worker: WorkerId) -> u64 {
        let Some(state) = self.workers.get(worker.index()) else { return 0 };
        let running = state.running.map_or(0, |running| running.samples());
        let queued = state.queued.map_or(0, |assignment| queued_samples(&assignment));
        running + queued + state.arrived.iter().map(ArrivedUpdate::all_samples).sum::<u64>()
    }

    pub(super) fn unsettled_workers(&self) -> Vec<WorkerId> {
        let unsettled = (0..).zip(&self.workers).filter(|(_, state)| !state.arrived.is_empty());
        unsettled.map(|(worker, _)| WorkerId(worker)).collect()
    }

    /// The workers that have joined, by rank.
    pub(super) fn members(&self) -> impl Iterator<Item = WorkerId> {
        (0..).map(WorkerId).zip(&self.workers).filter(|(_, state)| state.present).map(|(worker, _)| worker)
    }

    /// All workers leave, and nothing is expected any more. Versions, tasks and samples are counted on.
    pub(super) fn dismiss_all(&mut self) {
        for worker in self.members().collect::<Vec<_>>() {
            // It is a member, so it can leave.
            let _ = self.leave(worker);
        }
        self.unconfirmed.clear();
        self.commit_waiters.clear();
        self.timer_waiters.clear();
        self.timers.clear();
        self.unsettled.clear();
        self.workers.iter_mut().for_each(|state| state.waiters.clear());
    }

    // --- what drivers report ---

    pub(super) fn join(&mut self, worker: WorkerId) -> Result<(), Refusal> {
        let state = self.worker_mut(worker);
        if state.present {
            return Err(Refusal::AlreadyJoined(worker));
        }
        state.present = true;
        self.live += 1;
        self.unsettled.push(worker);
        Ok(())
    }

    pub(super) fn leave(&mut self, worker: WorkerId) -> Result<(), Refusal> {
        if !self.is_present(worker) {
            return Err(Refusal::NotJoined(worker));
        }
        if self.running(worker).is_some() {
            self.stop_running(worker);
        }
        let state = self.worker_mut(worker);
        let queued = state.queued.take().map_or(0, |assignment| queued_samples(&assignment));
        let lost = queued + state.arrived.drain(..).map(|arrived| arrived.all_samples()).sum::<u64>();
        state.present = false;
        state.hold = None;
        self.samples.outstanding -= lost;
        self.samples.dropped += lost;
        self.live -= 1;
        self.release_waiters(worker);
        Ok(())
    }

    #[inline]
    pub(super) fn report(&mut self, now: Time, task: TaskId, report: &Report) -> Result<Update, Refusal> {
        let state = self.workers.get_mut(task.worker.index()).ok_or(Refusal::NotRunning(task))?;
        let Some(running) = state.running.as_ref().filter(|running| running.assignment.task == task) else {
            return Err(Refusal::NotRunning(task));
        };
        if running.asks() && !running.collected {
            return Err(Refusal::NotCollected(task));
        }
        let &RunningTask { ref assignment, since, assigned, .. } = running;
        let iterations = if running.asks() { running.done } else { assigned };
        let &Assignment { version, work, samples, .. } = assignment;
        let samples = report.samples.unwrap_or(samples);
        // The iteration started after the last question was dropped: its samples are used again.
        let unused = samples_of(assignment, assigned - iterations);
        // What the worker used counts, not what it was assigned.
        let (expected, found) = (samples_of(assignment, iterations), u64::from(samples) * u64::from(iterations));
        self.samples.outstanding = self.samples.outstanding - unused - expected + found;
        self.samples.issued = self.samples.issued - expected + found;
        self.samples.reissued += unused;
        state.drawn -= unused;
        // What is queued has its place already.
        if state.queued.is_none() || found > expected {
            state.drawn = state.drawn - expected + found;
        }
        let withheld = state.queued.is_some_and(|queued| queued.version > version);
        let local = matches!(work, Work::Local(_));
        state.arrived.push(ArrivedUpdate { task, version, samples, iterations, local, withheld });
        state.running = None;
        self.working -= 1;
        if state.queued.is_some() {
            self.start_queued(now, task.worker);
        } else {
            self.unsettled.push(task.worker);
        }
        self.release_waiters(task.worker);
        Ok(Update { task, version, work, samples, iterations, started: since, report: *report })
    }

    /// A worker asks after a local iteration. `iterations` is one more than in its last question, or the same if the
    /// question is repeated.
    pub(super) fn ask(&mut self, task: TaskId, iterations: u32) -> Result<(), Refusal> {
        let running = self.running_task(task)?;
        let refuse = |expected| Refusal::UnexpectedQuestion { task, iterations, expected };
        let length = running.assignment.work.length();
        if !running.asks() {
            return Err(refuse("no question, since its number of iterations is fixed"));
        }
        if iterations != running.done && iterations != running.assigned {
            return Err(refuse("a question after each assigned iteration"));
        }
        if iterations == 0 {
            return Err(refuse("at least 1"));
        }
        running.done = iterations;
        running.awaits_answer = length == Some(LocalLength::AskAndWait);
        if length == Some(LocalLength::AskAndContinue) {
            self.assign_next_iteration(task.worker);
        }
        self.asker = Some(task.worker);
        Ok(())
    }

    pub(super) fn check_running(&mut self, task: TaskId) -> Result<(), Refusal> {
        self.running_task(task).map(|_| ())
    }

    fn running_task(&mut self, task: TaskId) -> Result<&mut RunningTask, Refusal> {
        let running = self.workers.get_mut(task.worker.index()).and_then(|state| state.running.as_mut());
        running.filter(|running| running.assignment.task == task).ok_or(Refusal::NotRunning(task))
    }

    /// The oldest unconfirmed commit was carried out.
    #[inline]
    pub(super) fn confirm(&mut self) {
        self.confirmed = self.unconfirmed.pop_front().unwrap_or_default();
    }

    /// The last confirmed commit left this update out.
    pub(super) fn leave_out(&mut self, task: TaskId) -> Result<(), Refusal> {
        let position = self.confirmed.iter().position(|&(committed, _)| committed == task);
        let (_, samples) = self.confirmed.swap_remove(position.ok_or(Refusal::NotCommitted(task))?);
        self.samples.used -= samples;
        self.samples.dropped += samples;
        Ok(())
    }

    pub(super) fn timer(&mut self, now: Time) {
        while self.timers.first().is_some_and(|&at| at <= now) {
            self.timers.pop_first();
        }
        let waiters = std::mem::take(&mut self.timer_waiters);
        self.end_waits(waiters, Until::Timer);
    }

    // --- what schemes do ---

    pub(super) fn assign(&mut self, now: Time, worker: WorkerId, work: Work, samples: u32) -> Result<Assignment, Law> {
        let Some(state) = self.workers.get_mut(worker.index()).filter(|state| state.present) else {
            return Err(Law::AssignedToAbsent { worker });
        };
        if samples == 0 || work.assigned_iterations() == 0 {
            return Err(Law::NoSamples { worker });
        }
        if state.running.is_some_and(|running| running.asks()) {
            return Err(Law::QueuedBehindQuestions { worker });
        }
        // The samples of an assignment that was never started are used again.
        if let Some(replaced) = &state.queued {
            state.drawn = replaced.offset;
            self.samples.reissued += queued_samples(replaced);
            self.samples.outstanding -= queued_samples(replaced);
        }
        let assignment = Assignment {
            task: TaskId { worker, number: state.tasks },
            version: self.version,
            work,
            samples,
            offset: state.drawn,
            queued: state.running.is_some(),
        };
        let issued = queued_samples(&assignment);
        state.tasks += 1;
        state.drawn += issued;
        state.hold = None;
        if assignment.queued {
            state.queued = Some(assignment);
        } else {
            state.running = Some(RunningTask::new(assignment, now));
            self.working += 1;
        }
        self.samples.issued += issued;
        self.samples.outstanding += issued;
        Ok(assignment)
    }

    /// The task to send [`Continue`](crate::Action::Continue) to; `None` if the worker continues without an answer.
    pub(super) fn continue_task(&mut self, worker: WorkerId) -> Result<Option<TaskId>, Law> {
        let asked = self.worker_mut(worker).running.as_mut().filter(|running| running.asks() && running.done > 0);
        let running = asked.ok_or(Law::NothingAsked { worker })?;
        if running.assignment.work.length() == Some(LocalLength::AskAndContinue) {
            return Ok(None);
        }
        if !running.awaits_answer || running.collected {
            return Err(Law::NothingAsked { worker });
        }
        running.awaits_answer = false;
        let task = running.assignment.task;
        self.assign_next_iteration(worker);
        Ok(Some(task))
    }

    pub(super) fn collect(&mut self, worker: WorkerId) -> Result<TaskId, Law> {
        let state = self.worker_mut(worker);
        let asked = state.running.as_mut().filter(|running| running.asks() && running.done > 0);
        let running = asked.ok_or(Law::NothingAsked { worker })?;
        let task = running.assignment.task;
        running.collected = true;
        if std::mem::take(&mut running.awaits_answer) && running.assigned > running.done {
            // The worker did not receive the last answer and asked again: it never started the next batch.
            running.assigned = running.done;
            let samples = u64::from(running.assignment.samples);
            state.drawn -= samples;
            self.samples.reissued += samples;
            self.samples.outstanding -= samples;
        }
        Ok(task)
    }

    /// Ensures that one more iteration is assigned than is done.
    fn assign_next_iteration(&mut self, worker: WorkerId) {
        let state = self.worker_mut(worker);
        let Some(running) = state.running.as_mut().filter(|running| running.assigned == running.done) else { return };
        let samples = u64::from(running.assignment.samples);
        running.assigned += 1;
        state.drawn += samples;
        self.samples.issued += samples;
        self.samples.outstanding += samples;
    }

    pub(super) fn interrupt(&mut self, now: Time, worker: WorkerId) -> Result<TaskId, Law> {
        let Some(assignment) = self.running(worker) else {
            return Err(Law::NothingToInterrupt { worker });
        };
        self.stop_running(worker);
        self.start_queued(now, worker);
        self.release_waiters(worker);
        Ok(assignment.task)
    }

    /// Removes the updates and returns the commit that makes the next version of them.
    pub(super) fn commit(&mut self, request: &CommitRequest) -> Result<Commit, Law> {
        let &CommitRequest { ref updates, step, rate_factor } = request;
        if updates.is_empty() {
            return Err(Law::EmptyCommit);
        }
        if !is_positive(rate_factor) {
            return Err(Law::BadRateFactor { rate_factor });
        }
        let (updates, used) = if let [(task, weight)] = updates[..] {
            let (weight, samples) = self.use_update(task, weight, step)?;
            let share = share(task, weight, weight);
            check_weight(&share, weight)?;
            (smallvec![share], smallvec![(task, samples)])
        } else {
            let mut weighted = Vec::with_capacity(updates.len());
            let mut used = Vec::with_capacity(updates.len());
            for &(task, weight) in updates {
                let (weight, samples) = self.use_update(task, weight, step)?;
                weighted.push((task, weight));
                used.push((task, samples));
            }
            sort_by_rank(&mut weighted, self.workers.len());
            let total = weighted.iter().map(|&(_, weight)| weight).sum();
            let mut shares = Vec::with_capacity(weighted.len());
            for (task, weight) in weighted {
                let share = share(task, weight, total);
                check_weight(&share, weight)?;
                shares.push(share);
            }
            (shares.into(), used.into())
        };
        self.unconfirmed.push_back(used);
        self.version.0 += 1;
        let waiters = std::mem::take(&mut self.commit_waiters);
        self.end_waits(waiters, Until::Commit);
        Ok(Commit { version: self.version, updates, step, rate_factor })
    }

    /// Takes an update for a commit. Returns its weight and its samples.
    #[inline]
    fn use_update(&mut self, task: TaskId, weight: Option<f64>, step: CommitStep) -> Result<(f64, u64), Law> {
        let update = self.take_arrived(task)?;
        if update.withheld {
            return Err(Law::Withheld { task });
        }
        if update.local != matches!(step, CommitStep::Average { .. } | CommitStep::Outer { .. }) {
            return Err(Law::WrongStep { task, local: update.local });
        }
        self.samples.used += update.all_samples();
        Ok((weight.unwrap_or(f64::from(update.samples)), update.all_samples()))
    }

    pub(super) fn discard(&mut self, task: TaskId) -> Result<(), Law> {
        let update = self.take_arrived(task)?;
        if update.version < self.version {
            self.samples.stale += update.all_samples();
        } else {
            self.samples.dropped += update.all_samples();
        }
        Ok(())
    }

    pub(super) fn hold_until(&mut self, worker: WorkerId, until: Until) -> Result<(), Law> {
        let Some(state) = self.workers.get_mut(worker.index()).filter(|state| state.is_idle()) else {
            return Err(Law::HeldWhileNotIdle { worker });
        };
        state.hold = Some(until);
        match until {
            Until::Commit => self.commit_waiters.push(worker),
            Until::Timer => self.timer_waiters.push(worker),
            Until::Worker(other) => {
                self.worker_mut(other).waiters.push(worker);
                self.waiters_on_workers.push(worker);
            }
        }
        Ok(())
    }

    pub(super) fn wake(&mut self, now: Time, at: Time) -> Result<(), Law> {
        if at <= now {
            return Err(Law::TimerInThePast { at, now });
        }
        self.timers.insert(at);
        Ok(())
    }

    pub(super) fn next_unsettled(&mut self) -> Option<WorkerId> {
        while let Some(worker) = self.unsettled.take_first() {
            if self.is_idle(worker) && self.hold(worker).is_none() {
                return Some(worker);
            }
        }
        None
    }

    /// Checks the laws that hold between turns: no worker is left idle, and none waits for what can't happen.
    #[inline]
    pub(super) fn close_turn(&mut self) -> Result<(), Law> {
        if let Some(worker) = self.next_unsettled() {
            return Err(Law::LeftIdle { worker });
        }
        if let Some(worker) = self.asker.take()
            && self.worker_mut(worker).running.is_some_and(|running| running.awaits_answer)
        {
            return Err(Law::Unanswered { worker });
        }
        while let Some(worker) = self.waiters_on_workers.pop() {
            match self.hold(worker) {
                Some(until @ Until::Worker(other)) if self.running(other).is_none() => {
                    return Err(Law::WaitsForNothing { worker, until });
                }
                _ => {}
            }
        }
        if self.working == 0 && self.timers.is_empty() {
            let stuck = self.commit_waiters.iter().copied().find_map(|worker| Some((worker, self.hold(worker)?)));
            if let Some((worker, until)) = stuck {
                return Err(Law::WaitsForNothing { worker, until });
            }
        }
        if self.timers.is_empty() {
            let until = Until::Timer;
            if let Some(&worker) = self.timer_waiters.iter().find(|&&worker| self.hold(worker) == Some(until)) {
                return Err(Law::WaitsForNothing { worker, until });
            }
        }
        Ok(())
    }

    // --- common steps ---

    fn stop_running(&mut self, worker: WorkerId) {
        if let Some(running) = self.worker_mut(worker).running.take() {
            self.working -= 1;
            self.samples.outstanding -= running.samples();
            self.samples.dropped += running.samples();
        }
    }

    /// Starts the queued task, or the worker becomes idle.
    fn start_queued(&mut self, now: Time, worker: WorkerId) {
        let state = self.worker_mut(worker);
        if let Some(assignment) = state.queued.take() {
            state.running = Some(RunningTask::new(assignment, now));
            self.working += 1;
        } else {
            self.unsettled.push(worker);
        }
    }

    #[inline]
    fn release_waiters(&mut self, worker: WorkerId) {
        if !self.worker_mut(worker).waiters.is_empty() {
            self.end_waits_for(worker);
        }
    }

    fn end_waits_for(&mut self, worker: WorkerId) {
        let mut waiters = std::mem::take(&mut self.worker_mut(worker).waiters);
        self.end_waits(waiters.drain(..), Until::Worker(worker));
        self.worker_mut(worker).waiters = waiters;
    }

    fn end_waits(&mut self, waiters: impl IntoIterator<Item = WorkerId>, until: Until) {
        for waiter in waiters {
            if self.hold(waiter) == Some(until) {
                self.worker_mut(waiter).hold = None;
                self.unsettled.push(waiter);
            }
        }
    }

    /// Removes an update that is committed or discarded.
    #[inline]
    fn take_arrived(&mut self, task: TaskId) -> Result<ArrivedUpdate, Law> {
        let arrived = self.workers.get_mut(task.worker.index()).map(|state| &mut state.arrived);
        let update = arrived.and_then(|arrived| {
            // Mostly it is the latest.
            arrived.pop_if(|update| update.task == task).or_else(|| {
                let position = arrived.iter().position(|update| update.task == task)?;
                // The order does not matter: updates are told apart by their tasks.
                Some(arrived.swap_remove(position))
            })
        });
        let Some(update) = update else { return Err(Law::NothingToSettle { task }) };
        self.samples.outstanding -= update.all_samples();
        Ok(update)
    }
}
