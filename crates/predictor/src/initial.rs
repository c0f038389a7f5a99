//! Initial parameters: a function of the seed, and of mean and deviation of the times.

use paceline_core::run_times::Draws;
use paceline_store::Layout;

/// The bias whose softplus is `value`.
fn softplus_inverse(value: f64) -> f32 {
    (value.exp_m1().ln()) as f32
}

/// Weights are within ±1/√inputs and biases 0, except that the state initially persists, the predicted time of each
/// worker is its mean time with its standard deviation, and states have a small deviation.
pub(crate) fn parameters(layout: &Layout, times: &[Vec<f64>], scale: f64, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; layout.len()];
    let count = times.len() as f64;
    let mean = |worker: usize| times.iter().map(|row| row[worker] / scale).sum::<f64>() / count;
    let deviation = |worker: usize| {
        let mean = mean(worker);
        let squares: f64 = times.iter().map(|row| (row[worker] / scale - mean).powi(2)).sum();
        (squares / count).sqrt().max(1e-3)
    };
    for (position, entry) in layout.entries().iter().enumerate() {
        let mut draws = Draws::at(&[seed, position as u64]);
        let values = &mut values[entry.range.clone()];
        match (entry.name.as_str(), entry.shape.as_slice()) {
            ("carry.weight", &[latent, _]) => (0..latent).for_each(|unit| values[unit * latent + unit] = 1.0),
            ("gate2.bias", _) => values.fill(-2.0),
            ("mean2.bias", _) => values.iter_mut().enumerate().for_each(|(worker, value)| *value = mean(worker) as f32),
            ("noise2.bias", _) => {
                let bias = |(worker, value): (usize, &mut f32)| *value = softplus_inverse(deviation(worker));
                values.iter_mut().enumerate().for_each(bias);
            }
            ("drift.bias" | "doubt.bias", _) => values.fill(softplus_inverse(0.1)),
            (_, &[inputs, _]) => {
                let bound = 1.0 / (inputs as f64).sqrt();
                values.fill_with(|| (bound * (2.0 * draws.unit() - 1.0)) as f32);
            }
            _ => {}
        }
    }
    values
}
