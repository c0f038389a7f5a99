//! The run folder: everything that a run leaves behind.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use paceline_run::{EventLog, Header, Iteration, Monitor, Observer, Summary};
use paceline_store::{Layout, export_model};

use crate::config::Settings;

/// A run folder while the run goes on.
pub struct RunFolder {
    path: PathBuf,
    events: EventLog<BufWriter<File>>,
    metrics: csv::Writer<File>,
    failed: Option<csv::Error>,
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

impl RunFolder {
    /// Makes the folder and begins its files.
    pub fn create(path: &Path, settings: &Settings, header: &Header) -> anyhow::Result<Self> {
        let told = || path.display().to_string();
        fs::create_dir_all(path).with_context(told)?;
        fs::write(path.join("config.toml"), settings.to_string()).with_context(told)?;
        let events = File::create_new(path.join("events.jsonl")).with_context(told)?;
        let mut metrics = csv::Writer::from_writer(File::create_new(path.join("metrics.csv")).with_context(told)?);
        metrics.write_record(["iteration", "time", "duration", "waited_for", "loss", "accuracy", "reason"])?;
        let events = EventLog::new(BufWriter::new(events), header).with_context(told)?;
        Ok(RunFolder { path: path.into(), events, metrics, failed: None })
    }

    /// Ends the files and adds the model and the summary.
    pub fn finish(mut self, summary: &Summary, model: Option<(&Layout, &[f32])>) -> anyhow::Result<()> {
        let told = self.path.display().to_string();
        if let Some(error) = self.failed.take() {
            return Err(error).context(told);
        }
        self.events.finish().with_context(|| told.clone())?;
        self.metrics.flush().with_context(|| told.clone())?;
        if let Some((layout, parameters)) = model {
            export_model(&self.path.join("model.safetensors"), layout, parameters).with_context(|| told.clone())?;
        }
        let text = serde_json::to_string_pretty(summary)?;
        fs::write(self.path.join("summary.json"), text + "\n").context(told)
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
        let or_empty = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        let row = [
            iteration.iteration.to_string(),
            iteration.time.to_string(),
            iteration.duration.to_string(),
            iteration.waited_for.to_string(),
            or_empty(iteration.loss),
            or_empty(monitor.fresh_evaluation().map(|found| found.accuracy)),
            iteration.reason.to_string(),
        ];
        if self.failed.is_none() {
            self.failed = self.metrics.write_record(row).err();
        }
    }
}
