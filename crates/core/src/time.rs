//! Time in whole nanoseconds. It is always an argument: the core reads no clock.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

const NANOS_PER_SECOND: f64 = 1e9;

/// A moment, in nanoseconds since the run began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

/// A length of time, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Span(pub u64);

impl Time {
    /// When the run began.
    pub const START: Time = Time(0);

    /// Seconds since the run began.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / NANOS_PER_SECOND
    }

    /// The time from `earlier` to this moment; zero if `earlier` is not earlier.
    pub fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// A span of zero length.
    pub const ZERO: Span = Span(0);

    /// A span of `seconds`, rounded to the nanosecond. Negative numbers and NaN become zero, infinity becomes the
    /// longest span.
    pub fn from_seconds(seconds: f64) -> Span {
        let nanos = seconds * NANOS_PER_SECOND;
        let whole = nanos as u64;
        // As `round` does, which is a call.
        Span(whole.saturating_add(u64::from(nanos - whole as f64 >= 0.5)))
    }

    /// Whether the length is zero.
    pub fn is_zero(&self) -> bool {
        *self == Span::ZERO
    }

    /// The length in seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / NANOS_PER_SECOND
    }
}

impl Add<Span> for Time {
    type Output = Time;
    fn add(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Span) {
        *self = *self + other;
    }
}

impl Sub for Span {
    type Output = Span;
    fn sub(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s", self.seconds())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s", self.seconds())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_without_a_span_become_the_nearest_span() {
        assert_eq!(Span::from_seconds(1.5), Span(1_500_000_000));
        assert_eq!(Span::from_seconds(-1.0), Span::ZERO);
        assert_eq!(Span::from_seconds(f64::NAN), Span::ZERO);
        assert_eq!(Span::from_seconds(f64::INFINITY), Span(u64::MAX));
        let mut state = 1_u64;
        for _ in 0..1_000_000 {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            // All exponents, many of them with a half at the end.
            for seconds in [f64::from_bits(state), (state >> 30) as f64 / 2e9, ((state >> 20) as f64 + 0.5) / 1e9] {
                let expected = Span((seconds * NANOS_PER_SECOND).round() as u64);
                assert_eq!(Span::from_seconds(seconds), expected, "{seconds:e}");
            }
        }
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Time(5).since(Time(7)), Span::ZERO);
        assert_eq!(Time(5) + Span(u64::MAX), Time(u64::MAX));
    }
}
