//! Networks that do not classify: regression with the mean squared error, and with a loss of one's own.

use std::ops::Range;

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Tensor, TensorData};
use paceline_models::{Batch, BurnWorkload, Device, Draw, Network, Samples};
use paceline_workload::Workload;

/// Points of a curve: y = sin(3x) for x from −1 to 1.
struct Curve;

fn points(numbers: impl Iterator<Item = u64>, device: &Device) -> Batch<Tensor<2>, Tensor<2>> {
    let x: Vec<f32> = numbers.map(|number| (number as f32 * 0.618_034).fract() * 2.0 - 1.0).collect();
    let y: Vec<f32> = x.iter().map(|x| (3.0 * x).sin()).collect();
    let column = |values: Vec<f32>| {
        let rows = values.len();
        Tensor::from_data(TensorData::new(values, [rows, 1]), device)
    };
    Batch { input: column(x), targets: column(y) }
}

impl Samples<Tensor<2>, Tensor<2>> for Curve {
    fn draw(&self, draw: Draw, device: &Device) -> Batch<Tensor<2>, Tensor<2>> {
        points(draw.offset..draw.offset + u64::from(draw.samples), device)
    }

    fn held_out_len(&self) -> usize {
        300
    }

    fn held_out(&self, range: Range<usize>, device: &Device) -> Batch<Tensor<2>, Tensor<2>> {
        points(range.map(|index| 1_000_000 + index as u64), device)
    }
}

#[derive(Module, Debug)]
struct Curved {
    hidden: Linear,
    output: Linear,
}

impl Curved {
    fn new(device: &Device) -> Self {
        Curved { hidden: LinearConfig::new(1, 16).init(device), output: LinearConfig::new(16, 1).init(device) }
    }

    fn predict(&self, x: Tensor<2>) -> Tensor<2> {
        self.output.forward(tanh(self.hidden.forward(x)))
    }
}

impl Network for Curved {
    type Input = Tensor<2>;
    type Targets = Tensor<2>;

    fn loss(&self, Batch { input, targets }: Batch<Tensor<2>, Tensor<2>>) -> Tensor<1> {
        MseLoss::new().forward(self.predict(input), targets, Reduction::Mean)
    }
}

/// The same with a loss that grows more slowly for outliers: √(1 + d²) − 1.
#[derive(Module, Debug)]
struct Robust {
    curved: Curved,
}

impl Network for Robust {
    type Input = Tensor<2>;
    type Targets = Tensor<2>;

    fn loss(&self, Batch { input, targets }: Batch<Tensor<2>, Tensor<2>>) -> Tensor<1> {
        let difference = self.curved.predict(input) - targets;
        ((difference.clone() * difference) + 1.0).sqrt().sub_scalar(1.0).mean()
    }
}

fn train(workload: &dyn Workload) -> f64 {
    let mut parameters = workload.initial(1);
    let mut gradient = vec![0.0; parameters.len()];
    let mut replica = workload.replica();
    let before = replica.evaluate(&parameters);
    for step in 0..1500 {
        replica.gradient(&parameters, Draw { worker: 0, offset: step * 32, samples: 32 }, &mut gradient);
        parameters.iter_mut().zip(&gradient).for_each(|(parameter, gradient)| *parameter -= 0.2 * gradient);
    }
    let after = replica.evaluate(&parameters);
    assert_eq!(after.accuracy, None, "a number is neither right nor wrong");
    assert!(after.loss < 0.1 * before.loss, "{before:?} to {after:?}");
    after.loss
}

#[test]
fn a_curve_is_fitted() {
    let workload = BurnWorkload::new(Curved::new, Curve, &Device::flex());
    assert!(!workload.has_accuracy());
    assert!(train(&workload) < 0.02);
    // A constant would leave the variance of the targets: the mean of sin²(3x), which is 1/2 − sin(6)/12.
    let all = points(0..1000, &Device::flex()).targets;
    let variance: f32 = (all.clone() * all).mean().into_scalar();
    assert!((variance - (0.5 - 6_f32.sin() / 12.0)).abs() < 0.01, "{variance}");
}

#[test]
fn a_loss_of_ones_own_is_lowered() {
    train(&BurnWorkload::new(|device: &Device| Robust { curved: Curved::new(device) }, Curve, &Device::flex()));
}
