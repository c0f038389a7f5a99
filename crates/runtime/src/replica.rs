//! Local iterations: a worker steps a replica of the model, then sends the difference.

use paceline_store::{Layout, Optimizer, OptimizerSpec};
use paceline_workload::{Draw, Replica};

/// A replica of the model under local iterations.
#[derive(Debug)]
pub struct LocalReplica {
    parameters: Vec<f32>,
    gradient: Vec<f32>,
    optimizer: Optimizer,
    rate: f32,
    losses: f64,
    iterations: u32,
}

impl LocalReplica {
    /// A replica that starts at `parameters` and is stepped by `optimizer` with the local learning rate `rate`.
    pub fn new(parameters: Vec<f32>, optimizer: Optimizer, rate: f32) -> Self {
        let gradient = vec![0.0; parameters.len()];
        LocalReplica { parameters, gradient, optimizer, rate, losses: 0.0, iterations: 0 }
    }

    /// Starts an iteration on the samples of `draw`: computes the gradient and returns the loss. The replica does not
    /// change until the iteration is [completed](LocalReplica::complete).
    pub fn begin(&mut self, replica: &mut dyn Replica, draw: Draw) -> f64 {
        replica.gradient(&self.parameters, draw, &mut self.gradient)
    }

    /// Completes the iteration that was started and had this loss: ESync (5), with any optimizer.
    pub fn complete(&mut self, loss: f64) {
        self.losses += loss;
        self.optimizer.step(&mut self.parameters, &self.gradient, f64::from(self.rate));
        self.iterations += 1;
    }

    /// How many iterations are done.
    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    /// Writes `model` − replica into `difference`, ESync (6) with the sign of a gradient, and returns the mean loss of
    /// all iterations, and the optimizer. All slices are as long as the layout.
    pub fn finish(self, model: &[f32], difference: &mut [f32]) -> (f64, Optimizer) {
        for ((difference, model), replica) in difference.iter_mut().zip(model).zip(&self.parameters) {
            *difference = model - replica;
        }
        (self.losses / f64::from(self.iterations.max(1)), self.optimizer)
    }
}

/// The optimizer of a worker's next local iterations: that of its last committed update, so that momentum and moments
/// last longer than a round. It starts over if it is no longer finite.
pub fn local_optimizer(last: Option<&Optimizer>, spec: &OptimizerSpec, layout: &Layout) -> Optimizer {
    let is_finite = |last: &&Optimizer| last.state().all(|(_, values)| values.iter().all(|value| value.is_finite()));
    last.filter(is_finite).cloned().unwrap_or_else(|| Optimizer::new(spec.clone(), layout))
}

/// The replica whose difference from the `model` is `difference`.
pub fn replica_at(model: &[f32], difference: &[f32]) -> Vec<f32> {
    model.iter().zip(difference).map(|(model, difference)| model - difference).collect()
}

/// The start of an elastic replica: `own`, moved towards `model` by the share `pull`. A replica that is no longer finite
/// starts over from the model.
pub fn pulled_replica(model: &[f32], own: &[f32], pull: f32) -> Vec<f32> {
    let pulled: Vec<f32> = own.iter().zip(model).map(|(own, model)| own + pull * (model - own)).collect();
    if pulled.iter().all(|value| value.is_finite()) { pulled } else { model.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optimizer_goes_on_unless_it_is_not_finite() {
        let (spec, layout) = ("momentum:0.9".parse().unwrap(), Layout::new([("w", vec![2])], []));
        let fresh = local_optimizer(None, &spec, &layout);
        let mut last = Optimizer::new(spec.clone(), &layout);
        assert_eq!(fresh, last);
        last.step(&mut [1.0, 1.0], &[0.5, 0.25], 0.1);
        assert_eq!(local_optimizer(Some(&last), &spec, &layout), last);
        last.step(&mut [1.0, 1.0], &[f32::NAN, 0.25], 0.1);
        assert_eq!(local_optimizer(Some(&last), &spec, &layout), fresh);
    }

    #[test]
    fn a_replica_that_is_not_finite_starts_over() {
        let model = [1.0, 2.0];
        assert_eq!(pulled_replica(&model, &[3.0, 6.0], 0.5), [2.0, 4.0]);
        assert_eq!(pulled_replica(&model, &[3.0, f32::NAN], 0.5), model);
        assert_eq!(pulled_replica(&model, &[f32::INFINITY, 0.0], 0.5), model);
    }
}
