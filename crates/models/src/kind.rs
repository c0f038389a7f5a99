//! Models by name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use burn::tensor::Device;
use paceline_spec::{SpecError, one_of};
use paceline_workload::{Data, SoftmaxRegression, Splits, Workload};

use crate::error::ModelError;
use crate::network::Network;
use crate::networks::{CharacterModel, Cnn, Mlp, ResNet};
use crate::samples::{Images, Sampling, TextWindows};
use crate::workload::BurnWorkload;

/// The models that come with Paceline. As text: `softmax`, `mlp`, `cnn`, `resnet8`, `resnet20`, `charlm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ModelKind {
    /// [`SoftmaxRegression`] without decay. Convex; always computed on the CPU.
    Softmax,
    /// [`Mlp`]: a perceptron with two hidden layers.
    Mlp,
    /// [`Cnn`]: DBW's network for MNIST (the default).
    #[default]
    Cnn,
    /// [`ResNet`] with one block per stage.
    ResNet8,
    /// [`ResNet`] with three blocks per stage.
    ResNet20,
    /// [`CharacterModel`]: a small transformer that reads text.
    CharacterModel,
}

impl ModelKind {
    /// All models.
    pub const ALL: [ModelKind; 6] = [
        ModelKind::Softmax,
        ModelKind::Mlp,
        ModelKind::Cnn,
        ModelKind::ResNet8,
        ModelKind::ResNet20,
        ModelKind::CharacterModel,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ModelKind::Softmax => "softmax",
            ModelKind::Mlp => "mlp",
            ModelKind::Cnn => "cnn",
            ModelKind::ResNet8 => "resnet8",
            ModelKind::ResNet20 => "resnet20",
            ModelKind::CharacterModel => "charlm",
        }
    }

    /// The model as a workload on `data`. The sizes of its input and output follow from the data.
    ///
    /// # Errors
    /// If the model does not read this kind of data, the data are too small, or they cannot be split among the workers.
    pub fn workload(self, data: &Data, sampling: &Sampling, device: &Device) -> Result<Arc<dyn Workload>, ModelError> {
        match data {
            Data::Images(splits) => self.on_images(splits, sampling, device),
            Data::Text(text) => {
                if self != ModelKind::CharacterModel {
                    return Err(self.wrong_data("images", "text"));
                }
                let vocabulary = text.vocabulary().len();
                let windows = TextWindows::new(text.clone(), CharacterModel::CONTEXT, sampling)?;
                let build = move |device: &Device| CharacterModel::new(vocabulary, device);
                Ok(Arc::new(BurnWorkload::new(build, windows, device)))
            }
        }
    }

    fn on_images(self, splits: &Splits, sampling: &Sampling, device: &Device) -> Result<Arc<dyn Workload>, ModelError> {
        let train = splits.train();
        let (shape, classes) = (train.shape(), train.classes());
        match self {
            ModelKind::Softmax => {
                let sampler = sampling.sampler(train.labels())?;
                Ok(Arc::new(SoftmaxRegression::new(splits.clone(), sampler, 0.0)))
            }
            ModelKind::Mlp => network(splits, sampling, device, move |device| Mlp::new(shape, classes, device)),
            ModelKind::Cnn => {
                let [_, height, width] = shape;
                if height.min(width) < Cnn::MIN_SIDE {
                    return Err(ModelError::SmallImages { model: self, min_side: Cnn::MIN_SIDE, height, width });
                }
                network(splits, sampling, device, move |device| Cnn::new(shape, classes, device))
            }
            ModelKind::ResNet8 => {
                network(splits, sampling, device, move |device| ResNet::new(shape, classes, 1, device))
            }
            ModelKind::ResNet20 => {
                network(splits, sampling, device, move |device| ResNet::new(shape, classes, 3, device))
            }
            ModelKind::CharacterModel => Err(self.wrong_data("text", "images")),
        }
    }

    fn wrong_data(self, reads: &'static str, found: &'static str) -> ModelError {
        ModelError::Data { model: self, reads, found }
    }
}

fn network<N: Network<Input = burn::tensor::Tensor<4>>>(
    splits: &Splits,
    sampling: &Sampling,
    device: &Device,
    build: impl Fn(&Device) -> N + Send + Sync + 'static,
) -> Result<Arc<dyn Workload>, ModelError> {
    let images = Images::new(splits.clone(), sampling)?;
    Ok(Arc::new(BurnWorkload::new(build, images, device)))
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ModelKind {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        one_of("model", text, &ModelKind::ALL.map(|kind| (kind.name(), kind)))
    }
}

#[cfg(test)]
mod tests {
    use paceline_workload::{Dataset, Normalization, Order, synthetic_digits};

    use super::*;

    #[test]
    fn names_round_trip_through_text() {
        for kind in ModelKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "ResNet".parse::<ModelKind>().unwrap_err().to_string();
        assert_eq!(error, "unknown model 'ResNet'; expected softmax, mlp, cnn, resnet8, resnet20 or charlm");
    }

    fn rejection(kind: ModelKind, splits: Splits, workers: usize) -> String {
        let sampling = Sampling { workers, order: Order::Epochs, ..Sampling::default() };
        let workload = kind.workload(&Data::Images(splits), &sampling, &Device::flex());
        workload.err().expect("model and data do not match").to_string()
    }

    #[test]
    fn impossible_pairs_are_rejected_by_name() {
        let digits = synthetic_digits(0, 20, 10).unwrap();
        let error = rejection(ModelKind::CharacterModel, digits.clone(), 1);
        assert_eq!(error, "model 'charlm': the data are images; expected text");
        assert!(rejection(ModelKind::Mlp, digits, 21).contains("20 samples cannot be split among 21 workers"));
        let small = || {
            let normalization = Normalization { mean: 0.0, deviation: 1.0 };
            Dataset::new(vec![0; 15 * 20], vec![0], [1, 15, 20], 2, vec![normalization]).unwrap()
        };
        let error = rejection(ModelKind::Cnn, Splits::new(small(), small()).unwrap(), 1);
        assert_eq!(error, "model 'cnn': images of 15 × 20 pixels; expected at least 16 × 16");
    }
}
