//! Fig. 2: throughput when a slow host becomes fast.

use paceline_config::Failure;
use paceline_core::SchemeSpec;
use paceline_report::plot::{Figure, Mark, Series};
use paceline_report::tables::aligned;
use serde_json::json;

use super::{CHANGE, CutoffRun, RECOVERY, colour, contenders, file, mean, percent, pretrained, runs, scenario};
use crate::{Conditions, Findings};

/// The last one is the oracle, which the others are compared with.
const SCHEMES: [&str; 4] = ["bsp", "cutoff:predictor=normal", "cutoff:predictor=dmm", "cutoff:predictor=oracle"];

/// A scheme has recovered when the mean share over this many iterations is 90 %.
const RECOVERY_WINDOW: usize = 5;

/// A scheme's throughput as a share of the oracle's, per iteration from the second on.
struct ThroughputShares {
    scheme: SchemeSpec,
    seed: u64,
    shares: Vec<f64>,
}

impl ThroughputShares {
    /// The shares of these iterations, counted from 1.
    fn of(&self, from: usize, to: usize) -> impl Iterator<Item = f64> + '_ {
        self.shares.iter().copied().skip(from - 2).take(to + 1 - from)
    }

    /// The mean over all iterations but the first, before which nothing is known, and those right after the change.
    fn settled(&self) -> f64 {
        mean(self.of(2, CHANGE).chain(self.of(CHANGE + RECOVERY + 1, self.shares.len() + 1)))
    }

    /// Iterations after the change until the scheme has recovered.
    fn recovered(&self) -> Option<usize> {
        let after: Vec<f64> = self.of(CHANGE + 1, self.shares.len() + 1).collect();
        after.windows(RECOVERY_WINDOW).position(|window| mean(window.iter().copied()) >= 0.9)
    }
}

fn shares(runs: &[CutoffRun], run: &CutoffRun) -> ThroughputShares {
    let is_oracle = |other: &&CutoffRun| other.seed == run.seed && other.scheme.to_string() == SCHEMES[3];
    let oracle = runs.iter().find(is_oracle).map_or(&[][..], |oracle| &oracle.steps);
    let share = |(step, best): (&super::CutoffIteration, &super::CutoffIteration)| step.throughput / best.throughput;
    let shares = run.steps.iter().zip(oracle).skip(1).map(share).collect();
    ThroughputShares { scheme: run.scheme.clone(), seed: run.seed, shares }
}

pub(crate) fn run(conditions: &Conditions) -> Result<Findings, Failure> {
    let scenario = scenario(file!("fig2.toml"), conditions)?;
    let pretrained = pretrained(conditions)?;
    let jobs = contenders(&SCHEMES, &pretrained)?.into_iter().map(|scheme| (scenario.clone(), scheme)).collect();
    let runs = runs(jobs, conditions)?;
    let all: Vec<ThroughputShares> = runs.iter().map(|run| shares(&runs, run)).collect();

    let slow = format!("2 to {CHANGE}");
    let after = format!("{} to {}", CHANGE + 1, CHANGE + RECOVERY);
    let mut rows =
        vec![["scheme", "settled", slow.as_str(), after.as_str(), "later", "recovered after"].map(String::from)];
    for name in SCHEMES {
        let of: Vec<&ThroughputShares> = all.iter().filter(|shares| shares.scheme.to_string() == name).collect();
        let over = |share: &dyn Fn(&ThroughputShares) -> f64| percent(mean(of.iter().map(|shares| share(shares))));
        let recovered: Option<Vec<usize>> = of.iter().map(|shares| shares.recovered()).collect();
        rows.push([
            name.into(),
            over(&ThroughputShares::settled),
            over(&|shares| mean(shares.of(2, CHANGE))),
            over(&|shares| mean(shares.of(CHANGE + 1, CHANGE + RECOVERY))),
            over(&|shares| mean(shares.of(CHANGE + RECOVERY + 1, shares.shares.len() + 1))),
            recovered.map_or("-".into(), |all| format!("{} iterations at most", all.iter().max().unwrap_or(&0))),
        ]);
    }
    let text = format!(
        "Cutoff SGD, fig. 2: 158 workers on 4 hosts, one of them slow until iteration {CHANGE}. Gradients per second \
         as a share of the oracle's; settled: all iterations but the first and the {RECOVERY} after the change; \
         recovered: the mean of {RECOVERY_WINDOW} is 90 % or more.\n\n{}",
        aligned(rows)
    );
    let record = |shares: &ThroughputShares| {
        json!({
            "scheme": shares.scheme,
            "seed": shares.seed,
            "settled": shares.settled(),
            "slow": mean(shares.of(2, CHANGE)),
            "after_change": mean(shares.of(CHANGE + 1, CHANGE + RECOVERY)),
            "recovered_after": shares.recovered(),
        })
    };
    Ok(Findings { text, records: all.iter().map(record).collect(), panels: figures(&runs) })
}

/// Throughput and cutoff over iterations, of the first seed.
fn figures(runs: &[CutoffRun]) -> Vec<Figure> {
    let Some(seed) = runs.first().map(|run| run.seed) else { return Vec::new() };
    let drawn: Vec<&CutoffRun> = runs.iter().filter(|run| run.seed == seed).collect();
    let figure = |title: &str, y: &str, value: &dyn Fn(&super::CutoffIteration) -> f64| Figure {
        title: title.into(),
        x: "iteration".into(),
        y: y.into(),
        shaded: Some((CHANGE as f64, (CHANGE + RECOVERY) as f64)),
        // The oracle is drawn first, below the others.
        series: drawn
            .iter()
            .rev()
            .map(|run| Series {
                name: run.scheme.to_string(),
                mark: Mark::Line,
                colour: colour(&run.scheme),
                points: run.steps.iter().enumerate().map(|(index, step)| ((index + 1) as f64, value(step))).collect(),
            })
            .collect(),
    };
    vec![
        figure("throughput", "gradients per second", &|step| step.throughput),
        figure("cutoff", "gradients waited for", &|step| step.cutoff as f64),
    ]
}
