//! The books: who is there, what everyone does, where every sample went.

use std::collections::{BTreeSet, VecDeque};

use super::law::{Law, Refusal};
use crate::{Assignment, Report, Share, TaskId, Time, Until, Update, Version, WorkerId};

/// Where the samples of all assignments went. They always add up to `issued`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Samples {
    /// Handed out.
    pub issued: u64,
    /// In committed updates.
    pub used: u64,
    /// In updates that arrived too late to be used.
    pub stale: u64,
    /// Lost to interruptions, discarded updates and workers that left.
    pub dropped: u64,
    /// Handed out again before work on them began.
    pub reissued: u64,
    /// Being worked on, queued, or in updates that wait to be committed.
    pub outstanding: u64,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    assignment: Assignment,
    since: Time,
}

/// One worker's page.
#[derive(Debug, Default)]
struct Seat {
    present: bool,
    running: Option<Running>,
    queued: Option<Assignment>,
    arrived: Vec<Update>,
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
pub(super) struct Books {
    seats: Vec<Seat>,
    pub(super) live: usize,
    working: usize,
    pub(super) version: Version,
    pub(super) samples: Samples,
    commit_waiters: Vec<WorkerId>,
    timer_waiters: Vec<WorkerId>,
    pub(super) timers: BTreeSet<Time>,
    /// Workers that became idle, or whose wait ended, in this turn.
    unsettled: VecDeque<WorkerId>,
    /// Workers that were told to wait in this turn.
    newly_held: Vec<WorkerId>,
}

impl Books {
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
        let queued = seat.queued.take().map_or(0, |assignment| u64::from(assignment.samples));
        let lost = queued + seat.arrived.drain(..).map(|update| u64::from(update.samples)).sum::<u64>();
        seat.present = false;
        seat.hold = None;
        self.samples.outstanding -= lost;
        self.samples.dropped += lost;
        self.live -= 1;
        self.release_waiters(worker);
        Ok(())
    }

    pub(super) fn report(&mut self, now: Time, task: TaskId, report: Report) -> Result<Update, Refusal> {
        let worker = task.worker;
        let Some(Running { assignment, since }) = self
            .seats
            .get(worker.index())
            .and_then(|seat| seat.running)
            .filter(|running| running.assignment.task == task)
        else {
            return Err(Refusal::NotRunning(task));
        };
        let update = Update { task, version: assignment.version, samples: assignment.samples, started: since, report };
        self.seat(worker).arrived.push(update);
        self.vacate(now, worker);
        self.release_waiters(worker);
        Ok(update)
    }

    pub(super) fn timer(&mut self, now: Time) {
        while self.timers.first().is_some_and(|&at| at <= now) {
            self.timers.pop_first();
        }
        let waiters = std::mem::take(&mut self.timer_waiters);
        self.end_waits(waiters, Until::Timer);
    }

    // --- what schemes do ---

    pub(super) fn assign(&mut self, now: Time, worker: WorkerId, samples: u32) -> Result<Assignment, Law> {
        if !self.is_present(worker) {
            return Err(Law::AssignedToNobody { worker });
        }
        if samples == 0 {
            return Err(Law::NoSamples { worker });
        }
        let version = self.version;
        let seat = self.seat(worker);
        // An assignment that was never started gives its samples back.
        let replaced = seat.queued.take();
        if let Some(replaced) = replaced {
            seat.drawn = replaced.offset;
        }
        let assignment = Assignment {
            task: TaskId { worker, number: seat.tasks },
            version,
            samples,
            offset: seat.drawn,
            queued: seat.running.is_some(),
        };
        seat.tasks += 1;
        seat.drawn += u64::from(samples);
        seat.hold = None;
        if assignment.queued {
            seat.queued = Some(assignment);
        } else {
            seat.running = Some(Running { assignment, since: now });
            self.working += 1;
        }
        if let Some(replaced) = replaced {
            self.samples.reissued += u64::from(replaced.samples);
            self.samples.outstanding -= u64::from(replaced.samples);
        }
        self.samples.issued += u64::from(samples);
        self.samples.outstanding += u64::from(samples);
        Ok(assignment)
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

    /// Takes the updates out of the books and says with which weights, proportional to their samples and adding up to
    /// one, they form the next version.
    pub(super) fn commit(&mut self, tasks: &[TaskId]) -> Result<Vec<Share>, Law> {
        if tasks.is_empty() {
            return Err(Law::EmptyCommit);
        }
        let mut total = 0_u64;
        let mut taken = Vec::with_capacity(tasks.len());
        for &task in tasks {
            let update = self.take_arrived(task)?;
            total += u64::from(update.samples);
            taken.push((task, update.samples));
        }
        taken.sort_unstable_by_key(|&(task, _)| task);
        self.samples.used += total;
        self.version.0 += 1;
        let waiters = std::mem::take(&mut self.commit_waiters);
        self.end_waits(waiters, Until::Commit);
        let weight = |samples: u32| (f64::from(samples) / total as f64) as f32;
        Ok(taken.into_iter().map(|(task, samples)| Share { task, weight: weight(samples) }).collect())
    }

    pub(super) fn discard(&mut self, task: TaskId) -> Result<(), Law> {
        let update = self.take_arrived(task)?;
        if update.version < self.version {
            self.samples.stale += u64::from(update.samples);
        } else {
            self.samples.dropped += u64::from(update.samples);
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
            self.samples.outstanding -= u64::from(running.assignment.samples);
            self.samples.dropped += u64::from(running.assignment.samples);
        }
    }

    fn start_queued(&mut self, now: Time, worker: WorkerId) {
        let seat = self.seat(worker);
        if let Some(assignment) = seat.queued.take() {
            seat.running = Some(Running { assignment, since: now });
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

    fn take_arrived(&mut self, task: TaskId) -> Result<Update, Law> {
        let arrived = self.seats.get_mut(task.worker.index()).map(|seat| &mut seat.arrived);
        let update = arrived.and_then(|arrived| {
            let position = arrived.iter().position(|update| update.task == task)?;
            Some(arrived.remove(position))
        });
        let update = update.ok_or(Law::NothingToSettle { task })?;
        self.samples.outstanding -= u64::from(update.samples);
        Ok(update)
    }
}
