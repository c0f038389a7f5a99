//! What a worker is told and tells as a member of a group, for a training loop in Python.

use paceline::core::Version;
use paceline::net::{FromMember, Group, GroupMembership, MemberStep};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Workers that sum their updates together, as one of them sees it.
#[pyclass(name = "Group", module = "paceline._paceline", frozen, get_all)]
pub struct PyGroup {
    /// Counts the groups of a run.
    number: u64,
    /// How many members there are.
    size: usize,
    /// The position of this worker.
    position: usize,
    /// The host and the port where the first member listens.
    meeting: (String, u16),
    /// The position of the member that shares the state of its optimizer, if some lack it.
    source: Option<usize>,
    /// Whether this worker adds nothing to the first sum.
    is_silent: bool,
}

impl PyGroup {
    /// The group as the worker of this rank sees it. `None` if it is no member.
    pub fn of(rank: u32, group: Group) -> Option<Self> {
        let position = group.members.iter().position(|&member| member == rank)?;
        Some(PyGroup {
            number: group.number,
            size: group.members.len(),
            position,
            meeting: (group.meeting.ip().to_string(), group.meeting.port()),
            source: group.source.map(|source| source as usize),
            is_silent: group.silent.contains(&(position as u32)),
        })
    }
}

/// What becomes of the model.
#[pyclass(name = "Step", module = "paceline._paceline", frozen, get_all)]
pub struct PyStep {
    /// The version that it makes.
    version: u64,
    /// The learning rates, if the optimizer steps: of every parameter group, or one for all.
    rates: Option<Vec<f64>>,
    /// The share of the mean by which it steps. The model stays as it is with 0 and without rates.
    scale: f64,
    /// The share of the mean of statistics by which they change.
    statistics: f64,
}

impl PyStep {
    pub fn new(version: Version, step: MemberStep) -> Self {
        let (rates, scale, statistics) = match step {
            MemberStep::Optimizer { rates, scale } => (Some(rates), scale.into(), 1.0),
            MemberStep::Average { rate, statistics } => (None, rate, statistics.into()),
            MemberStep::Keep => (None, 0.0, 0.0),
        };
        PyStep { version: version.0, rates, scale, statistics }
    }
}

/// A worker's part in groups, as long as it is connected. For any thread.
#[pyclass(name = "GroupMembership", module = "paceline._paceline", frozen)]
pub struct PyGroupMembership(pub GroupMembership);

#[pymethods]
impl PyGroupMembership {
    /// Tells that this worker has a sum of updates that were computed from this version, with the squares of its own
    /// update and of the mean.
    fn summed(&self, group: u64, version: u64, own: f64, mean: f64) {
        self.0.tell(FromMember::Summed { group, version: Version(version), own, mean });
    }

    /// Tells that this worker can't get the sum.
    fn failed(&self, group: u64, reason: &str) {
        let reason = reason.lines().next().unwrap_or_default().to_owned();
        self.0.tell(FromMember::Failed { group, reason });
    }

    /// Waits until the model is asked for. Returns its version; `None` if the connection has ended.
    fn wait_for_request(&self, py: Python<'_>) -> Option<u64> {
        py.detach(|| self.0.wait_for_request()).map(|version| version.0)
    }

    /// Sends the model that was asked for.
    fn send_model(&self, py: Python<'_>, version: u64, values: PyBuffer<f32>) -> PyResult<bool> {
        let values = values.to_vec(py)?;
        let sent = py.detach(|| self.0.send_model(Version(version), values));
        sent.map_err(|error| PyValueError::new_err(error.to_string()))
    }
}
