//! Fig. 3 and Table 1: time to accuracy and final accuracy.

use paceline_config::{Failure, Scenario};
use paceline_report::plot::{Figure, Mark, Series, colours_of};
use paceline_report::progress::{RunBar, bars};
use paceline_report::tables::aligned;
use paceline_runtime::{Iteration, Monitor, Observer, Summary};
use paceline_workload::Partition;
use serde_json::json;

use super::{CLUSTER, LEARNING, mean, scenario};
use crate::{Conditions, Findings};

/// The target for the held-out accuracy.
const TARGET: f64 = 0.8;

const SCHEMES: [&str; 4] = ["bsp", "asp", "dc-asgd", "esync"];

const PARTITIONS: [(&str, Partition); 2] = [("i.i.d.", Partition::Iid), ("by class", Partition::ByClass)];

/// The name of a run with one worker.
const ALONE: &str = "alone";

/// The final accuracy is the mean of this many evaluations; a single one is noisy.
const FINAL_EVALUATIONS: usize = 10;

/// A run's held-out accuracy over time.
#[derive(Default)]
struct AccuracyCurve(Vec<(f64, f64)>);

impl AccuracyCurve {
    fn time_to_target(&self) -> Option<f64> {
        self.0.iter().find(|(_, accuracy)| *accuracy > TARGET).map(|&(time, _)| time)
    }

    fn final_accuracy(&self) -> f64 {
        let last = self.0.iter().rev().take(FINAL_EVALUATIONS).map(|&(_, accuracy)| accuracy);
        mean(&last.collect::<Vec<_>>())
    }
}

impl Observer for AccuracyCurve {
    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        let accuracy = monitor.fresh_evaluation().and_then(|found| found.accuracy);
        self.0.extend(accuracy.map(|accuracy| (iteration.time, accuracy)));
    }
}

struct LearningResult {
    /// The partition or model.
    what: &'static str,
    scheme: &'static str,
    curve: AccuracyCurve,
    summary: Summary,
}

/// Runs every scheme with every seed.
fn run_all(
    what: &'static str,
    scenario: &Scenario,
    schemes: &[&'static str],
    conditions: &Conditions,
) -> Result<Vec<LearningResult>, Failure> {
    let prepared = scenario.prepare().map_err(Failure::Input)?;
    let seeds = &conditions.seeds.0;
    let jobs: Vec<(&'static str, u64)> =
        schemes.iter().flat_map(|&scheme| seeds.iter().map(move |&seed| (scheme, seed))).collect();
    let bars = bars();
    let work = |&(scheme, seed): &(&'static str, u64)| {
        let simulation = prepared.simulation(&scheme.parse()?, seed, 1)?;
        let mut curve = AccuracyCurve::default();
        let mut progress = RunBar::new(&bars, format!("{what}, {scheme} seed {seed}"), &simulation.goals);
        let mut observers: Vec<&mut dyn Observer> = vec![&mut progress, &mut curve];
        let summary = simulation.run(&mut observers)?.summary;
        Ok(LearningResult { what, scheme, curve, summary })
    };
    conditions.run(&jobs, work)
}

/// The mean time to target of the runs that reached it, and their number.
fn times_to_target(runs: &[&LearningResult]) -> (Option<f64>, usize) {
    let times: Vec<f64> = runs.iter().filter_map(|run| run.curve.time_to_target()).collect();
    ((!times.is_empty()).then(|| mean(&times)), times.len())
}

fn seconds(time: Option<f64>) -> String {
    time.map_or("–".into(), |time| format!("{time:.1} s"))
}

/// `slow` divided by `fast`.
fn ratio(slow: Option<f64>, fast: Option<f64>) -> String {
    slow.zip(fast).map_or("–".into(), |(slow, fast)| format!("{:.1}", slow / fast))
}

fn accuracy(runs: &[&LearningResult]) -> f64 {
    mean(&runs.iter().map(|run| run.curve.final_accuracy()).collect::<Vec<_>>())
}

fn of<'a>(found: &'a [LearningResult], what: &str, scheme: &str) -> Vec<&'a LearningResult> {
    found.iter().filter(|run| run.what == what && run.scheme == scheme).collect()
}

fn record(run: &LearningResult) -> serde_json::Value {
    json!({
        "what": run.what, "scheme": run.scheme, "seed": run.summary.seed, "target_accuracy": TARGET,
        "time_to_accuracy": run.curve.time_to_target(), "time": run.summary.time, "accuracy": run.curve.final_accuracy(),
        "samples": run.summary.samples_used,
    })
}

/// Fig. 3: accuracy over time, with i.i.d. data and with few classes on each worker.
pub fn fig3(conditions: &Conditions) -> Result<Findings, Failure> {
    let mut found = Vec::new();
    let network = scenario("cluster.toml", CLUSTER, conditions)?.cluster.network;
    for (what, partition) in PARTITIONS {
        let mut scenario = scenario("learning.toml", LEARNING, conditions)?;
        scenario.cluster.network = network;
        scenario.training.partition = partition;
        if conditions.full {
            scenario.model = "cnn".parse().map_err(Failure::Run)?;
        }
        found.extend(run_all(what, &scenario, &SCHEMES, conditions)?);
    }
    let head = ["data", "scheme", "time to accuracy", "× bsp", "reached", "final accuracy"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for (what, _) in PARTITIONS {
        let (bsp, _) = times_to_target(&of(&found, what, "bsp"));
        for scheme in SCHEMES {
            let runs = of(&found, what, scheme);
            let (time, reached) = times_to_target(&runs);
            rows.push(vec![
                what.into(),
                scheme.into(),
                seconds(time),
                ratio(bsp, time),
                format!("{reached} of {}", runs.len()),
                format!("{:.4}", accuracy(&runs)),
            ]);
        }
    }
    let text = format!(
        "ESync, fig. 3: time to a held-out accuracy above {TARGET}, and final accuracy (mean of the last \
         {FINAL_EVALUATIONS} evaluations), all with the same learning rate and the traffic of a ResNet-18.\nThe paper: \
         7 times faster than synchronous SGD with i.i.d. data; with data by class no loss of accuracy, unlike \
         asynchronous SGD.\n\n{}",
        aligned(rows)
    );
    let panels = PARTITIONS.map(|(what, _)| panel(what, &found));
    Ok(Findings { text, records: found.iter().map(record).collect(), panels: panels.into() })
}

/// The mean accuracy of every scheme over time. Evaluations are at the same times for every seed.
fn panel(what: &str, found: &[LearningResult]) -> Figure {
    let series = SCHEMES.into_iter().zip(colours_of(SCHEMES)).map(|(scheme, colour)| {
        let runs = of(found, what, scheme);
        let length = runs.iter().map(|run| run.curve.0.len()).min().unwrap_or(0);
        let point = |index: usize| {
            let accuracies: Vec<f64> = runs.iter().map(|run| run.curve.0[index].1).collect();
            (runs[0].curve.0[index].0, mean(&accuracies))
        };
        Series { name: scheme.into(), mark: Mark::Line, colour, points: (0..length).map(point).collect() }
    });
    Figure {
        title: format!("Held-out accuracy, data {what}"),
        x: "time (s)".into(),
        y: "accuracy".into(),
        shaded: None,
        series: series.collect(),
    }
}

/// Table 1: speedup over bsp, and accuracy compared with that of a single worker.
pub fn table1(conditions: &Conditions) -> Result<Findings, Failure> {
    let mut models = vec!["mlp", "cnn"];
    if conditions.full {
        models.push("resnet8");
    }
    let head = ["model", "esync to accuracy", "bsp to accuracy", "speedup", "accuracy: esync", "single worker"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let mut found = Vec::new();
    for what in models {
        let mut scenario = scenario("learning.toml", LEARNING, conditions)?;
        scenario.model = what.parse().map_err(Failure::Run)?;
        let mut run = |scheme, every, until: &str, workers| {
            scenario.training.evaluate_every = every;
            scenario.until = vec![until.parse().map_err(Failure::run)?];
            if workers == 1 {
                scenario.cluster.slow = Default::default();
            }
            scenario.cluster.workers = Some(workers);
            run_all(what, &scenario, &[scheme], conditions)
        };
        let esync = run("esync", 192, FINAL_UNTIL, 6)?;
        let bsp = run("bsp", 960, "accuracy>0.8,time=7000", 6)?;
        // One fast worker, as in `paceline fit`, for as many iterations as a fast worker does under esync.
        let mut alone = run("bsp", 3200, FINAL_UNTIL, 1)?;
        alone.iter_mut().for_each(|run| run.scheme = ALONE);
        let ((esync_time, _), (bsp_time, _)) = (times_to_target(&all(&esync)), times_to_target(&all(&bsp)));
        rows.push(vec![
            what.into(),
            seconds(esync_time),
            seconds(bsp_time),
            ratio(bsp_time, esync_time),
            format!("{:.4}", accuracy(&all(&esync))),
            format!("{:.4}", accuracy(&all(&alone))),
        ]);
        found.extend(esync.into_iter().chain(bsp).chain(alone));
    }
    let text = format!(
        "ESync, Table 1: time to a held-out accuracy above {TARGET}, and final accuracy ({FINAL_UNTIL}; mean of the \
         last {FINAL_EVALUATIONS} evaluations) compared with that of a single fast worker.\nThe paper: 2 to 27 times \
         faster, and as accurate as a single worker.\n\n{}",
        aligned(rows)
    );
    Ok(Findings { text, records: found.iter().map(record).collect(), panels: Vec::new() })
}

/// When the runs for Table 1's final accuracy stop.
const FINAL_UNTIL: &str = "time=140";

fn all(runs: &[LearningResult]) -> Vec<&LearningResult> {
    runs.iter().collect()
}
