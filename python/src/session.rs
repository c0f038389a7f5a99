//! A worker's session, for a training loop in Python.

use std::os::fd::{IntoRawFd, RawFd};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use paceline::core::{LocalLength, LocalWork, ReplicaStart, Span, Version, Work};
use paceline::net::{
    Address, AfterIteration, Keys, ModelMapping, NextOrder, OfferedTraining, Role, ServerSearch, SessionEnd, TakenTask,
    TaskReport, TimeSpent, ToMember, Welcome, Worker, WorkerError, WorkerSession, after_iteration,
};
use paceline::runtime::OfferedModel;
use paceline::store::Layout;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::copies::PyUpdatePush;
use crate::errors::{InputError, RunError};
use crate::interruptible::interruptible;
use crate::member::{PyGroup, PyGroupMembership, PyStep};
use crate::memory::PyMemory;

/// How often signals are looked for.
const INTERVAL: Duration = Duration::from_millis(100);

/// Names and shapes of tensors.
type Tensors = Vec<(String, Vec<usize>)>;

/// A worker's session with its server. It rejoins when the connection is lost.
#[pyclass(name = "Session", module = "paceline._paceline", frozen)]
pub struct PySession {
    state: Mutex<JoinedSession>,
    /// Counts the steps of this worker, whatever the state is used for.
    progress: Mutex<paceline::workload::Progress>,
}

struct JoinedSession {
    worker: Worker,
    model: OfferedModel,
    session: WorkerSession,
    welcome: Welcome,
    task: Option<TakenTask>,
    /// Why the run ended, once it has.
    ended: Option<String>,
}

/// A task, as Python sees it.
#[pyclass(name = "Task", module = "paceline._paceline", frozen, get_all)]
pub struct PyTakenTask {
    number: u64,
    /// The version of the model.
    version: u64,
    /// The samples of an iteration.
    samples: u32,
    /// How many samples of this worker's stream come before.
    offset: u64,
    /// Whether this worker iterates on a replica of its own, and sends the difference.
    local: bool,
    /// The share by which a replica that goes on is moved towards the model; `None` if it starts from the model.
    pull: Option<f32>,
    /// The last task of this worker whose update was committed.
    committed: Option<u64>,
    /// How far the schedule of the learning rate has advanced, in steps.
    progress: f64,
    /// The samples that all workers have used in committed updates.
    used: u64,
    /// Whether a checkpoint is due.
    checkpoint: bool,
    /// The parameters. `None` if this process has them, as a member of a group.
    model: Option<Py<PyMemory>>,
    /// Where the gradient or the difference goes. `None` for a member of a group.
    result: Option<Py<PyMemory>>,
}

/// What a member of a group is told.
#[derive(IntoPyObject)]
enum PyOrder {
    Step(PyStep),
    Group(PyGroup),
}

impl JoinedSession {
    /// Joins again after the session was lost. An error if that is not possible; `None` if the run is over.
    fn after(&mut self, end: SessionEnd) -> Result<Option<()>, WorkerError> {
        self.task = None;
        let address = self.worker.servers.first().clone();
        match end {
            SessionEnd::Finished(reason) => {
                self.ended = Some(reason);
                return Ok(None);
            }
            SessionEnd::Refused(reason) => return Err(WorkerError::Refused { address, reason }),
            SessionEnd::Lost(_) | SessionEnd::RetryLater(_) => {}
        }
        match self.worker.join(&self.model, &mut |_| {}) {
            Ok((session, welcome)) => {
                (self.session, self.welcome) = (session, welcome);
                Ok(Some(()))
            }
            Err(WorkerError::Finished { reason }) => {
                self.ended = Some(reason);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl PySession {
    fn lock(&self) -> MutexGuard<'_, JoinedSession> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `attempt` until it returns something, without the interpreter's lock. Looks for signals in between.
    fn wait_for<T: Send>(
        &self,
        py: Python<'_>,
        mut attempt: impl FnMut(&mut JoinedSession, Instant) -> Option<T> + Send,
    ) -> PyResult<T> {
        loop {
            let found = py.detach(|| attempt(&mut self.lock(), Instant::now() + INTERVAL));
            if let Some(found) = found {
                return Ok(found);
            }
            py.check_signals()?;
        }
    }

    /// Goes on after the end of a session: joins again, or notes that the run is over.
    fn resume(&self, py: Python<'_>, end: SessionEnd) -> PyResult<bool> {
        let resumed = interruptible(py, || {
            let mut state = self.lock();
            let resumed = state.after(end);
            (resumed, state.session.progress().clone())
        })?;
        let (resumed, progress) = resumed;
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
        resumed.map(|joined| joined.is_some()).map_err(|error| exception(&error))
    }
}

#[pymethods]
impl PySession {
    /// Joins the server with a model.
    #[staticmethod]
    #[pyo3(signature = (*, address, rank, evaluates, on_device, join_timeout, emulate, emulated_rank, keys, trainable, statistics, values, optimizer, rate, batch, epoch, frozen))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn join(
        py: Python<'_>,
        address: &str,
        rank: Option<u32>,
        evaluates: bool,
        on_device: bool,
        join_timeout: f64,
        emulate: Option<&str>,
        emulated_rank: Option<u32>,
        keys: Option<PathBuf>,
        trainable: Tensors,
        statistics: Tensors,
        values: PyBuffer<f32>,
        optimizer: &str,
        rate: f32,
        batch: u32,
        epoch: Option<u64>,
        frozen: u32,
    ) -> PyResult<Self> {
        let input = |error: &dyn std::fmt::Display| InputError::new_err(error.to_string());
        let mut addresses = address.split(',').map(str::parse::<Address>);
        let address = addresses.next().ok_or_else(|| input(&"no address"))?.map_err(|error| input(&error))?;
        let standbys = addresses.collect::<Result<Vec<_>, _>>().map_err(|error| input(&error))?;
        let emulation = emulate.map(|delay| paceline::emulation(delay, emulated_rank.or(rank))).transpose();
        let mut worker = Worker {
            servers: ServerSearch::new(address.clone(), standbys),
            role: if evaluates { Role::Evaluator } else { Role::Worker(rank) },
            join_timeout: Duration::try_from_secs_f64(join_timeout).map_err(|error| input(&error))?,
            emulation: emulation.map_err(|error| input(&format_args!("{error:#}")))?,
            keys: keys.as_deref().map(Keys::read).transpose().map_err(|error| input(&error))?,
            model_mapping: if on_device { ModelMapping::ReadOnly } else { ModelMapping::Private },
            ..Worker::new(address)
        };
        let layout = Layout::checked(trainable, statistics)
            .filter(|layout| layout.len() == values.item_count())
            .ok_or_else(|| PyValueError::new_err("the values do not fit the tensors"))?;
        let optimizer = optimizer.parse().map_err(|error| input(&error))?;
        let training = OfferedTraining { optimizer, rate, batch, epoch, frozen };
        let model = OfferedModel { layout, initial: values.to_vec(py)?, training };
        let joined = interruptible(py, || {
            let joined = worker.join(&model, &mut |_| {});
            joined.map(|(session, welcome)| (worker, model, session, welcome))
        })?;
        let (worker, model, session, welcome) = joined.map_err(|error| exception(&error))?;
        let progress = Mutex::new(session.progress().clone());
        let state = JoinedSession { worker, model, session, welcome, task: None, ended: None };
        Ok(PySession { state: Mutex::new(state), progress })
    }

    /// The rank of this worker.
    #[getter]
    fn rank(&self) -> u32 {
        self.lock().welcome.rank
    }

    /// What the server says of the run, as JSON.
    #[getter]
    fn description(&self) -> String {
        self.lock().welcome.workload_spec.clone()
    }

    /// Why the run ended, once it has.
    #[getter]
    fn ended(&self) -> Option<String> {
        self.lock().ended.clone()
    }

    /// Waits for the next task. `None` if the run is over.
    fn next_task(&self, py: Python<'_>) -> PyResult<Option<PyTakenTask>> {
        if self.lock().ended.is_some() {
            return Ok(None);
        }
        loop {
            let next = self.wait_for(py, |state, deadline| state.session.next_task(Some(deadline)).transpose())?;
            match next {
                Ok(task) => {
                    let (assignment, settings) = (*task.assignment(), task.settings());
                    let memory = |memory: Option<_>| memory.map(|memory| Py::new(py, PyMemory(memory))).transpose();
                    let pull = match assignment.work {
                        Work::Local(LocalWork { start: ReplicaStart::Replica { pull }, .. }) => Some(pull),
                        _ => None,
                    };
                    let shown = PyTakenTask {
                        number: assignment.task.number,
                        version: assignment.version.0,
                        samples: assignment.samples,
                        offset: assignment.offset,
                        local: assignment.work != Work::Gradient,
                        pull,
                        committed: settings.committed,
                        progress: settings.run.progress,
                        used: settings.run.used,
                        checkpoint: settings.run.checkpoint,
                        model: memory(task.model_memory())?,
                        result: memory(task.result_memory())?,
                    };
                    self.lock().task = Some(task);
                    return Ok(Some(shown));
                }
                Err(end) => {
                    if !self.resume(py, end)? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// The worker's part in groups, if its process holds the model together with others. Another one after it has
    /// rejoined.
    fn membership(&self) -> Option<PyGroupMembership> {
        self.lock().session.membership().map(PyGroupMembership)
    }

    /// The address where the others reach this process, and a file descriptor of the socket that listens there.
    fn meeting(&self) -> PyResult<(String, u16, RawFd)> {
        let state = self.lock();
        let listener = state.worker.meeting.as_ref().ok_or_else(|| RunError::new_err("no address for the others"))?;
        let (address, copy) = (listener.local_addr()?, listener.try_clone()?);
        Ok((address.ip().to_string(), address.port(), copy.into_raw_fd()))
    }

    /// The newest group that this worker is told to form, if there is one.
    fn take_group(&self) -> Option<PyGroup> {
        let state = self.lock();
        let newest = std::iter::from_fn(|| state.session.take_group()).last()?;
        PyGroup::of(state.welcome.rank, newest)
    }

    /// Waits for what becomes of the model, or for the next group. `None` if neither comes: the session has ended, or the
    /// next task can begin.
    fn next_order(&self, py: Python<'_>) -> PyResult<Option<PyOrder>> {
        loop {
            let order = self.wait_for(py, |state, deadline| state.session.next_order(Some(deadline)))?;
            let rank = self.lock().welcome.rank;
            let order = match order {
                NextOrder::Order(ToMember::Step { version, step }) => PyOrder::Step(PyStep::new(version, step)),
                NextOrder::Order(ToMember::Form(group)) => match PyGroup::of(rank, group) {
                    Some(group) => PyOrder::Group(group),
                    None => continue,
                },
                NextOrder::Order(ToMember::Send(_)) => continue,
                NextOrder::None => return Ok(None),
            };
            return Ok(Some(order));
        }
    }

    /// Whether the connection has ended: the next task is one of another, if there is one.
    fn has_ended(&self) -> bool {
        self.lock().session.has_ended()
    }

    /// Tells that the process has made this version of the model.
    fn has_model(&self, version: u64) {
        self.lock().session.has_model(Version(version));
    }

    /// Lets parts of the result go to their shards while others are computed. `None` if there are no shards.
    fn push(&self) -> Option<PyUpdatePush> {
        let mut state = self.lock();
        let task = state.task.take().map(|task| state.session.push(task));
        state.task = task;
        state.task.as_ref()?.update_push().cloned().map(PyUpdatePush)
    }

    /// Sleeps for the emulated delay after this many seconds of computing. Returns `False` if the task was cancelled or
    /// collected meanwhile.
    fn emulate_delay(&self, py: Python<'_>, computed: f64) -> PyResult<bool> {
        let computed = Duration::try_from_secs_f64(computed).unwrap_or_default();
        let pause = self.lock().worker.emulation.as_mut().map(|emulation| emulation.pause(computed));
        let Some(until) = pause.and_then(|pause| Instant::now().checked_add(pause)) else { return Ok(true) };
        self.wait_for(py, |state, deadline| {
            let left = until.min(deadline).saturating_duration_since(Instant::now());
            match state.session.sleep(left) {
                true if until > deadline => None,
                slept => Some(slept),
            }
        })
    }

    /// After `iterations` local iterations: whether to do another one.
    fn goes_on(&self, py: Python<'_>, iterations: u32, compute: f64, loading: f64) -> PyResult<bool> {
        let times = times(compute, 0.0, loading);
        let length = match self.lock().task.as_ref().map(|task| task.assignment().work) {
            Some(Work::Local(LocalWork { length, .. })) => length,
            _ => LocalLength::Iterations(1),
        };
        let wait = match after_iteration(length, iterations) {
            AfterIteration::Continue => return Ok(!self.lock().session.is_cancelled()),
            AfterIteration::Finish => return Ok(false),
            AfterIteration::Ask { wait } => wait,
        };
        let asked = {
            let mut state = self.lock();
            let JoinedSession { session, task, .. } = &mut *state;
            task.as_ref().map_or(Ok(()), |task| session.ask(task, iterations, times))
        };
        // If the session has ended, the report finds it.
        if asked.is_err() {
            return Ok(false);
        }
        match wait {
            true => self.wait_for(py, |state, deadline| state.session.wait_for_answer(Some(deadline))),
            false => Ok(!self.lock().session.is_collected()),
        }
    }

    /// Whether the answer to [`goes_on`](PySession::goes_on) is waited for or asked, so that times are sent with it.
    fn asks(&self) -> bool {
        let work = self.lock().task.as_ref().map(|task| task.assignment().work);
        matches!(
            work,
            Some(Work::Local(LocalWork { length: LocalLength::AskAndWait | LocalLength::AskAndContinue, .. }))
        )
    }

    /// Reports the task that was taken last. Its result is in place.
    #[expect(clippy::too_many_arguments, reason = "they are one report")]
    fn report(
        &self,
        py: Python<'_>,
        loss: f64,
        compute: f64,
        querying: f64,
        loading: f64,
        samples: Option<u32>,
        rates: Vec<f64>,
        device_memory: Option<f32>,
    ) -> PyResult<()> {
        let times = times(compute, querying, loading);
        let report = TaskReport { loss, times, samples, device_memory, rates };
        let reported = py.detach(|| {
            let mut state = self.lock();
            let task = state.task.take()?;
            Some(state.session.report(task, report))
        });
        match reported {
            None => Err(PyRuntimeError::new_err("no task to report")),
            Some(Ok(())) => Ok(()),
            Some(Err(end)) => self.resume(py, end).map(|_| ()),
        }
    }

    /// Reports what an evaluator has found for the model of the task that was taken last.
    #[pyo3(signature = (*, loss, accuracy))]
    fn report_evaluation(&self, py: Python<'_>, loss: Option<f64>, accuracy: Option<f64>) -> PyResult<()> {
        let reported = {
            let mut state = self.lock();
            let JoinedSession { session, task, .. } = &mut *state;
            task.take().map(|task| session.report_evaluation(task, loss, accuracy))
        };
        match reported {
            None => Err(PyRuntimeError::new_err("no task to report")),
            Some(Ok(())) => Ok(()),
            Some(Err(end)) => self.resume(py, end).map(|_| ()),
        }
    }

    /// Whether the result of the task is no longer needed.
    fn is_cancelled(&self) -> bool {
        self.lock().session.is_cancelled()
    }

    /// Tells the server's watch that this worker makes progress.
    fn progressed(&self) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).step();
    }

    /// The last version and the model at the end of the run, if the server sent it.
    fn last_model(&self, py: Python<'_>) -> PyResult<Option<(u64, Py<PyMemory>)>> {
        let last = self.lock().session.last_model();
        last.map(|(version, memory)| Ok((version.0, Py::new(py, PyMemory(memory))?))).transpose()
    }

    /// Leaves the run. A worker that has done all that it was started for stays until nobody needs the parameters that its
    /// process holds.
    fn leave(&self, py: Python<'_>, reason: String, is_done: bool) -> PyResult<()> {
        self.lock().session.leave(reason, is_done);
        if !is_done {
            return Ok(());
        }
        if self.membership().is_some() {
            self.wait_for(py, |state, deadline| state.session.wait_for_end(deadline).then_some(()))?;
        }
        self.wait_for(py, |state, deadline| state.worker.shards.wait_until_free(deadline).then_some(()))
    }

    /// In a process that was forked from this one: lets go of the connection, so that it ends with this process.
    fn let_go(&self) -> PyResult<()> {
        // Another thread of the parent may have held the lock when it forked.
        match self.state.try_lock() {
            Ok(state) => Ok(state.session.let_go()?),
            Err(_) => Ok(()),
        }
    }
}

fn times(compute: f64, querying: f64, loading: f64) -> TimeSpent {
    let [compute, querying, loading] = [compute, querying, loading].map(|seconds| Span::from_seconds(seconds.max(0.0)));
    TimeSpent { compute, querying, loading }
}

/// The exception of a worker's error.
fn exception(error: &WorkerError) -> PyErr {
    match error {
        WorkerError::Refused { .. } | WorkerError::Workload { .. } => InputError::new_err(error.to_string()),
        WorkerError::Connect { .. }
        | WorkerError::Lost { .. }
        | WorkerError::Finished { .. }
        | WorkerError::Interrupted => RunError::new_err(error.to_string()),
    }
}
