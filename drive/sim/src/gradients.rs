//! Gradients, computed only when a commit needs them.

use std::sync::{Arc, Mutex, PoisonError};

use paceline_core::TaskId;
use paceline_run::Contribution;
use paceline_workload::{Draw, Evaluation, Replica, Workload};

/// What is needed to compute an update's gradient, should it ever be committed.
#[derive(Debug, Clone)]
pub(crate) struct Recipe {
    pub(crate) task: TaskId,
    pub(crate) parameters: Arc<[f32]>,
    pub(crate) draw: Draw,
}

/// Computes gradients on several threads. The results are the same for any number of them.
pub(crate) struct Gradients {
    replicas: Vec<Box<dyn Replica>>,
    buffers: Vec<Vec<f32>>,
    losses: Vec<f64>,
}

impl Gradients {
    pub(crate) fn new(workload: &dyn Workload, threads: usize) -> Self {
        let replicas = (0..threads.max(1)).map(|_| workload.replica()).collect();
        Gradients { replicas, buffers: Vec::new(), losses: Vec::new() }
    }

    /// The gradients of `recipes`, in their order, with these weights.
    pub(crate) fn compute(&mut self, recipes: &[(Recipe, f32)]) -> Vec<Contribution<'_>> {
        while self.buffers.len() < recipes.len() {
            let length = recipes[0].0.parameters.len();
            self.buffers.push(vec![0.0; length]);
        }
        self.losses.resize(self.buffers.len(), 0.0);
        let jobs = recipes.iter().zip(self.buffers.iter_mut().zip(&mut self.losses));
        let jobs = Mutex::new(jobs);
        let work = |replica: &mut Box<dyn Replica>| {
            loop {
                let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(((recipe, _), (buffer, loss))) = job else { return };
                *loss = replica.gradient(&recipe.parameters, recipe.draw, buffer);
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
