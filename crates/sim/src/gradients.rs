//! Gradients and local updates, computed only when a commit uses them.

use std::sync::{Arc, Mutex, PoisonError};

use paceline_core::{CommitStep, TaskId, Work};
use paceline_runtime::{Contribution, LocalReplica, compensate, local_optimizer};
use paceline_store::{Optimizer, OptimizerSpec};
use paceline_workload::{Draw, Evaluation, Replica, Workload};

/// The inputs of an update. The update itself is computed only if it is committed.
#[derive(Debug, Clone)]
pub(crate) struct PendingUpdate {
    pub(crate) task: TaskId,
    pub(crate) work: Work,
    /// The assigned model.
    pub(crate) parameters: Arc<[f32]>,
    /// Where local iterations start, if not from the assigned model.
    pub(crate) start: Option<Vec<f32>>,
    /// The optimizer of the worker's last local iterations; after the update is computed, of these.
    pub(crate) optimizer: Option<Optimizer>,
    /// The samples of the gradient or of the first local iteration. Later iterations use the samples that follow.
    pub(crate) draw: Draw,
    /// The number of local iterations done.
    pub(crate) iterations: u32,
    /// The learning rate of local iterations.
    pub(crate) rate: f32,
}

/// Computes updates on several threads. The results do not depend on the number of threads.
pub(crate) struct Gradients {
    workload: Arc<dyn Workload>,
    /// The optimizer of local iterations.
    optimizer: OptimizerSpec,
    replicas: Vec<Box<dyn Replica>>,
    buffers: Vec<Vec<f32>>,
    losses: Vec<f64>,
}

impl Gradients {
    pub(crate) fn new(workload: Arc<dyn Workload>, optimizer: OptimizerSpec, threads: usize) -> Self {
        let replicas = (0..threads.max(1)).map(|_| workload.replica()).collect();
        Gradients { workload, optimizer, replicas, buffers: Vec::new(), losses: Vec::new() }
    }

    /// Computes the `pending` updates, in order, with their weights. `newest` are the parameters that `step` starts
    /// from.
    pub(crate) fn compute(
        &mut self,
        pending: &mut [(PendingUpdate, f32)],
        step: CommitStep,
        newest: &[f32],
    ) -> Vec<Contribution<'_>> {
        while self.buffers.len() < pending.len() {
            let length = pending[0].0.parameters.len();
            self.buffers.push(vec![0.0; length]);
        }
        self.losses.resize(self.buffers.len(), 0.0);
        let count = pending.len();
        let (layout, optimizer) = (self.workload.layout(), &self.optimizer);
        let jobs = pending.iter_mut().zip(self.buffers.iter_mut().zip(&mut self.losses));
        let jobs = Mutex::new(jobs);
        let work = |replica: &mut Box<dyn Replica>| {
            loop {
                let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(((update, _), (buffer, loss))) = job else { return };
                if let Work::Local(_) = update.work {
                    let start = update.start.clone().unwrap_or_else(|| update.parameters.to_vec());
                    let optimizer = local_optimizer(update.optimizer.as_ref(), optimizer, layout);
                    let mut local = LocalReplica::new(start, optimizer, update.rate);
                    for draw in update.draws() {
                        let loss = local.begin(replica.as_mut(), draw);
                        local.complete(loss);
                    }
                    let (mean_loss, optimizer) = local.finish(&update.parameters, buffer);
                    (*loss, update.optimizer) = (mean_loss, Some(optimizer));
                } else {
                    *loss = replica.gradient(&update.parameters, update.draw, buffer);
                    if let CommitStep::Compensated { lambda } = step {
                        compensate(&mut buffer[..layout.trainable()], lambda, newest, &update.parameters);
                    }
                }
            }
        };
        let threads = self.replicas.len().min(count);
        if threads == 1 {
            work(&mut self.replicas[0]);
        } else {
            std::thread::scope(|scope| {
                for replica in &mut self.replicas[..threads] {
                    scope.spawn(|| work(replica));
                }
            });
        }
        let computed = pending.iter().zip(self.buffers.iter().zip(&self.losses));
        computed
            .map(|((update, weight), (gradient, loss))| Contribution {
                task: update.task,
                gradient,
                weight: *weight,
                loss: *loss,
                rates: &[],
            })
            .collect()
    }

    pub(crate) fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        self.replicas[0].evaluate(parameters)
    }
}

impl PendingUpdate {
    /// The samples of the local iterations, consecutive in the worker's sample sequence.
    fn draws(&self) -> impl Iterator<Item = Draw> {
        let Draw { worker, offset, samples } = self.draw;
        let start = move |iteration| offset + u64::from(iteration) * u64::from(samples);
        (0..self.iterations).map(move |iteration| Draw { worker, offset: start(iteration), samples })
    }
}
