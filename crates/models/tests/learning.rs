//! Built-in models learn, and so does a custom model on custom data.

mod common;

use std::path::Path;

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Tensor;
use common::{draw, gradient, workload};
use paceline_models::{BurnWorkload, Classifier, Device, Images, Model, Sampling};
use paceline_workload::{Dataset, Normalization, PublishedSet, Splits, Workload};

/// Plain gradient descent. Returns the mean loss of the first ten and of the last ten steps.
fn descend(workload: &dyn Workload, parameters: &mut [f32], steps: u64, samples: u32, rate: f32) -> [f64; 2] {
    let mut replica = workload.replica();
    let mut losses = Vec::new();
    for step in 0..steps {
        let draw = draw(step * u64::from(samples), samples);
        let (loss, update) = gradient(replica.as_mut(), parameters, draw);
        losses.push(loss);
        for (index, (parameter, update)) in parameters.iter_mut().zip(update).enumerate() {
            let rate = if index < workload.layout().trainable() { rate } else { 1.0 };
            *parameter -= rate * update;
        }
    }
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    [mean(&losses[..10]), mean(&losses[losses.len() - 10..])]
}

#[test]
fn the_loss_falls_by_half() {
    let cases = [("mlp", 60, 32, 0.1), ("cnn", 60, 32, 0.1), ("resnet8", 140, 16, 0.1), ("charlm", 60, 4, 0.5)];
    for (model, steps, samples, rate) in cases {
        let workload = workload(model);
        let mut parameters = workload.initial(1);
        let before = workload.replica().evaluate(&parameters);
        let [first, last] = descend(workload.as_ref(), &mut parameters, steps, samples, rate);
        let after = workload.replica().evaluate(&parameters);
        assert!(last < first / 2.0, "{model}: {first} to {last}");
        assert!(after.accuracy > before.accuracy, "{model}: {before:?} to {after:?}");
    }
}

/// Classifies by brightness, in a unit that the author of the network sets.
#[derive(Module, Debug)]
struct Brightness {
    unit: Param<Tensor<1>>,
    dense: Linear,
}

impl Classifier for Brightness {
    type Input = Tensor<4>;

    fn logits(&self, images: Tensor<4>) -> Tensor<2> {
        let brightness = images.flatten::<2>(1, 3).mean_dim(1) * self.unit.val().unsqueeze();
        self.dense.forward(brightness)
    }
}

#[test]
fn a_custom_network_trains_on_custom_data() {
    let part = || {
        let labels: Vec<u8> = (0..60).map(|sample| sample % 2).collect();
        let pixels = labels.iter().flat_map(|&label| [200 * label + 20; 6]).collect();
        let normalization = Normalization { mean: 0.5, deviation: 0.5 };
        Dataset::new(pixels, labels, [1, 2, 3], 2, vec![normalization]).unwrap()
    };
    let images = Images::new(Splits::new(part(), part()).unwrap(), &Sampling::default()).unwrap();
    let build = |device: &Device| Brightness {
        unit: Param::from_data([4.0], device).set_require_grad(false),
        dense: LinearConfig::new(1, 2).init(device),
    };
    let workload = BurnWorkload::new(build, images, &Device::flex());
    let names: Vec<_> = workload.layout().entries().iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["dense.weight", "dense.bias", "unit"]);
    let mut parameters = workload.initial(1);
    assert_eq!(parameters[4], 4.0, "a value that the author set is kept");
    descend(&workload, &mut parameters, 30, 8, 0.5);
    assert_eq!(parameters[4], 4.0, "a tensor without gradient does not change");
    assert_eq!(workload.replica().evaluate(&parameters).accuracy, Some(1.0));
}

#[test]
fn real_cifar_images_have_a_finite_gradient() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/datasets/cifar10-6k");
    if !folder.is_dir() {
        println!("skipped: no CIFAR-10 images in {}", folder.display());
        return;
    }
    let data = paceline_workload::Data::Images(PublishedSet::Cifar10.load(&folder).unwrap());
    for model in ["cnn", "resnet8"] {
        let model: Model = model.parse().unwrap();
        let workload = model.workload(&data, &Sampling::default(), &Device::flex()).unwrap();
        let (loss, gradient) = gradient(workload.replica().as_mut(), &workload.initial(1), draw(0, 8));
        assert!(loss > 1.0 && loss < 5.0, "{model}: {loss}; expected about ln 10");
        assert!(gradient.iter().all(|value| value.is_finite()), "{model}");
        assert!(gradient.iter().any(|value| *value != 0.0), "{model}");
    }
}
