//! Simulations and `whatif` as calls. Results are JSON, as the commands print it, and columns of numbers.

use std::ffi::OsString;

use paceline::Failure;
use paceline::analysis;
use paceline::runtime::{Iteration, Monitor, Observer};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::exception;
use crate::interruptible::interruptible;
use crate::scheme;

/// The iterations of a run, as columns. What was not measured is not a number.
#[derive(Default)]
struct IterationColumns {
    iteration: Vec<f64>,
    time: Vec<f64>,
    duration: Vec<f64>,
    waited_for: Vec<f64>,
    samples: Vec<f64>,
    loss: Vec<f64>,
    accuracy: Vec<f64>,
    held_out_loss: Vec<f64>,
    reason: Vec<String>,
}

impl Observer for IterationColumns {
    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        let evaluation = monitor.fresh_evaluation();
        self.iteration.push(iteration.iteration as f64);
        self.time.push(iteration.time);
        self.duration.push(iteration.duration);
        self.waited_for.push(iteration.waited_for as f64);
        self.samples.push(iteration.samples as f64);
        self.loss.push(iteration.loss.unwrap_or(f64::NAN));
        self.accuracy.push(evaluation.and_then(|found| found.accuracy).unwrap_or(f64::NAN));
        self.held_out_loss.push(evaluation.map_or(f64::NAN, |found| found.loss));
        self.reason.push(iteration.reason.to_string());
    }
}

impl IterationColumns {
    fn into_dict(self, py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let columns = PyDict::new(py);
        columns.set_item("iteration", self.iteration)?;
        columns.set_item("time", self.time)?;
        columns.set_item("duration", self.duration)?;
        columns.set_item("waited_for", self.waited_for)?;
        columns.set_item("samples", self.samples)?;
        columns.set_item("loss", self.loss)?;
        columns.set_item("accuracy", self.accuracy)?;
        columns.set_item("held_out_loss", self.held_out_loss)?;
        columns.set_item("reason", self.reason)?;
        Ok(columns)
    }
}

/// Runs a command with these schemes of one's own. An exception in one of them is the result.
fn with_schemes<T: Send>(
    py: Python<'_>,
    own: Vec<(String, Py<PyAny>)>,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> PyResult<T> {
    let names: Vec<String> = own.iter().map(|(name, _)| name.clone()).collect();
    own.into_iter().try_for_each(|(name, factory)| scheme::register(name, factory))?;
    let outcome = interruptible(py, work)?;
    let raised = names.iter().find_map(|name| scheme::take_raised(name));
    raised.map_or_else(|| outcome.map_err(|failure| exception(&failure)), Err)
}

/// `paceline simulate` with one seed: the summary as JSON, and the iterations as columns. `own` are the names of schemes
/// in Python, and what builds them.
#[pyfunction]
pub fn simulate(
    py: Python<'_>,
    arguments: Vec<OsString>,
    own: Vec<(String, Py<PyAny>)>,
) -> PyResult<(String, Bound<'_, PyDict>)> {
    let mut columns = IterationColumns::default();
    let summary = with_schemes(py, own, || {
        let summary = analysis::simulate(arguments, &mut columns)?;
        serde_json::to_string(&summary).map_err(Failure::run)
    })?;
    Ok((summary, columns.into_dict(py)?))
}

/// `paceline whatif`: the lines of JSON that it prints. `own` are the names of schemes in Python, and what builds them.
#[pyfunction]
pub fn whatif(py: Python<'_>, arguments: Vec<OsString>, own: Vec<(String, Py<PyAny>)>) -> PyResult<Vec<String>> {
    let lines = with_schemes(py, own, || analysis::whatif(arguments))?;
    Ok(lines.iter().map(ToString::to_string).collect())
}
