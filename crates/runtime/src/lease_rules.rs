//! The rules of leases, without files, clocks and threads: how long a holder may decide, and when another may take over.
//!
//! Times are of the own clock of whoever asks, since any moment. A process may stand still between any two steps, so the
//! time before something is done with the storage is not the time after.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What the file of a lease says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeaseFile {
    /// How long its holder may decide after it has written.
    pub seconds: f64,
    /// The process that holds it, and its host.
    pub holder: String,
    /// Counts how often it was renewed.
    pub renewals: u64,
}

/// The newest lease in the storage: its epoch, and what its file says, if it can be read.
pub type NewestLease = Option<(u64, Option<LeaseFile>)>;

/// Another coordinator holds the run's lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("another coordinator has taken over the run{}", by.as_ref().map_or(String::new(), |by| format!(": {by}")))]
pub struct LeaseLost {
    /// The process that holds it, if it is known.
    pub by: Option<String>,
}

/// The lease of a process.
///
/// It is renewed when [`next_renewal`](HeldLease::next_renewal) allows it: the storage is read for a newer lease
/// ([`on_newest`](HeldLease::on_newest)), then the renewal is written ([`on_written`](HeldLease::on_written)). If it has run
/// out, the next one is created ([`on_created`](HeldLease::on_created)).
#[derive(Debug, Clone)]
pub struct HeldLease {
    epoch: u64,
    renewals: u64,
    length: Duration,
    valid_until: Duration,
    lost: Option<LeaseLost>,
}

impl HeldLease {
    /// A lease that was just created. `began` is the time before that.
    pub fn new(epoch: u64, length: Duration, began: Duration) -> Self {
        HeldLease { epoch, renewals: 0, length, valid_until: began + length, lost: None }
    }

    /// Its number.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether its holder may decide now. If not, it needs the next lease.
    ///
    /// # Errors
    /// If another process has that.
    pub fn may_decide(&self, now: Duration) -> Result<bool, LeaseLost> {
        self.lost.clone().map_or(Ok(now < self.valid_until), Err)
    }

    /// The number of the renewal that may be written now. `None` if the lease has run out or is lost: it is not renewed.
    pub fn next_renewal(&self, now: Duration) -> Option<u64> {
        (self.may_decide(now) == Ok(true)).then_some(self.renewals + 1)
    }

    /// The newest lease was read. Returns whether it is this one.
    pub fn on_newest(&mut self, newest: NewestLease) -> bool {
        match newest {
            Some((epoch, file)) if epoch > self.epoch => {
                self.lost = Some(LeaseLost { by: file.map(|file| file.holder) });
                false
            }
            _ => true,
        }
    }

    /// The next renewal was written. `began` is the time before that.
    pub fn on_written(&mut self, began: Duration) {
        self.renewals += 1;
        self.valid_until = began + self.length;
    }

    /// The next lease was created after this one had run out. `began` is the time before that.
    pub fn on_created(&mut self, began: Duration) {
        *self = HeldLease::new(self.epoch + 1, self.length, began);
    }

    /// Another process has created the next lease, the newest one or one before that.
    pub fn on_created_by_another(&mut self, newest: NewestLease) {
        self.lost = Some(LeaseLost { by: newest.and_then(|(_, file)| file).map(|file| file.holder) });
    }
}

/// The lease of another process, as it is seen in the storage.
#[derive(Debug, Default)]
pub struct WatchedLease {
    seen: NewestLease,
    since: Duration,
    was_renewed: bool,
}

impl WatchedLease {
    /// The holder of the lease, and how long it may decide after every renewal; `None` if there is none.
    pub fn holder(&self) -> Option<(&str, Duration)> {
        let file = self.seen.as_ref()?.1.as_ref()?;
        Some((&file.holder, Duration::try_from_secs_f64(file.seconds).ok()?))
    }

    /// Whether the lease was renewed, or the next one taken, since it was seen first.
    pub fn was_renewed(&self) -> bool {
        self.was_renewed
    }

    /// The newest lease was read between the times `before` and `after`. Returns whether it has run out: nothing was written
    /// for twice as long as its holder may decide.
    pub fn on_newest(&mut self, newest: NewestLease, before: Duration, after: Duration) -> bool {
        if newest != self.seen {
            self.was_renewed |= self.seen.is_some();
            (self.seen, self.since) = (newest, after);
            return false;
        }
        self.holder().is_some_and(|(_, length)| before.saturating_sub(self.since) > 2 * length)
    }

    /// The epoch of the lease that follows the one seen. If somebody else has taken that, it is not free to take a later one.
    pub fn next_epoch(&self) -> u64 {
        self.seen.as_ref().map_or(1, |(epoch, _)| epoch + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn file(renewals: u64) -> NewestLease {
        Some((1, Some(LeaseFile { seconds: 1.0, holder: "one".into(), renewals })))
    }

    #[test]
    fn a_lease_counts_from_before_it_was_written_and_is_not_renewed_once_it_ran_out() {
        let mut lease = HeldLease::new(1, SECOND, SECOND);
        assert_eq!(lease.next_renewal(SECOND * 3 / 2), Some(1));
        lease.on_written(SECOND * 3 / 2);
        assert_eq!(lease.may_decide(SECOND * 2), Ok(true));
        assert_eq!((lease.may_decide(SECOND * 5 / 2), lease.next_renewal(SECOND * 5 / 2)), (Ok(false), None));
        lease.on_created(SECOND * 3);
        assert_eq!((lease.epoch(), lease.next_renewal(SECOND * 3)), (2, Some(1)));
    }

    #[test]
    fn a_watcher_that_stands_still_while_it_looks_takes_nothing_over() {
        let mut watch = WatchedLease::default();
        assert!(!watch.on_newest(file(0), Duration::ZERO, SECOND));
        assert!(!watch.on_newest(file(0), SECOND * 2, SECOND * 9), "it was read a second after it was seen first");
        assert!(!watch.was_renewed());
        assert!(!watch.on_newest(file(1), SECOND * 3, SECOND * 12));
        assert!(watch.was_renewed());
        assert!(!watch.on_newest(file(1), SECOND * 13, SECOND * 13), "it was seen at 12 s");
        assert!(watch.on_newest(file(1), SECOND * 15, SECOND * 15));
        assert_eq!(watch.next_epoch(), 2);
    }
}
