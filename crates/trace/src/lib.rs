//! Run-time traces: how long each worker's tasks took, one row per step, one column per worker.

mod delimited;
mod from_events;
mod parquet_table;
mod spans;

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use paceline_core::{Span, TaskId};
use paceline_runtime::{Observer, ReplayError};
use paceline_store::write_file;
use thiserror::Error;

pub use spans::PROFILER_STEP;

/// The seconds that each worker's tasks took, in the order they were done.
///
/// In a file, a column may end early, in empty cells: that worker did fewer tasks. A column called `step`, `iteration`
/// or `time` is passed over. Files that end in `.parquet` are Parquet, in `.json` spans as Chrome and PyTorch write them,
/// in `.jsonl` the event stream of a run (as is a run folder); all others are comma-separated values, with or without a
/// line of names.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trace {
    workers: Vec<Vec<f64>>,
}

/// What is wrong with a trace file.
#[derive(Debug, Error)]
#[error("{}: {kind}", path.display())]
pub struct TraceError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub kind: TraceErrorKind,
}

/// What can be wrong with a trace file.
#[derive(Debug, Error)]
pub enum TraceErrorKind {
    /// It can't be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is no comma-separated table.
    #[error("{0}")]
    Csv(#[from] csv::Error),
    /// It is no Parquet table.
    #[error("{0}")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// It is no JSON of spans.
    #[error("it is no trace of spans as Chrome or PyTorch writes them: {0}")]
    Json(#[from] serde_json::Error),
    /// It is no event stream.
    #[error("{0}")]
    Events(#[from] ReplayError),
    /// No span has the name that was looked for.
    #[error("there are no spans called '{wanted}'; name others with --span")]
    NoSpans {
        /// The name.
        wanted: String,
    },
    /// A span has no length.
    #[error("span '{name}' at {start} µs takes {duration} µs; expected a time above 0")]
    NotASpan {
        /// Its name.
        name: String,
        /// When it starts.
        start: f64,
        /// How long it takes.
        duration: f64,
    },
    /// There is no worker or no step in it.
    #[error("the trace is empty: it needs a column per worker and a row per step")]
    Empty,
    /// A row is longer or shorter than the first.
    #[error("row {row} has {found} cells, the first has {expected}")]
    Ragged {
        /// Counts from 1, names included.
        row: usize,
        /// How many cells it has.
        found: usize,
        /// How many it should have.
        expected: usize,
    },
    /// A cell is not a time.
    #[error("row {row}, column '{column}': '{value}' is not a number of seconds above 0")]
    NotATime {
        /// Counts from 1, names included.
        row: usize,
        /// The column's name.
        column: String,
        /// What stands there.
        value: String,
    },
    /// A value stands below an empty cell.
    #[error("row {row}, column '{column}': a time below an empty cell; only the end of a column may be empty")]
    Gap {
        /// Counts from 1, names included.
        row: usize,
        /// The column's name.
        column: String,
    },
}

impl Trace {
    /// A trace of these columns, one per worker, each of one time or more.
    pub fn new(workers: Vec<Vec<f64>>) -> Self {
        Trace { workers }
    }

    /// The columns, one per worker.
    pub fn workers(&self) -> &[Vec<f64>] {
        &self.workers
    }

    /// Reads a file, or a run folder.
    ///
    /// # Errors
    /// If it can't be read, or is empty, ragged, or holds anything but times.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        Self::read_ranked(path, PROFILER_STEP).map(|(_, trace)| trace)
    }

    /// Reads several files as one: the workers of all of them, those of files that say their rank in that order. `span`
    /// names the spans that are steps in traces of spans.
    ///
    /// # Errors
    /// As [`read`](Trace::read), of the first file with an error.
    pub fn read_all(paths: &[PathBuf], span: &str) -> Result<Self, TraceError> {
        let mut parts = paths.iter().map(|path| Self::read_ranked(path, span)).collect::<Result<Vec<_>, _>>()?;
        parts.sort_by_key(|(rank, _)| rank.unwrap_or(u64::MAX));
        Ok(Trace::new(parts.into_iter().flat_map(|(_, trace)| trace.workers).collect()))
    }

    fn read_ranked(path: &Path, span: &str) -> Result<(Option<u64>, Self), TraceError> {
        let path = if path.is_dir() { path.join("events.jsonl") } else { path.into() };
        let read = || {
            let file = File::open(&path)?;
            match ending(&path).as_str() {
                "parquet" => Ok((None, parquet_table::read(file)?.finish()?)),
                "json" => spans::read(file, span),
                "jsonl" => Ok((None, from_events::read(BufReader::new(file))?)),
                _ => Ok((None, delimited::read(file)?.finish()?)),
            }
        };
        read().map_err(|kind| TraceError { path: path.clone(), kind })
    }

    /// Writes a file that [`read`](Trace::read) gives back, whole or not at all.
    ///
    /// # Errors
    /// If it can't be written.
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
    ending(path) == "parquet"
}

fn ending(path: &Path) -> String {
    path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase()).unwrap_or_default()
}

/// The columns of a file while it is read.
struct Columns {
    names: Vec<String>,
    /// Which of the file's columns are workers'.
    workers: Vec<usize>,
    times: Vec<Vec<f64>>,
    rows: usize,
}

impl Columns {
    fn new(names: Vec<String>) -> Self {
        let counts = |name: &String| ["step", "iteration", "time"].contains(&name.trim().to_ascii_lowercase().as_str());
        let workers: Vec<usize> = (0..names.len()).filter(|&column| !counts(&names[column])).collect();
        Columns { times: vec![Vec::new(); workers.len()], names, workers, rows: 0 }
    }

    /// Takes a row; `row` is its number in the file.
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

/// Records a run's times as it goes.
#[derive(Debug, Default)]
pub struct Recorder {
    workers: Vec<Vec<f64>>,
}

impl Recorder {
    /// What was recorded of the workers that did anything.
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
    fn both_formats_give_back_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let trace = Trace::new(vec![vec![0.1, 1.0 / 3.0, 7e-9], vec![2.5]]);
        for name in ["times.csv", "times.parquet"] {
            let path = folder.path().join(name);
            trace.write(&path).unwrap();
            assert_eq!(Trace::read(&path).unwrap(), trace, "{name}");
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
    fn bad_files_are_told_apart() {
        assert!(read("t.csv", "").unwrap_err().contains("empty"));
        assert!(read("t.csv", "a,b\n").unwrap_err().contains("empty"));
        assert!(read("t.csv", "step\n1\n").unwrap_err().contains("empty"));
        assert_eq!(read("t.csv", "a,b\n1,2\n3\n").unwrap_err(), "row 3 has 1 cells, the first has 2");
        let not_a_time = "row 3, column 'b': 'NaN' is not a number of seconds above 0";
        assert_eq!(read("t.csv", "a,b\n1,2\n3,NaN\n").unwrap_err(), not_a_time);
        assert!(read("t.csv", "a,b\n1,-2\n").unwrap_err().contains("'-2' is not a number of seconds"));
        assert!(read("t.csv", "a,b\n1,\n3,4\n").unwrap_err().contains("below an empty cell"));
        assert!(read("t.parquet", "PAR?").unwrap_err().contains("Parquet"));
        let missing = Trace::read(Path::new("no/such.csv")).unwrap_err().to_string();
        assert!(missing.starts_with("no/such.csv: "), "{missing}");
    }
}
