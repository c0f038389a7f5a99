//! The ELBO (evidence lower bound) and its gradient: the computations of
//! [`DeepMarkov`](paceline_core::run_times::DeepMarkov) with automatic differentiation.

use std::f64::consts::PI;

use burn::tensor::activation::{relu, sigmoid, softplus, tanh};
use burn::tensor::{Device, Tensor, TensorData};
use paceline_core::run_times::{LEAST_DEVIATION, Size};
use paceline_store::Layout;

/// A batch of windows of equal length.
pub(crate) struct WindowBatch {
    /// For each iteration, the normalized times of all windows: windows × workers.
    pub(crate) times: Vec<Vec<f32>>,
    /// For each iteration, standard normal noise of all windows: windows × latent units.
    pub(crate) noise: Vec<Vec<f32>>,
    pub(crate) windows: usize,
}

/// Computes the ELBO of batches.
pub(crate) struct Graph {
    size: Size,
    layout: Layout,
    device: Device,
}

/// The tensors of the model, with gradients enabled.
struct WeightTensors<'a> {
    layout: &'a Layout,
    tensors: Vec<Tensor<2>>,
}

impl WeightTensors<'_> {
    fn tensor(&self, name: &str) -> Tensor<2> {
        let position = self.layout.entries().iter().position(|entry| entry.name == name);
        self.tensors[position.expect("the layout names all layers")].clone()
    }

    fn dense(&self, name: &str, input: Tensor<2>) -> Tensor<2> {
        input.matmul(self.tensor(&format!("{name}.weight"))) + self.tensor(&format!("{name}.bias"))
    }
}

fn deviation(value: Tensor<2>) -> Tensor<2> {
    softplus(value, 1.0).add_scalar(LEAST_DEVIATION)
}

impl Graph {
    pub(crate) fn new(size: Size) -> Self {
        let layout = Layout::new(size.shapes(), Vec::<(String, Vec<usize>)>::new());
        Graph { size, layout, device: Device::flex().autodiff() }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The mean ELBO of the windows of a batch, in nats per observed time, with divergences multiplied by `weight`; and
    /// its gradient.
    pub(crate) fn elbo(&self, parameters: &[f32], batch: &WindowBatch, weight: f64) -> (f64, Vec<f32>) {
        let leaf = |entry: &paceline_store::TensorEntry| {
            let columns = *entry.shape.last().unwrap_or(&1);
            let data =
                TensorData::new(parameters[entry.range.clone()].to_vec(), [entry.range.len() / columns, columns]);
            Tensor::<2>::from_data(data, &self.device).require_grad()
        };
        let weights = WeightTensors { layout: &self.layout, tensors: self.layout.entries().iter().map(leaf).collect() };
        let (likelihood, divergence) = self.forward(&weights, batch);
        let observed = (batch.windows * batch.times.len() * self.size.workers) as f64;
        let elbo = (likelihood - divergence.mul_scalar(weight)).div_scalar(observed);
        let gradients = elbo.backward();
        let gradient = weights.tensors.iter().flat_map(|tensor| {
            let gradient = tensor.grad(&gradients).map(|gradient| gradient.into_data().try_to_vec::<f32>());
            gradient.and_then(Result::ok).unwrap_or_else(|| vec![0.0; tensor.shape().num_elements()])
        });
        let gradient = gradient.collect();
        (f64::from(elbo.into_scalar::<f32>()), gradient)
    }

    /// The log-likelihood of all times and the divergence of all states.
    fn forward(&self, weights: &WeightTensors<'_>, batch: &WindowBatch) -> (Tensor<1>, Tensor<1>) {
        let Size { workers, latent, hidden, .. } = self.size;
        let constant = |values: &[f32], columns: usize| {
            Tensor::<2>::from_data(TensorData::new(values.to_vec(), [batch.windows, columns]), &self.device)
        };
        let times: Vec<Tensor<2>> = batch.times.iter().map(|times| constant(times, workers)).collect();
        let run = |name: &str, inputs: &mut dyn Iterator<Item = &Tensor<2>>| {
            let recurrent = weights.tensor(&format!("{name}.state"));
            let mut state = Tensor::<2>::zeros([batch.windows, hidden], &self.device);
            let step = |input: &Tensor<2>| {
                let next = weights.dense(name, input.clone()) + state.clone().matmul(recurrent.clone());
                state = relu(next);
                state.clone()
            };
            inputs.map(step).collect::<Vec<_>>()
        };
        let left = run("left", &mut times.iter());
        let mut right = run("right", &mut times.iter().rev());
        right.reverse();

        let mut state = weights.tensor("start").expand([batch.windows, latent]);
        let (mut before, mut states, mut means, mut deviations) = (vec![], vec![], vec![], vec![]);
        for ((left, right), noise) in left.into_iter().zip(right).zip(&batch.noise) {
            before.push(state.clone());
            let hidden = (tanh(weights.dense("past", state)) + left + right).div_scalar(3.0);
            let mean = weights.dense("guess", hidden);
            let doubt = deviation(weights.dense("doubt", mean.clone()));
            state = mean.clone() + doubt.clone() * constant(noise, latent);
            states.push(state.clone());
            means.push(mean);
            deviations.push(doubt);
        }
        let [before, states, means, deviations] =
            [before, states, means, deviations].map(|parts| Tensor::cat(parts, 0));

        // The transition from each state to the next.
        let two = |first: &str, second: &str| weights.dense(second, relu(weights.dense(first, before.clone())));
        let (gate, proposal) = (sigmoid(two("gate1", "gate2")), two("proposal1", "proposal2"));
        let carried = weights.dense("carry", before.clone());
        let expected = carried.clone() + gate * (proposal - carried);
        let wide = deviation(weights.dense("drift", relu(expected.clone())));
        let ratio = deviations / wide.clone();
        let away = (means - expected) / wide;
        let square = |value: Tensor<2>| value.clone() * value;
        let divergence = ((square(ratio.clone()) + square(away)).sub_scalar(1.0).mul_scalar(0.5) - ratio.log()).sum();

        let expected = weights.dense("mean2", weights.dense("mean1", states));
        let noise = deviation(weights.dense("noise2", relu(weights.dense("noise1", expected.clone()))));
        let away = (Tensor::cat(times, 0) - expected) / noise.clone();
        let likelihood = -(square(away).add_scalar((2.0 * PI).ln()).mul_scalar(0.5) + noise.log()).sum();
        (likelihood, divergence)
    }
}
