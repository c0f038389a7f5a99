//! Numbers as text, as the page writes them.

/// A time with a fitting unit.
pub fn duration(seconds: f64) -> String {
    match seconds {
        long if long >= 86_400.0 => format!("{} d {} h", (long / 86_400.0) as u64, (long / 3600.0) as u64 % 24),
        long if long >= 3600.0 => format!("{} h {} min", (long / 3600.0) as u64, (long / 60.0) as u64 % 60),
        long if long >= 1000.0 => format!("{} min {} s", (long / 60.0) as u64, long as u64 % 60),
        short if short > 0.0 && short < 0.001 => "< 1 ms".into(),
        short if short > 0.0 && short < 0.1 => format!("{} ms", digits(1000.0 * short, 3)),
        seconds => format!("{} s", digits(seconds, if seconds < 10.0 { 3 } else { 4 })),
    }
}

/// A time in few characters.
pub fn brief(seconds: f64) -> String {
    match seconds {
        short if (0.001..0.1).contains(&short) => format!("{} ms", digits(1000.0 * short, 2)),
        short if short < 1.0 => duration(digits(short, 2).parse().unwrap_or(short)),
        seconds => duration(if seconds < 10.0 { (10.0 * seconds).round() / 10.0 } else { seconds.round() }),
    }
}

/// Samples per second in few characters.
pub fn rate(per_second: f64) -> String {
    let (value, unit) = match per_second {
        many if many >= 1e6 => (many / 1e6, "M"),
        many if many >= 1e4 => (many / 1e3, "k"),
        few => (few, ""),
    };
    format!("{}{unit}/s", digits(value, 3))
}

/// A number with at most so many significant digits.
pub fn digits(value: f64, digits: usize) -> String {
    let rounded = format!("{value:.*e}", digits.saturating_sub(1)).parse::<f64>().unwrap_or(value);
    if rounded != 0.0 && !(1e-6..1e15).contains(&rounded.abs()) { format!("{rounded:e}") } else { rounded.to_string() }
}

/// A number that may not be known.
pub fn known(value: Option<f64>, wanted: usize) -> String {
    value.map_or_else(|| "–".into(), |value| digits(value, wanted))
}

/// A share, 0 to 1.
pub fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.01 { "< 1 %".into() } else { format!("{:.0} %", 100.0 * share) }
}

/// A count, with commas between thousands.
pub fn count(value: u64) -> String {
    let text = value.to_string();
    let mut grouped = String::with_capacity(text.len() * 4 / 3);
    for (index, digit) in text.char_indices() {
        if index > 0 && (text.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A text cut into lines of at most so many characters, between words. A longer word is left to be cut off.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("one three", 4), ["one", "three"]);
        assert_eq!(wrapped("", 4), [""]);
    }

    #[test]
    fn numbers_are_written_as_on_the_page() {
        let times = [0.0, 0.0004, 0.0456, 0.31, 9.876, 12.345, 999.9, 1234.0, 7260.0, 90_000.0].map(duration);
        let expected = [
            "0 s",
            "< 1 ms",
            "45.6 ms",
            "0.31 s",
            "9.88 s",
            "12.35 s",
            "999.9 s",
            "20 min 34 s",
            "2 h 1 min",
            "1 d 1 h",
        ];
        assert_eq!(times, expected);
        let brief = [0.0, 0.0004, 0.0241, 0.1149, 1.234, 59.6, 7260.0].map(brief);
        assert_eq!(brief, ["0 s", "< 1 ms", "24 ms", "0.11 s", "1.2 s", "60 s", "2 h 1 min"]);
        assert_eq!([3.26, 1250.0, 471_000.0, 2.5e6].map(rate), ["3.26/s", "1250/s", "471k/s", "2.5M/s"]);
        assert_eq!([count(0), count(999), count(1000), count(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([percent(0.0), percent(0.004), percent(0.5)], ["0 %", "< 1 %", "50 %"]);
        assert_eq!([known(None, 3), known(Some(0.123_45), 3), digits(1e-9, 3)], ["–", "0.123", "1e-9"]);
    }
}
