//! ZipLine's fig. 11: time to loss and final accuracy when communication takes half of an iteration.

use paceline_config::{Failure, PreparedScenario, Scenario};
use paceline_core::SchemeSpec;
use paceline_report::plot::{Figure, Mark, Series, colours_of};
use paceline_report::progress::{RunBar, bars};
use paceline_report::statistics::{deviation, mean};
use paceline_report::tables::aligned;
use paceline_runtime::{Iteration, Monitor, Observer, Summary};
use serde_json::json;

use crate::target::LossTarget;
use crate::{Conditions, Findings};

const SCENARIO: &str = include_str!("../scenarios/zipline/fig11.toml");
const FULL_SCENARIO: &str = include_str!("../scenarios/zipline/fig11-full.toml");

const SCHEMES: [&str; 6] = ["bsp", "asp", "ssp:staleness=3", "dssp", "elastic-bsp:r=15", "elastic-bsp:r=60"];

/// The target for the training loss.
const TARGET: f64 = 0.1;

/// The loss is averaged over this many updates per worker.
const UPDATES_PER_WORKER: usize = 10;

/// The measurements of one run.
struct ZiplineRun {
    scheme: &'static str,
    target: LossTarget,
    time_to_target: Option<f64>,
    /// Time and held-out accuracy.
    curve: Vec<(f64, f64)>,
}

impl Observer for ZiplineRun {
    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        if self.target.is_met(iteration) {
            self.time_to_target = self.time_to_target.or(Some(iteration.time));
        }
        let accuracy = monitor.fresh_evaluation().and_then(|found| found.accuracy);
        self.curve.extend(accuracy.map(|accuracy| (iteration.time, accuracy)));
    }
}

pub(super) fn run(conditions: &Conditions) -> Result<Findings, Failure> {
    let (name, text) = if conditions.full { ("fig11-full.toml", FULL_SCENARIO) } else { ("fig11.toml", SCENARIO) };
    let mut scenario = Scenario::from_toml(name, text).map_err(Failure::Input)?;
    if let Some(data) = &conditions.data {
        scenario.training.data = data.clone();
    }
    let prepared = scenario.prepare().map_err(Failure::Input)?;
    let seeds = &conditions.seeds.0;
    let jobs: Vec<(&'static str, u64)> =
        SCHEMES.into_iter().flat_map(|scheme| seeds.iter().map(move |&seed| (scheme, seed))).collect();
    let bars = bars();
    let work = |&(scheme, seed): &(&'static str, u64)| {
        let (mut run, simulation) = prepare(&prepared, scheme, seed)?;
        let mut progress = RunBar::new(&bars, format!("{scheme} seed {seed}"), &simulation.goals);
        let mut observers: Vec<&mut dyn Observer> = vec![&mut progress, &mut run];
        let summary = simulation.run(&mut observers)?.summary;
        Ok((run, summary))
    };
    Ok(findings(&conditions.run(&jobs, work)?))
}

/// Prepares a run of one scheme.
fn prepare(
    prepared: &PreparedScenario<'_>,
    scheme: &'static str,
    seed: u64,
) -> anyhow::Result<(ZiplineRun, paceline_sim::Simulation)> {
    let spec: SchemeSpec = scheme.parse()?;
    let workers = prepared.setup().workers;
    let simulation = prepared.simulation(&spec, seed, 1)?;
    let target = LossTarget::new(TARGET, UPDATES_PER_WORKER * workers);
    let run = ZiplineRun { scheme, target, time_to_target: None, curve: Vec::new() };
    Ok((run, simulation))
}

fn findings(runs: &[(ZiplineRun, Summary)]) -> Findings {
    let head = ["scheme", "time to loss", "× bsp", "reached", "total time", "final accuracy", "idle"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let mut curves = Vec::new();
    let of = |scheme: &str| runs.iter().filter(|(run, _)| run.scheme == scheme).collect::<Vec<_>>();
    let times = |scheme: &str| of(scheme).iter().filter_map(|(run, _)| run.time_to_target).collect::<Vec<_>>();
    let bsp = mean(&times("bsp"));
    for (scheme, colour) in SCHEMES.into_iter().zip(colours_of(SCHEMES)) {
        let (runs, times) = (of(scheme), times(scheme));
        let column = |value: fn(&Summary) -> f64| runs.iter().map(|(_, summary)| value(summary)).collect::<Vec<_>>();
        let accuracy = column(|summary| summary.accuracy.unwrap_or(f64::NAN));
        rows.push(vec![
            scheme.into(),
            format!("{:.1} ± {:.1} s", mean(&times), deviation(&times)),
            format!("{:.2}", bsp / mean(&times)),
            format!("{} of {}", times.len(), runs.len()),
            format!("{:.1} s", mean(&column(|summary| summary.time))),
            format!("{:.4} ± {:.4}", mean(&accuracy), deviation(&accuracy)),
            format!("{:.1} %", 100.0 * mean(&column(|summary| summary.idle_share))),
        ]);
        // The n-th evaluation of every run is after the same number of samples.
        let length = runs.iter().map(|(run, _)| run.curve.len()).min().unwrap_or(0);
        let point = |index: usize| {
            let at = |part: fn(&(f64, f64)) -> f64| {
                mean(&runs.iter().map(|(run, _)| part(&run.curve[index])).collect::<Vec<_>>())
            };
            (at(|point| point.0), at(|point| point.1))
        };
        let points = (0..length).map(point).collect();
        curves.push(Series { name: scheme.into(), mark: Mark::Line, colour, points });
    }
    let record = |(run, summary): &(ZiplineRun, Summary)| {
        json!({
            "scheme": run.scheme, "seed": summary.seed, "target_loss": TARGET, "time_to_loss": run.time_to_target,
            "time": summary.time, "accuracy": summary.accuracy, "idle_share": summary.idle_share, "bytes": summary.bytes,
        })
    };
    let figure = Figure {
        title: "Held-out accuracy, mean over the seeds".into(),
        x: "time (s)".into(),
        y: "accuracy".into(),
        shaded: None,
        series: curves,
    };
    let text = format!(
        "ZipLine, fig. 11: time to a training loss below {TARGET} (mean of {UPDATES_PER_WORKER} updates per worker), \
         and accuracy after the same number of samples.\nThe learning rate of a step is proportional to its updates, \
         so that a sample counts equally under every scheme.\n\n{}",
        aligned(rows)
    );
    Findings { text, records: runs.iter().map(record).collect(), panels: vec![figure] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_are_after_the_same_samples_under_every_scheme() {
        for text in [SCENARIO, FULL_SCENARIO] {
            let mut scenario = Scenario::from_toml("fig11", text).unwrap();
            scenario.until = vec!["samples=5120".parse().unwrap()];
            scenario.training.data = "digits:200,100".parse().unwrap();
            scenario.model = "softmax".parse().unwrap();
            let prepared = scenario.prepare().unwrap();
            for scheme in SCHEMES {
                let (mut run, simulation) = prepare(&prepared, scheme, 1).unwrap();
                let summary = simulation.run(&mut run).unwrap().summary;
                assert_eq!(run.curve.len() as u64, 5120 / scenario.training.evaluate_every, "{scheme}");
                assert_eq!(summary.samples_used, 5120, "{scheme}");
            }
        }
    }
}
