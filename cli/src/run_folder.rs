//! The run folder: everything that a run leaves behind.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use paceline_run::{EventLog, Header, Iteration, Monitor, Observer, Summary};
use paceline_store::{Layout, export_model};
use serde::{Deserialize, Serialize};

use crate::config::Settings;
use crate::patient_file::PatientFile;
use crate::report;
use crate::tensorboard::ScalarLog;

/// TensorBoard looks for files with `tfevents` in their names.
const SCALARS: &str = "events.out.tfevents.paceline";

/// The event stream of a run folder.
pub const EVENTS: &str = "events.jsonl";
const METRICS: &str = "metrics.csv";

/// How much of the events is written at a time, in bytes; metrics are written as they come.
const PORTION: usize = 64 * 1024;

/// A run folder while the run goes on.
pub struct RunFolder {
    path: PathBuf,
    events: EventLog<PatientFile>,
    /// The file of the events.
    stream: File,
    /// How many there are.
    turns: u64,
    metrics: csv::Writer<PatientFile>,
    scalars: ScalarLog<PatientFile>,
    failed: Option<anyhow::Error>,
}

/// Refuses a folder that holds something already: nothing is ever overwritten.
pub fn check_free(path: &Path) -> anyhow::Result<()> {
    match fs::read_dir(path) {
        Ok(mut entries) => match entries.next() {
            Some(_) => bail!("{} exists and is not empty; choose another folder with --out", path.display()),
            None => Ok(()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
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

/// What a run folder's `metrics.csv` holds; of a run that was killed, without a last line that was cut short.
pub fn metrics(folder: &Path) -> anyhow::Result<Vec<Measured>> {
    let path = folder.join(METRICS);
    let told = || path.display().to_string();
    let text = fs::read(&path).with_context(told)?;
    let end = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
    csv::Reader::from_reader(&text[..end]).deserialize().collect::<Result<_, _>>().with_context(told)
}

/// When a run was over and how accurate its model was then, which is measured after the last line of its metrics.
pub fn last_accuracy(summary: &Summary) -> Option<(f64, f64)> {
    summary.accuracy.map(|accuracy| (summary.time, accuracy))
}

impl RunFolder {
    /// Makes the folder and begins its files.
    pub fn create(path: &Path, settings: &Settings, header: &Header) -> anyhow::Result<Self> {
        let told = || path.display().to_string();
        fs::create_dir_all(path).with_context(told)?;
        fs::write(path.join("config.toml"), settings.to_string()).with_context(told)?;
        let stream = File::create_new(path.join(EVENTS)).with_context(told)?;
        let events = PatientFile::new(stream.try_clone()?, PORTION).with_context(told)?;
        let events = EventLog::new(events, header).with_context(told)?;
        let metrics =
            File::create_new(path.join(METRICS)).and_then(|file| PatientFile::new(file, 1)).with_context(told)?;
        let metrics = csv::Writer::from_writer(metrics);
        let scalars = scalars(&path.join(SCALARS)).with_context(told)?;
        Ok(RunFolder { path: path.into(), events, stream, turns: 0, metrics, scalars, failed: None })
    }

    /// Goes on with a folder after so many `events` and iterations; whatever came later is taken out of it.
    pub fn resume(path: &Path, events: u64, iterations: u64) -> anyhow::Result<Self> {
        let cut = |name: &str, lines: u64| {
            let path = path.join(name);
            cut_after(&path, lines).with_context(|| path.display().to_string())
        };
        let stream = cut(EVENTS, events + 1)?;
        let log = EventLog::resumed(PatientFile::new(stream.try_clone()?, PORTION)?);
        // Before the first iteration there is not even a line of names.
        let metrics = PatientFile::new(cut(METRICS, if iterations == 0 { 0 } else { iterations + 1 })?, 1)?;
        let metrics = csv::WriterBuilder::new().has_headers(iterations == 0).from_writer(metrics);
        // TensorBoard puts the files of a folder together.
        let scalars = scalars(&path.join(format!("{SCALARS}.{iterations}")))?;
        Ok(RunFolder { path: path.into(), events: log, stream, turns: events, metrics, scalars, failed: None })
    }

    /// How many events there are, and the file that holds them all. All metrics so far are written, too.
    pub fn stream(&mut self) -> (u64, io::Result<File>) {
        let flushed = self.metrics.flush().and_then(|()| self.events.flush());
        (self.turns, flushed.and_then(|()| self.stream.try_clone()))
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

fn scalars(path: &Path) -> io::Result<ScalarLog<PatientFile>> {
    ScalarLog::new(PatientFile::new(File::create(path)?, PORTION)?)
}

/// Cuts a file off after so many lines, and opens it to go on there.
fn cut_after(path: &Path, lines: u64) -> io::Result<File> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut reader = BufReader::new(&file);
    let mut length = 0;
    for _ in 0..lines {
        length += reader.skip_until(b'\n')? as u64;
    }
    file.set_len(length)?;
    Ok(file)
}

impl Observer for RunFolder {
    fn on_turn(
        &mut self,
        now: paceline_core::Time,
        event: &paceline_core::Event,
        decisions: &[paceline_core::Decision],
    ) {
        self.events.on_turn(now, event, decisions);
        self.turns += 1;
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
