//! The network trait: what a custom model implements.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Int, Tensor};

/// A Burn module that classifies.
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

    /// Unnormalized log-probabilities, predictions × classes; one prediction per target of the batch.
    fn logits(&self, input: Self::Input) -> Tensor<2>;

    /// The mean loss over all predictions. Default: cross-entropy.
    fn loss(&self, logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
        CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, targets)
    }
}
