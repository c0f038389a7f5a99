//! The planner of `auto`: runs candidates in virtual time, on the times that were seen of the workers.

use paceline_core::{PlanRequest, Reason, RecentTimes, SchemePace, Setup, averaging_progress, step_progress};
use paceline_runtime::{Goals, Iteration, Monitor, Observer};
use paceline_trace::Trace;

use crate::network::NetworkSpec;
use crate::ranks::Slowness;
use crate::script::Script;
use crate::simulation::Simulation;
use crate::times::Times;

/// How many iterations of all workers a candidate runs for: fewer with more workers, whose times are known as well together.
const ITERATIONS: (f64, f64) = (40.0, 160.0);

/// The iterations of this many workers that a candidate runs for, within those bounds.
const WORKER_ITERATIONS: f64 = 1280.0;

/// The share of that time in which a candidate may still learn.
const WARM_UP: f64 = 0.3;

/// A worker of which nothing is known takes this multiple of the candidates' time, so that it ends no iteration.
const UNKNOWN: f64 = 100.0;

/// The speed of a link without transfer times: a byte takes a nanosecond.
const LINK: f64 = 1e9;

/// How fast each candidate of the request would be. The same request has the same answer.
pub fn plan(request: &PlanRequest) -> Vec<SchemePace> {
    let pace = |scheme| simulate(request, scheme).unwrap_or(0.0);
    request.candidates.iter().map(|scheme| SchemePace { scheme: scheme.clone(), pace: pace(scheme) }).collect()
}

/// The progress of a scheme per second; `None` if nothing is known of the workers, or the scheme does not fit them.
fn simulate(request: &PlanRequest, scheme: &paceline_core::SchemeSpec) -> Option<f64> {
    let workers = request.workers.len();
    let speed: f64 = request.workers.iter().filter_map(usual_speed).sum();
    if workers == 0 || speed <= 0.0 {
        return None;
    }
    let (least, most) = ITERATIONS;
    let iterations = (WORKER_ITERATIONS / workers as f64).clamp(least, most);
    let seconds = iterations * workers as f64 / speed;
    let column = |track: &RecentTimes| {
        if track.iterations.is_empty() { vec![UNKNOWN * seconds] } else { track.iterations.clone() }
    };
    let transfers: Vec<f64> = request.workers.iter().map(|track| track.transfer).collect();
    let simulation = Simulation {
        scheme: scheme.clone(),
        setup: Setup { workers, ..request.setup },
        times: Times::of_trace(Trace::new(request.workers.iter().map(column).collect())),
        slowness: Slowness::default(),
        // A message takes half of a worker's transfer.
        script: Script::of_links(transfers.iter().map(|seconds| seconds / 2.0 * LINK)),
        network: Some(NetworkSpec { latency: 0.0, bandwidth: f64::INFINITY, link: LINK, bytes: Some(1) }),
        training: None,
        goals: Goals::any(&[format!("time={seconds}").parse().ok()?]),
        seed: 1,
    };
    let mut progress = PlannedProgress { request, from: WARM_UP * seconds, began: None, ended: 0.0, made: 0.0 };
    simulation.run(&mut progress).ok()?;
    let lasted = progress.ended - progress.began?;
    (lasted > 0.0).then_some(progress.made / lasted)
}

/// Iterations per second of a worker that exchanges every one of them.
fn usual_speed(track: &RecentTimes) -> Option<f64> {
    let count = track.iterations.len() as f64;
    let mean = track.iterations.iter().sum::<f64>() / count + track.transfer;
    (count > 0.0 && mean > 0.0).then_some(1.0 / mean)
}

/// Adds up the progress of the steps after the warm-up, from one step to another.
struct PlannedProgress<'a> {
    request: &'a PlanRequest,
    /// When the warm-up ends.
    from: f64,
    began: Option<f64>,
    ended: f64,
    made: f64,
}

impl Observer for PlannedProgress<'_> {
    fn on_iteration(&mut self, iteration: &Iteration, _monitor: &Monitor) {
        let workers = self.request.workers.len();
        if self.began.is_none() {
            self.began = Some(iteration.time).filter(|&time| time >= self.from);
            return;
        }
        self.ended = iteration.time;
        self.made += match iteration.reason {
            Reason::Averaged { workers: replicas, iterations } => {
                averaging_progress(iterations, replicas as usize, workers, &self.request.noise)
            }
            _ => step_progress(&self.request.setup.rate_rule, iteration.waited_for, workers, &self.request.noise),
        };
    }
}
