//! Who may decide in a run that several coordinators could serve: whoever holds the run's lease.
//!
//! The folder `leases` of the run folder, or of the run in object storage, has an object for every lease there ever was,
//! numbered from 1: its **epoch**. An object can be created only once, so an epoch has one holder. The holder writes to its
//! object every now and then, and may decide for a while after the last time. A lease that ran out is not renewed: also its
//! holder needs the next one. Whoever waits for a lease to run out waits twice as long as its holder may decide, by its own
//! clock, and so no two may decide at a time.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use paceline_store::{FolderObjects, ObjectStorage, host_name};
use serde::{Deserialize, Serialize};

use crate::run_folder::{RunFolderError, at};

/// The folder of the leases.
const LEASES: &str = "leases";

/// How many times a lease is renewed before it would run out.
const RENEWALS: u32 = 4;

/// How long to wait before storage that failed is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// What the object of a lease says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LeaseFile {
    /// How long its holder may decide after it has written.
    pub(crate) seconds: f64,
    /// The process that holds it, and its host.
    pub(crate) holder: String,
    /// Counts how often it was renewed.
    renewals: u64,
}

/// Where the leases of the run in a folder are.
pub fn folder_leases(folder: &Path) -> Arc<dyn ObjectStorage> {
    // A lease need not survive a power cut: its holder does not.
    Arc::new(FolderObjects::unsynced(folder))
}

/// Another coordinator holds the run's lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("another coordinator has taken over the run{}", by.as_ref().map_or(String::new(), |by| format!(": {by}")))]
pub struct LeaseLost {
    /// The process that holds it, if it is known.
    pub by: Option<String>,
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
    epoch: u64,
    renewals: u64,
    valid_until: Instant,
    lost: Option<LeaseLost>,
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
        let began = Instant::now();
        create(&**objects, epoch, length).map_err(at(&objects.path(&object(epoch))))?;
        let state = LeaseState { epoch, renewals: 0, valid_until: began + length, lost: None, has_ended: false };
        let (objects, state) = (objects.clone(), Mutex::new(state));
        let shared = Arc::new(SharedLease { objects, length, state, ended: Condvar::new() });
        let own = shared.clone();
        let thread = thread::Builder::new().name("lease".into()).spawn(move || own.renew_until_end());
        let thread = Some(thread.map_err(at(&shared.objects.path(LEASES)))?);
        Ok(Lease { shared: shared.clone(), _thread: Arc::new(RenewalThread { shared, thread }) })
    }

    /// The number of the lease. The next coordinator has a higher one.
    pub fn epoch(&self) -> u64 {
        self.shared.lock().epoch
    }

    /// Returns when this process may decide. If the lease has run out, because the process stood still or the storage
    /// could not be written, that takes the next one.
    ///
    /// # Errors
    /// If another process has the next one.
    pub fn hold(&self) -> Result<(), LeaseLost> {
        loop {
            let mut state = self.shared.lock();
            if let Some(lost) = &state.lost {
                return Err(lost.clone());
            }
            if Instant::now() < state.valid_until {
                return Ok(());
            }
            self.shared.take_next(&mut state);
            let is_settled = state.lost.is_some() || Instant::now() < state.valid_until;
            drop(state);
            if !is_settled {
                thread::sleep(RETRY);
            }
        }
    }
}

impl SharedLease {
    fn lock(&self) -> MutexGuard<'_, LeaseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew_until_end(&self) {
        let mut state = self.lock();
        while !state.has_ended && state.lost.is_none() {
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
        let began = Instant::now();
        let mut state = self.lock();
        if began >= state.valid_until {
            return;
        }
        state.renewals += 1;
        let (epoch, renewals) = (state.epoch, state.renewals);
        drop(state);
        let found = newest(&*self.objects);
        if let Ok(Some((next, file))) = found
            && next > epoch
        {
            let mut state = self.lock();
            if next > state.epoch {
                state.lost = Some(LeaseLost { by: file.map(|file| file.holder) });
            }
            return;
        }
        let file = LeaseFile { renewals, ..LeaseFile::new(self.length) };
        if file.bytes().and_then(|bytes| self.objects.put(&object(epoch), bytes)).is_ok() {
            let mut state = self.lock();
            // The coordinator may have the next lease by now.
            if state.epoch == epoch {
                state.valid_until = began + self.length;
            }
        }
    }

    /// Takes the next lease after the own one has run out.
    fn take_next(&self, state: &mut LeaseState) {
        let began = Instant::now();
        match create(&*self.objects, state.epoch + 1, self.length) {
            Ok(()) => (state.epoch, state.renewals, state.valid_until) = (state.epoch + 1, 0, began + self.length),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let newest = newest(&*self.objects).ok().flatten();
                state.lost = Some(LeaseLost { by: newest.and_then(|(_, file)| file).map(|file| file.holder) });
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

    fn bytes(&self) -> io::Result<Vec<u8>> {
        Ok(serde_json::to_vec(self)?)
    }
}

/// The object of a lease.
fn object(epoch: u64) -> String {
    format!("{LEASES}/{epoch}")
}

/// Creates the object of a lease. Fails if there is one.
fn create(objects: &dyn ObjectStorage, epoch: u64, length: Duration) -> io::Result<()> {
    objects.create(&object(epoch), LeaseFile::new(length).bytes()?)
}

/// The epoch of the newest lease, and what its object says, if it can be read.
fn newest(objects: &dyn ObjectStorage) -> io::Result<Option<(u64, Option<LeaseFile>)>> {
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
    seen: Option<(u64, Option<LeaseFile>)>,
    since: Instant,
    was_renewed: bool,
}

impl LeaseWatch {
    /// Watches the run whose leases are in `objects`.
    pub fn new(objects: Arc<dyn ObjectStorage>) -> Self {
        LeaseWatch { objects, seen: None, since: Instant::now(), was_renewed: false }
    }

    /// The holder of the lease, and how long it may decide after every renewal; `None` if the run has none.
    pub fn holder(&self) -> Option<(&str, Duration)> {
        let (_, file) = self.seen.as_ref()?;
        let file = file.as_ref()?;
        Some((&file.holder, Duration::try_from_secs_f64(file.seconds).ok()?))
    }

    /// Takes the lease after the one that was seen last: whoever saw the same one run out is faster, or slower.
    ///
    /// # Errors
    /// As [`Lease::take`]; also if somebody has taken that one.
    pub fn take_next(&self, length: Duration) -> Result<Lease, RunFolderError> {
        Lease::take_epoch(&self.objects, self.seen.as_ref().map_or(1, |(epoch, _)| epoch + 1), length)
    }

    /// Whether the lease was renewed, or taken, since the watch began.
    pub fn was_renewed(&self) -> bool {
        self.was_renewed
    }

    /// Whether the lease has run out: nothing was written for twice as long as its holder may decide. To be called often.
    ///
    /// # Errors
    /// If the storage can't be read.
    pub fn has_run_out(&mut self) -> Result<bool, RunFolderError> {
        let now = newest(&*self.objects).map_err(at(&self.objects.path(LEASES)))?;
        if now != self.seen {
            self.was_renewed |= self.seen.is_some();
            (self.seen, self.since) = (now, Instant::now());
        }
        Ok(self.holder().is_some_and(|(_, length)| self.since.elapsed() > 2 * length))
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
        let began = Instant::now();
        while began.elapsed() < 4 * SHORT {
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
        lease.shared.lock().valid_until = Instant::now();
        lease.hold().unwrap();
        assert_eq!((lease.epoch(), count(&objects)), (2, 2));
        lease.shared.lock().valid_until = Instant::now();
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
