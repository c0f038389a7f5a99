//! The worker's side of the protocol: the tasks of one session.

use std::collections::{BTreeMap, VecDeque};

use paceline_core::{Assignment, LocalLength, Version};
use paceline_store::OptimizerSpec;

use crate::group_message::ToMember;
use crate::message::{HeldParameters, TaskSettings, ToServer, ToWorker};
use crate::payload::PayloadRule;

/// How a session with the server ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEnd {
    /// The run is over.
    Finished(String),
    /// The server refused or dismissed this worker for good.
    Refused(String),
    /// The server refused or dismissed this worker for now; it may rejoin.
    RetryLater(String),
    /// The connection is lost.
    Lost(String),
}

/// What the server tells a worker that it accepts.
#[derive(Debug, Clone, PartialEq)]
pub struct Welcome {
    /// The rank of the worker.
    pub rank: u32,
    /// Describes the workload.
    pub workload_spec: String,
    /// The seed of the initial parameters.
    pub seed: u64,
    /// The number format of values that are sent.
    pub payload: PayloadRule,
    /// The optimizer of local iterations.
    pub optimizer: OptimizerSpec,
    /// The number of the lease under which the run is served.
    pub epoch: u64,
    /// What the worker's process may have to hold of the parameters.
    pub holds: HeldParameters,
}

/// What a message means to the worker.
#[derive(Debug, PartialEq)]
pub enum Reaction {
    /// Nothing beyond the changed tasks.
    None,
    /// The worker joins: it builds the workload and answers with [`ToServer::Ready`].
    Join(Welcome),
    /// The server has no model: the worker sends its own, then joins again.
    SendModel,
    /// These cancelled tasks never start; the server must learn of it.
    Drop(Vec<ToServer>),
    /// The session is over.
    End(SessionEnd),
}

/// Whether the result of the running task is still needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultStatus {
    /// The server waits for the result.
    Wanted,
    /// Newer work is queued: the result is late.
    Late,
    /// The task was cancelled.
    Cancelled,
}

/// What a worker does after a local iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterIteration {
    /// The next iteration.
    Continue,
    /// It asks; then it waits for the answer, or continues at once.
    Ask {
        /// Whether it waits.
        wait: bool,
    },
    /// The task is done.
    Finish,
}

/// What a worker does after `iterations` local iterations.
pub fn after_iteration(length: LocalLength, iterations: u32) -> AfterIteration {
    match length {
        LocalLength::Iterations(count) if iterations >= count => AfterIteration::Finish,
        LocalLength::Iterations(_) => AfterIteration::Continue,
        LocalLength::AskAndWait => AfterIteration::Ask { wait: true },
        LocalLength::AskAndContinue => AfterIteration::Ask { wait: false },
    }
}

/// The server's answer to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Continue,
    Collect,
}

/// A task that is queued, or starts.
#[derive(Debug, Clone)]
pub struct NextTask<M> {
    /// The assignment.
    pub assignment: Assignment,
    /// What else the worker may need to know.
    pub settings: TaskSettings,
    /// The model to use, once it is available.
    model: Option<M>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerStage {
    /// The hello is sent.
    Handshake,
    /// The workload is being built, or the worker has joined.
    Accepted,
}

/// The worker's side of one session. `M` is a handle of a model: its values are elsewhere.
#[derive(Debug)]
pub struct WorkerProtocol<M> {
    stage: WorkerStage,
    running: Option<Assignment>,
    cancelled: bool,
    /// The server's answer about the running task.
    answer: Option<Answer>,
    queued: VecDeque<NextTask<M>>,
    /// The models that have arrived, from the version of the last assignment on. From shards they may come before it.
    models: BTreeMap<Version, M>,
    /// What it was told as a member of a group, and has not done yet.
    orders: VecDeque<ToMember>,
    end: Option<SessionEnd>,
}

impl<M> Default for WorkerProtocol<M> {
    fn default() -> Self {
        WorkerProtocol {
            stage: WorkerStage::Handshake,
            running: None,
            cancelled: false,
            answer: None,
            queued: VecDeque::new(),
            models: BTreeMap::new(),
            orders: VecDeque::new(),
            end: None,
        }
    }
}

impl<M: Clone> WorkerProtocol<M> {
    /// A message of the server has arrived. With shared memory, `model` is the model of an assignment, or the last one.
    pub fn on_message(&mut self, message: ToWorker, model: Option<M>) -> Reaction {
        let reaction = match (self.stage, message) {
            (
                WorkerStage::Handshake,
                ToWorker::Welcome { rank, workload_spec, seed, payload, optimizer, epoch, holds },
            ) => {
                self.stage = WorkerStage::Accepted;
                Reaction::Join(Welcome { rank, workload_spec, seed, payload, optimizer, epoch, holds })
            }
            (_, ToWorker::Refuse { reason, may_rejoin: true }) => Reaction::End(SessionEnd::RetryLater(reason)),
            (_, ToWorker::Refuse { reason, may_rejoin: false }) => Reaction::End(SessionEnd::Refused(reason)),
            (_, ToWorker::Finished { reason, version, .. }) => {
                self.models.extend(model.map(|model| (version, model)));
                Reaction::End(SessionEnd::Finished(reason))
            }
            (WorkerStage::Handshake, ToWorker::SendModel) => Reaction::SendModel,
            (WorkerStage::Handshake, _) => {
                Reaction::End(SessionEnd::Lost("the server did not answer the hello with a welcome".into()))
            }
            (_, ToWorker::Welcome { .. } | ToWorker::SendModel) => {
                Reaction::End(SessionEnd::Lost("second answer to the hello".into()))
            }
            (_, ToWorker::Assign { assignment, after, settings, .. }) => {
                drop_all(self.assign(NextTask { assignment, settings, model }, after))
            }
            (_, ToWorker::Interrupt { number }) => drop_all(self.interrupt(number)),
            (_, ToWorker::Continue { number }) => self.on_answer(number, Answer::Continue),
            (_, ToWorker::Collect { number }) => self.on_answer(number, Answer::Collect),
            (_, ToWorker::Member(order)) => {
                self.orders.push_back(order);
                Reaction::None
            }
            // The driver maps buffers and receives models.
            (_, ToWorker::Map { .. } | ToWorker::Model { .. } | ToWorker::Shards { .. }) => Reaction::None,
        };
        if let Reaction::End(end) = &reaction {
            self.end(end.clone());
        }
        reaction
    }

    /// Adds a task and cancels all others except `after`. Returns the tasks that will never start.
    fn assign(&mut self, mut task: NextTask<M>, after: Option<u64>) -> Vec<u64> {
        self.models = self.models.split_off(&task.assignment.version);
        task.model = task.model.or_else(|| self.models.get(&task.assignment.version).cloned());
        if self.running.is_some_and(|running| Some(running.task.number) != after) {
            self.cancelled = true;
        }
        let dropped = self.remove_queued(|number| Some(number) != after);
        self.queued.push_back(task);
        dropped
    }

    /// Cancels a task. Returns its number if it will never start.
    fn interrupt(&mut self, number: u64) -> Vec<u64> {
        if self.running.is_some_and(|running| running.task.number == number) {
            self.cancelled = true;
        }
        self.remove_queued(|queued| queued == number)
    }

    fn remove_queued(&mut self, cancelled: impl Fn(u64) -> bool) -> Vec<u64> {
        let numbers = self.queued.iter().map(|task| task.assignment.task.number);
        let dropped: Vec<u64> = numbers.filter(|&number| cancelled(number)).collect();
        self.queued.retain(|task| !cancelled(task.assignment.task.number));
        dropped
    }

    /// The server's answer about a task; ignored unless that task is running.
    fn on_answer(&mut self, number: u64, answer: Answer) -> Reaction {
        if self.running.is_some_and(|running| running.task.number == number) {
            self.answer = Some(answer);
        }
        Reaction::None
    }

    /// The newest model that has arrived.
    pub fn last_model(&self) -> Option<(Version, M)> {
        self.models.last_key_value().map(|(&version, model)| (version, model.clone()))
    }

    /// A model has arrived, for queued tasks that need it and for later ones.
    pub fn on_model(&mut self, version: Version, model: M) {
        for task in self.queued.iter_mut().filter(|task| task.assignment.version == version) {
            task.model.get_or_insert_with(|| model.clone());
        }
        self.models.insert(version, model);
    }

    /// The next thing that it is told as a member of a group, if `is_meant` says so of it. Others stay.
    pub fn take_order(&mut self, is_meant: impl Fn(&ToMember) -> bool) -> Option<ToMember> {
        let position = self.orders.iter().position(is_meant)?;
        self.orders.remove(position)
    }

    /// Whether the next task could start.
    pub fn has_next(&self) -> bool {
        self.queued.front().is_some_and(|task| task.model.is_some())
    }

    /// Ends the session; only the first reason counts.
    pub fn end(&mut self, end: SessionEnd) {
        self.end.get_or_insert(end);
        self.cancelled = true;
    }

    /// Why the session is over; `None` if it is not.
    pub fn ended(&self) -> Option<&SessionEnd> {
        self.end.as_ref()
    }

    /// Starts the next task, if no task is running and the next one has its model.
    pub fn start_next(&mut self) -> Option<(NextTask<M>, M)> {
        if self.running.is_some() || self.end.is_some() {
            return None;
        }
        let model = self.queued.front()?.model.clone()?;
        let task = self.queued.pop_front()?;
        (self.running, self.cancelled, self.answer) = (Some(task.assignment), false, None);
        Some((task, model))
    }

    /// Whether the running task is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// The number of the running task, if it is cancelled.
    pub fn cancelled_task(&self) -> Option<u64> {
        self.running.filter(|_| self.is_cancelled()).map(|running| running.task.number)
    }

    /// Whether the server has asked for the result of the running task.
    pub fn is_collected(&self) -> bool {
        self.answer == Some(Answer::Collect)
    }

    /// Takes the server's answer about the running task: whether to continue; `None` if there is none yet. A collected
    /// or cancelled task does not continue.
    pub fn take_answer(&mut self) -> Option<bool> {
        if self.cancelled || self.is_collected() {
            return Some(false);
        }
        self.answer.take().map(|answer| answer == Answer::Continue)
    }

    /// Whether the result of the running task is still needed.
    pub fn result_status(&self) -> ResultStatus {
        let newer = |task: &NextTask<M>| self.running.is_some_and(|running| task.assignment.version > running.version);
        if self.cancelled {
            ResultStatus::Cancelled
        } else if self.queued.iter().any(newer) {
            ResultStatus::Late
        } else {
            ResultStatus::Wanted
        }
    }

    /// The running task is done.
    pub fn finish_task(&mut self) {
        self.running = None;
    }
}

fn drop_all(numbers: Vec<u64>) -> Reaction {
    if numbers.is_empty() {
        return Reaction::None;
    }
    Reaction::Drop(numbers.into_iter().map(|number| ToServer::Dropped { number }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::RunPosition;
    use paceline_core::{TaskId, Work, WorkerId};

    fn assign(number: u64, version: u64, after: Option<u64>) -> ToWorker {
        let task = TaskId { worker: WorkerId(0), number };
        let (version, work) = (Version(version), Work::Gradient);
        let assignment = Assignment { task, version, work, samples: 1, offset: 0, queued: after.is_some() };
        let settings = TaskSettings { run: RunPosition::default(), committed: None };
        ToWorker::Assign { assignment, after, buffers: None, settings }
    }

    /// A worker that has joined.
    fn joined() -> WorkerProtocol<()> {
        let mut worker = WorkerProtocol::default();
        let welcome = ToWorker::Welcome {
            rank: 3,
            workload_spec: "digits".into(),
            seed: 1,
            payload: PayloadRule::default(),
            optimizer: paceline_store::OptimizerKind::Sgd { decay: 0.0 }.into(),
            epoch: 0,
            holds: HeldParameters::Nothing,
        };
        assert!(matches!(worker.on_message(welcome, None), Reaction::Join(Welcome { rank: 3, .. })));
        worker
    }

    fn start_next(worker: &mut WorkerProtocol<()>) -> Option<u64> {
        worker.start_next().map(|(task, ())| task.assignment.task.number)
    }

    fn dropped(numbers: &[u64]) -> Reaction {
        Reaction::Drop(numbers.iter().map(|&number| ToServer::Dropped { number }).collect())
    }

    #[test]
    fn newer_work_makes_the_running_task_late_and_replaces_queued_tasks() {
        let mut worker = joined();
        assert_eq!(worker.on_message(assign(0, 0, None), None), Reaction::None);
        assert_eq!(start_next(&mut worker), None, "its model has not arrived");
        worker.on_model(Version(0), ());
        assert_eq!(start_next(&mut worker), Some(0));
        assert_eq!(worker.result_status(), ResultStatus::Wanted);
        assert_eq!(worker.on_message(assign(1, 1, Some(0)), None), Reaction::None);
        assert_eq!(worker.result_status(), ResultStatus::Late);
        assert_eq!(worker.on_message(assign(2, 2, Some(0)), None), dropped(&[1]));
        worker.finish_task();
        worker.on_model(Version(2), ());
        assert_eq!(start_next(&mut worker), Some(2));
        worker.on_message(assign(3, 2, Some(2)), None);
        worker.finish_task();
        assert_eq!(start_next(&mut worker), Some(3), "the model is reused");
    }

    #[test]
    fn a_running_task_that_is_replaced_or_interrupted_is_cancelled() {
        let mut worker = joined();
        worker.on_message(assign(1, 1, None), Some(()));
        assert_eq!(start_next(&mut worker), Some(1));
        // The server did not know yet that task 0 was done.
        assert_eq!(worker.on_message(assign(2, 2, Some(0)), Some(())), Reaction::None);
        assert_eq!(worker.result_status(), ResultStatus::Cancelled);
        worker.finish_task();
        assert_eq!(start_next(&mut worker), Some(2));
        worker.on_message(assign(3, 3, Some(2)), Some(()));
        assert_eq!(worker.on_message(ToWorker::Interrupt { number: 3 }, None), dropped(&[3]));
        assert_eq!(worker.result_status(), ResultStatus::Wanted);
        assert_eq!(worker.on_message(ToWorker::Interrupt { number: 2 }, None), Reaction::None);
        assert_eq!(worker.result_status(), ResultStatus::Cancelled);
    }

    #[test]
    fn answers_apply_to_the_running_task_only() {
        let mut worker = joined();
        worker.on_message(assign(4, 0, None), Some(()));
        assert_eq!(start_next(&mut worker), Some(4));
        worker.on_message(ToWorker::Collect { number: 3 }, None);
        assert!(!worker.is_collected() && worker.take_answer().is_none(), "the answer was for another task");
        worker.on_message(ToWorker::Continue { number: 4 }, None);
        assert_eq!((worker.take_answer(), worker.take_answer()), (Some(true), None));
        worker.on_message(ToWorker::Collect { number: 4 }, None);
        assert!(worker.is_collected());
        assert_eq!(worker.take_answer(), Some(false));
        worker.finish_task();
        worker.on_message(assign(5, 0, None), Some(()));
        assert_eq!(start_next(&mut worker), Some(5));
        assert!(!worker.is_collected());
    }

    #[test]
    fn the_first_end_counts_and_cancels_everything() {
        let mut worker = joined();
        worker.on_message(assign(0, 0, None), Some(()));
        let end = worker.on_message(ToWorker::Refuse { reason: "stuck".into(), may_rejoin: true }, None);
        assert_eq!(end, Reaction::End(SessionEnd::RetryLater("stuck".into())));
        worker.end(SessionEnd::Lost("closed".into()));
        assert_eq!(worker.ended(), Some(&SessionEnd::RetryLater("stuck".into())));
        assert_eq!((worker.is_cancelled(), start_next(&mut worker)), (true, None));
        let mut early = WorkerProtocol::<()>::default();
        assert!(matches!(early.on_message(assign(0, 0, None), None), Reaction::End(SessionEnd::Lost(_))));
    }
}
