//! Gradients and local updates, computed only when a commit needs them.

use std::sync::{Arc, Mutex, PoisonError};

use paceline_core::{CommitStep, TaskId, Work};
use paceline_runtime::{Contribution, LocalReplica, compensate};
use paceline_store::OptimizerSpec;
use paceline_workload::{Draw, Evaluation, Replica, Workload};

/// What is needed to compute an update, should it ever be committed.
#[derive(Debug, Clone)]
pub(crate) struct Recipe {
    pub(crate) task: TaskId,
    pub(crate) work: Work,
    /// The assigned model.
    pub(crate) parameters: Arc<[f32]>,
    /// Where local iterations start, if not at the assigned model.
    pub(crate) start: Option<Vec<f32>>,
    /// The samples of the gradient, or of the first local iteration; the others' follow.
    pub(crate) draw: Draw,
    /// How many local iterations are done.
    pub(crate) iterations: u32,
    /// The learning rate of local iterations.
    pub(crate) rate: f32,
}

/// Computes updates on several threads. The results are the same for any number of them.
pub(crate) struct Gradients {
    workload: Arc<dyn Workload>,
    /// The workers' own, for local iterations.
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

    /// The updates of `recipes`, in their order, with these weights. The `newest` parameters are those that `step` is
    /// to be made from.
    pub(crate) fn compute(
        &mut self,
        recipes: &[(Recipe, f32)],
        step: CommitStep,
        newest: &[f32],
    ) -> Vec<Contribution<'_>> {
        while self.buffers.len() < recipes.len() {
            let length = recipes[0].0.parameters.len();
            self.buffers.push(vec![0.0; length]);
        }
        self.losses.resize(self.buffers.len(), 0.0);
        let (layout, optimizer) = (self.workload.layout(), self.optimizer);
        let jobs = recipes.iter().zip(self.buffers.iter_mut().zip(&mut self.losses));
        let jobs = Mutex::new(jobs);
        let work = |replica: &mut Box<dyn Replica>| {
            loop {
                let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(((recipe, _), (buffer, loss))) = job else { return };
                if let Work::Local(_) = recipe.work {
                    let start = recipe.start.clone().unwrap_or_else(|| recipe.parameters.to_vec());
                    let mut local = LocalReplica::new(layout, start, optimizer, recipe.rate);
                    for draw in recipe.draws() {
                        let loss = local.begin(replica.as_mut(), draw);
                        local.complete(loss);
                    }
                    *loss = local.finish(&recipe.parameters, buffer);
                } else {
                    *loss = replica.gradient(&recipe.parameters, recipe.draw, buffer);
                    if let CommitStep::Compensated { lambda } = step {
                        compensate(&mut buffer[..layout.trainable()], lambda, newest, &recipe.parameters);
                    }
                }
            }
        };
        let busy = self.replicas.len().min(recipes.len());
        if busy == 1 {
            work(&mut self.replicas[0]);
        } else {
            std::thread::scope(|scope| {
                for replica in &mut self.replicas[..busy] {
                    scope.spawn(|| work(replica));
                }
            });
        }
        let computed = recipes.iter().zip(self.buffers.iter().zip(&self.losses));
        computed
            .map(|((_, weight), (gradient, loss))| Contribution { gradient, weight: *weight, loss: *loss })
            .collect()
    }

    pub(crate) fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        self.replicas[0].evaluate(parameters)
    }
}

impl Recipe {
    /// The samples of the local iterations, one after another in the worker's stream.
    fn draws(&self) -> impl Iterator<Item = Draw> {
        let Draw { worker, offset, samples } = self.draw;
        let before = move |iteration| offset + u64::from(iteration) * u64::from(samples);
        (0..self.iterations).map(move |iteration| Draw { worker, offset: before(iteration), samples })
    }
}
