//! The networks that predict speeds: their inputs and how they compute.

use serde::{Deserialize, Serialize};

use super::dual::{Dual, Scalar};

/// One worker's last speeds and resources, the input of a network. Speeds are divided by a scale to be about 1.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct SpeedHistory {
    /// v of the last two iterations, the newest first.
    pub(super) speeds: [f64; 2],
    /// The CPU in use now and one iteration ago.
    pub(super) cpu: [f64; 2],
    /// The memory in use now and one iteration ago.
    pub(super) memory: [f64; 2],
}

/// A network of `N` weights.
pub(super) trait SpeedNetwork<const N: usize> {
    /// The weights that training starts from by default. They roughly predict the last speeds.
    const START: [f64; N];

    /// The next speed.
    fn output<S: Scalar>(weights: &[S; N], history: &SpeedHistory) -> S;

    /// The next speed and its derivatives by each weight.
    fn gradient(weights: &[f64; N], history: &SpeedHistory) -> (f64, [f64; N]) {
        let output = Self::output(&Dual::weights(weights), history);
        (output.value(), output.slopes)
    }
}

/// LB-BSP (4): one hidden layer of two units over speeds and resources.
#[derive(Debug)]
pub(super) struct Narx;

impl SpeedNetwork<17> for Narx {
    const START: [f64; 17] = [
        0.3, 0.2, -0.1, 0.0, 0.1, 0.0, 0.0, //
        0.1, 0.1, -0.3, -0.1, -0.2, -0.1, 0.1, //
        1.5, 1.0, 0.1,
    ];

    fn output<S: Scalar>(weights: &[S; 17], history: &SpeedHistory) -> S {
        let hidden = |unit: usize| {
            let weights = &weights[7 * unit..];
            let speeds = weights[0] * history.speeds[0] + weights[1] * history.speeds[1];
            let cpu = weights[2] * history.cpu[0] + weights[3] * history.cpu[1];
            let memory = weights[4] * history.memory[0] + weights[5] * history.memory[1];
            (speeds + cpu + memory + weights[6]).tanh()
        };
        weights[14] * hidden(0) + weights[15] * hidden(1) + weights[16]
    }

    /// Back-propagation, several times faster than [`Dual`]s.
    fn gradient(weights: &[f64; 17], history: &SpeedHistory) -> (f64, [f64; 17]) {
        let ([v1, v2], [c0, c1], [m0, m1]) = (history.speeds, history.cpu, history.memory);
        let inputs = [v1, v2, c0, c1, m0, m1, 1.0];
        let mut slopes = [0.0; 17];
        let mut output = weights[16];
        slopes[16] = 1.0;
        for unit in 0..2 {
            let sum: f64 = weights[7 * unit..].iter().zip(inputs).map(|(weight, input)| weight * input).sum();
            let hidden = libm::tanh(sum);
            let by_sum = weights[14 + unit] * (1.0 - hidden * hidden);
            output += weights[14 + unit] * hidden;
            slopes[14 + unit] = hidden;
            slopes[7 * unit..].iter_mut().zip(inputs).for_each(|(slope, input)| *slope = by_sum * input);
        }
        (output, slopes)
    }
}

/// A plain recurrent network of two units that reads the last two speeds.
#[derive(Debug)]
pub(super) struct Recurrent;

impl SpeedNetwork<11> for Recurrent {
    const START: [f64; 11] = [0.4, 0.2, 0.1, 0.0, 0.2, 0.1, 0.3, -0.1, 1.5, 0.7, 0.1];

    fn output<S: Scalar>(weights: &[S; 11], history: &SpeedHistory) -> S {
        let [last, before] = history.speeds;
        let [input_a, input_b, aa, ab, ba, bb, bias_a, bias_b, out_a, out_b, bias] = *weights;
        let (a, b) = ((input_a * before + bias_a).tanh(), (input_b * before + bias_b).tanh());
        let next_a = (input_a * last + aa * a + ab * b + bias_a).tanh();
        let next_b = (input_b * last + ba * a + bb * b + bias_b).tanh();
        out_a * next_a + out_b * next_b + bias
    }
}

/// A long short-term memory of one cell that reads the last two speeds.
#[derive(Debug)]
pub(super) struct Lstm;

impl SpeedNetwork<14> for Lstm {
    const START: [f64; 14] = [0.5, 0.1, 0.5, 0.5, 0.1, 0.5, 0.5, 0.1, 0.5, 0.8, 0.1, 0.0, 2.0, 0.1];

    fn output<S: Scalar>(weights: &[S; 14], history: &SpeedHistory) -> S {
        // Each gate has a weight for the speed, one for the last output, and a bias.
        let gate = |gate: usize, speed: f64, output: Option<S>| {
            let sum = weights[3 * gate] * speed + weights[3 * gate + 2];
            output.map_or(sum, |output| sum + weights[3 * gate + 1] * output)
        };
        let [last, before] = history.speeds;
        let cell = gate(0, before, None).logistic() * gate(3, before, None).tanh();
        let output = Some(gate(2, before, None).logistic() * cell.tanh());
        let kept = gate(1, last, output).logistic() * cell;
        let cell = kept + gate(0, last, output).logistic() * gate(3, last, output).tanh();
        gate(2, last, output).logistic() * cell.tanh() * weights[12] + weights[13]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const N: usize, M: SpeedNetwork<N>>() {
        let history = SpeedHistory { speeds: [1.1, 0.8], cpu: [0.4, 0.1], memory: [0.7, 0.3] };
        let (output, slopes) = M::gradient(&M::START, &history);
        assert!((output - M::output(&M::START, &history)).abs() < 1e-12);
        assert!((0.3..2.0).contains(&output), "the start predicts {output}");
        for weight in 0..N {
            let moved = |step: f64| {
                let mut weights = M::START;
                weights[weight] += step;
                M::output(&weights, &history)
            };
            let expected = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            assert!((slopes[weight] - expected).abs() < 1e-9, "weight {weight}: {} and {expected}", slopes[weight]);
        }
    }

    #[test]
    fn gradients_match_finite_differences() {
        check::<17, Narx>();
        check::<11, Recurrent>();
        check::<14, Lstm>();
    }
}
