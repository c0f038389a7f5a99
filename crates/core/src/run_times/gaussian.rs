//! The normal distribution: its tail, its quantiles, and draws from it truncated at a bound.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use super::Draws;

/// A normal distribution of a time in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Normal {
    /// The mean.
    #[serde(with = "crate::number")]
    pub mean: f64,
    /// The standard deviation; 0 for a value that is certain.
    #[serde(with = "crate::number")]
    pub deviation: f64,
}

impl Normal {
    /// A draw from the distribution truncated below at `bound`.
    pub fn draw_above(&self, bound: f64, draws: &mut Draws) -> f64 {
        let Normal { mean, deviation } = *self;
        let from = (bound - mean) / deviation;
        let chance = draws.unit();
        if from.is_nan() || deviation <= 0.0 {
            return mean.max(bound);
        }
        let left = upper_tail(from) * chance;
        // If the tail underflows, it is approximated by an exponential distribution.
        let standard = if left > 0.0 { -quantile(left) } else { from - libm::log(chance) / from };
        (mean + deviation * standard).max(bound)
    }
}

/// The standard normal density.
pub(crate) fn density(x: f64) -> f64 {
    libm::exp(-0.5 * x * x) / (2.0 * PI).sqrt()
}

/// The probability that a standard normal variable is above `x`, to almost full precision however small it is.
pub(crate) fn upper_tail(x: f64) -> f64 {
    if x < 0.0 {
        return 1.0 - upper_tail(-x);
    }
    if x < 3.0 {
        // 1/2 − φ(x) (x + x³/3 + x⁵/(3·5) + …), whose terms soon decrease.
        let mut term = x;
        let mut sum = x;
        let mut odd = 1.0;
        while term > 1e-17 * sum {
            odd += 2.0;
            term *= x * x / odd;
            sum += term;
        }
        return 0.5 - density(x) * sum;
    }
    // Laplace's continued fraction for the ratio of tail and density, from the inside out: x + 1/(x + 2/(x + 3/(x + …
    let fraction = (1..60).rev().fold(x, |inner, step| x + f64::from(step) / inner);
    density(x) / fraction
}

/// The value that a standard normal variable is below with probability `p`; infinite at 0 and 1.
pub(crate) fn quantile(p: f64) -> f64 {
    if p > 0.5 {
        return -quantile(1.0 - p);
    }
    if p <= 0.0 {
        return f64::NEG_INFINITY;
    }
    // Abramowitz and Stegun 26.2.23 is exact to 4.5e-4. Two steps of Halley's method leave rounding errors only.
    let t = (-2.0 * libm::log(p)).sqrt();
    let above = 2.515517 + t * (0.802853 + t * 0.010328);
    let below = 1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308));
    let mut x = t - above / below;
    for _ in 0..2 {
        let error = (upper_tail(x) - p) / density(x);
        x += error / (1.0 - 0.5 * x * error);
    }
    -x
}

/// The mean and the deviation of several values; a deviation of 0 for fewer than two.
pub(crate) fn moments(values: impl Iterator<Item = f64> + Clone) -> Normal {
    let (count, sum) = values.clone().fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    let mean = sum / count;
    let squares: f64 = values.map(|value| (value - mean) * (value - mean)).sum();
    Normal { mean, deviation: if count > 1.0 { (squares / (count - 1.0)).sqrt() } else { 0.0 } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_and_quantiles_match_tables() {
        // Abramowitz and Stegun, tables 26.1 and 26.2.
        let known = [
            (0.0, 0.5),
            (1.0, 0.158_655_253_931_457_05),
            (2.0, 0.022_750_131_948_179_21),
            (2.5, 6.209_665_325_776_132e-3),
            (3.0, 1.349_898_031_630_094_6e-3),
            (5.0, 2.866_515_718_791_939e-7),
            (10.0, 7.619_853_024_160_527e-24),
            (30.0, 4.906_713_927_148_187e-198),
        ];
        for (x, tail) in known {
            assert!((upper_tail(x) / tail - 1.0).abs() < 1e-12, "{x}: {:e}", upper_tail(x));
            assert!((upper_tail(-x) - (1.0 - tail)).abs() < 1e-15);
        }
        for p in [1e-300, 1e-20, 1e-4, 0.02, 0.3, 0.5, 0.7, 0.975, 1.0 - 1e-9] {
            let back = 1.0 - upper_tail(quantile(p));
            let relative = if p < 0.5 { upper_tail(-quantile(p)) / p - 1.0 } else { back - p };
            assert!(relative.abs() < 1e-12, "{p}: {relative:e}");
        }
        assert!((quantile(0.975) - 1.959_963_984_540_054).abs() < 1e-12);
        assert_eq!(quantile(0.0), f64::NEG_INFINITY);
        assert_eq!(quantile(1.0), f64::INFINITY);
    }

    /// The distribution function of a normal variable cut off below at `bound`.
    fn truncated(normal: Normal, bound: f64, x: f64) -> f64 {
        let tail = |x: f64| upper_tail((x - normal.mean) / normal.deviation);
        1.0 - tail(x) / tail(bound)
    }

    #[test]
    fn draws_above_a_bound_follow_the_truncated_normal_distribution() {
        let normal = Normal { mean: 1.0, deviation: 0.2 };
        for bound in [0.2, 0.9, 1.0, 1.3, 2.0, 3.0] {
            let mut draws = Draws::at(&[7, 1]);
            let count = 20_000;
            let mut values: Vec<f64> = (0..count).map(|_| normal.draw_above(bound, &mut draws)).collect();
            values.sort_by(f64::total_cmp);
            assert!(values[0] >= bound);
            // Kolmogorov and Smirnov: under the true distribution the distance exceeds 1.95/√count once in a thousand.
            let distance = values.iter().enumerate().fold(0.0f64, |distance, (index, &value)| {
                let exact = truncated(normal, bound, value);
                let (below, above) = (index as f64 / count as f64, (index + 1) as f64 / count as f64);
                distance.max((exact - below).abs()).max((exact - above).abs())
            });
            assert!(distance < 1.95 / f64::from(count).sqrt(), "above {bound}: {distance}");
        }
    }

    #[test]
    fn draws_above_distant_bounds_and_of_certain_values_are_exact() {
        let mut draws = Draws::at(&[1]);
        let normal = Normal { mean: 1.0, deviation: 0.01 };
        let far = normal.draw_above(2.0, &mut draws);
        assert!((2.0..2.01).contains(&far), "{far}");
        let certain = Normal { mean: 1.0, deviation: 0.0 };
        assert_eq!((certain.draw_above(0.5, &mut draws), certain.draw_above(1.5, &mut draws)), (1.0, 1.5));
        assert_eq!(certain.draw_above(1.0, &mut draws), 1.0);
    }
}
