//! The run folder: everything that a run leaves behind.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use paceline_run::{EventLog, Header, Iteration, Monitor, Observer, Summary};
use paceline_store::{Layout, export_model};
use serde::{Deserialize, Serialize};

use crate::config::Settings;
use crate::report;
use crate::tensorboard::ScalarLog;

/// TensorBoard looks for files with `tfevents` in their names.
const SCALARS: &str = "events.out.tfevents.paceline";

/// A run folder while the run goes on.
pub struct RunFolder {
    path: PathBuf,
    events: EventLog<BufWriter<File>>,
    metrics: csv::Writer<File>,
    scalars: ScalarLog<BufWriter<File>>,
    failed: Option<anyhow::Error>,
}

/// Refuses a folder that holds something already: nothing is ever overwritten.
pub fn check_free(path: &Path) -> anyhow::Result<()> {
    match fs::read_dir(path) {
        Ok(mut entries) => match entries.next() {
            Some(_) => bail!("{} exists and is not empty; choose another folder with --out", path.display()),
            None => Ok(()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// A folder in `runs/` that there is not yet: its name and the next free number.
pub fn next_free(name: &str) -> anyhow::Result<PathBuf> {
    let numbered = (1..).map(|number: u32| Path::new("runs").join(format!("{name}{number}")));
    numbered.into_iter().find(|path| !path.exists()).context("runs/ is full")
}

/// A line of a run folder's `metrics.csv`: an iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Counts from 1.
    pub iteration: u64,
    /// When it ended, in seconds.
    pub time: f64,
    /// How long it took, in seconds.
    pub duration: f64,
    /// How many updates it was made of.
    pub waited_for: u64,
    /// Their mean training loss.
    pub loss: Option<f64>,
    /// The held-out accuracy, where it was measured.
    pub accuracy: Option<f64>,
    /// Why it ended then.
    pub reason: String,
}

/// What a run folder's `metrics.csv` holds.
pub fn metrics(folder: &Path) -> anyhow::Result<Vec<Measured>> {
    let path = folder.join("metrics.csv");
    let told = || path.display().to_string();
    let mut reader = csv::Reader::from_path(&path).with_context(told)?;
    reader.deserialize().collect::<Result<_, _>>().with_context(told)
}

impl RunFolder {
    /// Makes the folder and begins its files.
    pub fn create(path: &Path, settings: &Settings, header: &Header) -> anyhow::Result<Self> {
        let told = || path.display().to_string();
        fs::create_dir_all(path).with_context(told)?;
        fs::write(path.join("config.toml"), settings.to_string()).with_context(told)?;
        let events = File::create_new(path.join("events.jsonl")).with_context(told)?;
        let metrics = csv::Writer::from_writer(File::create_new(path.join("metrics.csv")).with_context(told)?);
        let events = EventLog::new(BufWriter::new(events), header).with_context(told)?;
        let scalars = File::create_new(path.join(SCALARS)).with_context(told)?;
        let scalars = ScalarLog::new(BufWriter::new(scalars)).with_context(told)?;
        Ok(RunFolder { path: path.into(), events, metrics, scalars, failed: None })
    }

    /// Ends the files and adds the model, the summary and the report.
    pub fn finish(mut self, summary: &Summary, model: Option<(&Layout, &[f32])>) -> anyhow::Result<()> {
        let told = self.path.display().to_string();
        if let Some(error) = self.failed.take() {
            return Err(error.context(told));
        }
        self.events.finish().with_context(|| told.clone())?;
        self.metrics.flush().with_context(|| told.clone())?;
        self.scalars.finish().with_context(|| told.clone())?;
        if let Some((layout, parameters)) = model {
            export_model(&self.path.join("model.safetensors"), layout, parameters).with_context(|| told.clone())?;
        }
        let text = serde_json::to_string_pretty(summary)?;
        fs::write(self.path.join("summary.json"), text + "\n").context(told)?;
        report::write(&self.path.join("report.html"), std::slice::from_ref(&self.path))?;
        Ok(())
    }
}

impl Observer for RunFolder {
    fn on_turn(
        &mut self,
        now: paceline_core::Time,
        event: &paceline_core::Event,
        decisions: &[paceline_core::Decision],
    ) {
        self.events.on_turn(now, event, decisions);
    }

    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        let accuracy = monitor.fresh_evaluation().map(|found| found.accuracy);
        let row = Measured {
            iteration: iteration.iteration,
            time: iteration.time,
            duration: iteration.duration,
            waited_for: iteration.waited_for as u64,
            loss: iteration.loss,
            accuracy,
            reason: iteration.reason.to_string(),
        };
        let mut scalars = vec![("updates per step", row.waited_for as f64), ("seconds per step", row.duration)];
        scalars.extend(row.loss.map(|loss| ("loss", loss)));
        scalars.extend(accuracy.map(|accuracy| ("accuracy", accuracy)));
        if self.failed.is_none() {
            let written = self.scalars.write(row.iteration, row.time, &scalars).map_err(anyhow::Error::from);
            self.failed = written.and_then(|()| Ok(self.metrics.serialize(&row)?)).err();
        }
    }
}
