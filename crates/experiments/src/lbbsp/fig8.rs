//! Fig. 8 (and 9): schemes at three levels of heterogeneity.

use paceline_config::Failure;
use paceline_core::SchemeSpec;
use paceline_report::plot::{Figure, Mark, Series, colours_of};
use paceline_report::tables::aligned;
use paceline_runtime::{Iteration, Monitor, Observer};
use serde_json::json;

use super::{CLUSTER_A, LEARNING, SteadySpeed, mean, scenario};
use crate::target::LossTarget;
use crate::{Conditions, Findings};

const SCHEMES: [&str; 4] = ["bsp", "asp", "ssp:staleness=10", "lb-bsp"];

const LEVELS: [(&str, &str); 3] =
    [("Homo", "contention:l1"), ("Hetero-L2", "contention:l2"), ("Hetero-L3", "contention:l3")];

/// The target for the training loss, as the mean over this many updates per worker; single updates are noisy.
const TARGET: f64 = 0.45;
const UPDATES_PER_WORKER: usize = 5;

/// When training stops.
const LEARNING_UNTIL: &str = "samples=120000";

/// Counts the updates until a run reaches the target.
struct UpdatesToTarget {
    target: LossTarget,
    updates: u64,
    reached: Option<u64>,
}

impl Observer for UpdatesToTarget {
    fn on_iteration(&mut self, iteration: &Iteration, _monitor: &Monitor) {
        self.updates += iteration.waited_for as u64;
        if self.target.is_met(iteration) && self.reached.is_none() {
            self.reached = Some(self.updates);
        }
    }
}

/// The results of one run for speed and one for learning.
struct LevelResult {
    level: &'static str,
    scheme: &'static str,
    seed: u64,
    /// Updates to the target, if it was reached.
    updates: Option<u64>,
    seconds: f64,
    waiting: f64,
}

pub fn run(conditions: &Conditions) -> Result<Findings, Failure> {
    let mut found = Vec::new();
    for (level, times) in LEVELS {
        let speed = scenario("cluster-a.toml", CLUSTER_A, Some(times), conditions)?;
        let learning = scenario("learning.toml", LEARNING, Some(times), conditions)?;
        let (speed, learning) = (speed.prepare().map_err(Failure::Input)?, learning.prepare().map_err(Failure::Input)?);
        let seeds = &conditions.seeds.0;
        let jobs: Vec<(&'static str, u64)> =
            SCHEMES.into_iter().flat_map(|scheme| seeds.iter().map(move |&seed| (scheme, seed))).collect();
        let work = |&(scheme, seed): &(&'static str, u64)| {
            let spec: SchemeSpec = scheme.parse()?;
            let mut steady = SteadySpeed::new(speed.setup().workers);
            speed.simulation(&spec, seed, 1)?.run(&mut steady)?;
            let target = LossTarget::new(TARGET, UPDATES_PER_WORKER * learning.setup().workers);
            let mut progress = UpdatesToTarget { target, updates: 0, reached: None };
            let mut simulation = learning.simulation(&spec, seed, 1)?;
            simulation.goals = LEARNING_UNTIL.parse()?;
            simulation.run(&mut progress)?;
            Ok(LevelResult {
                level,
                scheme,
                seed,
                updates: progress.reached,
                seconds: steady.seconds(),
                waiting: steady.waiting(),
            })
        };
        found.extend(conditions.run(&jobs, work)?);
    }
    Ok(findings(&found))
}

fn findings(found: &[LevelResult]) -> Findings {
    let head = [
        "level",
        "scheme",
        "updates to target",
        "s per update of all workers",
        "× asp",
        "waiting",
        "time to target",
        "× bsp",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    let mut panel = Vec::new();
    for (position, (level, _)) in LEVELS.into_iter().enumerate() {
        let of = |scheme: &str, value: fn(&LevelResult) -> f64| {
            let runs = found.iter().filter(|run| run.level == level && run.scheme == scheme);
            mean(&runs.map(value).collect::<Vec<_>>())
        };
        let updates = |run: &LevelResult| run.updates.map_or(f64::NAN, |updates| updates as f64);
        let time = |scheme| of(scheme, updates) / 32.0 * of(scheme, |run| run.seconds);
        for scheme in SCHEMES {
            let seconds = of(scheme, |run| run.seconds);
            rows.push(vec![
                level.into(),
                scheme.into(),
                format!("{:.0}", of(scheme, updates)),
                format!("{seconds:.3}"),
                format!("{:.3}", seconds / of("asp", |run| run.seconds)),
                format!("{:.1} %", 100.0 * of(scheme, |run| run.waiting)),
                format!("{:.1} s", time(scheme)),
                format!("{:.2}", time("bsp") / time(scheme)),
            ]);
            panel.push((scheme, (position as f64 + 1.0, time(scheme))));
        }
    }
    let series = SCHEMES.into_iter().zip(colours_of(SCHEMES)).map(|(scheme, colour)| {
        let points = panel.iter().filter(|(found, _)| *found == scheme).map(|&(_, point)| point).collect();
        Series { name: scheme.into(), mark: Mark::Line, colour, points }
    });
    let figure = Figure {
        title: "Time to the target loss".into(),
        x: "heterogeneity: the slowest worker's time divided by the fastest's".into(),
        y: "time (s)".into(),
        shaded: None,
        series: series.collect(),
    };
    let records = found.iter().map(|run| {
        json!({
            "level": run.level, "scheme": run.scheme, "seed": run.seed, "updates_to_target": run.updates,
            "seconds_for_an_update_of_all": run.seconds, "waiting_share": run.waiting,
        })
    });
    let text = format!(
        "LB-BSP, fig. 8 and 9 (ResNet-32 there, softmax regression here): time to target = updates to a training loss \
         below {TARGET} × time of an update after the warm-up.\nThe paper: lb-bsp needs bsp's number of updates, its \
         iterations are within 5 % of asp's, its waiting under 5 %, and at Hetero-L3 it is more than 30 % ahead of the \
         others.\n\n{}",
        aligned(rows)
    );
    Findings { text, records: records.collect(), panels: vec![figure] }
}
