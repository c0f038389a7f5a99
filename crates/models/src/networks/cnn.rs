//! The convolutional network that DBW trains on MNIST.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::module::max_pool2d;
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{Device, Tensor};

use crate::network::Classifier;

/// Two 5×5 convolutions of 10 and 20 channels, each with max-pooling by 2 and ReLU, then 50 hidden units.
#[derive(Module, Debug)]
pub struct Cnn {
    conv1: Conv2d,
    conv2: Conv2d,
    hidden: Linear,
    output: Linear,
}

impl Cnn {
    /// The minimum height and width in pixels, which leaves one pixel after both convolutions and poolings.
    pub const MIN_SIDE: usize = 16;

    /// A network for images of `shape` (channels, height, width) in `classes` classes.
    ///
    /// # Panics
    /// May panic if a side is shorter than [`MIN_SIDE`](Self::MIN_SIDE).
    pub fn new(shape: [usize; 3], classes: usize, device: &Device) -> Self {
        let [channels, height, width] = shape;
        let side = |side: usize| ((side - 4) / 2 - 4) / 2;
        let features = 20 * side(height) * side(width);
        Cnn {
            conv1: Conv2dConfig::new([channels, 10], [5, 5]).init(device),
            conv2: Conv2dConfig::new([10, 20], [5, 5]).init(device),
            hidden: LinearConfig::new(features, 50).init(device),
            output: LinearConfig::new(50, classes).init(device),
        }
    }
}

impl Classifier for Cnn {
    type Input = Tensor<4>;

    fn logits(&self, images: Tensor<4>) -> Tensor<2> {
        let features = relu(halved(self.conv1.forward(images)));
        let features = relu(halved(self.conv2.forward(features)));
        let hidden = relu(self.hidden.forward(features.flatten(1, 3)));
        self.output.forward(hidden)
    }
}

fn halved(images: Tensor<4>) -> Tensor<4> {
    max_pool2d(images, MaxPoolOptions::new([2, 2]))
}
