//! Mean with its confidence interval, standard deviation and median.

use std::f64::consts::FRAC_2_PI;

/// The confidence of intervals.
const CONFIDENCE: f64 = 0.95;

/// The mean; NaN without values.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation of a sample; 0 for a single value.
pub fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len().max(2) - 1) as f64).sqrt()
}

/// The 95 % confidence interval of the mean, by Student's t distribution; `None` for fewer than two values.
pub fn mean_interval(values: &[f64]) -> Option<(f64, f64)> {
    let freedom = values.len().checked_sub(1).filter(|&freedom| freedom > 0)?;
    let half = student_t(freedom) * deviation(values) / (values.len() as f64).sqrt();
    Some((mean(values) - half, mean(values) + half))
}

/// The t with which Student's distribution lies between -t and t with the confidence of intervals.
fn student_t(freedom: usize) -> f64 {
    // 13 is the largest, for one degree of freedom.
    let (mut low, mut high) = (0.0, 13.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        let half = if student_within(middle, freedom) < CONFIDENCE { &mut low } else { &mut high };
        *half = middle;
    }
    high
}

/// The probability that Student's distribution lies between -t and t, as a finite sum (Abramowitz and Stegun, Handbook of
/// Mathematical Functions, 26.7.3 and 26.7.4).
fn student_within(t: f64, freedom: usize) -> f64 {
    let angle = (t / (freedom as f64).sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    let odd = freedom % 2;
    let mut term = if odd == 1 { cos } else { 1.0 };
    let mut sum = 0.0;
    for step in (odd..freedom.saturating_sub(1)).step_by(2) {
        sum += term;
        term *= cos * cos * (step + 1) as f64 / (step + 2) as f64;
    }
    if odd == 1 { FRAC_2_PI * (angle + sin * sum) } else { sin * sum }
}

/// The middle value, or the mean of the two in the middle; NaN without values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.len() % 2, values.get(middle)) {
        (1, Some(&value)) => value,
        (_, Some(&value)) => (values[middle - 1] + value) / 2.0,
        (_, None) => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_agree_with_known_values() {
        let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert_eq!(mean(&values), 5.0);
        assert!((deviation(&values) - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!((deviation(&[3.0]), median(vec![9.0, 1.0, 2.0]), median(values.to_vec())), (0.0, 2.0, 4.5));
        assert!(median(vec![]).is_nan() && mean(&[]).is_nan());
    }

    #[test]
    fn the_t_distribution_agrees_with_published_tables() {
        let published = [
            (1, 12.706),
            (2, 4.303),
            (3, 3.182),
            (4, 2.776),
            (5, 2.571),
            (6, 2.447),
            (9, 2.262),
            (10, 2.228),
            (19, 2.093),
            (30, 2.042),
            (60, 2.000),
            (120, 1.980),
        ];
        for (freedom, t) in published {
            assert!((student_t(freedom) - t).abs() < 0.0006, "{freedom}: {}", student_t(freedom));
        }
        assert!((student_t(100_000) - 1.96).abs() < 0.001);
    }

    #[test]
    fn an_interval_needs_two_values() {
        assert_eq!((mean_interval(&[]), mean_interval(&[1.0])), (None, None));
        let (low, high) = mean_interval(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        // The mean is 3, the deviation 1.5811.
        assert!((low - 1.0368).abs() < 1e-3 && (high - 4.9632).abs() < 1e-3, "{low} {high}");
        assert_eq!(mean_interval(&[2.0, 2.0]), Some((2.0, 2.0)));
    }
}
