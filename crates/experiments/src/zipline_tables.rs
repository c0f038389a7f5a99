//! ZipLine's Tables 3 and 4: the planning algorithms on workers drawn as in the paper's section 6.1.

use std::hint::black_box;
use std::time::{Duration, Instant};

use paceline_config::Failure;
use paceline_core::barrier::{Algorithm, Planner, PredictedTimes, Progression, plan};
use paceline_report::tables::aligned;
use paceline_runtime::is_interrupted;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde_json::json;

use crate::{Conditions, Findings};

/// Workers and horizon of the columns of Table 3.
const SIZES_3: [(usize, u32); 10] =
    [(10, 15), (50, 15), (100, 15), (500, 15), (1000, 15), (10, 150), (50, 150), (100, 150), (500, 150), (1000, 150)];

/// Workers and horizon of the columns of Table 4.
const SIZES_4: [(usize, u32); 6] = [(10, 15), (10, 150), (100, 15), (100, 150), (1000, 15), (1000, 150)];

/// The paper's waits in Table 3 for all exact algorithms, in milliseconds.
const EXACT_3: [u32; 10] = [599, 1103, 1228, 1351, 1403, 518, 1055, 1175, 1307, 1382];

/// How long each plan of Table 4 is repeated.
const MEASURING: Duration = Duration::from_millis(50);

/// Limit on the distances that the full grid scan tries, which takes a few seconds; more only with `--full`.
const MAX_STEPS: u64 = 1_000_000_000;

/// The paper's results for an algorithm: its waits in Table 3 in milliseconds, its times in Table 4 in microseconds.
fn published(algorithm: Algorithm) -> Option<([u32; 10], [f64; 6])> {
    match algorithm {
        Algorithm::ZiplineBasic => Some((EXACT_3, [1.49e2, 1.32e3, 6.37e3, 4.99e4, 2.53e5, 2.38e6])),
        Algorithm::ZiplineOpt => Some((EXACT_3, [0.90e2, 8.08e2, 2.46e3, 1.93e4, 9.39e4, 7.78e5])),
        Algorithm::ZiplineOptBs => Some((EXACT_3, [1.24e2, 1.15e3, 2.65e3, 2.30e4, 7.68e4, 5.66e5])),
        Algorithm::FullGridScan => Some((EXACT_3, [1.54e3, 4.67e4, 8.13e4, 2.15e6, 4.04e6, 2.07e8])),
        Algorithm::GridScan => Some((
            [599, 1103, 1345, 1357, 1405, 518, 1103, 1253, 1344, 1401],
            [1.68e2, 5.50e3, 1.11e3, 4.38e4, 7.45e3, 2.57e5],
        )),
        Algorithm::Zipline | Algorithm::Naive => None,
    }
}

/// Workers with intervals of 1000–1500 ms that started 10–50 ms apart, 20 iterations ago.
fn workers(count: usize, seed: u64) -> Vec<Progression> {
    let mut generator = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut worker = || {
        let interval = generator.random_range(1000..=1500);
        Progression { next: generator.random_range(10..=50) + 20 * interval, interval }
    };
    (0..count).map(|_| worker()).collect()
}

fn times(count: usize, horizon: u32, seed: u64) -> PredictedTimes {
    PredictedTimes::from_progressions(&workers(count, seed), horizon).expect("the drawn times are small")
}

/// The algorithms that can run at these sizes: all but naive search, which tries R^n sets.
fn algorithms() -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(|&algorithm| algorithm != Algorithm::Naive)
}

fn takes_long(algorithm: Algorithm, count: usize, horizon: u32) -> bool {
    algorithm == Algorithm::FullGridScan && (count as u64 * u64::from(horizon)).pow(2) > MAX_STEPS
}

fn head(first: &str, sizes: &[(usize, u32)]) -> Vec<String> {
    let columns = sizes.iter().map(|(count, horizon)| format!("{count}×{horizon}"));
    std::iter::once(first.into()).chain(columns).collect()
}

/// Table 3: the mean wait at the barriers found, and how often it was the shortest possible.
pub(super) fn quality(conditions: &Conditions) -> Result<Findings, Failure> {
    let mut rows = vec![head("mean wait (ms)", &SIZES_3)];
    rows[0].push("optimal".into());
    let mut records = Vec::new();
    for algorithm in algorithms().take_while(|_| !is_interrupted()) {
        let mut cells = vec![algorithm.to_string()];
        let (mut optimal, mut tried) = (0, 0);
        for (column, (count, horizon)) in SIZES_3.into_iter().enumerate() {
            if takes_long(algorithm, count, horizon) && !conditions.full {
                cells.push("–".into());
                continue;
            }
            let (mut sum, mut best) = (0, 0);
            for &seed in &conditions.seeds.0 {
                let times = times(count, horizon, seed);
                let wait = plan(algorithm, &times).map_err(Failure::run)?.wait;
                sum += wait;
                best += usize::from(wait == Planner::new().plan(&times).wait);
            }
            let runs = conditions.seeds.0.len();
            let mean = sum as f64 / runs as f64;
            cells.push(format!("{mean:.0}"));
            records.push(json!({
                "algorithm": algorithm.to_string(), "workers": count, "horizon": horizon, "runs": runs,
                "wait": mean, "optimal": best as f64 / runs as f64,
                "paper_wait": published(algorithm).map(|(waits, _)| waits[column]),
            }));
            optimal += best;
            tried += runs;
        }
        cells.push(format!("{:.0} %", 100.0 * optimal as f64 / tried.max(1) as f64));
        rows.push(cells);
        if let Some((waits, _)) = published(algorithm) {
            let share = if algorithm == Algorithm::GridScan { "[30 %]" } else { "[100 %]" };
            let brackets = waits.iter().map(|wait| format!("[{wait}]")).chain([share.into()]);
            rows.push(std::iter::once(String::new()).chain(brackets).collect());
        }
    }
    let text = format!(
        "ZipLine, Table 3: workers × predicted iterations; in brackets the paper's results, on other random workers.\n\
         –: takes long, run with --full.\n\n{}",
        aligned(rows)
    );
    Ok(Findings { text, records, panels: Vec::new() })
}

/// Table 4: the median time of a plan.
pub(super) fn speed(conditions: &Conditions) -> Result<Findings, Failure> {
    let seed = conditions.seeds.0[0];
    let mut rows = vec![head("microseconds per barrier", &SIZES_4)];
    let mut records = Vec::new();
    let mut record = |algorithm: &str, (count, horizon): (usize, u32), measured: f64, paper: Option<f64>| {
        records.push(json!({
            "algorithm": algorithm, "workers": count, "horizon": horizon,
            "microseconds": measured, "paper_microseconds": paper,
        }));
        figure(measured)
    };

    let name = "zipline, as elastic-bsp calls it";
    let mut cells = vec![name.to_string()];
    for size @ (count, horizon) in SIZES_4 {
        let workers = workers(count, seed);
        let mut planner = Planner::new();
        let once = || planner.plan_progressions(black_box(&workers), horizon).map(|barrier| barrier.at);
        cells.push(record(name, size, microseconds(once).map_err(Failure::run)?, None));
    }
    rows.push(cells);
    for algorithm in algorithms().take_while(|_| !is_interrupted()) {
        let mut cells = vec![algorithm.to_string()];
        for (column, size @ (count, horizon)) in SIZES_4.into_iter().enumerate() {
            if takes_long(algorithm, count, horizon) && !conditions.full {
                cells.push("–".into());
                continue;
            }
            let times = times(count, horizon, seed);
            let mut planner = Planner::new();
            let once = || match algorithm {
                Algorithm::Zipline => Ok(planner.plan(black_box(&times)).at),
                _ => plan(algorithm, black_box(&times)).map(|barrier| barrier.at),
            };
            let measured = microseconds(once).map_err(Failure::run)?;
            let paper = published(algorithm).map(|(_, times)| times[column]);
            cells.push(record(&algorithm.to_string(), size, measured, paper));
        }
        rows.push(cells);
        if let Some((_, times)) = published(algorithm) {
            let brackets = times.iter().map(|&time| format!("[{}]", figure(time)));
            rows.push(std::iter::once(String::new()).chain(brackets).collect());
        }
    }
    let text = format!(
        "ZipLine, Table 4: workers × predicted iterations; in brackets the paper's results, on other hardware.\n\
         –: takes long, run with --full. `cargo bench -p paceline-core --bench barrier` measures longer and more sizes.\n\n{}",
        aligned(rows)
    );
    Ok(Findings { text, records, panels: Vec::new() })
}

/// The median time of a plan in microseconds. Repeats it for about [`MEASURING`], at least once. The closure returns
/// the barrier's time, so that the compiler can't remove the work.
fn microseconds<E>(mut once: impl FnMut() -> Result<u64, E>) -> Result<f64, E> {
    let mut times = Vec::new();
    let first = Instant::now();
    while times.is_empty() || first.elapsed() < MEASURING {
        let start = Instant::now();
        black_box(once()?);
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2].as_secs_f64() * 1e6)
}

fn figure(value: f64) -> String {
    if value < 1e5 { format!("{value:.*}", if value < 100.0 { 2 } else { 0 }) } else { format!("{value:.2e}") }
}
