//! Dual numbers: automatic differentiation for networks of a dozen weights.

use std::array::from_fn;
use std::ops::{Add, Mul};

/// The numbers that a network computes with: `f64` to predict, [`Dual`]s to train.
pub(super) trait Scalar: Copy + Add<Output = Self> + Mul<Output = Self> + Mul<f64, Output = Self> {
    /// A function of this number, given its value and its derivative here.
    fn map(self, value: f64, derivative: f64) -> Self;

    /// The plain number.
    fn value(self) -> f64;

    fn tanh(self) -> Self {
        let tanh = libm::tanh(self.value());
        self.map(tanh, 1.0 - tanh * tanh)
    }

    /// 1 / (1 + e⁻ˣ).
    fn logistic(self) -> Self {
        let logistic = 1.0 / (1.0 + libm::exp(-self.value()));
        self.map(logistic, logistic * (1.0 - logistic))
    }
}

impl Scalar for f64 {
    fn map(self, value: f64, _derivative: f64) -> f64 {
        value
    }

    fn value(self) -> f64 {
        self
    }
}

/// A number and its derivatives by each of the `N` weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dual<const N: usize> {
    value: f64,
    pub(super) slopes: [f64; N],
}

impl<const N: usize> Dual<N> {
    /// The weights themselves: each changes with itself only.
    pub(super) fn weights(values: &[f64; N]) -> [Dual<N>; N] {
        from_fn(|index| Dual { value: values[index], slopes: from_fn(|other| f64::from(u8::from(other == index))) })
    }
}

impl<const N: usize> Scalar for Dual<N> {
    fn map(self, value: f64, derivative: f64) -> Self {
        Dual { value, slopes: self.slopes.map(|slope| slope * derivative) }
    }

    fn value(self) -> f64 {
        self.value
    }
}

impl<const N: usize> Add for Dual<N> {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Dual { value: self.value + other.value, slopes: from_fn(|index| self.slopes[index] + other.slopes[index]) }
    }
}

impl<const N: usize> Mul for Dual<N> {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        #[expect(clippy::suspicious_arithmetic_impl, reason = "the product rule is a sum")]
        let slopes = from_fn(|index| self.slopes[index] * other.value + self.value * other.slopes[index]);
        Dual { value: self.value * other.value, slopes }
    }
}

impl<const N: usize> Mul<f64> for Dual<N> {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        self.map(self.value * factor, factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function<S: Scalar>(x: S, y: S) -> S {
        (x * y + x.tanh() * 3.0) * y.logistic() + x
    }

    #[test]
    fn derivatives_match_finite_differences() {
        let (x, y, step) = (0.7, -0.4, 1e-6);
        let [dual_x, dual_y] = Dual::weights(&[x, y]);
        let found = function(dual_x, dual_y);
        assert_eq!(found.value(), function(x, y));
        let by_x = (function(x + step, y) - function(x - step, y)) / (2.0 * step);
        let by_y = (function(x, y + step) - function(x, y - step)) / (2.0 * step);
        assert!((found.slopes[0] - by_x).abs() < 1e-8);
        assert!((found.slopes[1] - by_y).abs() < 1e-8);
    }
}
