//! Fault schedules: the faults of a run, drawn from a seed.

use std::fmt;

use paceline_core::{Span, Time, WorkerId};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// The largest number of workers at the start of a run.
const MAX_WORKERS: usize = 6;

/// The largest number of faults.
const MAX_FAULTS: usize = 14;

/// The workers' speeds differ by up to this factor, and the tasks of one worker by up to 2.
pub(crate) const SPEED_RANGE: f64 = 8.0;

/// The time after a fault in which the server may still act on it, if the fault is not a lie.
const AFTERMATH: Span = Span(5_000_000_000);

/// The longest computation of a slowed worker, in seconds.
const LONGEST_SLOWED: f64 = 3600.0;

/// A connection that is cut for longer than this is lost, as over TCP.
pub(crate) const CONNECTION_TIMEOUT: Span = Span(30_000_000_000);

/// The largest number of servers in a run with a standby.
const MAX_SERVERS: usize = 3;

/// A fault of a worker's connection. What it holds up arrives later and in order, as over TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkFault {
    /// Nothing arrives, in both directions.
    Cut,
    /// Nothing arrives at the server: the connection is half open.
    ToServerCut,
    /// Nothing arrives at the worker: the connection is half open, or the worker reads slowly.
    ToWorkerCut,
    /// Every message takes up to 0.5 s longer.
    Delayed,
}

/// What a server is cut off from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerCut {
    /// From all workers.
    Workers,
    /// From the storage of leases and checkpoints.
    Storage,
    /// From both: it is on the other side of a cut.
    All,
}

/// A fault, or a change of membership. A server is named by its number: 0 serves first, the others stand by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// A process of this worker starts, unless one is running.
    Start(WorkerId),
    /// The worker leaves: it notifies the server and ends.
    Leave(WorkerId),
    /// The worker's process crashes; the server notices the closed connection after this time.
    Crash(WorkerId, Span),
    /// The worker's process is suspended for this time.
    Freeze(WorkerId, Span),
    /// The worker's computation makes no progress for this time; the process is alive.
    Stick(WorkerId, Span),
    /// The worker's tasks take this many times as long from now on.
    Slow(WorkerId, f64),
    /// The worker's connection has a fault for this time.
    Network(WorkerId, LinkFault, Span),
    /// The worker's connection is reset.
    Reset(WorkerId),
    /// For this time, the worker sends a false message with each true one: absurd times and loads, wrong tasks.
    FalseReports(WorkerId, Span),
    /// The server's process is suspended for this time.
    ServerStall(usize, Span),
    /// The server's clock jumps by this many nanoseconds.
    ClockJump(usize, i64),
    /// Neither checkpoints nor leases can be written for this time.
    DiskFull(Span),
    /// The server is killed. After this time it resumes from its last checkpoint; in a run with a standby, it stands by.
    ServerRestart(usize, Span),
    /// The server is cut off for this time.
    ServerCut(usize, ServerCut, Span),
}

impl Fault {
    /// The time until the fault is over.
    pub(crate) fn duration(self) -> Span {
        match self {
            Fault::Crash(_, span)
            | Fault::Freeze(_, span)
            | Fault::Stick(_, span)
            | Fault::Network(_, _, span)
            | Fault::FalseReports(_, span)
            | Fault::ServerStall(_, span)
            | Fault::DiskFull(span)
            | Fault::ServerRestart(_, span)
            | Fault::ServerCut(_, _, span) => span,
            // The clock stands still until the true time has caught up.
            Fault::ClockJump(_, by) if by < 0 => Span(by.unsigned_abs()),
            Fault::Start(_) | Fault::Leave(_) | Fault::Slow(..) | Fault::Reset(_) | Fault::ClockJump(..) => Span::ZERO,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Start(worker) => write!(f, "{worker} starts"),
            Fault::Leave(worker) => write!(f, "{worker} leaves"),
            Fault::Crash(worker, after) => write!(f, "{worker} crashes; its connection closes after {after}"),
            Fault::Freeze(worker, span) => write!(f, "{worker} freezes for {span}"),
            Fault::Stick(worker, span) => write!(f, "{worker} makes no progress for {span}, but is alive"),
            Fault::Slow(worker, factor) => write!(f, "tasks of {worker} take {factor:.1} times as long from now on"),
            Fault::Network(worker, link, span) => {
                let effect = match link {
                    LinkFault::Cut => "is cut",
                    LinkFault::ToServerCut => "is cut towards the server",
                    LinkFault::ToWorkerCut => "is cut towards the worker",
                    LinkFault::Delayed => "delays messages",
                };
                write!(f, "the connection of {worker} {effect} for {span}")
            }
            Fault::Reset(worker) => write!(f, "the connection of {worker} is reset"),
            Fault::FalseReports(worker, span) => write!(f, "{worker} sends false reports for {span}"),
            Fault::ServerStall(server, span) => write!(f, "server {server} stands still for {span}"),
            Fault::ClockJump(server, by) => {
                write!(f, "the clock of server {server} jumps by {:+.3} s", *by as f64 / 1e9)
            }
            Fault::DiskFull(span) => write!(f, "the disk is full for {span}"),
            Fault::ServerRestart(server, span) => write!(f, "server {server} is killed, and comes back after {span}"),
            Fault::ServerCut(server, cut, span) => {
                let from = match cut {
                    ServerCut::Workers => "the workers",
                    ServerCut::Storage => "the storage",
                    ServerCut::All => "workers and storage",
                };
                write!(f, "server {server} is cut off from {from} for {span}")
            }
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
    /// How long the fastest worker takes for a gradient at least. The slowest takes up to 16 times as long: two hours.
    pub task: Span,
    /// Versions between two checkpoints of the server.
    pub checkpoint_every: u64,
    /// Number of shards that hold the parameters; 0 if the server does.
    pub shards: usize,
    /// Number of servers: with more than one, they hold the run by leases, and all but one stand by.
    pub servers: usize,
    /// How long a server may decide after it has renewed its lease.
    pub lease: Span,
    /// The faults, ordered by time.
    pub faults: Vec<(Time, Fault)>,
}

impl FaultSchedule {
    /// The longest computation of a worker without local iterations, in seconds.
    pub(crate) fn slowest_task(&self) -> f64 {
        let slowdown = |(_, fault): &(Time, Fault)| if let Fault::Slow(_, factor) = fault { *factor } else { 1.0 };
        self.task.seconds() * 2.0 * SPEED_RANGE * self.faults.iter().map(slowdown).fold(1.0, f64::max)
    }

    /// The time after a fault in which the server may still act on it. A false report of a task that is still running is
    /// found out when the true one arrives.
    pub(crate) fn aftermath(&self) -> Span {
        let lies = self.faults.iter().any(|(_, fault)| matches!(fault, Fault::FalseReports(..)));
        AFTERMATH + if lies { Span::from_seconds(self.slowest_task()) } else { Span::ZERO }
    }

    /// Draws the schedule of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        // Most tasks take some tenths of a second. Very short and very long ones, which make long runs, are rare.
        let seconds = match random.random_range(0..20) {
            0 => 0.001 * 100.0_f64.powf(random.random()),
            1 | 2 => 6.0 * 75.0_f64.powf(random.random()),
            _ => 0.1 * 20.0_f64.powf(random.random()),
        };
        let most = if (0.1..6.0).contains(&seconds) { MAX_WORKERS } else { 2 };
        let workers = random.random_range(1..=most);
        let batch = random.random_range(1..=8);
        let checkpoint_every = random.random_range(1..=8);
        // Half of the runs are of one server that holds the parameters.
        let kind = random.random_range(0..8);
        let shards = if matches!(kind, 0..3) { random.random_range(1..=workers) } else { 0 };
        let servers = if matches!(kind, 2..5) { random.random_range(2..=MAX_SERVERS) } else { 1 };
        let lease = Span::from_seconds(10.0_f64.powf(random.random()) * (seconds / 4.0).max(1.0));
        let window = (100.0 * seconds).clamp(10.0, 30.0).max(3.0 * seconds);
        let mut faults: Vec<(Time, Fault)> = (0..random.random_range(0..=MAX_FAULTS))
            .map(|_| {
                let at = Time::START + Span::from_seconds(window * random.random::<f64>());
                (at, draw_fault(&mut random, workers, servers, seconds))
            })
            .collect();
        faults.sort_by_key(|&(at, _)| at);
        let task = Span::from_seconds(seconds);
        FaultSchedule { seed, workers, batch, task, checkpoint_every, shards, servers, lease, faults }
    }
}

fn draw_fault(random: &mut Xoshiro256PlusPlus, workers: usize, servers: usize, task: f64) -> Fault {
    // The two ranks beyond the initial workers join later.
    let worker = WorkerId(random.random_range(0..workers as u32 + 2));
    let server = random.random_range(0..servers);
    let cut = [ServerCut::Workers, ServerCut::Storage, ServerCut::All][random.random_range(0..3)];
    // With a standby, there are more faults of servers.
    let kind = random.random_range(0..if servers > 1 { 32 } else { 23 });
    // Most faults are short; some last up to a minute.
    let mut span = |longest: f64| Span::from_seconds(longest * random.random::<f64>().powi(3));
    match kind {
        0 | 1 => Fault::Start(worker),
        2 => Fault::Leave(worker),
        3 | 4 => Fault::Crash(worker, span(40.0)),
        5 | 6 => Fault::Freeze(worker, span(60.0)),
        7 | 8 => {
            let most = (LONGEST_SLOWED / (2.0 * SPEED_RANGE * task)).clamp(2.0, 50.0);
            Fault::Slow(worker, 2.0 * (most / 2.0).powf(random.random()))
        }
        9 => Fault::Network(worker, LinkFault::Cut, span(60.0)),
        10 => Fault::Network(worker, LinkFault::ToServerCut, span(60.0)),
        11 => Fault::Network(worker, LinkFault::ToWorkerCut, span(60.0)),
        12 => Fault::Network(worker, LinkFault::Delayed, span(60.0)),
        13 => Fault::FalseReports(worker, span(60.0)),
        14 => Fault::ClockJump(server, span(3_600.0).0 as i64),
        15 => Fault::ClockJump(server, -(span(60.0).0 as i64)),
        16 => Fault::DiskFull(span(60.0)),
        17 => Fault::Reset(worker),
        18 => Fault::Stick(worker, span(400.0)),
        19 | 20 | 23 | 24 => Fault::ServerStall(server, span(60.0)),
        25..=29 => Fault::ServerCut(server, cut, span(60.0)),
        _ => Fault::ServerRestart(server, span(30.0)),
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
        let schedules: Vec<FaultSchedule> = (0..400).map(FaultSchedule::from_seed).collect();
        let faults = schedules.iter().flat_map(|schedule| &schedule.faults);
        let kinds: BTreeSet<String> = faults.map(|(_, fault)| format!("{:?}", discriminant(fault))).collect();
        assert_eq!(kinds.len(), 14);
        let tasks = || schedules.iter().map(|schedule| schedule.task.seconds());
        assert!(tasks().any(|task| task < 0.005) && tasks().any(|task| 2.0 * SPEED_RANGE * task > 3600.0));
    }
}
