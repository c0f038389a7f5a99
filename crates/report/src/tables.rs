//! Results as tables of text.

use paceline_runtime::{Summary, WorkerTimes};

use crate::numbers::{number, time};

/// Finished runs as a table.
pub fn table(summaries: &[Summary]) -> String {
    let names = ["scheme", "seed", "iterations", "time", "reached", "loss", "accuracy", "idle", "lost", "MB"];
    aligned(std::iter::once(names.map(String::from)).chain(summaries.iter().map(row)))
}

/// Shares of each worker's time by activity, as a table.
pub fn workers_table(workers: &[WorkerTimes]) -> String {
    // Most workers have their data in memory.
    let loads = workers.iter().any(|times| times.loading > 0.0);
    let columns = |[worker, computing, loading, querying, communicating, waiting, samples]: [String; 7]| {
        let loading = loads.then_some(loading);
        [worker, computing].into_iter().chain(loading).chain([querying, communicating, waiting, samples]).collect()
    };
    let head =
        ["worker", "computing", "(loading)", "querying", "communicating", "waiting", "samples/s"].map(String::from);
    let row = |times: &WorkerTimes| {
        let share = |seconds: f64| format!("{:.1} %", 100.0 * seconds / times.total().max(f64::MIN_POSITIVE));
        columns([
            times.worker.to_string(),
            share(times.computing),
            share(times.loading),
            share(times.querying),
            share(times.communicating),
            share(times.waiting),
            format!("{:.0}", times.samples_per_second),
        ])
    };
    let rows: Vec<Vec<String>> = std::iter::once(columns(head)).chain(workers.iter().map(row)).collect();
    aligned(rows)
}

/// Rows of equally many cells as a table: the first column left-aligned, the others right-aligned.
pub fn aligned<Row: AsRef<[String]>>(rows: impl IntoIterator<Item = Row>) -> String {
    let rows: Vec<Row> = rows.into_iter().collect();
    let columns = rows.first().map_or(0, |row| row.as_ref().len());
    let width = |column: usize| rows.iter().map(|row| row.as_ref()[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Row| {
        let padded = row.as_ref().iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn row(summary: &Summary) -> [String; 10] {
    let or_dash = |value: Option<f64>, digits: usize| value.map_or("-".into(), |value| number(value, digits));
    [
        summary.scheme.clone(),
        summary.seed.to_string(),
        summary.iterations.to_string(),
        time(summary.time),
        if summary.reached { summary.stopped_by.clone() } else { format!("no: {}", summary.stopped_by) },
        or_dash(summary.loss, 4),
        or_dash(summary.accuracy, 4),
        format!("{:.1} %", 100.0 * summary.idle_share),
        summary.samples_lost.to_string(),
        format!("{:.1}", summary.bytes as f64 / 1e6),
    ]
}
