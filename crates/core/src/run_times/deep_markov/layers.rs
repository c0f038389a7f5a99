//! Network layers that process several inputs at once.
//!
//! Values are stored unit by unit, each with one number per *lane*. The inner loops run over lanes, which are
//! independent.

use crate::pretrained::{PretrainedError, Tensors};

/// A dense layer: a weight for each pair of input and output, a bias for each output.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Dense {
    /// Inputs × outputs.
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Dense {
    /// The layer called `name`.
    pub(super) fn take(tensors: &Tensors, name: &str) -> Result<Self, PretrainedError> {
        Ok(Dense { weight: take(tensors, &format!("{name}.weight"))?, bias: take(tensors, &format!("{name}.bias"))? })
    }

    /// The output of each lane.
    pub(super) fn forward(&self, input: &[f32], lanes: usize) -> Vec<f32> {
        let outputs = self.bias.len();
        let mut out = vec![0.0; outputs * lanes];
        for (out, &bias) in out.chunks_exact_mut(lanes).zip(&self.bias) {
            out.fill(bias);
        }
        multiply(&self.weight, input, lanes, &mut out);
        out
    }
}

/// Adds the weighted inputs to each output.
pub(super) fn multiply(weight: &[f32], input: &[f32], lanes: usize, out: &mut [f32]) {
    let outputs = out.len() / lanes;
    if lanes == 1 {
        for (row, &input) in weight.chunks_exact(outputs).zip(input) {
            for (out, weight) in out.iter_mut().zip(row) {
                *out += input * weight;
            }
        }
        return;
    }
    for (row, input) in weight.chunks_exact(outputs).zip(input.chunks_exact(lanes)) {
        for (out, &weight) in out.chunks_exact_mut(lanes).zip(row) {
            for (out, input) in out.iter_mut().zip(input) {
                *out += weight * input;
            }
        }
    }
}

/// A tensor's values.
pub(super) fn take(tensors: &Tensors, name: &str) -> Result<Vec<f32>, PretrainedError> {
    let found = tensors.get(name).map(|(_, values)| values.clone());
    found.ok_or_else(|| PretrainedError::MissingTensor { name: name.into() })
}

pub(super) fn map(mut values: Vec<f32>, function: impl Fn(f32) -> f32) -> Vec<f32> {
    values.iter_mut().for_each(|value| *value = function(*value));
    values
}

pub(super) fn relu(values: Vec<f32>) -> Vec<f32> {
    map(values, |value| value.max(0.0))
}

pub(super) fn sigmoid(value: f32) -> f32 {
    1.0 / (1.0 + libm::expf(-value))
}

/// ln(1 + eˣ) plus [`LEAST_DEVIATION`]: the activation of deviations.
pub(super) fn softplus(value: f32) -> f32 {
    value.max(0.0) + libm::log1pf(libm::expf(-value.abs())) + LEAST_DEVIATION
}

/// The smallest deviation, so that no model is certain.
pub const LEAST_DEVIATION: f32 = 1e-4;
