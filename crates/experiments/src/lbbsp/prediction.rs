//! Table 3 and fig. 11: errors of speed predictors, and their effect on iteration time.

use paceline_config::{Failure, PreparedScenario};
use paceline_core::SchemeSpec;
use paceline_core::speed::PredictorKind;
use paceline_report::plot::{Figure, Mark, Series, colour_of};
use paceline_report::speeds::ObservedSpeeds;
use paceline_report::tables::aligned;
use serde_json::json;

use super::{CLUSTER_B, SteadySpeed, WARM_UP, mean, scenario};
use crate::{Conditions, Findings, check_interrupt};

/// The paper's Table 3: predictors, their errors, and iteration times relative to bsp.
const PUBLISHED: [(&str, f64, f64); 6] = [
    ("memoryless", 11.85, 0.584),
    ("ema", 7.85, 0.489),
    ("arima", 9.67, 0.523),
    ("rnn", 8.34, 0.491),
    ("lstm", 9.19, 0.515),
    ("narx", 4.78, 0.423),
];

/// The speeds of a cluster's workers under lb-bsp.
fn observed(prepared: &PreparedScenario<'_>, seed: u64) -> anyhow::Result<ObservedSpeeds> {
    let mut speeds = ObservedSpeeds::default();
    prepared.simulation(&"lb-bsp".parse()?, seed, 1)?.run(&mut speeds)?;
    Ok(speeds)
}

pub fn table3(conditions: &Conditions) -> Result<Findings, Failure> {
    let scenario = scenario("cluster-b.toml", CLUSTER_B, None, conditions)?;
    let prepared = scenario.prepare().map_err(Failure::Input)?;
    let work = |&seed: &u64| {
        let observed = observed(&prepared, seed)?;
        let seconds = |scheme: &str| {
            let spec: SchemeSpec = scheme.parse()?;
            let mut steady = SteadySpeed::new(prepared.setup().workers);
            prepared.simulation(&spec, seed, 1)?.run(&mut steady)?;
            anyhow::Ok(steady.seconds())
        };
        let bsp = seconds("bsp")?;
        let mut rows = Vec::new();
        for (name, ..) in PUBLISHED {
            let kind: PredictorKind = name.parse().map_err(anyhow::Error::msg)?;
            let error = observed.error(&observed.predicted(kind), WARM_UP as usize);
            rows.push((seed, name, error, seconds(&format!("lb-bsp:predictor={kind}"))? / bsp));
        }
        Ok(rows)
    };
    let found = conditions.run(&conditions.seeds.0, work)?.concat();

    let head = ["predictor", "RMSE", "[paper]", "× ema", "[paper]", "time × bsp", "[paper]", "× ema", "[paper]"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let of = |name: &str| {
        let rows: Vec<&(u64, &str, f64, f64)> = found.iter().filter(|row| row.1 == name).collect();
        (
            mean(&rows.iter().map(|row| row.2).collect::<Vec<_>>()),
            mean(&rows.iter().map(|row| row.3).collect::<Vec<_>>()),
        )
    };
    let (ema_error, ema_time) = of("ema");
    let (_, paper_ema_error, paper_ema_time) = PUBLISHED[1];
    for (name, paper_error, paper_time) in PUBLISHED {
        let (error, time) = of(name);
        rows.push(vec![
            name.into(),
            format!("{error:.2}"),
            format!("[{paper_error}]"),
            format!("{:.2}", error / ema_error),
            format!("[{:.2}]", paper_error / paper_ema_error),
            format!("{time:.3}"),
            format!("[{paper_time}]"),
            format!("{:.2}", time / ema_time),
            format!("[{:.2}]", paper_time / paper_ema_time),
        ]);
    }
    let record = |&(seed, name, error, time): &(u64, &str, f64, f64)| {
        let paper = PUBLISHED.iter().find(|row| row.0 == name);
        json!({
            "predictor": name, "seed": seed, "rmse": error, "time_against_bsp": time,
            "paper_rmse": paper.map(|row| row.1), "paper_time_against_bsp": paper.map(|row| row.2),
        })
    };
    let text = format!(
        "LB-BSP, Table 3: errors of predicted speeds (samples/s) on Cluster-B, each predicted before it was observed, \
         and the time of an iteration under lb-bsp with each predictor, after the first {WARM_UP} iterations.\n\n{}",
        aligned(rows)
    );
    Ok(Findings { text, records: found.iter().map(record).collect(), panels: Vec::new() })
}

/// The iterations that the paper draws.
const DRAWN: std::ops::Range<usize> = 1_200..1_300;

pub fn fig11(conditions: &Conditions) -> Result<Findings, Failure> {
    let scenario = scenario("cluster-b.toml", CLUSTER_B, None, conditions)?;
    let prepared = scenario.prepare().map_err(Failure::Input)?;
    let observed = observed(&prepared, conditions.seeds.0[0]).map_err(Failure::Run)?;
    check_interrupt()?;
    // Worker 0 is an m4.2xlarge.
    let actual: Vec<f64> = observed.workers[0].iter().map(|(speed, _)| *speed).collect();
    let curve = |kind| observed.predicted(kind).workers.swap_remove(0);
    let (narx, ema) = (curve(PredictorKind::Narx), curve(PredictorKind::Ema));
    let error = |predicted: &[Option<f64>]| {
        let square = |iteration: usize| Some((predicted[iteration]? - actual[iteration]).powi(2));
        mean(&DRAWN.filter_map(square).collect::<Vec<_>>()).sqrt()
    };
    let series = |name: &str, colour: &str, value: &dyn Fn(usize) -> Option<f64>| Series {
        name: name.into(),
        mark: Mark::Line,
        colour: colour_of(colour),
        points: DRAWN.filter_map(|iteration| Some((iteration as f64, value(iteration)?))).collect(),
    };
    let figure = Figure {
        title: "Speed of an m4.2xlarge".into(),
        x: "iteration".into(),
        y: "samples per second".into(),
        shaded: None,
        series: vec![
            series("actual", "backup", &|iteration| actual.get(iteration).copied()),
            series("ema", "asp", &|iteration| ema[iteration]),
            series("narx", "lb-bsp", &|iteration| narx[iteration]),
        ],
    };
    let record = |iteration: usize| json!({ "iteration": iteration, "actual": actual[iteration], "narx": narx[iteration], "ema": ema[iteration] });
    let text = format!(
        "LB-BSP, fig. 11: predicted and actual speed of one worker, iterations {} to {}. RMSE: narx {:.2}, ema {:.2}.",
        DRAWN.start,
        DRAWN.end,
        error(&narx),
        error(&ema)
    );
    Ok(Findings { text, records: DRAWN.map(record).collect(), panels: vec![figure] })
}
