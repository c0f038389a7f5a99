//! `async-local-sgd`: local iterations on replicas, whose differences are applied as they arrive (Liu et al., 2024).
//!
//! *Dynamic local updates*: a worker with speed v does ⌊τ·v/v_max⌋ local iterations, at least one, so that all workers take
//! about equally long. *Delayed Nesterov*: momentum is applied once in several arrivals, with the mean of their differences.

use serde::{Deserialize, Serialize};

use super::{
    GLOBAL_RATE, OUTER_MOMENTUM, SchemeEntry, SchemeError, Setting, SettingDefault, Settings, Setup, UpperBound,
};
use crate::free_running::{Admission, Clocks, FreeRunning, Gate};
use crate::recent::RecentValues;
use crate::{CommitStep, Reason, Scheme, Time, Update, Work, WorkerId};

/// A worker's speed is the median of this many updates.
const RECENT: usize = 5;

/// Admits every worker, with as many local iterations as its speed allows.
#[derive(Serialize, Deserialize)]
struct DynamicUpdates {
    /// The local iterations of the fastest worker.
    tau: u32,
    /// The seconds of a local iteration in the latest updates, by rank; `None` for a worker that is not here.
    seconds: Vec<Option<RecentValues>>,
}

impl DynamicUpdates {
    fn new(tau: u32) -> Self {
        DynamicUpdates { tau, seconds: Vec::new() }
    }

    /// The worker's speed as a share of the fastest one's; `None` if it is unknown.
    fn speed(&self, worker: WorkerId) -> Option<f64> {
        let median = |seconds: &Option<RecentValues>| seconds.as_ref()?.median();
        let own = self.seconds.get(worker.index()).and_then(median)?;
        let fastest = self.seconds.iter().filter_map(median).fold(own, f64::min);
        Some(fastest / own)
    }
}

impl Gate for DynamicUpdates {
    fn admit(&mut self, _worker: WorkerId, _clocks: &Clocks, _now: Time) -> Admission {
        Admission::Start(Reason::NewVersion)
    }

    fn work(&mut self, worker: WorkerId, _reason: Reason) -> (Work, Reason) {
        let Some(speed) = self.speed(worker) else { return (Work::iterations(1), Reason::SpeedUnknown) };
        let iterations = ((f64::from(self.tau) * speed) as u32).max(1);
        (Work::iterations(iterations), Reason::BySpeed { iterations, most: self.tau, speed })
    }

    fn on_push(&mut self, update: &Update, _now: Time) {
        // A clock may be too coarse to see an iteration.
        let seconds = (update.report.compute.seconds() / f64::from(update.iterations)).max(1e-9);
        if let Some(Some(recent)) = self.seconds.get_mut(update.task.worker.index()) {
            recent.push(seconds);
        }
    }

    fn on_joined(&mut self, worker: WorkerId) {
        if worker.index() >= self.seconds.len() {
            self.seconds.resize_with(worker.index() + 1, || None);
        }
        self.seconds[worker.index()] = Some(RecentValues::new(RECENT));
    }

    fn on_left(&mut self, worker: WorkerId) {
        self.seconds[worker.index()] = None;
    }
}

pub(super) const ENTRY: SchemeEntry = SchemeEntry::new(
    "async-local-sgd",
    "every worker iterates locally as often as its speed allows; differences are applied as they arrive",
    [150, 85, 0],
    build,
)
.settings(&[
    Setting::count("tau", "local iterations of the fastest worker", 1, UpperBound::Value(1_000_000)),
    GLOBAL_RATE,
    Setting::choice("outer", "how the model steps by a difference", &["average", "delayed-nesterov"]),
    Setting::number("momentum", "momentum of outer=delayed-nesterov", 0.0, 0.999)
        .default(SettingDefault::Number(OUTER_MOMENTUM)),
    Setting::count(
        "delay",
        "arrivals that count as one round, after which the momentum is applied",
        1,
        UpperBound::Unbounded,
    )
    .default(SettingDefault::Derived("the number of workers")),
])
.compared(|_| vec!["tau=4".into(), "tau=16".into()])
.variants(&["tau=2,outer=delayed-nesterov,rate=0.7", "tau=5,outer=delayed-nesterov,delay=2"]);

fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    let tau = settings.count("tau")?;
    let rate = settings.number("rate")? as f32;
    settings.number("momentum")?;
    let delay = settings.given_count::<u64>("delay")?.unwrap_or(setup.workers as u64);
    let share = 1.0 / delay as f32;
    let steps = [CommitStep::Average { rate, share }, CommitStep::Outer { rate, share }];
    let step = settings.choice("outer", steps)?;
    Ok(Box::new(FreeRunning::new(DynamicUpdates::new(tau), setup.batch).stepping_by(step)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Report, Span, TaskId, Version};

    /// The local iterations that each worker gets after these took so many seconds per iteration.
    fn iterations(gate: &mut DynamicUpdates, workers: u32) -> Vec<u32> {
        let of = |rank| match gate.work(WorkerId(rank), Reason::Joined) {
            (work, Reason::BySpeed { iterations, .. }) => {
                assert_eq!(work, Work::iterations(iterations));
                iterations
            }
            (work, reason) => {
                assert_eq!((work, reason), (Work::iterations(1), Reason::SpeedUnknown));
                0
            }
        };
        (0..workers).map(of).collect()
    }

    fn push(gate: &mut DynamicUpdates, rank: u32, iterations: u32, seconds: f64) {
        let update = Update {
            task: TaskId { worker: WorkerId(rank), number: 0 },
            version: Version(0),
            work: Work::iterations(iterations),
            samples: 8,
            iterations,
            started: Time::START,
            report: Report { compute: Span::from_seconds(seconds), ..Report::default() },
        };
        gate.on_push(&update, Time::START);
    }

    #[test]
    fn slower_workers_do_fewer_iterations() {
        let mut gate = DynamicUpdates::new(16);
        (0..5).for_each(|rank| gate.on_joined(WorkerId(rank)));
        assert_eq!(iterations(&mut gate, 5), [0; 5], "one each, since no speed is known");
        push(&mut gate, 1, 1, 2.0);
        assert_eq!(iterations(&mut gate, 5), [0, 16, 0, 0, 0], "the fastest so far");
        for (rank, seconds) in [(0, 1.0), (2, 3.0), (3, 100.0)] {
            push(&mut gate, rank, 1, seconds);
        }
        // 16, 16 / 2, ⌊16 / 3⌋, and at least one.
        assert_eq!(iterations(&mut gate, 5), [16, 8, 5, 1, 0]);
        // The time of an iteration counts, not of the task; and a single slow task does not.
        push(&mut gate, 0, 16, 16.0);
        push(&mut gate, 0, 16, 160.0);
        assert_eq!(iterations(&mut gate, 5), [16, 8, 5, 1, 0]);
        // Who remains is measured by the fastest of these. Who is back is measured anew.
        gate.on_left(WorkerId(0));
        assert_eq!(iterations(&mut gate, 5)[1..], [16, 10, 1, 0]);
        gate.on_joined(WorkerId(0));
        assert_eq!(iterations(&mut gate, 5), [0, 16, 10, 1, 0]);
        push(&mut gate, 0, 1, 0.0);
        assert_eq!(iterations(&mut gate, 5), [16, 1, 1, 1, 0], "a time of zero divides nothing");
    }
}
