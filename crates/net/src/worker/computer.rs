//! The computing thread: gradients of the model, or local iterations on a replica of it.

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use paceline_core::{Assignment, LocalWork, ReplicaStart, Span, Work};
use paceline_protocol::{
    AfterIteration, GradientLocation, NextTask, PayloadFormat, ReplicaSettings, ResultStatus, SessionEnd, ToServer,
    WireReport, after_iteration,
};
use paceline_runtime::{LocalReplica, pulled_replica, replica_at};
use paceline_store::{Layout, OptimizerSpec};
use paceline_workload::{Draw, Progress, Replica};

use super::emulation::Emulation;
use super::lock;
use super::system_load::SystemLoad;
use super::task_queue::{TaskModel, TaskQueue};
use crate::connection::{Sender, invalid};
use crate::frame;
use crate::shared_memory::Region;

/// Runs the tasks of one session.
pub(super) struct Computer<'a> {
    pub(super) replica: Box<dyn Replica>,
    pub(super) layout: &'a Layout,
    /// The optimizer of local iterations.
    pub(super) optimizer: OptimizerSpec,
    pub(super) task_queue: &'a TaskQueue,
    pub(super) sender: &'a Mutex<Sender>,
    pub(super) payload: PayloadFormat,
    /// The buffer for gradients that are sent, if memory is not shared.
    pub(super) gradient: Option<Arc<Mutex<Region>>>,
    pub(super) emulation: Option<&'a mut Emulation>,
    pub(super) system_load: SystemLoad,
    pub(super) tasks: u64,
    /// Counts the steps of this worker, for the heartbeats.
    pub(super) progress: Progress,
    /// The states of replicas that a later task may continue from, by task.
    pub(super) replicas: BTreeMap<u64, Vec<f32>>,
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
                lock(self.sender).socket().shutdown(Shutdown::Both);
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
        let shared = gradient.is_some();
        let Some(gradient) = gradient.or_else(|| self.gradient.clone()) else {
            return Err(invalid("assignment without shared buffers"));
        };
        let result = match assignment.work {
            Work::Gradient => self.gradient(&assignment, parameters.values(), &gradient),
            Work::Local(local) => self.iterate(&assignment, local, settings, parameters.values(), &gradient)?,
        };
        self.deliver(assignment.task.number, result, &gradient, shared)
    }

    fn gradient(&mut self, assignment: &Assignment, model: &[f32], gradient: &Mutex<Region>) -> TaskResult {
        let started = Instant::now();
        let mut gradient = gradient.lock().unwrap_or_else(PoisonError::into_inner);
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
        difference: &Mutex<Region>,
    ) -> io::Result<TaskResult> {
        let start = self.start(local.start, settings.committed, model);
        let mut replica = LocalReplica::new(self.layout, start, self.optimizer, settings.rate);
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
        let mut difference = difference.lock().unwrap_or_else(PoisonError::into_inner);
        let loss = replica.finish(model, difference.values_mut());
        if let ReplicaStart::Replica { .. } = local.start {
            self.replicas.insert(assignment.task.number, replica_at(model, difference.values()));
        }
        Ok(TaskResult { loss, compute, querying })
    }

    /// The state that a replica starts from. Forgets the states that no task can continue from any more.
    fn start(&mut self, start: ReplicaStart, committed: Option<u64>, model: &[f32]) -> Vec<f32> {
        if let (ReplicaStart::Replica { pull }, Some(committed)) = (start, committed) {
            self.replicas = self.replicas.split_off(&committed);
            if let Some(own) = self.replicas.get(&committed) {
                return pulled_replica(model, own, pull);
            }
        }
        model.to_vec()
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
        lock(self.sender).message(message)
    }

    /// Sends the result of a task, if it is still needed.
    fn deliver(&mut self, number: u64, result: TaskResult, gradient: &Mutex<Region>, shared: bool) -> io::Result<()> {
        let TaskResult { loss, compute, querying } = result;
        let report = self.report(compute, querying);
        let message = |gradient| ToServer::Report { number, report, loss, gradient };
        match self.task_queue.result_status() {
            ResultStatus::Cancelled => return self.send(&ToServer::Dropped { number }),
            _ if shared => self.send(&message(GradientLocation::InPlace))?,
            ResultStatus::Late => self.send(&message(GradientLocation::Withheld))?,
            ResultStatus::Wanted => {
                lock(self.sender).hold(&frame::encode(&message(GradientLocation::Follows))?);
                let gradient = gradient.lock().unwrap_or_else(PoisonError::into_inner);
                for part in gradient.values().chunks(self.payload.values_per_chunk()) {
                    if self.task_queue.result_status() == ResultStatus::Cancelled {
                        return self.send(&ToServer::Dropped { number });
                    }
                    lock(self.sender).chunk(part, self.payload)?;
                }
            }
        }
        self.tasks += 1;
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
