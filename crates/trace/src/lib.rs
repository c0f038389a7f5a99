//! Run-time traces: the time of each worker's tasks, one row per step, one column per worker.

mod delimited;
mod from_events;
#[cfg(feature = "parquet")]
mod parquet_table;
#[cfg(not(feature = "parquet"))]
mod parquet_table {
    //! A build without Parquet: it is refused.

    use std::fs::File;

    use super::{Trace, TraceColumns, TraceErrorKind};

    pub(super) fn read(_file: File) -> Result<TraceColumns, TraceErrorKind> {
        Err(TraceErrorKind::NoParquet)
    }

    pub(super) fn write(_trace: &Trace, _file: &mut File) -> Result<(), TraceErrorKind> {
        Err(TraceErrorKind::NoParquet)
    }
}
mod spans;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use paceline_core::{Span, TaskId};
use paceline_runtime::{EVENTS, Observer, ReplayError, open_events};
use paceline_spec::{LineLimit, open_input};
use paceline_store::write_file;
use thiserror::Error;

pub use spans::PROFILER_STEP;

/// The limit of a line of a `.json` trace, in bytes: profilers write a whole trace in one.
const MAX_SPANS: u64 = 1 << 30;

/// The times of each worker's tasks in seconds, in order.
///
/// A worker with fewer tasks has empty cells at the end of its column. A column named `step`, `iteration` or `time` is
/// ignored. The file extension selects the format: `.parquet` is Parquet, `.json` is a Chrome or PyTorch trace of
/// spans, `.jsonl` is the event log of a run. A folder is read as a run folder. All other files are comma-separated
/// values, with or without a header line.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trace {
    workers: Vec<Vec<f64>>,
}

/// An error in a trace file.
#[derive(Debug, Error)]
#[error("{}: {kind}", path.display())]
pub struct TraceError {
    /// The file.
    pub path: PathBuf,
    /// The error.
    pub kind: TraceErrorKind,
}

/// The kinds of errors in a trace file.
#[derive(Debug, Error)]
pub enum TraceErrorKind {
    /// The file can't be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is not comma-separated values.
    #[error("{0}")]
    Csv(#[from] csv::Error),
    /// The file is Parquet, which this build does not support.
    #[error("this build does not support Parquet; use .csv, or build with --features parquet")]
    NoParquet,
    /// The file is not a Parquet table.
    #[cfg(feature = "parquet")]
    #[error("{0}")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// The file is not a JSON trace of spans.
    #[error("not a Chrome or PyTorch trace: {0}")]
    Json(#[from] serde_json::Error),
    /// The file is not an event log.
    #[error("{0}")]
    Events(#[from] Box<ReplayError>),
    /// No span has the requested name.
    #[error("no span is named '{name}': give another name with --span")]
    NoSpans {
        /// The requested name.
        name: String,
    },
    /// The duration of a span is not above 0.
    #[error("span '{name}' at {start} µs has duration {duration} µs; expected more than 0")]
    NotASpan {
        /// The name of the span.
        name: String,
        /// Its start, in microseconds.
        start: f64,
        /// Its duration, in microseconds.
        duration: f64,
    },
    /// The trace has no worker, or a worker has no step.
    #[error("the trace is empty; expected a column per worker and a row per step")]
    Empty,
    /// A row is longer or shorter than the first.
    #[error("row {row} has {found} cells; expected {expected}, as in the first row")]
    Ragged {
        /// The row, from 1; the header line counts.
        row: usize,
        /// Its number of cells.
        found: usize,
        /// The number of cells in the first row.
        expected: usize,
    },
    /// A cell is not a time.
    #[error("row {row}, column '{column}': '{value}'; expected a number of seconds above 0")]
    NotATime {
        /// The row, from 1; the header line counts.
        row: usize,
        /// The column's name.
        column: String,
        /// The content of the cell.
        value: String,
    },
    /// A time follows an empty cell.
    #[error(
        "row {row}, column '{column}': a time below an empty cell; expected empty cells only at the end of a column"
    )]
    Gap {
        /// The row, from 1; the header line counts.
        row: usize,
        /// The column's name.
        column: String,
    },
}

impl Trace {
    /// A trace with these columns, one per worker, each with at least one time.
    pub fn new(workers: Vec<Vec<f64>>) -> Self {
        Trace { workers }
    }

    /// The columns, one per worker.
    pub fn workers(&self) -> &[Vec<f64>] {
        &self.workers
    }

    /// Reads a file or a run folder.
    ///
    /// # Errors
    /// If the file can't be read, is empty or ragged, or contains a cell that is not a time.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        Self::read_ranked(path, PROFILER_STEP).map(|(_, trace)| trace)
    }

    /// Reads several files into one trace with the workers of all files. Files that contain a rank come first, in the
    /// order of their ranks. `span` is the name of the spans that are steps, for traces of spans.
    ///
    /// # Errors
    /// As [`read`](Trace::read), for the first file with an error.
    pub fn read_all(paths: &[PathBuf], span: &str) -> Result<Self, TraceError> {
        let mut parts = paths.iter().map(|path| Self::read_ranked(path, span)).collect::<Result<Vec<_>, _>>()?;
        parts.sort_by_key(|(rank, _)| rank.unwrap_or(u64::MAX));
        Ok(Trace::new(parts.into_iter().flat_map(|(_, trace)| trace.workers).collect()))
    }

    fn read_ranked(path: &Path, span: &str) -> Result<(Option<u64>, Self), TraceError> {
        let read = || {
            if path.is_dir() {
                return Ok((None, from_events::read(open_events(path)?)?));
            }
            let file = open_input(path)?;
            match extension(path).as_str() {
                "parquet" => Ok((None, parquet_table::read(file)?.finish()?)),
                "json" => spans::read(LineLimit::with_limit(file, MAX_SPANS), span),
                "jsonl" => Ok((None, from_events::read(file)?)),
                _ => Ok((None, delimited::read(LineLimit::new(file))?.finish()?)),
            }
        };
        let named = || if path.is_dir() { path.join(EVENTS) } else { path.into() };
        read().map_err(|kind| TraceError { path: named(), kind })
    }

    /// Checks that this build supports the format of a file, before there is anything to write.
    ///
    /// # Errors
    /// If it does not.
    pub fn check_format(path: &Path) -> Result<(), TraceError> {
        match is_parquet(path) && !cfg!(feature = "parquet") {
            true => Err(TraceError { path: path.into(), kind: TraceErrorKind::NoParquet }),
            false => Ok(()),
        }
    }

    /// Writes a file that [`read`](Trace::read) can read. The write is atomic.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn write(&self, path: &Path) -> Result<(), TraceError> {
        let failed = |kind| TraceError { path: path.into(), kind };
        let write = |file: &mut File| {
            if is_parquet(path) { parquet_table::write(self, file) } else { delimited::write(self, file) }
        };
        write_file(path, write).map_err(failed)
    }

    fn steps(&self) -> usize {
        self.workers.iter().map(Vec::len).max().unwrap_or(0)
    }

    fn names(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.workers.len()).map(|worker| format!("worker{worker}"))
    }
}

fn is_parquet(path: &Path) -> bool {
    extension(path) == "parquet"
}

fn extension(path: &Path) -> String {
    path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase()).unwrap_or_default()
}

/// Collects the columns of a table while it is read.
struct TraceColumns {
    names: Vec<String>,
    /// The indices of the columns that hold workers' times.
    workers: Vec<usize>,
    times: Vec<Vec<f64>>,
    rows: usize,
}

impl TraceColumns {
    fn new(names: Vec<String>) -> Self {
        let is_index =
            |name: &String| ["step", "iteration", "time"].contains(&name.trim().to_ascii_lowercase().as_str());
        let workers: Vec<usize> = (0..names.len()).filter(|&column| !is_index(&names[column])).collect();
        TraceColumns { times: vec![Vec::new(); workers.len()], names, workers, rows: 0 }
    }

    /// Adds a row; `row` is its number in the file.
    fn push(&mut self, row: usize, cells: &[String]) -> Result<(), TraceErrorKind> {
        if cells.len() != self.names.len() {
            return Err(TraceErrorKind::Ragged { row, found: cells.len(), expected: self.names.len() });
        }
        for (times, &column) in self.times.iter_mut().zip(&self.workers) {
            let (cell, name) = (cells[column].trim(), &self.names[column]);
            if cell.is_empty() {
                continue;
            }
            if times.len() < self.rows {
                return Err(TraceErrorKind::Gap { row, column: name.clone() });
            }
            match cell.parse::<f64>() {
                Ok(seconds) if seconds.is_finite() && seconds > 0.0 => times.push(seconds),
                _ => return Err(TraceErrorKind::NotATime { row, column: name.clone(), value: cell.into() }),
            }
        }
        self.rows += 1;
        Ok(())
    }

    fn finish(self) -> Result<Trace, TraceErrorKind> {
        if self.times.is_empty() || self.times.iter().any(Vec::is_empty) {
            return Err(TraceErrorKind::Empty);
        }
        Ok(Trace { workers: self.times })
    }
}

/// Records the task times of a run.
#[derive(Debug, Default)]
pub struct Recorder {
    workers: Vec<Vec<f64>>,
}

impl Recorder {
    /// The recorded trace. Workers without a task are left out.
    pub fn finish(mut self) -> Trace {
        self.workers.retain(|times| !times.is_empty());
        Trace::new(self.workers)
    }
}

impl Observer for Recorder {
    fn on_task(&mut self, task: TaskId, compute: Span) {
        let index = task.worker.index();
        if index >= self.workers.len() {
            self.workers.resize(index + 1, Vec::new());
        }
        self.workers[index].push(compute.seconds());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> Result<Trace, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        Trace::read(&path).map_err(|error| error.kind.to_string())
    }

    #[test]
    fn csv_and_parquet_traces_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let trace = Trace::new(vec![vec![0.1, 1.0 / 3.0, 7e-9], vec![2.5]]);
        for name in ["times.csv", "times.parquet"] {
            let path = folder.path().join(name);
            if Trace::check_format(&path).is_ok() {
                trace.write(&path).unwrap();
                assert_eq!(Trace::read(&path).unwrap(), trace, "{name}");
            } else {
                let refused = "this build does not support Parquet; use .csv, or build with --features parquet";
                assert!(!cfg!(feature = "parquet") && name.ends_with(".parquet"));
                assert!(trace.write(&path).unwrap_err().to_string().ends_with(refused));
            }
        }
    }

    #[test]
    fn names_and_step_columns_are_optional() {
        let expected = Trace::new(vec![vec![1.0, 3.0], vec![2.0, 4.0]]);
        assert_eq!(read("t.csv", "1,2\n3,4\n").unwrap(), expected);
        assert_eq!(read("t.csv", "a,b\n1,2\n3,4").unwrap(), expected);
        assert_eq!(read("t.csv", "step,a,b\n0,1,2\n1,3,4\n").unwrap(), expected);
    }

    #[test]
    fn errors_name_the_place_and_the_value() {
        assert!(read("t.csv", "").unwrap_err().contains("empty"));
        assert!(read("t.csv", "a,b\n").unwrap_err().contains("empty"));
        assert!(read("t.csv", "step\n1\n").unwrap_err().contains("empty"));
        assert_eq!(read("t.csv", "a,b\n1,2\n3\n").unwrap_err(), "row 3 has 1 cells; expected 2, as in the first row");
        let not_a_time = "row 3, column 'b': 'NaN'; expected a number of seconds above 0";
        assert_eq!(read("t.csv", "a,b\n1,2\n3,NaN\n").unwrap_err(), not_a_time);
        assert!(read("t.csv", "a,b\n1,-2\n").unwrap_err().contains("'-2'; expected a number of seconds"));
        assert!(read("t.csv", "a,b\n1,\n3,4\n").unwrap_err().contains("below an empty cell"));
        assert!(read("t.parquet", "PAR?").unwrap_err().contains("Parquet"));
        let missing = Trace::read(Path::new("no/such.csv")).unwrap_err().to_string();
        assert!(missing.starts_with("no/such.csv: "), "{missing}");
    }
}
