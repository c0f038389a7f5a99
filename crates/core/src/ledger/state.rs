//! The books: who is there, what everyone does, where every sample went.

use std::collections::{BTreeSet, VecDeque};

use super::law::{Law, Refusal};
use crate::{Assignment, CommitStep, LocalLength, Report, Share, TaskId, Time, Until, Update, Version, Work, WorkerId};

/// Where the samples of all assignments went. They always add up to `issued`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleCounts {
    /// Handed out.
    pub issued: u64,
    /// In committed updates.
    pub used: u64,
    /// In updates that arrived too late to be used.
    pub stale: u64,
    /// Lost to interruptions, discarded updates and workers that left.
    pub dropped: u64,
    /// Handed out again because work on them had not begun, or was broken off to send what was done before.
    pub reissued: u64,
    /// Being worked on, queued, or in updates that wait to be committed.
    pub outstanding: u64,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    assignment: Assignment,
    since: Time,
    /// Iterations handed out.
    handed_out: u32,
    /// Iterations done, as far as they were asked about.
    done: u32,
    /// It waits for an answer.
    waits: bool,
    /// It was told to send what it has.
    collected: bool,
}

impl Running {
    fn new(assignment: Assignment, since: Time) -> Self {
        let handed_out = assignment.work.handed_out();
        Running { assignment, since, handed_out, done: 0, waits: false, collected: false }
    }

    fn asks(&self) -> bool {
        self.assignment.work.length().is_some_and(LocalLength::asks)
    }

    fn samples(&self) -> u64 {
        samples_of(&self.assignment, self.handed_out)
    }
}

fn samples_of(assignment: &Assignment, iterations: u32) -> u64 {
    u64::from(assignment.samples) * u64::from(iterations)
}

fn queued_samples(assignment: &Assignment) -> u64 {
    samples_of(assignment, assignment.work.handed_out())
}

fn update_samples(update: &Update) -> u64 {
    u64::from(update.samples) * u64::from(update.iterations)
}

/// An update that waits to be settled.
#[derive(Debug, Clone, Copy)]
struct Arrived {
    update: Update,
    /// Newer work was queued behind it, so that the worker may have kept it.
    withheld: bool,
}

/// One worker's page.
#[derive(Debug, Default)]
struct Seat {
    present: bool,
    running: Option<Running>,
    queued: Option<Assignment>,
    arrived: Vec<Arrived>,
    hold: Option<Until>,
    /// Workers that are held until this one reports or leaves. May name some that are held no longer.
    waiters: Vec<WorkerId>,
    tasks: u64,
    drawn: u64,
}

impl Seat {
    fn is_idle(&self) -> bool {
        self.present && self.running.is_none()
    }
}

#[derive(Debug, Default)]
pub(super) struct LedgerState {
    seats: Vec<Seat>,
    pub(super) live: usize,
    working: usize,
    pub(super) version: Version,
    pub(super) samples: SampleCounts,
    commit_waiters: Vec<WorkerId>,
    timer_waiters: Vec<WorkerId>,
    pub(super) timers: BTreeSet<Time>,
    /// Workers that became idle, or whose wait ended, in this turn.
    unsettled: VecDeque<WorkerId>,
    /// Workers that were told to wait in this turn.
    newly_held: Vec<WorkerId>,
    /// The worker that asked in this turn.
    asker: Option<WorkerId>,
}

impl LedgerState {
    fn seat(&mut self, worker: WorkerId) -> &mut Seat {
        if worker.index() >= self.seats.len() {
            self.seats.resize_with(worker.index() + 1, Seat::default);
        }
        &mut self.seats[worker.index()]
    }

    pub(super) fn is_present(&self, worker: WorkerId) -> bool {
        self.seats.get(worker.index()).is_some_and(|seat| seat.present)
    }

    pub(super) fn is_idle(&self, worker: WorkerId) -> bool {
        self.seats.get(worker.index()).is_some_and(Seat::is_idle)
    }

    pub(super) fn running(&self, worker: WorkerId) -> Option<Assignment> {
        self.seats.get(worker.index())?.running.map(|running| running.assignment)
    }

    pub(super) fn hold(&self, worker: WorkerId) -> Option<Until> {
        self.seats.get(worker.index())?.hold
    }

    pub(super) fn is_settled(&self) -> bool {
        self.seats.iter().all(|seat| seat.arrived.is_empty())
    }

    pub(super) fn slots(&self) -> u32 {
        self.seats.len() as u32
    }

    // --- what drivers report ---

    pub(super) fn join(&mut self, worker: WorkerId) -> Result<(), Refusal> {
        let seat = self.seat(worker);
        if seat.present {
            return Err(Refusal::Present(worker));
        }
        seat.present = true;
        self.live += 1;
        self.unsettled.push_back(worker);
        Ok(())
    }

    pub(super) fn leave(&mut self, worker: WorkerId) -> Result<(), Refusal> {
        if !self.is_present(worker) {
            return Err(Refusal::Absent(worker));
        }
        if self.running(worker).is_some() {
            self.stop_running(worker);
        }
        let seat = self.seat(worker);
        let queued = seat.queued.take().map_or(0, |assignment| queued_samples(&assignment));
        let lost = queued + seat.arrived.drain(..).map(|arrived| update_samples(&arrived.update)).sum::<u64>();
        seat.present = false;
        seat.hold = None;
        self.samples.outstanding -= lost;
        self.samples.dropped += lost;
        self.live -= 1;
        self.release_waiters(worker);
        Ok(())
    }

    pub(super) fn report(&mut self, now: Time, task: TaskId, report: Report) -> Result<Update, Refusal> {
        let running = self.running_task(task)?;
        if running.asks() && !running.collected {
            return Err(Refusal::NotCollected(task));
        }
        let Running { assignment, since, handed_out, .. } = *running;
        let iterations = if running.asks() { running.done } else { handed_out };
        let Assignment { version, work, samples, .. } = assignment;
        let update = Update { task, version, work, samples, iterations, started: since, report };
        // What was begun after the last question came to nothing: those samples are still to be used.
        let void = samples_of(&assignment, handed_out - iterations);
        self.samples.outstanding -= void;
        self.samples.reissued += void;
        let seat = self.seat(task.worker);
        seat.drawn -= void;
        let withheld = seat.queued.is_some_and(|queued| queued.version > version);
        seat.arrived.push(Arrived { update, withheld });
        self.vacate(now, task.worker);
        self.release_waiters(task.worker);
        Ok(update)
    }

    /// A worker has done local iterations, one more than it last said or, if it repeats itself, as many.
    pub(super) fn ask(&mut self, task: TaskId, iterations: u32) -> Result<(), Refusal> {
        let running = self.running_task(task)?;
        let refuse = |expected| Refusal::NoQuestion { task, iterations, expected };
        let course = running.assignment.work.length();
        if !running.asks() {
            return Err(refuse("it is not to ask"));
        }
        if iterations != running.done && iterations != running.handed_out {
            return Err(refuse("it is to ask after each, and to go on when it may"));
        }
        if iterations == 0 {
            return Err(refuse("none is done"));
        }
        running.done = iterations;
        running.waits = course == Some(LocalLength::AskAndWait);
        if course == Some(LocalLength::AskAndContinue) {
            self.hand_out_next(task.worker);
        }
        self.asker = Some(task.worker);
        Ok(())
    }

    fn running_task(&mut self, task: TaskId) -> Result<&mut Running, Refusal> {
        let running = self.seats.get_mut(task.worker.index()).and_then(|seat| seat.running.as_mut());
        running.filter(|running| running.assignment.task == task).ok_or(Refusal::NotRunning(task))
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
        if !self.is_present(worker) {
            return Err(Law::AssignedToNobody { worker });
        }
        if samples == 0 || work.handed_out() == 0 {
            return Err(Law::NoSamples { worker });
        }
        let version = self.version;
        let seat = self.seat(worker);
        if seat.running.is_some_and(|running| running.asks()) {
            return Err(Law::QueuedBehindQuestions { worker });
        }
        // An assignment that was never started gives its samples back.
        let replaced = seat.queued.take();
        if let Some(replaced) = replaced {
            seat.drawn = replaced.offset;
        }
        let assignment = Assignment {
            task: TaskId { worker, number: seat.tasks },
            version,
            work,
            samples,
            offset: seat.drawn,
            queued: seat.running.is_some(),
        };
        let issued = queued_samples(&assignment);
        seat.tasks += 1;
        seat.drawn += issued;
        seat.hold = None;
        if assignment.queued {
            seat.queued = Some(assignment);
        } else {
            seat.running = Some(Running::new(assignment, now));
            self.working += 1;
        }
        if let Some(replaced) = replaced {
            self.samples.reissued += queued_samples(&replaced);
            self.samples.outstanding -= queued_samples(&replaced);
        }
        self.samples.issued += issued;
        self.samples.outstanding += issued;
        Ok(assignment)
    }

    /// Which task goes on because it was told so; `None` if it does by itself.
    pub(super) fn go_on(&mut self, worker: WorkerId) -> Result<Option<TaskId>, Law> {
        let asked = self.seat(worker).running.as_mut().filter(|running| running.asks() && running.done > 0);
        let running = asked.ok_or(Law::NothingAsked { worker })?;
        if running.assignment.work.length() == Some(LocalLength::AskAndContinue) {
            return Ok(None);
        }
        if !running.waits || running.collected {
            return Err(Law::NothingAsked { worker });
        }
        running.waits = false;
        let task = running.assignment.task;
        self.hand_out_next(worker);
        Ok(Some(task))
    }

    pub(super) fn collect(&mut self, worker: WorkerId) -> Result<TaskId, Law> {
        let seat = self.seat(worker);
        let asked = seat.running.as_mut().filter(|running| running.asks() && running.done > 0);
        let running = asked.ok_or(Law::NothingAsked { worker })?;
        let task = running.assignment.task;
        running.collected = true;
        if std::mem::take(&mut running.waits) && running.handed_out > running.done {
            // It was told to go on, did not hear it and asked again: the next batch was never begun.
            running.handed_out = running.done;
            let samples = u64::from(running.assignment.samples);
            seat.drawn -= samples;
            self.samples.reissued += samples;
            self.samples.outstanding -= samples;
        }
        Ok(task)
    }

    /// Makes sure that one iteration more is handed out than is done.
    fn hand_out_next(&mut self, worker: WorkerId) {
        let seat = self.seat(worker);
        let Some(running) = seat.running.as_mut().filter(|running| running.handed_out == running.done) else { return };
        let samples = u64::from(running.assignment.samples);
        running.handed_out += 1;
        seat.drawn += samples;
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

    /// Takes the updates out of the books and says with which weights, proportional to the samples of an iteration and
    /// adding up to one, they form the next version.
    pub(super) fn commit(&mut self, tasks: &[TaskId], step: CommitStep) -> Result<Vec<Share>, Law> {
        if tasks.is_empty() {
            return Err(Law::EmptyCommit);
        }
        let mut total = 0_u64;
        let mut taken = Vec::with_capacity(tasks.len());
        for &task in tasks {
            let Arrived { update, withheld } = self.take_arrived(task)?;
            if withheld {
                return Err(Law::Withheld { task });
            }
            let local = matches!(update.work, Work::Local(_));
            if local != matches!(step, CommitStep::Average { .. }) {
                return Err(Law::WrongStep { task, local });
            }
            total += u64::from(update.samples);
            self.samples.used += update_samples(&update);
            taken.push((task, update.samples));
        }
        taken.sort_unstable_by_key(|&(task, _)| task);
        self.version.0 += 1;
        let waiters = std::mem::take(&mut self.commit_waiters);
        self.end_waits(waiters, Until::Commit);
        let weight = |samples: u32| (f64::from(samples) / total as f64) as f32;
        Ok(taken.into_iter().map(|(task, samples)| Share { task, weight: weight(samples) }).collect())
    }

    pub(super) fn discard(&mut self, task: TaskId) -> Result<(), Law> {
        let update = self.take_arrived(task)?.update;
        if update.version < self.version {
            self.samples.stale += update_samples(&update);
        } else {
            self.samples.dropped += update_samples(&update);
        }
        Ok(())
    }

    pub(super) fn hold_until(&mut self, worker: WorkerId, until: Until) -> Result<(), Law> {
        if !self.is_idle(worker) {
            return Err(Law::HeldWhileNotIdle { worker });
        }
        self.seat(worker).hold = Some(until);
        match until {
            Until::Commit => self.commit_waiters.push(worker),
            Until::Timer => self.timer_waiters.push(worker),
            Until::Worker(other) => self.seat(other).waiters.push(worker),
        }
        self.newly_held.push(worker);
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
        while let Some(worker) = self.unsettled.pop_front() {
            if self.is_idle(worker) && self.hold(worker).is_none() {
                return Some(worker);
            }
        }
        None
    }

    /// The laws that must hold between turns: nobody forgotten, nobody waiting for what can't come.
    pub(super) fn close_turn(&mut self) -> Result<(), Law> {
        if let Some(worker) = self.next_unsettled() {
            return Err(Law::Forgotten { worker });
        }
        if let Some(worker) = self.asker.take()
            && self.seat(worker).running.is_some_and(|running| running.waits)
        {
            return Err(Law::Unanswered { worker });
        }
        while let Some(worker) = self.newly_held.pop() {
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

    /// The worker's task is off its hands: on to the queued one, or idle.
    fn vacate(&mut self, now: Time, worker: WorkerId) {
        self.seat(worker).running = None;
        self.working -= 1;
        self.start_queued(now, worker);
    }

    fn stop_running(&mut self, worker: WorkerId) {
        if let Some(running) = self.seat(worker).running.take() {
            self.working -= 1;
            self.samples.outstanding -= running.samples();
            self.samples.dropped += running.samples();
        }
    }

    fn start_queued(&mut self, now: Time, worker: WorkerId) {
        let seat = self.seat(worker);
        if let Some(assignment) = seat.queued.take() {
            seat.running = Some(Running::new(assignment, now));
            self.working += 1;
        } else {
            self.unsettled.push_back(worker);
        }
    }

    fn release_waiters(&mut self, worker: WorkerId) {
        let mut waiters = std::mem::take(&mut self.seat(worker).waiters);
        self.end_waits(waiters.drain(..), Until::Worker(worker));
        self.seat(worker).waiters = waiters;
    }

    fn end_waits(&mut self, waiters: impl IntoIterator<Item = WorkerId>, until: Until) {
        for waiter in waiters {
            if self.hold(waiter) == Some(until) {
                self.seat(waiter).hold = None;
                self.unsettled.push_back(waiter);
            }
        }
    }

    fn take_arrived(&mut self, task: TaskId) -> Result<Arrived, Law> {
        let arrived = self.seats.get_mut(task.worker.index()).map(|seat| &mut seat.arrived);
        let arrived = arrived.and_then(|arrived| {
            let position = arrived.iter().position(|arrived| arrived.update.task == task)?;
            Some(arrived.remove(position))
        });
        let arrived = arrived.ok_or(Law::NothingToSettle { task })?;
        self.samples.outstanding -= update_samples(&arrived.update);
        Ok(arrived)
    }
}
