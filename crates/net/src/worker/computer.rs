//! The computing thread: gradients of the model, or local iterations on a replica of it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use paceline_core::{Assignment, LocalWork, ReplicaStart, Span, Work};
use paceline_protocol::{
    AfterIteration, GradientLocation, NextTask, PayloadFormat, ReplicaSettings, ResultStatus, SessionEnd, ToServer,
    WireReport, after_iteration,
};
use paceline_runtime::{LocalReplica, local_optimizer, pulled_replica, replica_at};
use paceline_store::{Layout, Optimizer, OptimizerSpec};
use paceline_workload::{Draw, Progress, Replica};

use super::emulation::Emulation;
use super::system_load::SystemLoad;
use super::task_queue::{TaskModel, TaskQueue};
use crate::frame;
use crate::frame_reader::invalid;
use crate::outbox::{Outbox, Transfer, TransferEnd};
use crate::shared_memory::Region;

/// Runs the tasks of one session.
pub(super) struct Computer<'a> {
    pub(super) replica: Box<dyn Replica>,
    pub(super) layout: &'a Layout,
    /// The optimizer of local iterations.
    pub(super) optimizer: OptimizerSpec,
    pub(super) task_queue: &'a TaskQueue,
    pub(super) outbox: &'a Outbox,
    pub(super) payload: PayloadFormat,
    /// Whether the server shares memory with this worker.
    pub(super) is_shared: bool,
    /// The buffer for gradients that are sent. It is allocated for the first, and while another is still being read.
    pub(super) gradient: Option<Region>,
    pub(super) emulation: Option<&'a mut Emulation>,
    pub(super) system_load: SystemLoad,
    pub(super) tasks: u64,
    /// Counts the steps of this worker, for the heartbeats.
    pub(super) progress: Progress,
    /// What later local iterations may continue from, by task.
    pub(super) kept: BTreeMap<u64, KeptReplica>,
}

/// What local iterations leave for those that follow.
pub(super) struct KeptReplica {
    /// The parameters, if the next iterations start from them.
    parameters: Option<Vec<f32>>,
    optimizer: Optimizer,
}

/// The result of a task.
struct TaskResult {
    loss: f64,
    /// The computing time since the last message about this task.
    compute: Span,
    querying: Span,
}

impl Computer<'_> {
    /// Runs one task after another until the session ends.
    pub(super) fn compute(&mut self) -> SessionEnd {
        loop {
            let (task, model) = match self.task_queue.start_next() {
                Ok(next) => next,
                Err(end) => return end,
            };
            self.progress.step();
            if let Err(error) = self.run_task(task, model) {
                // If the server sent a reason before it closed the connection, the reader still finds it.
                self.outbox.disconnect();
                return match self.task_queue.wait_for_end() {
                    SessionEnd::Lost(_) => SessionEnd::Lost(error.to_string()),
                    known => known,
                };
            }
            self.task_queue.finish();
        }
    }

    fn run_task(
        &mut self,
        NextTask { assignment, settings, .. }: NextTask<TaskModel>,
        TaskModel { parameters, gradient }: TaskModel,
    ) -> io::Result<()> {
        let number = assignment.task.number;
        let compute = |computer: &mut Self, gradient: &mut Region| match assignment.work {
            Work::Gradient => Ok(computer.gradient(&assignment, parameters.values(), gradient)),
            Work::Local(local) => computer.iterate(&assignment, local, settings, parameters.values(), gradient),
        };
        if let Some(gradient) = gradient {
            let result = compute(self, &mut gradient.lock().unwrap_or_else(PoisonError::into_inner))?;
            return self.report_in_place(number, result);
        }
        if self.is_shared {
            return Err(invalid("assignment without shared buffers"));
        }
        let length = self.layout.len();
        let mut gradient = self.gradient.take().map_or_else(|| Region::private(length), Ok)?;
        let result = compute(self, &mut gradient)?;
        self.upload(number, result, gradient)
    }

    fn gradient(&mut self, assignment: &Assignment, model: &[f32], gradient: &mut Region) -> TaskResult {
        let started = Instant::now();
        let loss = self.replica.gradient(model, draw(assignment, 0), gradient.values_mut());
        self.emulate_delay(started);
        TaskResult { loss, compute: elapsed(started), querying: Span::ZERO }
    }

    /// Runs local iterations on a replica until they are complete, and writes the model difference to `difference`.
    fn iterate(
        &mut self,
        assignment: &Assignment,
        local: LocalWork,
        settings: ReplicaSettings,
        model: &[f32],
        difference: &mut Region,
    ) -> io::Result<TaskResult> {
        let mut replica = self.start(local.start, settings, model);
        let (mut compute, mut querying) = (Span::ZERO, Span::ZERO);
        while self.task_queue.result_status() != ResultStatus::Cancelled {
            let started = Instant::now();
            let loss = replica.begin(self.replica.as_mut(), draw(assignment, replica.iterations()));
            if !self.emulate_delay(started) {
                querying += elapsed(started);
                break;
            }
            replica.complete(loss);
            self.progress.step();
            compute += elapsed(started);
            let wait = match after_iteration(local.length, replica.iterations()) {
                AfterIteration::Continue => continue,
                AfterIteration::Finish => break,
                AfterIteration::Ask { wait } => wait,
            };
            let report = self.report(std::mem::take(&mut compute), std::mem::take(&mut querying));
            self.send(&ToServer::Asked { number: assignment.task.number, iterations: replica.iterations(), report })?;
            let asked = Instant::now();
            // With `AskAndContinue`, an iteration that is complete when the result is collected is part of it.
            let continues = if wait { self.task_queue.wait_for_answer() } else { !self.task_queue.is_collected() };
            querying += elapsed(asked);
            if !continues {
                break;
            }
        }
        let (loss, optimizer) = replica.finish(model, difference.values_mut());
        let continues = matches!(local.start, ReplicaStart::Replica { .. });
        let parameters = continues.then(|| replica_at(model, difference.values()));
        self.kept.insert(assignment.task.number, KeptReplica { parameters, optimizer });
        Ok(TaskResult { loss, compute, querying })
    }

    /// The replica for the next local iterations. It continues from the last committed update; what no task can continue
    /// from any more is forgotten.
    fn start(&mut self, start: ReplicaStart, settings: ReplicaSettings, model: &[f32]) -> LocalReplica {
        let ReplicaSettings { rate, committed } = settings;
        if let Some(committed) = committed {
            self.kept = self.kept.split_off(&committed);
        }
        let last = committed.and_then(|number| self.kept.get(&number));
        let parameters = match (start, last.and_then(|last| last.parameters.as_ref())) {
            (ReplicaStart::Replica { pull }, Some(own)) => pulled_replica(model, own, pull),
            _ => model.to_vec(),
        };
        let last = last.map(|last| &last.optimizer);
        LocalReplica::new(parameters, local_optimizer(last, &self.optimizer, self.layout), rate)
    }

    /// Sleeps for the emulated delay, if there is one. Returns `false` if the task was cancelled or collected
    /// meanwhile.
    fn emulate_delay(&mut self, started: Instant) -> bool {
        let Some(emulation) = &mut self.emulation else { return true };
        let pause = emulation.pause(started.elapsed());
        self.task_queue.sleep(pause)
    }

    fn report(&mut self, compute: Span, querying: Span) -> WireReport {
        let (cpu, memory) = self.system_load.shares();
        WireReport { compute, querying, cpu, memory }
    }

    fn send(&self, message: &ToServer) -> io::Result<()> {
        self.outbox.send(message)
    }

    /// The message with the result of a task.
    fn report_of(&mut self, number: u64, result: TaskResult, gradient: GradientLocation) -> ToServer {
        let TaskResult { loss, compute, querying } = result;
        ToServer::Report { number, report: self.report(compute, querying), loss, gradient }
    }

    /// Reports a result in shared memory, if it is still needed.
    fn report_in_place(&mut self, number: u64, result: TaskResult) -> io::Result<()> {
        let report = self.report_of(number, result, GradientLocation::InPlace);
        if self.task_queue.result_status() == ResultStatus::Cancelled {
            return self.send(&ToServer::Dropped { number });
        }
        self.tasks += 1;
        self.send(&report)
    }

    /// Sends a result, as far as it is still needed. Returns when it is sent.
    fn upload(&mut self, number: u64, result: TaskResult, gradient: Region) -> io::Result<()> {
        let status = self.task_queue.result_status();
        let location =
            if status == ResultStatus::Late { GradientLocation::Withheld } else { GradientLocation::Follows };
        let report = self.report_of(number, result, location);
        let end = match status {
            ResultStatus::Cancelled => TransferEnd::Withdrawn,
            ResultStatus::Late => {
                self.send(&report)?;
                TransferEnd::Sent
            }
            ResultStatus::Wanted => {
                let (values, payload) = (Arc::new(gradient), self.payload);
                let (frame, announcement) = (frame::encode(&report)?, Vec::new());
                let transfer = Transfer { number, frame, version: None, announcement, values: values.clone(), payload };
                self.outbox.transfer(transfer, usize::MAX);
                // It may have been cancelled before the transfer was there to be stopped.
                if self.task_queue.result_status() == ResultStatus::Cancelled {
                    self.outbox.stop_transfer(number);
                }
                let end = self.outbox.wait_for_transfer();
                self.gradient = Arc::into_inner(values);
                end
            }
        };
        match end {
            TransferEnd::Sent => self.tasks += 1,
            TransferEnd::Withdrawn => self.send(&ToServer::Dropped { number })?,
            TransferEnd::Disconnected => return Err(io::ErrorKind::NotConnected.into()),
        }
        Ok(())
    }
}

fn elapsed(since: Instant) -> Span {
    Span(since.elapsed().as_nanos() as u64)
}

/// The samples of a gradient, or of the local iteration after `iterations` others.
fn draw(assignment: &Assignment, iterations: u32) -> Draw {
    let Assignment { task, offset, samples, .. } = *assignment;
    Draw { worker: task.worker.0, offset: offset + u64::from(iterations) * u64::from(samples), samples }
}
