//! The results of a study: a table of times, a table of the shares of k, and figures.

use paceline_report::plot::{Figure, Mark, Series, colours_of};
use paceline_report::tables::aligned;
use serde_json::json;

use super::study::{Study, StudyCell, StudyCondition, StudyIteration, StudyRun, StudyView};
use crate::Findings;

pub(super) fn findings(study: &Study, runs: &[StudyRun<'_>], full: bool) -> Findings {
    StudyResults { study, runs, target: study.target(full) }.findings()
}

/// A study with its runs.
struct StudyResults<'a> {
    study: &'a Study,
    runs: &'a [StudyRun<'a>],
    target: Option<f64>,
}

impl<'a> StudyResults<'a> {
    fn findings(&self) -> Findings {
        let mut text = format!("{}\n\n{}", self.study.title, self.times_table());
        if let Some(shares) = self.shares_table() {
            text += &format!("\n\nShare of iterations with each k, in per cent:\n\n{shares}");
        }
        Findings {
            text,
            records: self.runs.iter().map(|run| self.record(run)).collect(),
            panels: self.study.panels.iter().flat_map(|&view| self.figures(view)).collect(),
        }
    }

    fn record(&self, run: &StudyRun<'_>) -> serde_json::Value {
        json!({
            "condition": run.cell.condition.name,
            "scheme": run.cell.contender.scheme,
            "seed": run.summary.seed,
            "target_loss": self.target,
            "time_to_target": self.target.and_then(|target| run.time_to(target)),
            "time": run.summary.time,
            "iterations": run.summary.iterations,
            "loss": run.summary.loss,
            "shares": shares(&run.steps, run.summary.workers),
        })
    }

    /// The runs of one cell.
    fn of(&self, cell: &StudyCell<'_>) -> Vec<&'a StudyRun<'a>> {
        self.runs.iter().filter(|run| run.cell == *cell).collect()
    }

    /// Mean and standard deviation of the time to the target; `None` if a run did not reach it.
    fn time(&self, cell: &StudyCell<'_>) -> Option<(f64, f64)> {
        let target = self.target?;
        let times: Vec<f64> = self.of(cell).iter().map(|run| run.time_to(target)).collect::<Option<_>>()?;
        let mean = mean(times.iter().copied());
        let squares: f64 = times.iter().map(|time| (time - mean).powi(2)).sum();
        Some((mean, (squares / (times.len() - 1).max(1) as f64).sqrt()))
    }

    fn times_table(&self) -> String {
        let until = self.target.map_or("time".into(), |target| format!("time to loss {target}"));
        let head = ["condition", "scheme", &until, "× best static", "reached", "iterations", "mean k", "final loss"];
        let mut rows = vec![head.map(String::from)];
        for condition in &self.study.condition {
            let cells = || self.study.cells_of(condition);
            let times = cells().filter(StudyCell::is_static).filter_map(|cell| self.time(&cell));
            let best = times.map(|(mean, _)| mean).reduce(f64::min);
            for cell in cells() {
                let (runs, time) = (self.of(&cell), self.time(&cell));
                let reached = runs.iter().filter(|run| self.target.is_some_and(|target| run.time_to(target).is_some()));
                rows.push([
                    condition.name.clone(),
                    cell.contender.scheme.to_string(),
                    time.map_or("-".into(), |(mean, deviation)| format!("{mean:.1} ± {deviation:.1} s")),
                    time.zip(best).map_or("-".into(), |((mean, _), best)| format!("{:.2}", best / mean)),
                    self.target.map_or("-".into(), |_| format!("{} of {}", reached.count(), runs.len())),
                    format!("{:.0}", mean(runs.iter().map(|run| run.summary.iterations as f64))),
                    format!("{:.1}", mean(runs.iter().map(|run| mean(run.steps.iter().map(|step| step.k as f64))))),
                    format!("{:.4}", mean(runs.iter().map(|run| run.summary.loss.unwrap_or(f64::NAN)))),
                ]);
            }
        }
        aligned(rows)
    }

    /// How often the dynamic schemes chose each k, for each period; `None` if all schemes are static.
    fn shares_table(&self) -> Option<String> {
        let workers = self.runs.first().map_or(0, |run| run.summary.workers);
        let periods = match self.study.split {
            Some(at) => vec![(format!(", before {at} s"), 0.0, at), (format!(", after {at} s"), at, f64::INFINITY)],
            None => vec![(String::new(), 0.0, f64::INFINITY)],
        };
        let mut rows = vec![std::iter::once("k".into()).chain((1..=workers).map(|k| k.to_string())).collect()];
        for cell in self.study.cells().filter(|cell| !cell.is_static()) {
            for (period, from, to) in &periods {
                let within = |step: &&StudyIteration| *from < step.time && step.time <= *to;
                let runs = self.of(&cell);
                let steps: Vec<StudyIteration> =
                    runs.iter().flat_map(|run| &run.steps).filter(within).copied().collect();
                let shares = shares(&steps, workers).into_iter();
                let shares = shares.map(|share| if share > 0.0 { format!("{:.0}", 100.0 * share) } else { "·".into() });
                rows.push(std::iter::once(cell.label() + period).chain(shares).collect::<Vec<String>>());
            }
        }
        (rows.len() > 1).then(|| aligned(rows))
    }

    fn figures(&self, view: StudyView) -> Vec<Figure> {
        let conditions = &self.study.condition;
        let named = self.study.curves_of.as_ref().and_then(|name| conditions.iter().find(|known| known.name == *name));
        let condition = named.or(conditions.first()).into_iter();
        match view {
            StudyView::Loss => condition.map(|condition| self.losses(condition)).collect(),
            StudyView::K => condition.map(|condition| self.choices(condition)).collect(),
            StudyView::Times => conditions.iter().map(|condition| self.columns(condition)).collect(),
            StudyView::MeanTimes => vec![self.mean_times()],
        }
    }

    /// The cells of a condition with their colours.
    fn coloured(
        &self,
        condition: &'a StudyCondition,
    ) -> impl Iterator<Item = (StudyCell<'a>, plotters::style::RGBColor)> {
        let cells: Vec<StudyCell<'a>> = self.study.cells_of(condition).collect();
        let colours = colours_of(cells.iter().map(|cell| cell.contender.scheme.name()));
        cells.into_iter().zip(colours)
    }

    /// The loss over time, of each contender's first seed.
    fn losses(&self, condition: &'a StudyCondition) -> Figure {
        let line = |(cell, colour): (StudyCell<'_>, _)| {
            let run = *self.of(&cell).first()?;
            let points = run.steps.iter().map(|step| (step.time, step.loss)).collect();
            Some(Series { name: cell.contender.scheme.to_string(), mark: Mark::Line, colour, points })
        };
        let series = self.coloured(condition).filter_map(line).collect();
        Figure { title: condition.name.clone(), x: "time (s)".into(), y: "training loss".into(), shaded: None, series }
    }

    /// k over time, of each dynamic contender's first seed.
    fn choices(&self, condition: &'a StudyCondition) -> Figure {
        let dots = |(cell, colour): (StudyCell<'_>, _)| {
            let run = *self.of(&cell).first()?;
            let points = run.steps.iter().map(|step| (step.time, step.k as f64)).collect();
            Some(Series { name: cell.contender.scheme.to_string(), mark: Mark::Dots, colour, points })
        };
        let series = self.coloured(condition).filter(|(cell, _)| !cell.is_static()).filter_map(dots).collect();
        Figure { title: condition.name.clone(), x: "time (s)".into(), y: "k".into(), shaded: None, series }
    }

    /// The times of all seeds and their mean, in a column per contender.
    fn columns(&self, condition: &'a StudyCondition) -> Figure {
        let mut series = Vec::new();
        for ((cell, colour), column) in self.coloured(condition).zip((1..).map(f64::from)) {
            let times = self.of(&cell).into_iter().filter_map(|run| run.time_to(self.target?));
            let points = times.map(|time| (column, time)).collect();
            series.push(Series { name: String::new(), mark: Mark::Dots, colour, points });
            let points = self.time(&cell).map(|(mean, _)| (column, mean)).into_iter().collect();
            series.push(Series { name: cell.contender.scheme.to_string(), mark: Mark::Squares, colour, points });
        }
        let y = "time to target (s); squares: means".into();
        Figure { title: condition.name.clone(), x: "scheme".into(), y, shaded: None, series }
    }

    /// The mean time of each of the first condition's contenders over the value that the conditions vary.
    fn mean_times(&self) -> Figure {
        let contenders = self.study.condition.first().into_iter().flat_map(|first| self.coloured(first));
        let line = |(position, (cell, colour)): (usize, (StudyCell<'_>, _))| {
            let cells =
                self.study.condition.iter().filter_map(|condition| self.study.cells_of(condition).nth(position));
            let points = cells.filter_map(|cell| Some((cell.condition.at?, self.time(&cell)?.0))).collect();
            Series { name: cell.contender.scheme.to_string(), mark: Mark::Line, colour, points }
        };
        Figure {
            title: "Mean time to target".into(),
            x: "α".into(),
            y: "time (s)".into(),
            shaded: None,
            series: contenders.enumerate().map(line).collect(),
        }
    }
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// The share of iterations with each k from 1 to `workers`.
fn shares(steps: &[StudyIteration], workers: usize) -> Vec<f64> {
    let mut counts = vec![0_usize; workers];
    steps.iter().filter(|step| (1..=workers).contains(&step.k)).for_each(|step| counts[step.k - 1] += 1);
    counts.iter().map(|&count| count as f64 / steps.len().max(1) as f64).collect()
}
