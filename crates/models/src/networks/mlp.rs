//! A multilayer perceptron.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use crate::network::Classifier;

/// Two hidden layers of 256 and 128 units with ReLU.
#[derive(Module, Debug)]
pub struct Mlp {
    hidden1: Linear,
    hidden2: Linear,
    output: Linear,
}

impl Mlp {
    /// A network for images of `shape` (channels, height, width) in `classes` classes.
    pub fn new(shape: [usize; 3], classes: usize, device: &Device) -> Self {
        Mlp {
            hidden1: LinearConfig::new(shape.iter().product(), 256).init(device),
            hidden2: LinearConfig::new(256, 128).init(device),
            output: LinearConfig::new(128, classes).init(device),
        }
    }
}

impl Classifier for Mlp {
    type Input = Tensor<4>;

    fn logits(&self, images: Tensor<4>) -> Tensor<2> {
        let hidden = relu(self.hidden1.forward(images.flatten(1, 3)));
        let hidden = relu(self.hidden2.forward(hidden));
        self.output.forward(hidden)
    }
}
