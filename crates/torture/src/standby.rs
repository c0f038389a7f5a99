//! Servers that come and go: one serves, the others stand by for it. They agree by leases alone.
//!
//! Everything that a server does with the storage takes several steps, and its process may stand still between any two.

use paceline_core::{Span, Time};
use paceline_runtime::{HeldLease, NewestLease, WatchedLease};

use crate::fault_simulation::{FaultSimulation, ScheduledEvent, TortureFailure};
use crate::random::unit;
use crate::server::clock_of_leases;

/// How many times a lease is renewed, and looked at, before it would run out.
const RENEWALS: u64 = 4;

/// How long to wait before storage that failed is tried again.
const RETRY: Span = Span(100_000_000);

/// Every so many steps with the storage, one is slow.
const SLOW_STEPS: u64 = 6;

/// When a server that has ended by itself is started again.
pub(crate) const RESTART: Span = Span(5_000_000_000);

/// What a server does next with its lease, or with the one that it watches. Times are those before something was begun.
#[derive(Debug, Clone)]
pub(crate) enum LeaseStep {
    Renew,
    ReadBeforeRenewal(Time),
    WriteRenewal(Time, u64),
    Look,
    Read(Time),
    Judge(Time, NewestLease),
    Take(u64),
    Create(Time, u64),
}

impl FaultSimulation<'_> {
    /// The first server starts, and the others stand by.
    pub(crate) fn start_servers(&mut self) -> Result<(), TortureFailure> {
        if self.schedule.servers == 1 {
            return self.serve(0);
        }
        self.create_lease(0, 1, Time::START)?;
        (1..self.schedule.servers).for_each(|index| self.stand_by(index));
        Ok(())
    }

    /// Serves the run from its last checkpoint.
    fn serve(&mut self, index: usize) -> Result<(), TortureFailure> {
        let checkpoint = &self.storage.checkpoint;
        let history = self.servers[checkpoint.writer].history(checkpoint.events);
        self.servers[index].resume(self.now, &self.storage, history)
    }

    fn stand_by(&mut self, index: usize) {
        self.servers[index].watch = Some(WatchedLease::default());
        self.enqueue_lease(index, Span::ZERO, LeaseStep::Look);
    }

    /// Ends a server's process. It comes back after a while.
    pub(crate) fn end_server(&mut self, index: usize, back: Span) {
        let process = self.number();
        self.servers[index].end(process);
        let sessions = self.connections.iter().filter(|(_, connection)| connection.server == index);
        for session in sessions.map(|(&session, _)| session).collect::<Vec<_>>() {
            self.enqueue(self.now + Span::from_seconds(0.001), ScheduledEvent::ClosedAtWorker(session));
        }
        self.enqueue(self.now + back, ScheduledEvent::ServerBack(index, process));
    }

    /// A server is started again. In a run with a standby, it stands by.
    pub(crate) fn on_server_back(&mut self, index: usize, process: u64) -> Result<(), TortureFailure> {
        if self.servers[index].process != process {
            return Ok(());
        }
        if self.schedule.servers > 1 {
            self.stand_by(index);
            return Ok(());
        }
        self.serve(index)
    }

    /// Whether a server may decide now, as in a real run before every input. If its lease has run out, it tries to take the
    /// next one; if another server has that, it ends.
    pub(crate) fn may_decide(&mut self, index: usize) -> Result<bool, TortureFailure> {
        let now = self.now;
        let server = &mut self.servers[index];
        let lacks_storage = server.lacks_storage(now, &self.storage);
        let Some(lease) = &mut server.lease else { return Ok(true) };
        if lease.may_decide(clock_of_leases(now)) == Ok(false) {
            if lacks_storage {
                server.host.now = now + RETRY;
                self.enqueue(now + RETRY, ScheduledEvent::StallOver(index));
                return Ok(false);
            }
            if self.storage.create(lease.epoch() + 1, index, self.schedule.lease) {
                lease.on_created(clock_of_leases(now));
            } else {
                lease.on_created_by_another(self.storage.newest());
            }
        }
        if lease.may_decide(clock_of_leases(now)) != Ok(true) {
            self.end_server(index, RESTART);
            return Ok(false);
        }
        self.check_single_decider(index).map(|()| true)
    }

    /// The law of leases: only the holder of the newest one decides, and nobody else may.
    fn check_single_decider(&self, index: usize) -> Result<(), TortureFailure> {
        let epoch = |index: usize| self.servers[index].lease.as_ref().map_or(0, HeldLease::epoch);
        if epoch(index) != self.storage.epoch() {
            let (own, newest) = (epoch(index), self.storage.epoch());
            return Err(self.two_deciders(format!("server {index} decides under lease {own}, after lease {newest}")));
        }
        let may_decide = |other: &usize| {
            let lease = self.servers[*other].lease.as_ref();
            *other != index && lease.is_some_and(|lease| lease.may_decide(clock_of_leases(self.now)) == Ok(true))
        };
        match (0..self.servers.len()).find(may_decide) {
            Some(other) => {
                let leases = format!("leases {} and {}", epoch(index), epoch(other));
                Err(self.two_deciders(format!("servers {index} and {other} may both decide, under {leases}")))
            }
            None => Ok(()),
        }
    }

    fn two_deciders(&self, problem: String) -> TortureFailure {
        TortureFailure::TwoDeciders { problem, at: self.now }
    }

    fn enqueue_lease(&mut self, index: usize, after: Span, step: LeaseStep) {
        let process = self.servers[index].process;
        self.enqueue(self.now + after, ScheduledEvent::Lease(index, process, step));
    }

    /// The next step, after the time that the storage takes. As long as there are faults, that may be longer than a lease.
    fn continue_lease(&mut self, index: usize, step: LeaseStep) {
        let random = self.random([8, self.queued, index as u64]);
        let is_slow = self.now < self.faults_over && random.is_multiple_of(SLOW_STEPS);
        let longest = if is_slow { 3.0 * self.schedule.lease.seconds() } else { 0.02 };
        self.enqueue_lease(index, Span::from_seconds(0.001 + longest * unit(random)), step);
    }

    /// A server works on its lease, or on the one that it watches.
    pub(crate) fn on_lease_step(&mut self, index: usize, process: u64, step: LeaseStep) -> Result<(), TortureFailure> {
        let (now, interval) = (self.now, Span(self.schedule.lease.0 / RENEWALS));
        let server = &mut self.servers[index];
        if server.process != process {
            return Ok(());
        }
        if server.stalled_until > now {
            let event = ScheduledEvent::Lease(index, process, step);
            self.enqueue(self.servers[index].stalled_until, event);
            return Ok(());
        }
        let uses_storage =
            !matches!(step, LeaseStep::Renew | LeaseStep::Look | LeaseStep::Judge(..) | LeaseStep::Take(_));
        if uses_storage && server.lacks_storage(now, &self.storage) {
            // Storage that can't be reached lets a server wait, or fails at once.
            let until = server.storage_cut_until.max(self.storage.full_until);
            let waits = self.random([9, index as u64, 0]).is_multiple_of(2);
            let is_holder = self.servers[index].lease.is_some();
            match (waits, is_holder) {
                (true, _) => self.enqueue(until, ScheduledEvent::Lease(index, process, step)),
                (false, true) => self.enqueue_lease(index, interval, LeaseStep::Renew),
                (false, false) => self.enqueue_lease(index, interval, LeaseStep::Look),
            }
            return Ok(());
        }
        let clock = clock_of_leases(now);
        match (step, &mut server.lease, &mut server.watch) {
            (LeaseStep::Renew, Some(lease), _) => match lease.next_renewal(clock) {
                Some(_) => self.continue_lease(index, LeaseStep::ReadBeforeRenewal(now)),
                // The coordinator takes the next one.
                None if lease.may_decide(clock).is_ok() => self.enqueue_lease(index, interval, LeaseStep::Renew),
                None => {}
            },
            (LeaseStep::ReadBeforeRenewal(began), Some(lease), _) => {
                let (is_newest, epoch) = (lease.on_newest(self.storage.newest()), lease.epoch());
                if is_newest {
                    self.continue_lease(index, LeaseStep::WriteRenewal(began, epoch));
                }
            }
            (LeaseStep::WriteRenewal(began, epoch), Some(lease), _) => {
                let renewals = lease.next_renewal(clock_of_leases(began));
                if let Some(renewals) = renewals.filter(|_| lease.epoch() == epoch) {
                    self.storage.renew(epoch, renewals);
                    lease.on_written(clock_of_leases(began));
                }
                self.enqueue_lease(index, interval, LeaseStep::Renew);
            }
            (LeaseStep::Look, _, Some(_)) => self.continue_lease(index, LeaseStep::Read(now)),
            (LeaseStep::Read(before), _, Some(_)) => {
                let newest = self.storage.newest();
                self.continue_lease(index, LeaseStep::Judge(before, newest));
            }
            (LeaseStep::Judge(before, newest), _, Some(watch)) => {
                if watch.on_newest(newest, clock_of_leases(before), clock) {
                    let epoch = watch.next_epoch();
                    self.continue_lease(index, LeaseStep::Take(epoch));
                } else {
                    self.enqueue_lease(index, interval, LeaseStep::Look);
                }
            }
            (LeaseStep::Take(epoch), _, Some(_)) => self.continue_lease(index, LeaseStep::Create(now, epoch)),
            (LeaseStep::Create(began, epoch), _, Some(_)) => self.create_lease(index, epoch, began)?,
            _ => {}
        }
        Ok(())
    }

    /// A server creates the lease of this epoch and serves the run, unless another has created it.
    fn create_lease(&mut self, index: usize, epoch: u64, began: Time) -> Result<(), TortureFailure> {
        if !self.storage.create(epoch, index, self.schedule.lease) {
            self.stand_by(index);
            return Ok(());
        }
        let length = clock_of_leases(Time(self.schedule.lease.0));
        let server = &mut self.servers[index];
        (server.watch, server.lease) = (None, Some(HeldLease::new(epoch, length, clock_of_leases(began))));
        self.enqueue_lease(index, Span::ZERO, LeaseStep::Renew);
        self.serve(index)
    }
}
