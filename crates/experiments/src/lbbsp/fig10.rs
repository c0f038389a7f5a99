//! Fig. 10: training loss on a production-like cluster.

use paceline_config::Failure;
use paceline_core::SchemeSpec;
use paceline_report::plot::{Figure, Mark, Series, colours_of};
use paceline_report::tables::aligned;
use paceline_runtime::{Iteration, Monitor, Observer};
use serde_json::json;

use super::{LEARNING, mean, scenario};
use crate::{Conditions, Findings};

const SCHEMES: [&str; 2] = ["bsp", "lb-bsp"];

/// Curves are smoothed over this many iterations, as in the paper.
const SMOOTHING: usize = 30;

#[derive(Default)]
struct LossCurve(Vec<(f64, f64)>);

impl Observer for LossCurve {
    fn on_iteration(&mut self, iteration: &Iteration, _monitor: &Monitor) {
        self.0.extend(iteration.loss.map(|loss| (iteration.time, loss)));
    }
}

impl LossCurve {
    fn smoothed(&self) -> Vec<(f64, f64)> {
        let smooth = |window: &[(f64, f64)]| {
            (window[window.len() - 1].0, mean(&window.iter().map(|point| point.1).collect::<Vec<_>>()))
        };
        self.0.windows(SMOOTHING).map(smooth).collect()
    }
}

pub fn run(conditions: &Conditions) -> Result<Findings, Failure> {
    let scenario = scenario("learning.toml", LEARNING, Some("contention:production"), conditions)?;
    let prepared = scenario.prepare().map_err(Failure::Input)?;
    let seeds = &conditions.seeds.0;
    let jobs: Vec<(&'static str, u64)> =
        SCHEMES.into_iter().flat_map(|scheme| seeds.iter().map(move |&seed| (scheme, seed))).collect();
    let work = |&(scheme, seed): &(&'static str, u64)| {
        let spec: SchemeSpec = scheme.parse()?;
        let mut curve = LossCurve::default();
        let summary = prepared.simulation(&spec, seed, 1)?.run(&mut curve)?.summary;
        Ok((scheme, summary, curve))
    };
    let runs = conditions.run(&jobs, work)?;

    let time = |scheme: &str| {
        let times = runs.iter().filter(|(of, ..)| *of == scheme).map(|(_, summary, _)| summary.time_to_target);
        mean(&times.map(|time| time.unwrap_or(f64::NAN)).collect::<Vec<_>>())
    };
    let head = ["scheme", "time to target", "iterations", "× bsp", "paper"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for scheme in SCHEMES {
        let iterations = runs.iter().filter(|(of, ..)| *of == scheme).map(|(_, summary, _)| summary.iterations as f64);
        rows.push(vec![
            scheme.into(),
            format!("{:.1} s", time(scheme)),
            format!("{:.0}", mean(&iterations.collect::<Vec<_>>())),
            format!("{:.2}", time("bsp") / time(scheme)),
            if scheme == "bsp" { "[1]" } else { "[> 2]" }.into(),
        ]);
    }
    let series = SCHEMES.into_iter().zip(colours_of(SCHEMES)).filter_map(|(scheme, colour)| {
        let (_, _, curve) = runs.iter().find(|(of, ..)| *of == scheme)?;
        Some(Series { name: scheme.into(), mark: Mark::Line, colour, points: curve.smoothed() })
    });
    let figure = Figure {
        title: "Training loss on a production-like cluster".into(),
        x: "time (s)".into(),
        y: format!("loss, mean of {SMOOTHING} iterations"),
        shaded: None,
        series: series.collect(),
    };
    let record = |(scheme, summary, _): &(&str, paceline_runtime::Summary, LossCurve)| {
        json!({
            "scheme": scheme, "seed": summary.seed, "iterations": summary.iterations,
            "time_to_target": summary.time_to_target, "idle_share": summary.idle_share,
        })
    };
    let text = format!(
        "LB-BSP, fig. 10 (ResNet-32 there, softmax regression here): time to the target loss on the machines of Table \
         2 under load.\n\n{}",
        aligned(rows)
    );
    Ok(Findings { text, records: runs.iter().map(record).collect(), panels: vec![figure] })
}
