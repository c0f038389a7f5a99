//! Mean, standard deviation and median.

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
}
