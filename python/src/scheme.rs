//! Schemes written in Python: objects with the methods of [`Scheme`], built by a class or another callable.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use paceline::core::{
    Aggregate, Assignment, CommitRequest, Question, Reason, Scheme, SchemeEntry, SchemeError, Settings, Setup, TaskId,
    Turn, Update, WorkerId, add_scheme,
};
use pyo3::prelude::*;

use crate::errors::InputError;
use crate::turn::PyTurn;

/// A task: the worker and the number of its assignment.
pub type PyTask = (u32, u64);

/// A scheme of one's own, by its name.
struct RegisteredScheme {
    /// Called with a [`PySetup`]; returns the scheme.
    factory: Py<PyAny>,
    /// The exception that ended a run.
    raised: Option<PyErr>,
}

static REGISTERED: Mutex<BTreeMap<String, RegisteredScheme>> = Mutex::new(BTreeMap::new());

fn registered() -> MutexGuard<'static, BTreeMap<String, RegisteredScheme>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes `factory` the scheme of this name, in place of an earlier one: a class may be defined again.
pub fn register(name: String, factory: Py<PyAny>) -> PyResult<()> {
    let mut registered = registered();
    if !registered.contains_key(&name) {
        // The catalogue keeps its entries for as long as the process runs. There is one for each name.
        // A comparison of all schemes leaves these out: what was tried once need not work.
        let entry = SchemeEntry::new(name.clone().leak(), "a scheme written in Python", [230, 159, 0], build)
            .compared(|_| Vec::new());
        add_scheme(Box::leak(Box::new(entry))).map_err(|error| InputError::new_err(error.to_string()))?;
    }
    registered.insert(name, RegisteredScheme { factory, raised: None });
    Ok(())
}

/// The exception that ended a run of this scheme.
pub fn take_raised(name: &str) -> Option<PyErr> {
    registered().get_mut(name).and_then(|scheme| scheme.raised.take())
}

fn keep_raised(name: &str, raised: PyErr) {
    if let Some(scheme) = registered().get_mut(name) {
        scheme.raised.get_or_insert(raised);
    }
}

fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    let name = settings.scheme();
    Python::attach(|py| {
        let factory = registered().get(name).map(|scheme| scheme.factory.clone_ref(py));
        let factory = factory.expect("its entry is in the catalogue, so the scheme is registered");
        PythonScheme::new(py, name, &factory, setup)
    })
    .map(|scheme| Box::new(scheme) as Box<dyn Scheme>)
    .map_err(|raised| {
        let why = raised.to_string();
        keep_raised(name, raised);
        SchemeError::Refused { scheme: name.into(), why }
    })
}

/// A scheme whose methods are Python's.
struct PythonScheme {
    name: String,
    scheme: Py<PyAny>,
    watches_lateness: bool,
    compensates: bool,
}

impl PythonScheme {
    fn new(py: Python<'_>, name: &str, factory: &Py<PyAny>, setup: &Setup) -> PyResult<Self> {
        let scheme = factory.call1(py, (PySetup { workers: setup.workers, batch: setup.batch },))?;
        let is_set = |attribute: &str| scheme.getattr(py, attribute)?.extract(py);
        let (watches_lateness, compensates) = (is_set("watches_lateness")?, is_set("compensates")?);
        Ok(PythonScheme { name: name.into(), scheme, watches_lateness, compensates })
    }

    /// Calls a method with the turn and, if there is one, what happened. After an exception the scheme breaks a law, which
    /// ends the run.
    fn call<Happened: for<'py> IntoPyObject<'py>>(
        &self,
        turn: &mut Turn<'_>,
        method: &str,
        happened: Option<Happened>,
    ) {
        let outcome = Python::attach(|py| {
            let lent = Bound::new(py, PyTurn::lend(turn))?;
            let scheme = self.scheme.bind(py);
            let outcome = match happened {
                Some(happened) => scheme.call_method1(method, (&lent, happened)),
                None => scheme.call_method1(method, (&lent,)),
            };
            lent.get().take_back();
            outcome.map(drop)
        });
        if let Err(raised) = outcome {
            keep_raised(&self.name, raised);
            turn.commit(CommitRequest::of(&[]), Reason::own("the scheme raised an exception"));
        }
    }
}

impl Scheme for PythonScheme {
    fn on_joined(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.call(turn, "on_joined", Some(worker.0));
    }

    fn on_left(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.call(turn, "on_left", Some(worker.0));
    }

    fn on_reported(&mut self, turn: &mut Turn<'_>, update: &Update) {
        self.call(turn, "on_reported", Some(PyUpdate::from(update)));
    }

    fn on_asked(&mut self, turn: &mut Turn<'_>, question: &Question) {
        self.call(turn, "on_asked", Some(PyQuestion::from(question)));
    }

    fn on_committed(&mut self, turn: &mut Turn<'_>, aggregate: Option<&Aggregate>) {
        // `Some(None)`: the argument is None.
        self.call(turn, "on_committed", Some(aggregate.map(PyAggregate::from)));
    }

    fn on_late(&mut self, turn: &mut Turn<'_>, task: TaskId) {
        self.call(turn, "on_late", Some(pair(task)));
    }

    fn on_timer(&mut self, turn: &mut Turn<'_>) {
        self.call(turn, "on_timer", None::<u32>);
    }

    fn watches_lateness(&self) -> bool {
        self.watches_lateness
    }

    fn compensates(&self) -> bool {
        self.compensates
    }
}

fn pair(task: TaskId) -> PyTask {
    (task.worker.0, task.number)
}

/// The run that a scheme is built for.
#[pyclass(frozen, get_all, name = "Setup", module = "paceline")]
pub struct PySetup {
    workers: usize,
    batch: u32,
}

/// A finished task.
#[pyclass(frozen, get_all, name = "Update", module = "paceline")]
pub struct PyUpdate {
    task: PyTask,
    worker: u32,
    version: u64,
    samples: u32,
    iterations: u32,
    started: f64,
    compute: f64,
    querying: f64,
    cpu: Option<f32>,
    memory: Option<f32>,
}

impl From<&Update> for PyUpdate {
    fn from(update: &Update) -> Self {
        PyUpdate {
            task: pair(update.task),
            worker: update.task.worker.0,
            version: update.version.0,
            samples: update.samples,
            iterations: update.iterations,
            started: update.started.seconds(),
            compute: update.report.compute.seconds(),
            querying: update.report.querying.seconds(),
            cpu: update.report.cpu,
            memory: update.report.memory,
        }
    }
}

/// A worker's question after a local iteration.
#[pyclass(frozen, get_all, name = "Question", module = "paceline")]
pub struct PyQuestion {
    task: PyTask,
    worker: u32,
    iterations: u32,
    compute: f64,
    querying: f64,
}

impl From<&Question> for PyQuestion {
    fn from(question: &Question) -> Self {
        PyQuestion {
            task: pair(question.task),
            worker: question.task.worker.0,
            iterations: question.iterations,
            compute: question.report.compute.seconds(),
            querying: question.report.querying.seconds(),
        }
    }
}

/// Statistics of a commit's updates.
#[pyclass(frozen, get_all, name = "Aggregate", module = "paceline")]
pub struct PyAggregate {
    loss: f64,
    rate: f64,
    scheduled_rate: f64,
    mean_square: f64,
    square_of_mean: f64,
    norms: Vec<(PyTask, f64)>,
}

impl From<&Aggregate> for PyAggregate {
    fn from(aggregate: &Aggregate) -> Self {
        PyAggregate {
            loss: aggregate.loss,
            rate: aggregate.rate,
            scheduled_rate: aggregate.scheduled_rate,
            mean_square: aggregate.mean_square,
            square_of_mean: aggregate.square_of_mean,
            norms: aggregate.norms.iter().map(|norm| (pair(norm.task), norm.square)).collect(),
        }
    }
}

/// A worker's present task.
#[pyclass(frozen, get_all, name = "Assignment", module = "paceline")]
pub struct PyAssignment {
    task: PyTask,
    version: u64,
    samples: u32,
}

impl From<Assignment> for PyAssignment {
    fn from(assignment: Assignment) -> Self {
        PyAssignment { task: pair(assignment.task), version: assignment.version.0, samples: assignment.samples }
    }
}
