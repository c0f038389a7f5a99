//! The network traits: what a custom model implements.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Int, Tensor};

use crate::samples::Batch;

/// A Burn module with a loss: regression, or anything else that a gradient can lower. Networks that classify implement
/// [`Classifier`] instead.
///
/// Its floating-point tensors form the flat parameter vector, in the order of the module's fields. Tensors that require
/// no gradient (running statistics of batch normalization, frozen weights) come last.
///
/// A forward pass must depend only on the parameters and the input. Dropout draws from Burn's process-wide generator,
/// so a network with dropout gives different bits each time.
pub trait Network: Module + 'static {
    /// The input of the network: `Tensor<4>` for images as samples × channels × height × width,
    /// `Tensor<2, Int>` for text as samples × characters.
    type Input: 'static;

    /// What its output is compared with.
    type Targets: 'static;

    /// Whether its predictions are right or wrong, so that it has an accuracy.
    const HAS_ACCURACY: bool = false;

    /// The mean loss of a batch.
    fn loss(&self, batch: Batch<Self::Input, Self::Targets>) -> Tensor<1>;

    /// How good it is on a batch of held-out samples. Default: its loss, and nothing about accuracy.
    fn score(&self, batch: Batch<Self::Input, Self::Targets>) -> BatchScore {
        BatchScore { loss: f64::from(self.loss(batch).into_scalar::<f32>()), correct: None }
    }
}

/// How good a network is on a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchScore {
    /// The mean loss.
    pub loss: f64,
    /// How many predictions are right, of how many; `None` if the network does not classify.
    pub correct: Option<(u64, u64)>,
}

/// A [`Network`] that classifies.
pub trait Classifier: Module + 'static {
    /// The input of the network, as in [`Network::Input`].
    type Input: 'static;

    /// Unnormalized log-probabilities, predictions × classes; one prediction per target of the batch.
    fn logits(&self, input: Self::Input) -> Tensor<2>;

    /// The mean loss over all predictions. Default: cross-entropy.
    fn loss(&self, logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
        CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, targets)
    }
}

impl<C: Classifier> Network for C {
    type Input = C::Input;
    type Targets = Tensor<1, Int>;

    const HAS_ACCURACY: bool = true;

    fn loss(&self, Batch { input, targets }: Batch<C::Input>) -> Tensor<1> {
        Classifier::loss(self, self.logits(input), targets)
    }

    fn score(&self, Batch { input, targets }: Batch<C::Input>) -> BatchScore {
        let (logits, predictions) = (self.logits(input), targets.dims()[0] as u64);
        let predicted = logits.clone().argmax(1).flatten::<1>(0, 1);
        let correct: i64 = predicted.equal(targets.clone()).int().sum().into_scalar();
        let loss = f64::from(Classifier::loss(self, logits, targets).into_scalar::<f32>());
        BatchScore { loss, correct: Some((correct as u64, predictions)) }
    }
}
