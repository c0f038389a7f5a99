//! What a study shows: the times as a table, the shares of k as another, and its figure.

use paceline_run::Summary;
use serde_json::json;

use super::super::Findings;
use super::study::{Cell, Condition, Run, Step, Study, View};
use crate::output::aligned;
use crate::plot::{Figure, Mark, Series, colours_of};

pub(super) fn findings(study: &Study, runs: &[Run<'_>]) -> Findings {
    let mut text = format!("{}\n\n{}", study.title, times_table(study, runs));
    let shares = shares_table(study, runs);
    if !shares.is_empty() {
        text += &format!("\n\nShare of iterations with each k, in per cent\n\n{shares}");
    }
    let panels = study.panels.iter().flat_map(|&view| figures(study, runs, view)).collect();
    Findings { text, records: runs.iter().map(record).collect(), panels }
}

fn record(run: &Run<'_>) -> serde_json::Value {
    let Summary { seed, reached, time_to_target, time, iterations, loss, .. } = run.summary;
    json!({
        "condition": run.cell.condition.name, "scheme": run.cell.contender.scheme, "seed": seed, "reached": reached,
        "time_to_target": time_to_target, "time": time, "iterations": iterations, "loss": loss,
        "shares": shares(&run.steps, run.summary.workers),
    })
}

/// The runs of one cell.
fn of<'a, 'b>(runs: &'b [Run<'a>], cell: &Cell<'_>) -> Vec<&'b Run<'a>> {
    let same = |run: &&Run<'_>| {
        std::ptr::eq(run.cell.condition, cell.condition) && std::ptr::eq(run.cell.contender, cell.contender)
    };
    runs.iter().filter(same).collect()
}

/// Mean and standard deviation of the time to the target; `None` if a run did not reach it.
fn time_to_target(runs: &[&Run<'_>]) -> Option<(f64, f64)> {
    let times: Vec<f64> = runs.iter().map(|run| run.summary.time_to_target).collect::<Option<_>>()?;
    let mean = mean(times.iter().copied());
    let squares: f64 = times.iter().map(|time| (time - mean).powi(2)).sum();
    Some((mean, (squares / (times.len() - 1).max(1) as f64).sqrt()))
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

fn is_static(cell: &Cell<'_>) -> bool {
    matches!(cell.contender.scheme.name(), "backup" | "bsp")
}

fn times_table(study: &Study, runs: &[Run<'_>]) -> String {
    let head = ["condition", "scheme", "time", "× best static", "reached", "iterations", "mean k", "loss at the end"];
    let mut rows = vec![head.map(String::from)];
    for condition in &study.condition {
        let cells = || study.contenders(condition).iter().map(|contender| Cell { condition, contender });
        let best = cells()
            .filter(is_static)
            .filter_map(|cell| time_to_target(&of(runs, &cell)))
            .map(|(mean, _)| mean)
            .reduce(f64::min);
        for cell in cells() {
            let runs = of(runs, &cell);
            let time = time_to_target(&runs);
            let reached = runs.iter().filter(|run| run.summary.reached).count();
            let losses = runs.iter().map(|run| run.summary.loss.unwrap_or(f64::NAN));
            rows.push([
                condition.name.clone(),
                cell.contender.scheme.to_string(),
                time.map_or("-".into(), |(mean, deviation)| format!("{mean:.1} ± {deviation:.1} s")),
                time.zip(best).map_or("-".into(), |((mean, _), best)| format!("{:.2}", best / mean)),
                format!("{reached} of {}", runs.len()),
                format!("{:.0}", mean(runs.iter().map(|run| run.summary.iterations as f64))),
                format!("{:.1}", mean(runs.iter().map(|run| mean_k(&run.steps)))),
                format!("{:.4}", mean(losses)),
            ]);
        }
    }
    aligned(rows)
}

fn mean_k(steps: &[Step]) -> f64 {
    mean(steps.iter().map(|step| step.k as f64))
}

/// The share of iterations with each k from 1 to `workers`.
fn shares(steps: &[Step], workers: usize) -> Vec<f64> {
    let mut counts = vec![0_usize; workers];
    steps.iter().filter(|step| (1..=workers).contains(&step.k)).for_each(|step| counts[step.k - 1] += 1);
    counts.iter().map(|&count| count as f64 / steps.len().max(1) as f64).collect()
}

/// How often the dynamic schemes chose each k, before and after the split where there is one.
fn shares_table(study: &Study, runs: &[Run<'_>]) -> String {
    let workers = runs.first().map_or(0, |run| run.summary.workers);
    let spans: Vec<(String, f64, f64)> = match study.split {
        Some(at) => vec![(format!("before {at} s"), 0.0, at), (format!("after {at} s"), at, f64::INFINITY)],
        None => vec![(String::new(), 0.0, f64::INFINITY)],
    };
    let mut rows = Vec::new();
    for (cell, _) in study.cells().filter(|(cell, _)| !is_static(cell)) {
        for (span, from, to) in &spans {
            let within = |step: &&Step| *from < step.time && step.time <= *to;
            let steps: Vec<Step> =
                of(runs, &cell).iter().flat_map(|run| &run.steps).filter(within).copied().collect();
            let shares = shares(&steps, workers).into_iter();
            let shares = shares.map(|share| if share > 0.0 { format!("{:.0}", 100.0 * share) } else { "·".into() });
            let label = if span.is_empty() { cell.label() } else { format!("{}, {span}", cell.label()) };
            rows.push(std::iter::once(label).chain(shares).collect::<Vec<String>>());
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let head = std::iter::once("k".to_string()).chain((1..=workers).map(|k| k.to_string())).collect();
    rows.insert(0, head);
    aligned(rows)
}

fn figures(study: &Study, runs: &[Run<'_>], view: View) -> Vec<Figure> {
    let shown = study.curves_of.as_ref().and_then(|name| study.condition.iter().find(|known| known.name == *name));
    let shown = shown.or(study.condition.first());
    match view {
        View::Loss => shown.map(|condition| curves(study, runs, condition, "training loss", true, |step| step.loss)).into_iter().collect(),
        View::K => shown.map(|condition| curves(study, runs, condition, "k", false, |step| step.k as f64)).into_iter().collect(),
        View::Times => study.condition.iter().map(|condition| columns(study, runs, condition)).collect(),
        View::MeanTimes => vec![mean_times(study, runs)],
    }
}

/// Something over time, of each contender's first seed.
fn curves(
    study: &Study,
    runs: &[Run<'_>],
    condition: &Condition,
    y: &str,
    with_static: bool,
    value: fn(&Step) -> f64,
) -> Figure {
    let contenders = study.contenders(condition);
    let colours = colours_of(contenders.iter().map(|contender| contender.scheme.name()));
    let mut series = Vec::new();
    for (contender, colour) in contenders.iter().zip(colours) {
        let cell = Cell { condition, contender };
        if let Some(run) = of(runs, &cell).first().filter(|_| with_static || !is_static(&cell)) {
            let points = run.steps.iter().map(|step| (step.time, value(step))).collect();
            let mark = if with_static { Mark::Line } else { Mark::Dots };
            series.push(Series { name: contender.scheme.to_string(), mark, colour, points });
        }
    }
    Figure { title: condition.name.clone(), x: "time (s)".into(), y: y.into(), shaded: None, series }
}

/// The times of all seeds, a column for each contender, with their means.
fn columns(study: &Study, runs: &[Run<'_>], condition: &Condition) -> Figure {
    let contenders = study.contenders(condition);
    let colours = colours_of(contenders.iter().map(|contender| contender.scheme.name()));
    let mut series = Vec::new();
    for ((position, contender), colour) in (1..).map(f64::from).zip(contenders).zip(colours) {
        let runs = of(runs, &Cell { condition, contender });
        let times = runs.iter().filter_map(|run| run.summary.time_to_target);
        let points = times.map(|time| (position, time)).collect();
        series.push(Series { name: String::new(), mark: Mark::Dots, colour, points });
        let mean = time_to_target(&runs).map(|(mean, _)| (position, mean));
        let points = mean.into_iter().collect();
        series.push(Series { name: contender.scheme.to_string(), mark: Mark::Squares, colour, points });
    }
    Figure { title: condition.name.clone(), x: "scheme".into(), y: "time to the target (s)".into(), shaded: None, series }
}

/// The mean time of each contender against what the conditions vary.
fn mean_times(study: &Study, runs: &[Run<'_>]) -> Figure {
    let contenders = study.condition.first().map_or(&[][..], |first| study.contenders(first));
    let colours = colours_of(contenders.iter().map(|contender| contender.scheme.name()));
    let line = |(position, colour)| {
        let cells = study.cells().filter(|(_, at)| *at == position).map(|(cell, _)| cell);
        let point = |cell: Cell<'_>| Some((cell.condition.at?, time_to_target(&of(runs, &cell))?.0));
        let name = study.contenders(&study.condition[0])[position].scheme.to_string();
        Series { name, mark: Mark::Line, colour, points: cells.filter_map(point).collect() }
    };
    Figure {
        title: "Mean time to the target".into(),
        x: "α".into(),
        y: "time (s)".into(),
        shaded: None,
        series: colours.into_iter().enumerate().map(line).collect(),
    }
}
