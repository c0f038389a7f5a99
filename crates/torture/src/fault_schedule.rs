//! Fault schedules: the faults of a run, drawn from a seed.

use std::fmt;

use paceline_core::{Span, Time, WorkerId};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// The largest number of workers at the start of a run.
const MAX_WORKERS: usize = 6;

/// The largest number of faults.
const MAX_FAULTS: usize = 14;

/// The latest start of a fault, in seconds.
const LAST_START: f64 = 30.0;

/// A fault of the messages to and from a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkFault {
    /// No message arrives.
    Cut,
    /// A third of the messages is lost, at random.
    Lossy,
    /// Every message arrives twice.
    Repeating,
    /// Every message takes up to 0.5 s longer, so that messages overtake each other.
    Reordering,
}

/// A fault, or a change of membership.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// A process of this worker starts, unless one is running.
    Start(WorkerId),
    /// The worker leaves: it notifies the server and ends.
    Leave(WorkerId),
    /// The worker's process crashes; its connection closes after this time.
    Crash(WorkerId, Span),
    /// The worker's process is suspended for this time.
    Freeze(WorkerId, Span),
    /// The worker's tasks take this many times as long from now on.
    Slow(WorkerId, f64),
    /// The worker's link has a fault for this time.
    Network(WorkerId, LinkFault, Span),
    /// For this time, the worker sends a false message with each true one: absurd times and loads, wrong tasks.
    FalseReports(WorkerId, Span),
    /// The server's clock jumps by this many nanoseconds.
    ClockJump(i64),
    /// Checkpoints can't be written for this time.
    DiskFull(Span),
    /// The server is killed, and resumes from its last checkpoint after this time.
    ServerRestart(Span),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Start(worker) => write!(f, "{worker} starts"),
            Fault::Leave(worker) => write!(f, "{worker} leaves"),
            Fault::Crash(worker, after) => write!(f, "{worker} crashes; its connection closes after {after}"),
            Fault::Freeze(worker, span) => write!(f, "{worker} freezes for {span}"),
            Fault::Slow(worker, factor) => write!(f, "tasks of {worker} take {factor:.1} times as long from now on"),
            Fault::Network(worker, link, span) => {
                let effect = match link {
                    LinkFault::Cut => "is cut",
                    LinkFault::Lossy => "loses messages",
                    LinkFault::Repeating => "repeats messages",
                    LinkFault::Reordering => "reorders messages",
                };
                write!(f, "the link of {worker} {effect} for {span}")
            }
            Fault::FalseReports(worker, span) => write!(f, "{worker} sends false reports for {span}"),
            Fault::ClockJump(by) => write!(f, "the server's clock jumps by {:+.3} s", *by as f64 / 1e9),
            Fault::DiskFull(span) => write!(f, "the disk is full for {span}"),
            Fault::ServerRestart(span) => write!(f, "the server is killed, and resumes after {span}"),
        }
    }
}

/// The setup of a run and its faults.
#[derive(Debug, Clone, PartialEq)]
pub struct FaultSchedule {
    /// The seed of the schedule and of all random numbers in the run.
    pub seed: u64,
    /// Number of workers at the start.
    pub workers: usize,
    /// Samples per worker and iteration.
    pub batch: u32,
    /// Versions between two checkpoints of the server.
    pub checkpoint_every: u64,
    /// The faults, ordered by time.
    pub faults: Vec<(Time, Fault)>,
}

impl FaultSchedule {
    /// Draws the schedule of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let workers = random.random_range(1..=MAX_WORKERS);
        let batch = random.random_range(1..=8);
        let checkpoint_every = random.random_range(1..=8);
        let mut faults: Vec<(Time, Fault)> = (0..random.random_range(0..=MAX_FAULTS))
            .map(|_| {
                let at = Time::START + Span::from_seconds(LAST_START * random.random::<f64>());
                (at, draw_fault(&mut random, workers))
            })
            .collect();
        faults.sort_by_key(|&(at, _)| at);
        FaultSchedule { seed, workers, batch, checkpoint_every, faults }
    }
}

fn draw_fault(random: &mut Xoshiro256PlusPlus, workers: usize) -> Fault {
    // The two ranks beyond the initial workers join later.
    let worker = WorkerId(random.random_range(0..workers as u32 + 2));
    let kind = random.random_range(0..18);
    // Most faults are short; some last up to a minute.
    let mut span = |longest: f64| Span::from_seconds(longest * random.random::<f64>().powi(3));
    match kind {
        0 | 1 => Fault::Start(worker),
        2 => Fault::Leave(worker),
        3 | 4 => Fault::Crash(worker, span(40.0)),
        5 | 6 => Fault::Freeze(worker, span(60.0)),
        7 => Fault::Slow(worker, 0.1 + span(30.0).seconds()),
        8 => Fault::Network(worker, LinkFault::Cut, span(60.0)),
        9 => Fault::Network(worker, LinkFault::Lossy, span(60.0)),
        10 => Fault::Network(worker, LinkFault::Repeating, span(60.0)),
        11 => Fault::Network(worker, LinkFault::Reordering, span(60.0)),
        12 => Fault::FalseReports(worker, span(60.0)),
        13 => Fault::ClockJump(span(3_600.0).0 as i64),
        14 => Fault::ClockJump(-(span(60.0).0 as i64)),
        15 => Fault::DiskFull(span(60.0)),
        _ => Fault::ServerRestart(span(30.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::mem::discriminant;

    #[test]
    fn a_seed_gives_one_schedule_and_all_kinds_of_faults_occur() {
        assert_eq!(FaultSchedule::from_seed(7), FaultSchedule::from_seed(7));
        assert_ne!(FaultSchedule::from_seed(7), FaultSchedule::from_seed(8));
        let mut kinds = BTreeSet::new();
        for seed in 0..200 {
            for (_, fault) in FaultSchedule::from_seed(seed).faults {
                kinds.insert(format!("{:?}", discriminant(&fault)));
            }
        }
        assert_eq!(kinds.len(), 10);
    }
}
