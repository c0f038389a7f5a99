//! What a schedule's faults do to the connections of a worker's host, at any time: also at one that is still to come.
//!
//! A coordinator waits for its shards within a commit. Meanwhile the run's other events wait too, so what happens to the
//! shards is read from the schedule.

use paceline_core::{Span, Time, WorkerId};

use crate::fault_schedule::{CONNECTION_TIMEOUT, Fault, FaultSchedule, LinkFault};
use crate::random::{mixed, unit};

/// The faults of a schedule, by the worker that they are about.
#[derive(Debug, Clone)]
pub(crate) struct Outages {
    seed: u64,
    faults: Vec<(Time, Fault)>,
}

impl Outages {
    pub(crate) fn new(schedule: &FaultSchedule) -> Self {
        Outages { seed: schedule.seed, faults: schedule.faults.clone() }
    }

    /// When something arrives that is sent to or from the worker's host.
    pub(crate) fn arrival(&self, worker: WorkerId, sent: Time) -> Time {
        let random = mixed(self.seed, [5, u64::from(worker.0), sent.0]);
        let mut at = sent + Span::from_seconds(0.001 + 0.004 * unit(random));
        for &(start, fault) in &self.faults {
            let end = start + fault.duration();
            match fault {
                Fault::Network(faulty, LinkFault::Delayed, _) if faulty == worker && (start..end).contains(&sent) => {
                    at = at + Span::from_seconds(0.5 * unit(random.rotate_left(32)));
                }
                // The faults are in the order of their times, so what one holds up may run into the next.
                Fault::Freeze(faulty, _) | Fault::Network(faulty, _, _) if faulty == worker && start <= at => {
                    at = at.max(end);
                }
                _ => {}
            }
        }
        at
    }

    /// When others notice that the worker's connections have broken, if they break between two times.
    pub(crate) fn broken(&self, worker: WorkerId, from: Time, until: Time) -> Option<Time> {
        let breaks = self.faults.iter().filter_map(|&(start, fault)| match fault {
            Fault::Reset(faulty) if faulty == worker => Some((start, start)),
            Fault::Network(faulty, link, span)
                if faulty == worker && link != LinkFault::Delayed && span > CONNECTION_TIMEOUT =>
            {
                Some((start + CONNECTION_TIMEOUT, start + CONNECTION_TIMEOUT))
            }
            _ => end(worker, start, fault),
        });
        breaks.filter(|(at, _)| (from..until).contains(at)).map(|(_, noticed)| noticed).min()
    }

    /// When others notice that the worker's process has ended, if it ends between two times.
    pub(crate) fn ended(&self, worker: WorkerId, from: Time, until: Time) -> Option<Time> {
        let ends = self.faults.iter().filter_map(|&(start, fault)| end(worker, start, fault));
        ends.filter(|(at, _)| (from..until).contains(at)).map(|(_, noticed)| noticed).min()
    }
}

/// When a fault ends the worker's process, and when others notice.
fn end(worker: WorkerId, start: Time, fault: Fault) -> Option<(Time, Time)> {
    match fault {
        Fault::Crash(faulty, noticed) if faulty == worker => Some((start, start + noticed)),
        Fault::Leave(faulty) if faulty == worker => Some((start, start)),
        _ => None,
    }
}
