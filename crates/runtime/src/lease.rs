//! Who may decide in a run that several coordinators could serve: whoever holds the run's lease.
//!
//! The folder `leases` of the run folder, or of the run in object storage, has an object for every lease there ever was,
//! numbered from 1: its **epoch**. An object can be created only once, so an epoch has one holder. The holder writes to its
//! object every now and then, and may decide for a while after the last time. A lease that ran out is not renewed: also its
//! holder needs the next one. Whoever waits for a lease to run out waits twice as long as its holder may decide, by its own
//! clock, and so no two may decide at a time. The rules are in `lease_rules`, for `paceline-torture` too.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use paceline_store::{FolderObjects, ObjectStorage, host_name};
use rustix::time::{ClockId, clock_gettime};

use crate::lease_rules::{HeldLease, LeaseFile, LeaseLost, NewestLease, WatchedLease};
use crate::run_folder::{RunFolderError, at};

/// The folder of the leases.
const LEASES: &str = "leases";

/// How many times a lease is renewed before it would run out.
const RENEWALS: u32 = 4;

/// How long to wait before storage that failed is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// Where the leases of the run in a folder are.
pub fn folder_leases(folder: &Path) -> Arc<dyn ObjectStorage> {
    // A lease need not survive a power cut: its holder does not.
    Arc::new(FolderObjects::unsynced(folder))
}

/// The lease of a run, held by this process. Clones are of the same lease.
#[derive(Debug, Clone)]
pub struct Lease {
    shared: Arc<SharedLease>,
    _thread: Arc<RenewalThread>,
}

#[derive(Debug)]
struct SharedLease {
    objects: Arc<dyn ObjectStorage>,
    length: Duration,
    state: Mutex<LeaseState>,
    ended: Condvar,
}

#[derive(Debug)]
struct LeaseState {
    held: HeldLease,
    has_ended: bool,
}

/// Renews a lease until it is dropped.
#[derive(Debug)]
struct RenewalThread {
    shared: Arc<SharedLease>,
    thread: Option<JoinHandle<()>>,
}

impl Lease {
    /// Takes the next lease of a run whose leases are in `objects`, and which nobody else serves. Its holder may decide for
    /// `length` after it was renewed.
    ///
    /// # Errors
    /// If the storage can't be written, or another process is faster.
    pub fn take(objects: &Arc<dyn ObjectStorage>, length: Duration) -> Result<Self, RunFolderError> {
        let newest = newest(&**objects).map_err(at(&objects.path(LEASES)))?;
        Lease::take_epoch(objects, newest.map_or(1, |(epoch, _)| epoch + 1), length)
    }

    fn take_epoch(objects: &Arc<dyn ObjectStorage>, epoch: u64, length: Duration) -> Result<Self, RunFolderError> {
        let began = now();
        create(&**objects, epoch, length).map_err(at(&objects.path(&object(epoch))))?;
        let state = LeaseState { held: HeldLease::new(epoch, length, began), has_ended: false };
        let (objects, state) = (objects.clone(), Mutex::new(state));
        let shared = Arc::new(SharedLease { objects, length, state, ended: Condvar::new() });
        let own = shared.clone();
        let thread = thread::Builder::new().name("lease".into()).spawn(move || own.renew_until_end());
        let thread = Some(thread.map_err(at(&shared.objects.path(LEASES)))?);
        Ok(Lease { shared: shared.clone(), _thread: Arc::new(RenewalThread { shared, thread }) })
    }

    /// The number of the lease. The next coordinator has a higher one.
    pub fn epoch(&self) -> u64 {
        self.shared.lock().held.epoch()
    }

    /// Returns when this process may decide. If the lease has run out, because the process stood still or the storage
    /// could not be written, that takes the next one.
    ///
    /// # Errors
    /// If another process has the next one.
    pub fn hold(&self) -> Result<(), LeaseLost> {
        loop {
            let mut state = self.shared.lock();
            if state.held.may_decide(now())? {
                return Ok(());
            }
            self.shared.take_next(&mut state.held);
            if state.held.may_decide(now())? {
                return Ok(());
            }
            drop(state);
            thread::sleep(RETRY);
        }
    }
}

impl SharedLease {
    fn lock(&self) -> MutexGuard<'_, LeaseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew_until_end(&self) {
        let mut state = self.lock();
        while !state.has_ended && state.held.may_decide(now()).is_ok() {
            drop(state);
            self.renew();
            let interval = self.length / RENEWALS;
            state = self.lock();
            if !state.has_ended {
                state = self.ended.wait_timeout(state, interval).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Renews the lease, unless it has run out. If the object can't be written, the lease runs out later. The coordinator
    /// does not wait for the storage.
    fn renew(&self) {
        let began = now();
        let held = self.lock().held.clone();
        let Some(renewals) = held.next_renewal(began) else { return };
        if newest(&*self.objects).is_ok_and(|newest| !self.lock().held.on_newest(newest)) {
            return;
        }
        let file = LeaseFile { renewals, ..LeaseFile::new(self.length) };
        if bytes(&file).and_then(|bytes| self.objects.put(&object(held.epoch()), bytes)).is_ok() {
            let mut state = self.lock();
            // The coordinator may have the next lease by now.
            if state.held.epoch() == held.epoch() {
                state.held.on_written(began);
            }
        }
    }

    /// Takes the next lease after the own one has run out.
    fn take_next(&self, held: &mut HeldLease) {
        let began = now();
        match create(&*self.objects, held.epoch() + 1, self.length) {
            Ok(()) => held.on_created(began),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                held.on_created_by_another(newest(&*self.objects).ok().flatten());
            }
            // It is tried again.
            Err(_) => {}
        }
    }
}

impl Drop for RenewalThread {
    fn drop(&mut self) {
        self.shared.lock().has_ended = true;
        self.shared.ended.notify_all();
        // A panic there is a bug; it has nothing to give back.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl LeaseFile {
    fn new(length: Duration) -> Self {
        let holder = format!("process {} on {}", std::process::id(), host_name());
        LeaseFile { seconds: length.as_secs_f64(), holder, renewals: 0 }
    }
}

fn bytes(file: &LeaseFile) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(file)?)
}

/// The time since the machine was started. It goes on while the machine sleeps, so a lease does not outlive a sleep.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The object of a lease.
fn object(epoch: u64) -> String {
    format!("{LEASES}/{epoch}")
}

/// Creates the object of a lease. Fails if there is one.
fn create(objects: &dyn ObjectStorage, epoch: u64, length: Duration) -> io::Result<()> {
    objects.create(&object(epoch), bytes(&LeaseFile::new(length))?)
}

/// The epoch of the newest lease, and what its object says, if it can be read.
fn newest(objects: &dyn ObjectStorage) -> io::Result<NewestLease> {
    let names = objects.list(LEASES)?;
    let epoch = |name: &String| name.rsplit('/').next().and_then(|number| number.parse::<u64>().ok());
    let newest = names.iter().filter_map(epoch).max();
    let file = |epoch: u64| serde_json::from_slice(&objects.get(&object(epoch)).ok()?).ok();
    Ok(newest.map(|epoch| (epoch, file(epoch))))
}

/// Watches the lease of a run that another process serves.
#[derive(Debug)]
pub struct LeaseWatch {
    objects: Arc<dyn ObjectStorage>,
    watched: WatchedLease,
}

impl LeaseWatch {
    /// Watches the run whose leases are in `objects`.
    pub fn new(objects: Arc<dyn ObjectStorage>) -> Self {
        LeaseWatch { objects, watched: WatchedLease::default() }
    }

    /// The holder of the lease, and how long it may decide after every renewal; `None` if the run has none.
    pub fn holder(&self) -> Option<(&str, Duration)> {
        self.watched.holder()
    }

    /// Whether the lease was renewed, or taken, since the watch began.
    pub fn was_renewed(&self) -> bool {
        self.watched.was_renewed()
    }

    /// Whether the lease has run out: nothing was written for twice as long as its holder may decide. To be called often.
    ///
    /// # Errors
    /// If the storage can't be read.
    pub fn has_run_out(&mut self) -> Result<bool, RunFolderError> {
        let before = now();
        let newest = newest(&*self.objects).map_err(at(&self.objects.path(LEASES)))?;
        Ok(self.watched.on_newest(newest, before, now()))
    }

    /// Takes the lease that follows the one that was seen last. Its holder may decide for `length` after it was renewed.
    ///
    /// # Errors
    /// If the storage can't be written, or another process is faster.
    pub fn take_next(&self, length: Duration) -> Result<Lease, RunFolderError> {
        Lease::take_epoch(&self.objects, self.watched.next_epoch(), length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    fn count(objects: &Arc<dyn ObjectStorage>) -> usize {
        objects.list(LEASES).unwrap().len()
    }

    #[test]
    fn a_lease_is_renewed_until_another_process_takes_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let objects = folder_leases(folder.path());
        let first = Lease::take(&objects, SHORT).unwrap();
        let mut watch = LeaseWatch::new(objects.clone());
        let began = now();
        while now() - began < 4 * SHORT {
            first.hold().unwrap();
            watch.has_run_out().unwrap();
            thread::sleep(SHORT / 10);
        }
        let second = Lease::take(&objects, SHORT).unwrap();
        assert!(second.epoch() > first.epoch());
        let lost = loop {
            if let Err(lost) = first.hold() {
                break lost;
            }
        };
        assert!(lost.to_string().contains(&format!("process {}", std::process::id())), "{lost}");
        second.hold().unwrap();
    }

    #[test]
    fn a_lease_that_ran_out_is_replaced_by_the_next_unless_somebody_else_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let objects = folder_leases(folder.path());
        let lease = Lease::take(&objects, Duration::from_secs(600)).unwrap();
        let run_out = |epoch| lease.shared.lock().held = HeldLease::new(epoch, now() / 2, Duration::ZERO);
        run_out(1);
        lease.hold().unwrap();
        assert_eq!((lease.epoch(), count(&objects)), (2, 2));
        run_out(2);
        create(&*objects, 3, SHORT).unwrap();
        assert!(lease.hold().is_err());
        assert!(lease.hold().is_err(), "it is lost for good");
        assert_eq!(count(&objects), 3);
    }

    #[test]
    fn a_lease_without_a_holder_runs_out_and_one_of_two_takes_it() {
        let folder = tempfile::tempdir().unwrap();
        let objects = folder_leases(folder.path());
        let mut watch = LeaseWatch::new(objects.clone());
        assert!(!watch.has_run_out().unwrap());
        assert_eq!(watch.holder(), None, "the run has no lease");
        drop(Lease::take(&objects, SHORT).unwrap());
        while !watch.has_run_out().unwrap() {
            thread::sleep(SHORT / 10);
        }
        let mut other = LeaseWatch::new(objects.clone());
        while !other.has_run_out().unwrap() {
            thread::sleep(SHORT / 10);
        }
        let taken = thread::scope(|scope| {
            let threads = [&watch, &other].map(|watch| scope.spawn(|| watch.take_next(SHORT)));
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(taken.iter().flatten().map(Lease::epoch).collect::<Vec<_>>(), [2]);
        assert!(watch.take_next(SHORT).is_err(), "however late");
    }
}
