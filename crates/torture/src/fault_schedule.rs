//! Histories: what happens to a run from outside, drawn from a seed.

use std::fmt;

use paceline_core::{Span, Time, WorkerId};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// How many workers a run has at most.
const WORKERS: usize = 6;

/// How many troubles it has at most.
const TROUBLES: usize = 14;

/// When the last trouble may begin, in seconds.
const HORIZON: f64 = 30.0;

/// What may be wrong with the messages to and from a worker for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// None arrives.
    Cut,
    /// Every third is lost.
    Lossy,
    /// Each arrives twice.
    Repeating,
    /// Each takes up to half a second more, so that they overtake each other.
    Reordering,
}

/// What can happen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Trouble {
    /// A process starts as this worker, where there is none.
    Start(WorkerId),
    /// The worker says goodbye and ends.
    Leave(WorkerId),
    /// The worker's process dies; its connection closes so much later.
    Crash(WorkerId, Span),
    /// The worker's process stands still for so long.
    Freeze(WorkerId, Span),
    /// From now on the worker takes so many times as long.
    Slow(WorkerId, f64),
    /// The worker's link is bad for so long.
    Net(WorkerId, Link, Span),
    /// For so long the worker reports absurd times and loads, tasks it never had, and everything twice.
    Lie(WorkerId, Span),
    /// The server's clock jumps so many nanoseconds.
    Jump(i64),
    /// Checkpoints can't be written for so long.
    DiskFull(Span),
    /// The server is killed, and back from its last checkpoint so much later.
    Restart(Span),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Start(worker) => write!(f, "{worker} starts"),
            Trouble::Leave(worker) => write!(f, "{worker} leaves"),
            Trouble::Crash(worker, after) => write!(f, "{worker} crashes; its connection closes after {after}"),
            Trouble::Freeze(worker, span) => write!(f, "{worker} freezes for {span}"),
            Trouble::Slow(worker, factor) => write!(f, "{worker} takes {factor:.1} times as long from now on"),
            Trouble::Net(worker, link, span) => {
                let how = match link {
                    Link::Cut => "is cut off",
                    Link::Lossy => "loses messages",
                    Link::Repeating => "has messages repeated",
                    Link::Reordering => "has messages reordered",
                };
                write!(f, "{worker} {how} for {span}")
            }
            Trouble::Lie(worker, span) => write!(f, "{worker} lies for {span}"),
            Trouble::Jump(by) => write!(f, "the server's clock jumps by {:+.3} s", *by as f64 / 1e9),
            Trouble::DiskFull(span) => write!(f, "the disk is full for {span}"),
            Trouble::Restart(span) => write!(f, "the server is killed, and back after {span}"),
        }
    }
}

/// A run's conditions and everything that happens to it.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// The seed it was drawn from, of which all chance in it comes.
    pub seed: u64,
    /// How many workers start it.
    pub workers: usize,
    /// Samples per worker and iteration.
    pub batch: u32,
    /// After how many versions the server takes a checkpoint.
    pub checkpoint_every: u64,
    /// What happens, by time.
    pub troubles: Vec<(Time, Trouble)>,
}

impl History {
    /// The history of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let workers = random.random_range(1..=WORKERS);
        let batch = random.random_range(1..=8);
        let checkpoint_every = random.random_range(1..=8);
        let mut troubles: Vec<(Time, Trouble)> = (0..random.random_range(0..=TROUBLES))
            .map(|_| {
                let at = Time::START + Span::from_seconds(HORIZON * random.random::<f64>());
                (at, trouble(&mut random, workers))
            })
            .collect();
        troubles.sort_by_key(|&(at, _)| at);
        History { seed, workers, batch, checkpoint_every, troubles }
    }
}

fn trouble(random: &mut Xoshiro256PlusPlus, workers: usize) -> Trouble {
    // Some ranks come late, beyond those that the run starts with.
    let worker = WorkerId(random.random_range(0..workers as u32 + 2));
    let kind = random.random_range(0..18);
    // Most things are over soon; some take a minute.
    let mut span = |longest: f64| Span::from_seconds(longest * random.random::<f64>().powi(3));
    match kind {
        0 | 1 => Trouble::Start(worker),
        2 => Trouble::Leave(worker),
        3 | 4 => Trouble::Crash(worker, span(40.0)),
        5 | 6 => Trouble::Freeze(worker, span(60.0)),
        7 => Trouble::Slow(worker, 0.1 + span(30.0).seconds()),
        8 => Trouble::Net(worker, Link::Cut, span(60.0)),
        9 => Trouble::Net(worker, Link::Lossy, span(60.0)),
        10 => Trouble::Net(worker, Link::Repeating, span(60.0)),
        11 => Trouble::Net(worker, Link::Reordering, span(60.0)),
        12 => Trouble::Lie(worker, span(60.0)),
        13 => Trouble::Jump(span(3_600.0).0 as i64),
        14 => Trouble::Jump(-(span(60.0).0 as i64)),
        15 => Trouble::DiskFull(span(60.0)),
        _ => Trouble::Restart(span(30.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::mem::discriminant;

    #[test]
    fn a_seed_is_a_history_and_all_kinds_of_trouble_come() {
        assert_eq!(History::of(7), History::of(7));
        assert_ne!(History::of(7), History::of(8));
        let mut kinds = BTreeSet::new();
        for seed in 0..200 {
            for (_, trouble) in History::of(seed).troubles {
                kinds.insert(format!("{:?}", discriminant(&trouble)));
            }
        }
        assert_eq!(kinds.len(), 10);
    }
}
