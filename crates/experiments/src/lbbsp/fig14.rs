//! Fig. 14: the cost of choosing batch sizes.

use std::time::Instant;

use paceline_config::Failure;
use paceline_core::{Action, Commit, Event, Ledger, Report, SchemeSpec, Setup, Span, TaskId, Time, WorkerId};
use paceline_report::tables::aligned;
use serde_json::json;

use crate::{Conditions, Findings};

const ITERATIONS: u64 = 1_000;

/// Iteration times in seconds that the cost is compared with: a short one, and one like the paper's.
const SHORT: f64 = 0.01;
const LONG: f64 = 1.0;

/// The seconds of each decision that ends an iteration: predict all speeds, choose batch sizes, assign work.
fn decisions(scheme: &str, workers: usize) -> anyhow::Result<Vec<f64>> {
    let spec: SchemeSpec = scheme.parse()?;
    let mut ledger = Ledger::new(spec.build(&Setup::new(workers, 128))?);
    let ids = || (0..workers as u32).map(WorkerId);
    let mut now = Time::START;
    for worker in ids() {
        ledger.handle(now, Event::Joined { worker })?;
    }
    let mut seconds = Vec::new();
    for number in 0..ITERATIONS {
        now = now + Span::from_seconds(LONG);
        for worker in ids() {
            // Speeds differ by worker and change over time.
            let load = f64::from((worker.0 + number as u32 / 50) % 7) / 10.0;
            let compute = Span::from_seconds(LONG / (1.0 - load));
            let report = Report { compute, cpu: Some(load as f32), memory: Some(0.4), ..Report::default() };
            let start = Instant::now();
            let decisions = ledger.handle(now, Event::Reported { task: TaskId { worker, number }, report })?;
            let commit = decisions.iter().find_map(|decision| match decision.action {
                Action::Commit(Commit { version, .. }) => Some(version),
                _ => None,
            });
            if let Some(version) = commit {
                seconds.push(start.elapsed().as_secs_f64());
                ledger.handle(now, Event::Committed { version, aggregate: None })?;
            }
        }
        while let Some(at) = ledger.next_timer() {
            now = now.max(at);
            ledger.handle(now, Event::Timer)?;
        }
    }
    seconds.sort_unstable_by(f64::total_cmp);
    Ok(seconds)
}

pub fn run(_conditions: &Conditions) -> Result<Findings, Failure> {
    let head = ["workers", "scheme", "median µs", "5th", "95th", "share of 10 ms", "share of 1 s", "paper"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let mut records = Vec::new();
    for workers in [32, 64, 96, 1_000] {
        for scheme in ["bsp", "lb-bsp"] {
            let seconds = decisions(scheme, workers).map_err(Failure::Run)?;
            let at = |share: usize| seconds[(seconds.len() - 1) * share / 100];
            rows.push(vec![
                workers.to_string(),
                scheme.into(),
                format!("{:.1}", 1e6 * at(50)),
                format!("{:.1}", 1e6 * at(5)),
                format!("{:.1}", 1e6 * at(95)),
                format!("{:.3} %", 100.0 * at(50) / SHORT),
                format!("{:.5} %", 100.0 * at(50) / LONG),
                if workers == 96 && scheme != "bsp" { "[< 1.1 %]" } else { "" }.into(),
            ]);
            records.push(json!({
                "workers": workers, "scheme": scheme, "median_seconds": at(50),
                "p5_seconds": at(5), "p95_seconds": at(95),
            }));
        }
    }
    let text = format!(
        "LB-BSP, fig. 14: time of the decision that ends an iteration, with NARX, on this machine. Paceline processes \
         no log and needs no second round trip: batch sizes are part of the assignments.\n\n{}",
        aligned(rows)
    );
    Ok(Findings { text, records, panels: Vec::new() })
}
