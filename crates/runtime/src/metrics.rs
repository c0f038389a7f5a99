//! The metrics of a run folder: `metrics.csv`, and the same for TensorBoard.
//!
//! Each iteration has a row. A run of more than [`ALL_UNTIL`] iterations thins them out, so that its files stay small
//! however long it lasts: one iteration in ten has a row up to ten times as many, then one in a hundred, and so on.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use paceline_spec::LineLimit;
use paceline_workload::Evaluation;
use serde::{Deserialize, Serialize};

use crate::folder_writer::{FolderFile, FolderWriter, QueuedFile};
use crate::run_folder::{RunFolderError, at};
use crate::tensorboard::ScalarLog;
use crate::{Iteration, KeepEvents, Monitor};

pub(crate) const METRICS: &str = "metrics.csv";

/// Every iteration up to this one has a row.
const ALL_UNTIL: u64 = 100_000;

/// How much for TensorBoard is written at a time, in bytes.
const PORTION: usize = 64 * 1024;

/// A row of a run folder's `metrics.csv`: an iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricsRow {
    /// Counts from 1.
    pub iteration: u64,
    /// When it ended, in seconds.
    pub time: f64,
    /// How long it took, in seconds.
    pub duration: f64,
    /// How many updates it was made of.
    pub waited_for: u64,
    /// Samples in all committed updates so far.
    pub samples: u64,
    /// Their mean training loss.
    pub loss: Option<f64>,
    /// The held-out accuracy, if it was measured since the last row.
    pub accuracy: Option<f64>,
    /// The held-out loss, likewise.
    pub held_out_loss: Option<f64>,
    /// Why it ended then.
    pub reason: String,
}

/// Reads a run folder's `metrics.csv`. A last line without an end is left out: the run was killed while writing it.
///
/// # Errors
/// If it can't be read.
pub fn read_metrics(folder: &Path) -> Result<Vec<MetricsRow>, RunFolderError> {
    let path = folder.join(METRICS);
    let mut text = Vec::new();
    File::open(&path).and_then(|file| LineLimit::new(file).read_to_end(&mut text)).map_err(at(&path))?;
    let end = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
    let rows = csv::Reader::from_reader(&text[..end]).deserialize().collect::<Result<_, _>>();
    rows.map_err(|error| RunFolderError::Metrics { path, error })
}

/// Cuts `metrics.csv` off after a version's row, and opens it to append. Returns also the last version that was cut off.
pub(crate) fn cut_metrics(path: &Path, version: u64) -> io::Result<(File, Option<u64>)> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut reader = BufReader::new(&file);
    let (mut kept, mut lost) = (0, None);
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = reader.read_until(b'\n', &mut line)? as u64;
        if line.last() != Some(&b'\n') {
            break;
        }
        let number =
            line.split(|&byte| byte == b',').next().and_then(|number| str::from_utf8(number).ok()?.parse().ok());
        match number {
            Some(iteration) if iteration > version => lost = Some(iteration),
            // The first line is names. Without a row they are written again.
            None if version == 0 => {}
            _ => kept += length,
        }
    }
    file.set_len(kept)?;
    Ok((file, lost))
}

/// The metrics during a run.
pub(crate) struct MetricsLog {
    rows: csv::Writer<QueuedFile>,
    scalars: ScalarLog<QueuedFile>,
    keep: KeepEvents,
    /// The last evaluation that is in no row yet.
    evaluation: Option<Evaluation>,
}

impl MetricsLog {
    /// The metrics of a run after `iterations`.
    pub(crate) fn new(writer: &FolderWriter, iterations: u64) -> io::Result<Self> {
        let rows = writer.file(FolderFile::Metrics, PORTION);
        Ok(MetricsLog {
            rows: csv::WriterBuilder::new().has_headers(iterations == 0).from_writer(rows),
            scalars: ScalarLog::new(writer.file(FolderFile::Scalars, PORTION))?,
            keep: KeepEvents::default(),
            evaluation: None,
        })
    }

    /// With [`KeepEvents::All`], every iteration has a row.
    pub(crate) fn keep(&mut self, keep: KeepEvents) {
        self.keep = keep;
    }

    pub(crate) fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) -> Result<(), csv::Error> {
        self.evaluation = monitor.fresh_evaluation().or(self.evaluation);
        if self.keep != KeepEvents::All && !iteration.iteration.is_multiple_of(interval(iteration.iteration)) {
            return Ok(());
        }
        let evaluation = self.evaluation.take();
        let row = MetricsRow {
            iteration: iteration.iteration,
            time: iteration.time,
            duration: iteration.duration,
            waited_for: iteration.waited_for as u64,
            samples: iteration.samples,
            loss: iteration.loss,
            accuracy: evaluation.and_then(|found| found.accuracy),
            held_out_loss: evaluation.map(|found| found.loss).filter(|loss| loss.is_finite()),
            reason: iteration.reason.to_string(),
        };
        let mut scalars = vec![("updates per step", row.waited_for as f64), ("seconds per step", row.duration)];
        scalars.extend(row.loss.map(|loss| ("loss", loss)));
        scalars.extend(row.accuracy.map(|accuracy| ("accuracy", accuracy)));
        scalars.extend(row.held_out_loss.map(|loss| ("held-out loss", loss)));
        self.scalars.write(row.iteration, row.time, &scalars)?;
        self.rows.serialize(&row)?;
        // One write per row.
        Ok(self.rows.flush()?)
    }

    /// Passes on what was collected.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.rows.flush()?;
        self.scalars.finish().map(drop)
    }
}

/// Of how many iterations one has a row, around this one.
fn interval(iteration: u64) -> u64 {
    let tens = std::iter::successors(Some(1u64), |every| every.checked_mul(10));
    tens.into_iter().find(|every| iteration / every <= ALL_UNTIL).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_thinned_out_by_tens() {
        let most = 1_000_000_000_000_000;
        let expected = [(1, 1), (ALL_UNTIL, 1), (ALL_UNTIL + 1, 10), (10 * ALL_UNTIL, 10), (u64::MAX, most)];
        for (iteration, every) in expected {
            assert_eq!(interval(iteration), every, "{iteration}");
        }
        let rows =
            (1..=30 * ALL_UNTIL).filter(|&iteration| iteration.is_multiple_of(interval(iteration))).count() as u64;
        assert_eq!(rows, ALL_UNTIL + 9 * ALL_UNTIL / 10 + 20 * ALL_UNTIL / 100);
    }

    #[test]
    fn metrics_are_cut_off_after_a_version_whatever_rows_there_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS);
        let names = "iteration,time,duration,waited_for,samples,loss,accuracy,reason\n";
        let row = |iteration: u64| format!("{iteration},1.0,1.0,1,64,,,applied\n");
        let all = format!("{names}{}{}{}13,1.", row(1), row(10), row(12));
        for (version, kept, lost) in [
            (0, String::new(), Some(12)),
            (1, names.to_string() + &row(1), Some(12)),
            (10, names.to_string() + &row(1) + &row(10), Some(12)),
            (11, names.to_string() + &row(1) + &row(10), Some(12)),
            (12, names.to_string() + &row(1) + &row(10) + &row(12), None),
        ] {
            std::fs::write(&path, &all).unwrap();
            assert_eq!(cut_metrics(&path, version).unwrap().1, lost, "{version}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), kept, "{version}");
        }
    }
}
