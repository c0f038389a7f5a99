//! A scheme's turn, lent to Python while it handles one event.

use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use paceline::core::{
    CommitRequest, CommitStep, LocalLength, LocalWork, Reason, ReplicaStart, Span, TaskId, Turn, Until, Work, WorkerId,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::scheme::{PyAssignment, PyTask};

/// Where the turn is.
struct LentTurn(NonNull<Turn<'static>>);

// SAFETY: a turn may be used by any thread, which `is_send` checks, and the mutex of `PyTurn` lets one at a time.
unsafe impl Send for LentTurn {}

const fn is_send<T: Send>() {}
const _: () = is_send::<Turn<'static>>();

/// What a scheme can see and do while it handles one event.
#[pyclass(frozen, name = "Turn", module = "paceline")]
pub struct PyTurn(Mutex<Option<LentTurn>>);

impl PyTurn {
    /// Lends a turn, until [`take_back`](PyTurn::take_back). The caller does not use it before that.
    pub fn lend(turn: &mut Turn<'_>) -> Self {
        PyTurn(Mutex::new(Some(LentTurn(NonNull::from(turn).cast()))))
    }

    /// From now on the turn is out of reach.
    pub fn take_back(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn with<T>(&self, act: impl FnOnce(&mut Turn<'_>) -> T) -> PyResult<T> {
        let lent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*lent {
            // SAFETY: the lender keeps the turn alive and unused until `take_back`, which waits for this lock. The turn's
            // own lifetime is not visible to `act`.
            Some(LentTurn(turn)) => Ok(act(unsafe { &mut *turn.as_ptr() })),
            None => Err(PyRuntimeError::new_err("the turn is over: act while the event is handled")),
        }
    }
}

fn task((worker, number): PyTask) -> TaskId {
    TaskId { worker: WorkerId(worker), number }
}

/// The work that the options of `assign` describe.
fn work(iterations: Option<u32>, ask: Option<&str>, pull: Option<f32>) -> PyResult<Work> {
    let start = pull.map_or(ReplicaStart::Model, |pull| ReplicaStart::Replica { pull });
    let length = match (iterations, ask) {
        (None, None) if pull.is_none() => return Ok(Work::Gradient),
        (Some(iterations), None) => LocalLength::Iterations(iterations),
        (None, Some("wait")) => LocalLength::AskAndWait,
        (None, Some("continue")) => LocalLength::AskAndContinue,
        (None, Some(ask)) => {
            return Err(PyValueError::new_err(format!("ask='{ask}': expected wait or continue")));
        }
        _ => return Err(PyValueError::new_err("local iterations need either iterations or ask")),
    };
    Ok(Work::Local(LocalWork { start, length }))
}

#[pymethods]
impl PyTurn {
    #[getter]
    fn now(&self) -> PyResult<f64> {
        self.with(|turn| turn.now().seconds())
    }

    #[getter]
    fn version(&self) -> PyResult<u64> {
        self.with(|turn| turn.version().0)
    }

    #[getter]
    fn workers(&self) -> PyResult<Vec<u32>> {
        self.with(|turn| turn.workers().map(|worker| worker.0).collect())
    }

    fn is_idle(&self, worker: u32) -> PyResult<bool> {
        self.with(|turn| turn.is_idle(WorkerId(worker)))
    }

    fn running(&self, worker: u32) -> PyResult<Option<PyAssignment>> {
        self.with(|turn| turn.running(WorkerId(worker)).map(PyAssignment::from))
    }

    fn next_unsettled(&self) -> PyResult<Option<u32>> {
        self.with(|turn| turn.next_unsettled().map(|worker| worker.0))
    }

    #[pyo3(signature = (
        tasks, reason, *, value=None, weights=None, rate_factor=1.0, average=None, compensate=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn commit(
        &self,
        tasks: Vec<PyTask>,
        reason: &str,
        value: Option<f64>,
        weights: Option<Vec<f64>>,
        rate_factor: f32,
        average: Option<f32>,
        compensate: Option<f32>,
    ) -> PyResult<()> {
        let tasks: Vec<TaskId> = tasks.into_iter().map(task).collect();
        let request = match weights {
            None => CommitRequest::of(&tasks),
            Some(weights) if weights.len() == tasks.len() => {
                CommitRequest::weighted(&tasks.into_iter().zip(weights).collect::<Vec<_>>())
            }
            Some(weights) => {
                let (weights, tasks) = (weights.len(), tasks.len());
                return Err(PyValueError::new_err(format!(
                    "{weights} weights for {tasks} tasks: expected one for each"
                )));
            }
        };
        let step = match (average, compensate) {
            (None, None) => CommitStep::Optimizer,
            (Some(rate), None) => CommitStep::Average { rate, share: 1.0 },
            (None, Some(lambda)) => CommitStep::Compensated { lambda },
            _ => return Err(PyValueError::new_err("average and compensate exclude each other")),
        };
        let request = request.step(step).rate_factor(rate_factor);
        self.with(|turn| turn.commit(request, Reason::in_words(reason, value)))
    }

    #[pyo3(signature = (update, reason, *, value=None))]
    fn discard(&self, update: PyTask, reason: &str, value: Option<f64>) -> PyResult<()> {
        self.with(|turn| turn.discard(task(update), Reason::in_words(reason, value)))
    }

    #[pyo3(signature = (worker, samples, reason, *, value=None, iterations=None, ask=None, pull=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn assign(
        &self,
        worker: u32,
        samples: u32,
        reason: &str,
        value: Option<f64>,
        iterations: Option<u32>,
        ask: Option<&str>,
        pull: Option<f32>,
    ) -> PyResult<()> {
        let work = work(iterations, ask, pull)?;
        self.with(|turn| turn.assign_work(WorkerId(worker), work, samples, Reason::in_words(reason, value)))
    }

    #[pyo3(signature = (worker, reason, *, value=None))]
    fn continue_task(&self, worker: u32, reason: &str, value: Option<f64>) -> PyResult<()> {
        self.with(|turn| turn.continue_task(WorkerId(worker), Reason::in_words(reason, value)))
    }

    #[pyo3(signature = (worker, reason, *, value=None))]
    fn collect(&self, worker: u32, reason: &str, value: Option<f64>) -> PyResult<()> {
        self.with(|turn| turn.collect(WorkerId(worker), Reason::in_words(reason, value)))
    }

    #[pyo3(signature = (worker, reason, *, value=None))]
    fn interrupt(&self, worker: u32, reason: &str, value: Option<f64>) -> PyResult<()> {
        self.with(|turn| turn.interrupt(WorkerId(worker), Reason::in_words(reason, value)))
    }

    #[pyo3(signature = (worker, reason, *, until=None, value=None))]
    fn hold(&self, worker: u32, reason: &str, until: Option<u32>, value: Option<f64>) -> PyResult<()> {
        let until = until.map_or(Until::Commit, |worker| Until::Worker(WorkerId(worker)));
        self.with(|turn| turn.hold(WorkerId(worker), until, Reason::in_words(reason, value)))
    }

    #[pyo3(signature = (worker, reason, *, value=None))]
    fn hold_until_timer(&self, worker: u32, reason: &str, value: Option<f64>) -> PyResult<()> {
        self.with(|turn| turn.hold(WorkerId(worker), Until::Timer, Reason::in_words(reason, value)))
    }

    #[pyo3(signature = (delay, reason, *, value=None))]
    fn wake(&self, delay: f64, reason: &str, value: Option<f64>) -> PyResult<()> {
        self.with(|turn| turn.wake(Span::from_seconds(delay), Reason::in_words(reason, value)))
    }
}
