//! A custom model on a custom data set, trained under any scheme, with one worker five times slower than the others:
//! `cargo run --release --example custom_model -- backup:k=7`

use burn::nn::{Linear, LinearConfig};
use burn::{prelude::*, tensor::activation::tanh};
use paceline_models::{Batch, BurnWorkload, Draw, Network, Samples, device};
use paceline_sim::{Simulation, Training};
use std::{error::Error, f32::consts::TAU, ops::Range, sync::Arc};

#[derive(Module, Debug)]
struct Perceptron {
    hidden: Linear,
    output: Linear,
}
impl Network for Perceptron {
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

fn main() -> Result<(), Box<dyn Error>> {
    let scheme = std::env::args().nth(1).unwrap_or("bsp".into()).parse()?;
    let linear = |inputs, outputs, device: &Device| LinearConfig::new(inputs, outputs).init(device);
    let build = move |device: &Device| Perceptron { hidden: linear(2, 32, device), output: linear(32, 2, device) };
    let training = Training::new(Arc::new(BurnWorkload::new(build, Spiral, &device("cpu")?)), 0.5);
    let (slowness, goals) = ("0=5".parse()?, "accuracy>0.97,iterations=5000".parse()?);
    let summary = Simulation { scheme, slowness, goals, ..Simulation::of(training) }.run(&mut ())?.summary;
    println!("{}: {} after {:.0} s of virtual time", summary.scheme, summary.stopped_by, summary.time);
    Ok(())
}
