//! Fig. 4: the held-out loss over time.

use paceline_config::Failure;
use paceline_report::plot::{Figure, Mark, Series};
use paceline_report::tables::aligned;
use serde_json::json;

use super::{CutoffRun, colour, contenders, file, mean, pretrained, runs, scenario};
use crate::{Conditions, Findings};

/// The schemes, each with its scenario.
const SCHEMES: [(&str, (&str, &str)); 4] = [
    ("bsp", file!("fig4.toml")),
    ("asp", file!("fig4-asp.toml")),
    ("cutoff:predictor=normal", file!("fig4.toml")),
    ("cutoff:predictor=dmm", file!("fig4.toml")),
];

/// The target for the held-out loss.
const TARGET: f64 = 0.4;

impl CutoffRun {
    /// Time of the first evaluation with a held-out loss below the target.
    fn time_to_target(&self) -> Option<f64> {
        let below = |step: &&super::CutoffIteration| step.held_out.is_some_and(|loss| loss < TARGET);
        self.steps.iter().find(below).map(|step| step.time)
    }
}

pub(crate) fn run(conditions: &Conditions) -> Result<Findings, Failure> {
    let pretrained = pretrained(conditions)?;
    let mut jobs = Vec::new();
    for (name, file) in SCHEMES {
        for scheme in contenders(&[name], &pretrained)? {
            jobs.push((scenario(file, conditions)?, scheme));
        }
    }
    let runs = runs(jobs, conditions)?;
    let target = format!("time to held-out loss {TARGET}");
    let mut rows = vec![["scheme", target.as_str(), "mean k", "updates", "held-out loss at the end"].map(String::from)];
    for (name, _) in SCHEMES {
        let of: Vec<&CutoffRun> = runs.iter().filter(|run| run.scheme.to_string() == name).collect();
        let times: Option<Vec<f64>> = of.iter().map(|run| run.time_to_target()).collect();
        let at_the_end = |run: &&CutoffRun| run.steps.last().and_then(|step| step.held_out).unwrap_or(f64::NAN);
        rows.push([
            name.into(),
            times.map_or("-".into(), |times| format!("{:.1} s", mean(times))),
            format!("{:.1}", mean(of.iter().map(|run| mean(run.steps.iter().map(|step| step.cutoff as f64))))),
            format!("{:.0}", mean(of.iter().map(|run| run.steps.len() as f64))),
            format!("{:.4}", mean(of.iter().map(at_the_end))),
        ]);
    }
    let text = format!(
        "Cutoff SGD, fig. 4: a CNN on 158 workers of 4 hosts. One host is slow at first, then the others in \
         turn.\n\n{}",
        aligned(rows)
    );
    let record = |run: &CutoffRun| {
        json!({
            "scheme": run.scheme,
            "seed": run.seed,
            "target": TARGET,
            "time_to_target": run.time_to_target(),
            "updates": run.steps.len(),
            "held_out_loss": run.steps.last().and_then(|step| step.held_out),
        })
    };
    Ok(Findings { text, records: runs.iter().map(record).collect(), panels: vec![figure(&runs)] })
}

/// The held-out loss over time, of the first seed.
fn figure(runs: &[CutoffRun]) -> Figure {
    let seed = runs.first().map(|run| run.seed);
    let drawn: Vec<&CutoffRun> = runs.iter().filter(|run| Some(run.seed) == seed).collect();
    let line = |run: &&CutoffRun| {
        let points = run.steps.iter().filter_map(|step| step.held_out.map(|loss| (step.time, loss))).collect();
        Series { name: run.scheme.to_string(), mark: Mark::Line, colour: colour(&run.scheme), points }
    };
    Figure {
        title: "a CNN on 158 workers".into(),
        x: "time (s)".into(),
        y: "held-out loss".into(),
        shaded: None,
        series: drawn.iter().map(line).collect(),
    }
}
