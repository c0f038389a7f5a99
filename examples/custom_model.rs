//! A model and data of one's own, under any scheme, with all commands of Paceline. Four processes, one of them slower:
//! `cargo run --release --example custom_model -- train --scheme backup:k=3 --lr 0.5 --emulate 0=5`

use burn::nn::{Linear, LinearConfig};
use burn::{prelude::*, tensor::activation::tanh};
use paceline::models::{Batch, BurnWorkload, Classifier, Draw, ModelEntry, Samples, add_model};
use std::{f32::consts::TAU, ops::Range, process::ExitCode, sync::Arc};

#[derive(Module, Debug)]
struct Perceptron {
    hidden: Linear,
    output: Linear,
}
impl Classifier for Perceptron {
    type Input = Tensor<2>;
    fn logits(&self, points: Tensor<2>) -> Tensor<2> {
        self.output.forward(tanh(self.hidden.forward(points)))
    }
}

/// Two arms of a spiral. Every number maps to a point on one arm. Numbers in odd thousands are held out.
struct Spiral;

fn points(numbers: impl Iterator<Item = u64>, device: &Device) -> Batch<Tensor<2>> {
    let (mut coordinates, mut arms) = (Vec::new(), Vec::new());
    for number in numbers {
        let along = (number as f32 * 0.618_034).fract();
        let angle = TAU * (along + (number % 2) as f32 / 2.0);
        coordinates.extend([4.0 * along * angle.cos(), 4.0 * along * angle.sin()]);
        arms.push((number % 2) as i64);
    }
    let (coordinates, arms) = (TensorData::new(coordinates, [arms.len(), 2]), TensorData::from(arms.as_slice()));
    Batch { input: Tensor::from_data(coordinates, device), targets: Tensor::from_data(arms, device) }
}

impl Samples<Tensor<2>> for Spiral {
    fn draw(&self, draw: Draw, device: &Device) -> Batch<Tensor<2>> {
        let start = draw.offset + 333 * u64::from(draw.worker);
        points((start..start + u64::from(draw.samples)).map(|i| i / 1000 * 2000 + i % 1000), device)
    }
    fn held_out_len(&self) -> usize {
        1000
    }
    fn held_out(&self, range: Range<usize>, device: &Device) -> Batch<Tensor<2>> {
        points(range.map(|i| 1000 + i as u64), device)
    }
}

static SPIRAL: ModelEntry = ModelEntry::on_own_data("spiral", |_, device| {
    let linear = |inputs, outputs, device: &Device| LinearConfig::new(inputs, outputs).init(device);
    let build = move |device: &Device| Perceptron { hidden: linear(2, 32, device), output: linear(32, 2, device) };
    Ok(Arc::new(BurnWorkload::new(build, Spiral, device)))
});

fn main() -> ExitCode {
    add_model(&SPIRAL).expect("no other model has this name");
    paceline::main()
}
