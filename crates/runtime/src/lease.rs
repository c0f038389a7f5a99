//! Who may decide in a run that several coordinators could serve: whoever holds the run's lease.
//!
//! The folder `leases` of the run folder has a file for every lease there ever was, numbered from 1: its **epoch**. A file can
//! be created only once, so an epoch has one holder. The holder writes to its file every now and then, and may decide for a
//! while after the last time. A lease that ran out is not renewed: also its holder needs the next one. Whoever waits for a
//! lease to run out waits twice as long as its holder may decide, by its own clock, and so no two may decide at a time. The
//! rules are in `lease_rules`, for `paceline-torture` too.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use paceline_store::create_folder;
use rustix::time::{ClockId, clock_gettime};

use crate::lease_rules::{HeldLease, LeaseFile, LeaseLost, NewestLease, WatchedLease};
use crate::run_folder::{RunFolderError, at};

/// The folder of the leases in a run folder.
const LEASES: &str = "leases";

/// How many times a lease is renewed before it would run out.
const RENEWALS: u32 = 4;

/// How long to wait before storage that failed is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// The lease of a run, held by this process. Clones are of the same lease.
#[derive(Debug, Clone)]
pub struct Lease {
    shared: Arc<SharedLease>,
    _thread: Arc<RenewalThread>,
}

#[derive(Debug)]
struct SharedLease {
    folder: PathBuf,
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
    /// Takes the next lease of the run in `folder`, whoever held the last one. Its holder may decide for `length` after it
    /// was renewed.
    ///
    /// # Errors
    /// If the folder can't be written, or another process is faster.
    pub fn take(folder: &Path, length: Duration) -> Result<Self, RunFolderError> {
        let folder = folder.join(LEASES);
        create_folder(&folder).map_err(at(&folder))?;
        let epoch = newest(&folder).map_err(at(&folder))?.map_or(1, |(epoch, _)| epoch + 1);
        Lease::create(folder, epoch, length)
    }

    /// Creates the lease of this epoch in the folder of the leases.
    fn create(folder: PathBuf, epoch: u64, length: Duration) -> Result<Self, RunFolderError> {
        let began = now();
        create(&folder, epoch, length).map_err(at(&folder.join(epoch.to_string())))?;
        let state = LeaseState { held: HeldLease::new(epoch, length, began), has_ended: false };
        let shared = Arc::new(SharedLease { folder, length, state: Mutex::new(state), ended: Condvar::new() });
        let own = shared.clone();
        let thread = thread::Builder::new().name("lease".into()).spawn(move || own.renew_until_end());
        let thread = Some(thread.map_err(at(&shared.folder))?);
        Ok(Lease { shared: shared.clone(), _thread: Arc::new(RenewalThread { shared, thread }) })
    }

    /// The number of the lease. The next coordinator has a higher one.
    pub fn epoch(&self) -> u64 {
        self.shared.lock().held.epoch()
    }

    /// Returns when this process may decide. If the lease has run out, because the process stood still or the folder could
    /// not be written, that takes the next one.
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
            self.renew(&mut state.held);
            let interval = self.length / RENEWALS;
            state = self.ended.wait_timeout(state, interval).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Renews the lease, unless it has run out. If the file can't be written, the lease runs out later.
    fn renew(&self, held: &mut HeldLease) {
        let began = now();
        let Some(renewals) = held.next_renewal(began) else { return };
        if newest(&self.folder).is_ok_and(|newest| !held.on_newest(newest)) {
            return;
        }
        let file = LeaseFile { renewals, ..LeaseFile::new(self.length) };
        if file.write(&self.folder.join(held.epoch().to_string()), |own, path| fs::rename(own, path)).is_ok() {
            held.on_written(began);
        }
    }

    /// Takes the next lease after the own one has run out.
    fn take_next(&self, held: &mut HeldLease) {
        let began = now();
        match create(&self.folder, held.epoch() + 1, self.length) {
            Ok(()) => held.on_created(began),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                held.on_created_by_another(newest(&self.folder).ok().flatten());
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
        let holder = format!("process {} on {}", std::process::id(), host());
        LeaseFile { seconds: length.as_secs_f64(), holder, renewals: 0 }
    }

    /// Writes the file under a name of this process, from where it gets to its place whole: `place` is called with both names.
    fn write(&self, path: &Path, place: impl FnOnce(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
        let own = path.with_file_name(format!(".{}-{}", host(), std::process::id()));
        fs::write(&own, serde_json::to_string(self)?)?;
        place(&own, path)
    }
}

/// The time since the machine was started. It goes on while the machine sleeps, so a lease does not outlive a sleep.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

fn host() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().into()
}

/// Creates the file of a lease. Fails if there is one.
fn create(folder: &Path, epoch: u64, length: Duration) -> io::Result<()> {
    let link = |own: &Path, path: &Path| {
        let linked = fs::hard_link(own, path);
        // It has the other name now, or is of no use.
        let _ = fs::remove_file(own);
        linked
    };
    LeaseFile::new(length).write(&folder.join(epoch.to_string()), link)
}

/// The epoch of the newest lease, and what its file says, if it can be read.
fn newest(folder: &Path) -> io::Result<NewestLease> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    let mut newest = None;
    for entry in entries {
        newest = newest.max(entry?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    let file = |epoch: u64| serde_json::from_slice(&fs::read(folder.join(epoch.to_string())).ok()?).ok();
    Ok(newest.map(|epoch| (epoch, file(epoch))))
}

/// Watches the lease of a run that another process serves.
#[derive(Debug)]
pub struct LeaseWatch {
    folder: PathBuf,
    watched: WatchedLease,
}

impl LeaseWatch {
    /// Watches the run in `folder`.
    pub fn new(folder: &Path) -> Self {
        LeaseWatch { folder: folder.join(LEASES), watched: WatchedLease::default() }
    }

    /// The holder of the lease, and how long it may decide after every renewal; `None` if the run has none.
    pub fn holder(&self) -> Option<(&str, Duration)> {
        self.watched.holder()
    }

    /// Whether the lease has run out: nothing was written for twice as long as its holder may decide. To be called often.
    ///
    /// # Errors
    /// If the folder can't be read.
    pub fn has_run_out(&mut self) -> Result<bool, RunFolderError> {
        let before = now();
        let newest = newest(&self.folder).map_err(at(&self.folder))?;
        Ok(self.watched.on_newest(newest, before, now()))
    }

    /// Takes the lease that follows the one that has run out. Its holder may decide for `length` after it was renewed.
    ///
    /// # Errors
    /// If the folder can't be written, or another process is faster.
    pub fn take(&self, length: Duration) -> Result<Lease, RunFolderError> {
        Lease::create(self.folder.clone(), self.watched.next_epoch(), length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    fn files(folder: &Path) -> usize {
        fs::read_dir(folder.join(LEASES)).unwrap().count()
    }

    #[test]
    fn a_lease_is_renewed_until_another_process_takes_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let first = Lease::take(folder.path(), SHORT).unwrap();
        let mut watch = LeaseWatch::new(folder.path());
        let began = now();
        while now() - began < 4 * SHORT {
            first.hold().unwrap();
            watch.has_run_out().unwrap();
            thread::sleep(SHORT / 10);
        }
        let second = Lease::take(folder.path(), SHORT).unwrap();
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
        let lease = Lease::take(folder.path(), Duration::from_secs(600)).unwrap();
        let run_out = |epoch| lease.shared.lock().held = HeldLease::new(epoch, now() / 2, Duration::ZERO);
        run_out(1);
        lease.hold().unwrap();
        assert_eq!((lease.epoch(), files(folder.path())), (2, 2));
        run_out(2);
        create(&folder.path().join(LEASES), 3, SHORT).unwrap();
        assert!(lease.hold().is_err());
        assert!(lease.hold().is_err(), "it is lost for good");
        assert_eq!(files(folder.path()), 3);
    }

    #[test]
    fn a_lease_without_a_holder_runs_out_and_one_of_two_takes_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = LeaseWatch::new(folder.path());
        assert!(!watch.has_run_out().unwrap());
        assert_eq!(watch.holder(), None, "the run has no lease");
        drop(Lease::take(folder.path(), SHORT).unwrap());
        while !watch.has_run_out().unwrap() {
            thread::sleep(SHORT / 10);
        }
        let taken = [watch.take(SHORT), watch.take(SHORT)];
        assert_eq!(taken.iter().filter(|taken| taken.is_ok()).count(), 1, "both have seen lease 1");
    }
}
