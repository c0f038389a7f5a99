//! A small character-level language model: a causal transformer.

use burn::module::Module;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};

use crate::network::Classifier;

const WIDTH: usize = 64;
const HEADS: usize = 4;
const BLOCKS: usize = 2;

/// Embeddings of characters and positions, two pre-norm blocks of four heads, width 64; predicts each next
/// character from those before it.
#[derive(Module, Debug)]
pub struct CharacterModel {
    characters: Embedding,
    positions: Embedding,
    blocks: TransformerEncoder,
    norm: LayerNorm,
    output: Linear,
}

impl CharacterModel {
    /// The number of characters in one sample, and the maximum number that a prediction depends on.
    pub const CONTEXT: usize = 64;

    /// A model of text with `vocabulary` different characters.
    pub fn new(vocabulary: usize, device: &Device) -> Self {
        CharacterModel {
            characters: EmbeddingConfig::new(vocabulary, WIDTH).init(device),
            positions: EmbeddingConfig::new(Self::CONTEXT, WIDTH).init(device),
            blocks: TransformerEncoderConfig::new(WIDTH, 4 * WIDTH, HEADS, BLOCKS)
                .with_dropout(0.0)
                .with_norm_first(true)
                .init(device),
            norm: LayerNormConfig::new(WIDTH).init(device),
            output: LinearConfig::new(WIDTH, vocabulary).init(device),
        }
    }
}

impl Classifier for CharacterModel {
    type Input = Tensor<2, Int>;

    fn logits(&self, text: Tensor<2, Int>) -> Tensor<2> {
        let [samples, length] = text.dims();
        let device = text.device();
        let positions = Tensor::arange(0..length as i64, &device).unsqueeze();
        let embedded = self.characters.forward(text) + self.positions.forward(positions);
        let mask = generate_autoregressive_mask(samples, length, &device);
        let input = TransformerEncoderInput::new(embedded).mask_attn(mask);
        let features = self.norm.forward(self.blocks.forward(input));
        self.output.forward(features.reshape([samples * length, WIDTH]))
    }
}
