//! Fig. 13: a GPU cluster when one worker's link changes.

use std::path::Path;

use paceline_config::Failure;
use paceline_core::{Action, Decision, Event, SchemeSpec, Time, WorkerId};
use paceline_report::plot::{Figure, Mark, Series, colour_of};
use paceline_report::tables::aligned;
use paceline_runtime::{Iteration, Monitor, Observer};
use paceline_sim::Script;
use serde_json::json;

use super::{CLUSTER_C, mean, scenario};
use crate::{Conditions, Findings, check_interrupt};

const SCRIPT: &str = include_str!("../../scenarios/lb-bsp/fig13.script");
const SCHEMES: [&str; 2] = ["bsp", "lb-bsp:mode=gpu"];

/// Intervals in seconds in which the link is fast, slow and fast again, without the time right after a change.
const PERIODS: [(&str, f64, f64); 3] = [("480 Mb/s", 30.0, 40.0), ("160 Mb/s", 55.0, 80.0), ("480 Mb/s", 95.0, 120.0)];

/// Records the batch size of worker 0, whose link changes, and the duration of each iteration.
#[derive(Default)]
struct LinkRecorder {
    batch: u32,
    /// Time, batch size and duration in seconds.
    iterations: Vec<(f64, u32, f64)>,
}

impl Observer for LinkRecorder {
    fn on_turn(&mut self, _now: Time, _event: &Event, decisions: &[Decision]) {
        for decision in decisions {
            if let Action::Assign(assignment) = decision.action
                && assignment.task.worker == WorkerId(0)
            {
                self.batch = assignment.samples;
            }
        }
    }

    fn on_iteration(&mut self, iteration: &Iteration, _monitor: &Monitor) {
        self.iterations.push((iteration.time, self.batch, iteration.duration));
    }
}

impl LinkRecorder {
    /// The mean batch size and duration of the iterations within an interval.
    fn within(&self, from: f64, to: f64) -> (f64, f64) {
        let within = || self.iterations.iter().filter(|(time, ..)| (from..to).contains(time));
        (
            mean(&within().map(|found| f64::from(found.1)).collect::<Vec<_>>()),
            mean(&within().map(|found| found.2).collect::<Vec<_>>()),
        )
    }
}

pub fn run(conditions: &Conditions) -> Result<Findings, Failure> {
    let scenario = scenario("cluster-c.toml", CLUSTER_C, None, conditions)?;
    let prepared = scenario.prepare().map_err(Failure::Input)?;
    let script = Script::of(Path::new("fig13.script"), SCRIPT, prepared.setup().workers).map_err(Failure::run)?;
    let mut runs = Vec::new();
    for scheme in SCHEMES {
        let spec: SchemeSpec = scheme.parse().map_err(Failure::run)?;
        let mut simulation = prepared.simulation(&spec, conditions.seeds.0[0], 1).map_err(Failure::Run)?;
        simulation.script = script.clone();
        let mut recorder = LinkRecorder::default();
        simulation.run(&mut recorder).map_err(Failure::run)?;
        check_interrupt()?;
        runs.push((scheme, recorder));
    }
    let head = ["scheme", "link", "batch of worker 0", "s per iteration", "× fast link", "× bsp"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let mut records = Vec::new();
    for (scheme, recorder) in &runs {
        let (_, fast) = recorder.within(PERIODS[0].1, PERIODS[0].2);
        for (link, from, to) in PERIODS {
            let ((batch, seconds), (_, bsp)) = (recorder.within(from, to), runs[0].1.within(from, to));
            rows.push(vec![
                (*scheme).into(),
                link.into(),
                format!("{batch:.0}"),
                format!("{seconds:.3}"),
                format!("{:.3}", seconds / fast),
                format!("{:.3}", seconds / bsp),
            ]);
        }
        let record = |&(time, batch, seconds): &(f64, u32, f64)| json!({ "scheme": scheme, "time": time, "batch": batch, "seconds": seconds });
        records.extend(recorder.iterations.iter().map(record));
    }
    let panel = |title: &str, y: &str, value: fn(&(f64, u32, f64)) -> f64| Figure {
        title: title.into(),
        x: "time (s)".into(),
        y: y.into(),
        shaded: Some((40.0, 80.0)),
        series: runs
            .iter()
            .map(|(scheme, recorder)| Series {
                name: (*scheme).into(),
                mark: Mark::Line,
                colour: colour_of(scheme),
                points: recorder.iterations.iter().map(|found| (found.0, value(found))).collect(),
            })
            .collect(),
    };
    let panels = vec![
        panel("Batch size of worker 0", "samples", |found| f64::from(found.1)),
        panel("Iteration time", "seconds", |found| found.2),
    ];
    let text = format!(
        "LB-BSP, fig. 13: worker 0 is a g2.2xlarge whose link slows to a third (shaded).\nThe paper: its batch falls \
         from 380 to 235, which saves 27 % of an iteration; the slow link costs lb-bsp less than 3 %, and lb-bsp ends \
         more than 41 % ahead of bsp.\n\n{}",
        aligned(rows)
    );
    Ok(Findings { text, records, panels })
}
