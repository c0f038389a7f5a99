//! A model of any size whose gradients cost little.

use paceline_store::Layout;
use paceline_workload::{Draw, Evaluation, Replica, Workload};

/// A bowl around the point where every parameter is 1, in several blocks. Every sample adds noise of its own.
pub struct Bowl {
    layout: Layout,
}

impl Bowl {
    pub fn new(layout: Layout) -> Self {
        Bowl { layout }
    }
}

impl Workload for Bowl {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn initial(&self, seed: u64) -> Vec<f32> {
        (0..self.layout.len()).map(|index| noise(seed, index)).collect()
    }

    fn replica(&self) -> Box<dyn Replica> {
        Box::new(BowlReplica { trainable: self.layout.trainable() })
    }
}

struct BowlReplica {
    trainable: usize,
}

impl Replica for BowlReplica {
    fn gradient(&mut self, parameters: &[f32], draw: Draw, gradient: &mut [f32]) -> f64 {
        let seed = u64::from(draw.worker) << 32 | draw.offset;
        for (index, (g, p)) in gradient.iter_mut().zip(parameters).enumerate() {
            *g = if index < self.trainable { p - 1.0 } else { 0.1 * (p - 1.0) } + 0.1 * noise(seed, index);
        }
        self.evaluate(parameters).loss
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        let trained = &parameters[..self.trainable];
        let loss = trained.iter().map(|p| f64::from(p - 1.0).powi(2)).sum::<f64>() / trained.len() as f64;
        Evaluation { loss, accuracy: None }
    }
}

/// A number between −1 and 1.
fn noise(seed: u64, index: usize) -> f32 {
    let mixed = (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ index as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0
}
