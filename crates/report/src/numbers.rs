//! Numbers as text.

/// Numbers from here on are written with an exponent.
const LARGE: f64 = 1e6;

/// A number with this many digits after the point.
pub fn number(value: f64, digits: usize) -> String {
    if value.abs() < LARGE || !value.is_finite() { format!("{value:.digits$}") } else { format!("{value:.4e}") }
}

/// A time with about three digits and a fitting unit: `12.3 s`, `4.56 ms`, `78.9 µs`.
pub fn time(seconds: f64) -> String {
    let (unit, name) = unit(seconds);
    let value = seconds / unit;
    format!("{} {name}", number(value, digits(value)))
}

/// The same with a deviation of the same precision: `12.3 ± 0.4 s`.
pub fn time_within(seconds: f64, deviation: f64) -> String {
    let (unit, name) = unit(seconds);
    let digits = digits(seconds / unit);
    format!("{} ± {} {name}", number(seconds / unit, digits), number(deviation / unit, digits))
}

/// A ratio with about three digits: `1.83`, `73.9`, `0.45`.
pub fn ratio(value: f64) -> String {
    number(value, digits(value).min(2))
}

fn unit(seconds: f64) -> (f64, &'static str) {
    match seconds.abs() {
        tiny if tiny > 0.0 && tiny < 1e-4 => (1e-6, "µs"),
        small if small > 0.0 && small < 0.1 => (1e-3, "ms"),
        _ => (1.0, "s"),
    }
}

fn digits(value: f64) -> usize {
    match value.abs() {
        large if large >= 100.0 => 0,
        tens if tens >= 10.0 => 1,
        ones if ones >= 1.0 => 2,
        _ => 3,
    }
}

/// A count with its noun: `1 step`, `2 steps`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Names as a list in a sentence: `a`, `a and b`, `a, b and c`.
pub fn listed(names: &[&str]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        let times = [0.0, 3.21e-6, 0.000_45, 0.0456, 0.5, 1.0, 12.34, 123.4, 1234.5, 1e300].map(time);
        let expected = [
            "0.000 s",
            "3.21 µs",
            "0.450 ms",
            "45.6 ms",
            "0.500 s",
            "1.00 s",
            "12.3 s",
            "123 s",
            "1234 s",
            "1.0000e300 s",
        ];
        assert_eq!(times, expected);
        assert_eq!(
            (time_within(0.0123, 0.0004), time_within(50.5, 1.0)),
            ("12.3 ± 0.4 ms".into(), "50.5 ± 1.0 s".into())
        );
    }

    #[test]
    fn large_numbers_have_an_exponent() {
        assert_eq!(
            [0.25, -999.0, 5.9e30, f64::NAN].map(|value| number(value, 2)),
            ["0.25", "-999.00", "5.9000e30", "NaN"]
        );
    }

    #[test]
    fn ratios_have_three_digits() {
        assert_eq!([0.447, 1.0, 73.87, 1797.7].map(ratio), ["0.45", "1.00", "73.9", "1798"]);
    }

    #[test]
    fn one_is_singular() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "run")), ["0 runs", "1 run", "2 runs"]);
    }

    #[test]
    fn a_list_ends_with_and() {
        assert_eq!([&["a"][..], &["a", "b"], &["a", "b", "c"]].map(listed), ["a", "a and b", "a, b and c"]);
    }
}
