//! A study: several schemes under several conditions, each with several seeds.

use std::path::Path;

use anyhow::Context;
use paceline_config::{Failure, Scenario};
use paceline_core::SchemeSpec;
use paceline_report::progress::{RunBar, bars};
use paceline_runtime::{Iteration, Monitor, Observer, Summary};
use paceline_sim::{Script, ScriptError};
use serde::Deserialize;
use toml::Table;

use crate::Conditions;

/// A study's file. Settings are those of `paceline simulate`; later ones replace earlier ones, in the order scenario,
/// condition, contender, full, full condition.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Study {
    /// Its title and description.
    pub(super) title: String,
    /// The target for the training loss, as the mean of the samples of five rounds.
    target: Option<f64>,
    /// The target at the paper's size, if it differs.
    full_target: Option<f64>,
    /// Timed changes, one per line as in the files of `--script`.
    #[serde(default)]
    script: String,
    /// The panels of the figure.
    pub(super) panels: Vec<StudyView>,
    /// The condition whose curves are drawn, if not the first.
    pub(super) curves_of: Option<String>,
    /// A time in seconds before and after which shares of k are counted separately.
    pub(super) split: Option<f64>,
    scenario: Table,
    /// Settings at the paper's size.
    #[serde(default)]
    full: Table,
    pub(super) condition: Vec<StudyCondition>,
    #[serde(default)]
    contender: Vec<StudyContender>,
}

/// A panel of the figure, or one per condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum StudyView {
    /// The loss over time, of the first seed.
    Loss,
    /// k over time, of the first seed.
    K,
    /// The time to target: a panel per condition, a column per contender.
    Times,
    /// The mean time to target over the value that the conditions vary.
    MeanTimes,
}

/// A condition under which all contenders run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StudyCondition {
    pub(super) name: String,
    /// The varied value, if it is a number.
    pub(super) at: Option<f64>,
    #[serde(default)]
    settings: Table,
    #[serde(default)]
    full: Table,
    /// Contenders that replace the study's.
    #[serde(default)]
    contender: Vec<StudyContender>,
}

/// A scheme with its settings.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StudyContender {
    pub(super) scheme: SchemeSpec,
    #[serde(default)]
    settings: Table,
}

/// One contender under one condition.
#[derive(Debug, Clone, Copy)]
pub(super) struct StudyCell<'a> {
    pub(super) condition: &'a StudyCondition,
    pub(super) contender: &'a StudyContender,
}

impl PartialEq for StudyCell<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.condition, other.condition) && std::ptr::eq(self.contender, other.contender)
    }
}

impl StudyCell<'_> {
    /// Whether k never changes.
    pub(super) fn is_static(&self) -> bool {
        matches!(self.contender.scheme.name(), "backup" | "bsp")
    }

    pub(super) fn label(&self) -> String {
        format!("{}, {}", self.condition.name, self.contender.scheme)
    }
}

/// One iteration of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct StudyIteration {
    pub(super) time: f64,
    pub(super) k: usize,
    /// The mean loss of the last five rounds' samples; not a number before there are as many.
    pub(super) loss: f64,
}

/// One run.
pub(super) struct StudyRun<'a> {
    pub(super) cell: StudyCell<'a>,
    pub(super) summary: Summary,
    pub(super) steps: Vec<StudyIteration>,
}

impl StudyRun<'_> {
    /// When the mean of the last losses was first below `target`.
    pub(super) fn time_to(&self, target: f64) -> Option<f64> {
        let below = |step: &&StudyIteration| step.loss < target;
        self.steps.iter().find(below).map(|step| step.time)
    }
}

#[derive(Default)]
struct StudyRecorder(Vec<StudyIteration>);

impl Observer for StudyRecorder {
    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        let loss = monitor.smoothed_loss().unwrap_or(f64::NAN);
        self.0.push(StudyIteration { time: iteration.time, k: iteration.waited_for, loss });
    }
}

impl Study {
    /// Reads a study. Errors call it `name`.
    pub(super) fn parse(name: &str, text: &str) -> anyhow::Result<Self> {
        toml::from_str(text).with_context(|| name.to_string())
    }

    /// All cells.
    pub(super) fn cells(&self) -> impl Iterator<Item = StudyCell<'_>> {
        self.condition.iter().flat_map(|condition| self.cells_of(condition))
    }

    /// The cells of a condition.
    pub(super) fn cells_of<'a>(&'a self, condition: &'a StudyCondition) -> impl Iterator<Item = StudyCell<'a>> {
        let contenders = if condition.contender.is_empty() { &self.contender } else { &condition.contender };
        contenders.iter().map(move |contender| StudyCell { condition, contender })
    }

    /// The target loss.
    pub(super) fn target(&self, full: bool) -> Option<f64> {
        self.full_target.filter(|_| full).or(self.target)
    }

    /// The script, for this number of workers.
    pub(super) fn script(&self, workers: usize) -> Result<Script, ScriptError> {
        Script::of(Path::new("the study's script"), &self.script, workers)
    }

    /// The scenario of a cell.
    pub(super) fn scenario(&self, cell: &StudyCell<'_>, full: bool) -> anyhow::Result<Scenario> {
        let StudyCell { condition, contender } = cell;
        let mut settings = self.scenario.clone();
        settings.extend(condition.settings.clone());
        settings.extend(contender.settings.clone());
        if full {
            settings.extend(self.full.clone());
            settings.extend(condition.full.clone());
        }
        Scenario::from_toml(&cell.label(), &settings.to_string())
    }

    /// Runs everything, several runs at once.
    pub(super) fn run<'a>(&'a self, conditions: &Conditions) -> Result<Vec<StudyRun<'a>>, Failure> {
        let scenario = |cell: &StudyCell<'_>| {
            let mut scenario = self.scenario(cell, conditions.full)?;
            if let Some(data) = &conditions.data {
                scenario.training.data = data.clone();
            }
            anyhow::Ok(scenario)
        };
        // Checks the data before the first run.
        if let Some(first) = self.cells().next() {
            scenario(&first).and_then(|first| first.prepare().map(drop)).map_err(Failure::Input)?;
        }
        let seeds = &conditions.seeds.0;
        let jobs: Vec<(StudyCell<'a>, u64)> =
            self.cells().flat_map(|cell| seeds.iter().map(move |&seed| (cell, seed))).collect();
        let bars = bars();
        let work = |&(cell, seed): &(StudyCell<'a>, u64)| {
            let scenario = scenario(&cell)?;
            let prepared = scenario.prepare()?;
            let mut simulation = prepared.simulation(&cell.contender.scheme, seed, 1)?;
            simulation.script = self.script(simulation.setup.workers)?;
            let mut progress = RunBar::new(&bars, format!("{} seed {seed}", cell.label()), &simulation.goals);
            let mut steps = StudyRecorder::default();
            let mut observers: Vec<&mut dyn Observer> = vec![&mut progress, &mut steps];
            let summary = simulation.run(&mut observers)?.summary;
            Ok(StudyRun { cell, summary, steps: steps.0 })
        };
        conditions.run(&jobs, work)
    }
}
