//! A study: several schemes under several conditions, each for several seeds.

use std::path::Path;

use anyhow::Context;
use paceline_core::SchemeSpec;
use paceline_run::{Iteration, Monitor, Observer, Summary};
use serde::Deserialize;
use tempfile::TempDir;
use toml::Table;

use super::super::Conditions;
use super::FILES;
use crate::batch;
use crate::failure::Failure;
use crate::options::Scenario;
use crate::output::{Progress, bars};

/// What a study's file says. Settings are those of `paceline simulate`; later ones replace earlier ones in the order
/// scenario, condition, contender, full, full condition.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Study {
    /// What it is about.
    pub(super) title: String,
    /// What the figure shows.
    pub(super) panels: Vec<View>,
    /// The condition that curves are of, if not the first.
    pub(super) curves_of: Option<String>,
    /// A moment, in seconds, before and after which shares of k are counted apart.
    pub(super) split: Option<f64>,
    scenario: Table,
    /// What is different at the paper's size.
    #[serde(default)]
    full: Table,
    pub(super) condition: Vec<Condition>,
    #[serde(default)]
    contender: Vec<Contender>,
}

/// A panel of the figure, or one per condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum View {
    /// The loss over time, of the first seed.
    Loss,
    /// k over time, of the first seed.
    K,
    /// The time to the target: a panel per condition, a column per contender.
    Times,
    /// The mean time to the target against what the conditions vary.
    MeanTimes,
}

/// A condition under which all contenders run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Condition {
    pub(super) name: String,
    /// What is varied, where that is a number.
    pub(super) at: Option<f64>,
    #[serde(default)]
    settings: Table,
    #[serde(default)]
    full: Table,
    /// Who runs, if not the study's contenders.
    #[serde(default)]
    contender: Vec<Contender>,
}

/// A scheme with the settings that go with it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Contender {
    pub(super) scheme: SchemeSpec,
    #[serde(default)]
    settings: Table,
}

/// One contender under one condition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell<'a> {
    pub(super) condition: &'a Condition,
    pub(super) contender: &'a Contender,
}

impl Cell<'_> {
    pub(super) fn label(&self) -> String {
        format!("{}, {}", self.condition.name, self.contender.scheme)
    }
}

/// One iteration, as far as studies look at it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) time: f64,
    pub(super) k: usize,
    pub(super) loss: f64,
}

/// One run.
pub(super) struct Run<'a> {
    pub(super) cell: Cell<'a>,
    pub(super) summary: Summary,
    pub(super) steps: Vec<Step>,
}

#[derive(Default)]
struct Steps(Vec<Step>);

impl Observer for Steps {
    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        let loss = monitor.loss().unwrap_or(f64::NAN);
        self.0.push(Step { time: iteration.time, k: iteration.waited_for, loss });
    }
}

/// Writes the [`FILES`] where they can be read from.
pub(super) fn unpack() -> anyhow::Result<TempDir> {
    let folder = TempDir::new().context("a folder for the study's files")?;
    for (name, text) in FILES {
        let path = folder.path().join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(folder)
}

impl Study {
    /// Reads a study; `name` is what errors call it.
    pub(super) fn parse(name: &str, text: &str) -> anyhow::Result<Self> {
        toml::from_str(text).with_context(|| name.to_string())
    }

    /// All there is to run, with the position of each contender among those of its condition.
    pub(super) fn cells(&self) -> impl Iterator<Item = (Cell<'_>, usize)> {
        self.condition.iter().flat_map(|condition| {
            let contenders = self.contenders(condition).iter().enumerate();
            contenders.map(move |(position, contender)| (Cell { condition, contender }, position))
        })
    }

    /// Who runs under a condition.
    pub(super) fn contenders<'a>(&'a self, condition: &'a Condition) -> &'a [Contender] {
        if condition.contender.is_empty() { &self.contender } else { &condition.contender }
    }

    /// What to simulate; `folder` has the [`FILES`].
    pub(super) fn scenario(&self, cell: &Cell<'_>, full: bool, folder: &Path) -> anyhow::Result<Scenario> {
        let Cell { condition, contender } = cell;
        let mut settings = self.scenario.clone();
        settings.extend(condition.settings.clone());
        settings.extend(contender.settings.clone());
        if full {
            settings.extend(self.full.clone());
            settings.extend(condition.full.clone());
        }
        for value in settings.iter_mut().filter_map(|(_, value)| if let toml::Value::String(text) = value { Some(text) } else { None }) {
            for (name, _) in FILES {
                *value = value.replace(name, &folder.join(name).display().to_string());
            }
        }
        Scenario::from_toml(&cell.label(), &settings.to_string())
    }

    /// Runs everything, several runs at once.
    pub(super) fn run(&self, conditions: &Conditions) -> Result<Vec<Run<'_>>, Failure> {
        let folder = unpack().map_err(Failure::Run)?;
        let scenario = |cell: &Cell<'_>| {
            let mut scenario = self.scenario(cell, conditions.full, folder.path())?;
            if let Some(data) = &conditions.data {
                scenario.training.data = data.clone();
            }
            anyhow::Ok(scenario)
        };
        // Whether the data can be used shows before anything is run.
        if let Some((first, _)) = self.cells().next() {
            scenario(&first).and_then(|first| first.prepare().map(drop)).map_err(Failure::Input)?;
        }
        let seeds = &conditions.seeds.0;
        let jobs: Vec<(Cell<'_>, u64)> =
            self.cells().flat_map(|(cell, _)| seeds.iter().map(move |&seed| (cell, seed))).collect();
        let bars = bars();
        let work = |&(cell, seed): &(Cell<'_>, u64)| {
            let scenario = scenario(&cell)?;
            let prepared = scenario.prepare()?;
            let simulation = prepared.simulation(&cell.contender.scheme, seed, 1)?;
            let mut progress = Progress::new(&bars, format!("{} seed {seed}", cell.label()), &simulation.goals);
            let mut steps = Steps::default();
            let mut observers: Vec<&mut dyn Observer> = vec![&mut progress, &mut steps];
            let summary = simulation.run(&mut observers)?.summary;
            Ok(Run { cell, summary, steps: steps.0 })
        };
        let mut runs = Vec::new();
        let at_once = batch::threads(conditions.threads).min(jobs.len());
        batch::run(&jobs, at_once, work, |run| runs.push(run)).map_err(Failure::Run)?;
        Ok(runs)
    }
}
