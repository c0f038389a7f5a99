//! LB-BSP's experiments: batch sizes that fit the workers' speeds.

mod fig10;
mod fig13;
mod fig14;
mod fig8;
mod prediction;

pub(super) use fig8::run as fig8;
pub(super) use fig10::run as fig10;
pub(super) use fig13::run as fig13;
pub(super) use fig14::run as fig14;
pub(super) use prediction::{fig11, table3};

use paceline_config::{Failure, Scenario};
use paceline_core::Time;
use paceline_report::statistics::mean;
use paceline_runtime::{Iteration, Monitor, Observer};

use crate::Conditions;

const CLUSTER_A: &str = include_str!("../../scenarios/lb-bsp/cluster-a.toml");
const CLUSTER_B: &str = include_str!("../../scenarios/lb-bsp/cluster-b.toml");
const CLUSTER_C: &str = include_str!("../../scenarios/lb-bsp/cluster-c.toml");
const LEARNING: &str = include_str!("../../scenarios/lb-bsp/learning.toml");

/// Iterations of every worker that are not counted, while speeds are unknown and networks are trained.
const WARM_UP: u64 = 1_000;

/// A scenario of `scenarios/lb-bsp/`, with the times of a cluster and the data of `--data`.
fn scenario(name: &str, text: &str, times: Option<&str>, conditions: &Conditions) -> Result<Scenario, Failure> {
    let mut scenario = Scenario::from_toml(name, text).map_err(Failure::Input)?;
    if let Some(times) = times {
        scenario.cluster.times = times.parse().map_err(Failure::input)?;
    }
    if let Some(data) = &conditions.data {
        scenario.training.data = data.clone();
    }
    Ok(scenario)
}

/// Measures the speed of a run after the warm-up.
#[derive(Default)]
struct SteadySpeed {
    workers: u64,
    updates: u64,
    /// Time, updates and mean waiting time of the workers: at the end of the warm-up, and at the last measurement.
    warm: Option<(f64, u64, f64)>,
    last: (f64, u64, f64),
}

impl SteadySpeed {
    fn new(workers: usize) -> Self {
        SteadySpeed { workers: workers as u64, ..SteadySpeed::default() }
    }

    /// Seconds for an update of every worker.
    fn seconds(&self) -> f64 {
        let (time, updates, _) = self.warm.unwrap_or_default();
        (self.last.0 - time) * self.workers as f64 / (self.last.1 - updates) as f64
    }

    /// The share of time spent waiting.
    fn waiting(&self) -> f64 {
        let (time, _, waited) = self.warm.unwrap_or_default();
        (self.last.2 - waited) / (self.last.0 - time)
    }
}

impl Observer for SteadySpeed {
    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        self.updates += iteration.waited_for as u64;
        let now = Time::START + paceline_core::Span::from_seconds(iteration.time);
        let due = self.updates.is_multiple_of(100 * self.workers);
        // Adding up the waiting time of all workers is slow, so it is not done after every update.
        if due {
            self.last = (iteration.time, self.updates, iteration.time * monitor.idle_share(now));
        }
        if self.warm.is_none() && due && self.updates >= WARM_UP * self.workers {
            self.warm = Some(self.last);
        }
    }
}
