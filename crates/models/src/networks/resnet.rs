//! Residual networks for small images (He et al., "Deep Residual Learning for Image Recognition", section 4.2).

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use crate::network::Classifier;

/// Three stages of 16, 32 and 64 channels; the second and third halve the image. With `n` blocks per stage the network
/// has 6 n + 2 weighted layers: 1 block gives ResNet-8, 3 give ResNet-20.
#[derive(Module, Debug)]
pub struct ResNet {
    stem: NormalizedConv,
    blocks: Vec<ResidualBlock>,
    output: Linear,
}

impl ResNet {
    /// A network for images of `shape` (channels, height, width) in `classes` classes.
    pub fn new(shape: [usize; 3], classes: usize, blocks_per_stage: usize, device: &Device) -> Self {
        let stages = [16, 32, 64];
        let mut blocks = Vec::new();
        let mut channels = stages[0];
        for (stage, wider) in stages.into_iter().enumerate() {
            for block in 0..blocks_per_stage {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                blocks.push(ResidualBlock::new(channels, wider, stride, device));
                channels = wider;
            }
        }
        ResNet {
            stem: NormalizedConv::new([shape[0], stages[0]], 3, 1, device),
            blocks,
            output: LinearConfig::new(channels, classes).init(device),
        }
    }
}

impl Classifier for ResNet {
    type Input = Tensor<4>;

    fn logits(&self, images: Tensor<4>) -> Tensor<2> {
        let stem = relu(self.stem.forward(images));
        let features = self.blocks.iter().fold(stem, |features, block| block.forward(features));
        let pooled = features.flatten::<3>(2, 3).mean_dim(2).squeeze_dim(2);
        self.output.forward(pooled)
    }
}

/// Two 3×3 convolutions, to whose output the input is added.
#[derive(Module, Debug)]
struct ResidualBlock {
    conv1: NormalizedConv,
    conv2: NormalizedConv,
    /// Projects the input to the shape of the output if they differ (option B of the paper).
    shortcut: Option<NormalizedConv>,
}

impl ResidualBlock {
    fn new(from: usize, to: usize, stride: usize, device: &Device) -> Self {
        ResidualBlock {
            conv1: NormalizedConv::new([from, to], 3, stride, device),
            conv2: NormalizedConv::new([to, to], 3, 1, device),
            shortcut: (from != to).then(|| NormalizedConv::new([from, to], 1, stride, device)),
        }
    }

    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let residual = self.conv2.forward(relu(self.conv1.forward(input.clone())));
        let identity = match &self.shortcut {
            Some(shortcut) => shortcut.forward(input),
            None => input,
        };
        relu(identity + residual)
    }
}

/// A convolution with batch normalization. It has no bias, which the normalization would cancel.
#[derive(Module, Debug)]
struct NormalizedConv {
    conv: Conv2d,
    norm: BatchNorm,
}

impl NormalizedConv {
    fn new(channels: [usize; 2], kernel: usize, stride: usize, device: &Device) -> Self {
        let padding = kernel / 2;
        NormalizedConv {
            conv: Conv2dConfig::new(channels, [kernel, kernel])
                .with_stride([stride, stride])
                .with_padding(PaddingConfig2d::Explicit(padding, padding, padding, padding))
                .with_bias(false)
                .init(device),
            norm: BatchNormConfig::new(channels[1]).init(device),
        }
    }

    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        self.norm.forward(self.conv.forward(input))
    }
}
