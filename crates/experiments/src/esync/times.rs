//! Fig. 4 and 5: how schemes use the workers' time and the network.

use paceline_config::Failure;
use paceline_report::plot::{Figure, Mark, Series, colours_of};
use paceline_report::tables::aligned;
use paceline_runtime::WorkerTimes;
use paceline_sim::SimulationOutcome;
use serde_json::json;

use super::{CLUSTER, mean, scenario};
use crate::{Conditions, Findings, check_interrupt};

const SCHEMES: [&str; 4] = ["bsp", "asp", "esync", "esync:mode=non-blocking"];

/// A latency with which a query takes 200 ms.
const LONG_LATENCY: f64 = 0.1;

fn run(scheme: &str, latency: Option<f64>, conditions: &Conditions) -> Result<SimulationOutcome, Failure> {
    let mut scenario = scenario("cluster.toml", CLUSTER, conditions)?;
    if let (Some(latency), Some(network)) = (latency, &mut scenario.cluster.network) {
        network.latency = latency;
    }
    let prepared = scenario.prepare().map_err(Failure::Input)?;
    let spec = scheme.parse().map_err(Failure::run)?;
    let simulation = prepared.simulation(&spec, conditions.seeds.0[0], 1).map_err(Failure::Run)?;
    let outcome = simulation.run(&mut ()).map_err(Failure::run)?;
    check_interrupt().map(|()| outcome)
}

/// Fig. 4: samples and bytes per second.
pub fn fig4(conditions: &Conditions) -> Result<Findings, Failure> {
    let mut found = Vec::new();
    for scheme in SCHEMES {
        let summary = run(scheme, None, conditions)?.summary;
        found.push((scheme, summary.samples_per_second, summary.bytes_per_second));
    }
    let [(_, bsp_samples, _), (_, asp_samples, asp_bytes), ..] = found[..] else { unreachable!("SCHEMES has four") };
    let head = ["scheme", "samples/s", "× bsp", "× asp", "MB/s", "× asp"];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(found.iter().map(|(scheme, samples, bytes)| {
        vec![
            scheme.to_string(),
            format!("{samples:.0}"),
            format!("{:.1}", samples / bsp_samples),
            format!("{:.1}", samples / asp_samples),
            format!("{:.1}", bytes / 1e6),
            format!("{:.3}", bytes / asp_bytes),
        ]
    }));
    let record = |(scheme, samples, bytes): &(&str, f64, f64)| json!({ "scheme": scheme, "samples_per_second": samples, "bytes_per_second": bytes });
    let text = format!(
        "ESync, fig. 4: data throughput and traffic. The paper: 33 times the samples per second of synchronous SGD, 13 \
         times those of asynchronous SGD, and a quarter of its traffic.\n\n{}",
        aligned(rows)
    );
    let points = found.iter().map(|&(scheme, samples, bytes)| (scheme, vec![(bytes / 1e6, samples)]));
    let figure = squares("Data throughput and traffic", "traffic (MB/s)", "samples per second", points.collect());
    Ok(Findings { text, records: found.iter().map(record).collect(), panels: vec![figure] })
}

/// Fig. 5: shares of each worker's time by activity, also with slow queries.
pub fn fig5(conditions: &Conditions) -> Result<Findings, Failure> {
    let head = ["scheme", "query time", "workers", "computing", "querying", "communicating", "waiting"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let (mut records, mut shares) = (Vec::new(), Vec::new());
    let short = SCHEMES.map(|scheme| (scheme, None));
    let long = SCHEMES[2..].iter().map(|&scheme| (scheme, Some(LONG_LATENCY)));
    for (scheme, latency) in short.into_iter().chain(long) {
        let outcome = run(scheme, latency, conditions)?;
        let milliseconds = latency.map_or(1.0, |latency| 2000.0 * latency);
        for (name, ranks) in [("fast", 0..4), ("slow", 4..6)] {
            let part = |value: fn(&WorkerTimes) -> f64| {
                let share = |worker: &WorkerTimes| value(worker) / worker.total();
                mean(&outcome.summary.worker_times[ranks.clone()].iter().map(share).collect::<Vec<_>>())
            };
            let parts = [
                part(|worker| worker.computing),
                part(|worker| worker.querying),
                part(|worker| worker.communicating),
                part(|worker| worker.waiting),
            ];
            let percent = parts.map(|part| format!("{:.1} %", 100.0 * part));
            let row = [scheme.into(), format!("{milliseconds:.0} ms"), name.into()].into_iter().chain(percent);
            rows.push(row.collect());
            records.push(json!({
                "scheme": scheme, "question_milliseconds": milliseconds, "workers": name, "computing": parts[0],
                "querying": parts[1], "communicating": parts[2], "waiting": parts[3],
            }));
        }
        if latency.is_none() {
            let by_rank =
                outcome.summary.worker_times.iter().map(|worker| (f64::from(worker.worker), worker.computing_share()));
            shares.push((scheme, by_rank.collect()));
        }
    }
    let text = format!(
        "ESync, fig. 5: shares of the time of four fast and two slow workers. Messages are as large as a ResNet-18, \
         over the server's 10 Gb/s.\nQuerying: waiting for an answer, or computing an iteration that the answer \
         discards.\n\n{}",
        aligned(rows)
    );
    let figure = squares("Computing time", "worker", "share of time", shares);
    Ok(Findings { text, records, panels: vec![figure] })
}

/// A square for every point of every scheme.
fn squares(title: &str, x: &str, y: &str, points: Vec<(&'static str, Vec<(f64, f64)>)>) -> Figure {
    let series = points.into_iter().zip(colours_of(SCHEMES)).map(|((scheme, points), colour)| Series {
        name: scheme.into(),
        mark: Mark::Squares,
        colour,
        points,
    });
    Figure { title: title.into(), x: x.into(), y: y.into(), shaded: None, series: series.collect() }
}
