//! Predicted times from text: one line per worker, whole numbers separated by blanks, tabs or commas. Blank lines are
//! skipped, and a line may end in a comma.

use std::num::IntErrorKind;
use std::str::FromStr;

use super::times::{PredictedTimes, PredictedTimesError};

impl FromStr for PredictedTimes {
    type Err = PredictedTimesError;

    fn from_str(text: &str) -> Result<Self, PredictedTimesError> {
        let mut matrix = Self::empty();
        let mut times = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            times.clear();
            for field in fields(line.strip_suffix(',').unwrap_or(line)) {
                times.push(time(field, index + 1, times.len() + 1)?);
            }
            matrix.push_row(index + 1, &times)?;
        }
        matrix.completed()
    }
}

/// The fields of a line. A comma without a number before it gives an empty field.
fn fields(line: &str) -> impl Iterator<Item = &str> {
    line.split(',').flat_map(|part| {
        let missing = part.trim().is_empty().then_some("");
        part.split_whitespace().chain(missing)
    })
}

fn time(field: &str, row: usize, column: usize) -> Result<u64, PredictedTimesError> {
    field.parse().map_err(|error: std::num::ParseIntError| {
        let text = field.to_owned();
        let digits = field.strip_prefix('-').unwrap_or_default();
        if *error.kind() == IntErrorKind::PosOverflow {
            PredictedTimesError::TooLarge { row, column, text }
        } else if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            PredictedTimesError::Negative { row, column, text }
        } else {
            PredictedTimesError::NotANumber { row, column, text }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_tabs_and_commas_separate() {
        let expected = PredictedTimes::from_rows([[1, 2, 30], [4, 5, 6]]).unwrap();
        for text in ["1 2 30\n4 5 6", "1,2,30,\r\n\r\n4, 5\t6,\n", "\t1\t2\t30\n\n  4 , 5 , 6  \n\n"] {
            assert_eq!(text.parse(), Ok(expected.clone()), "{text:?}");
        }
        let nanoseconds = "1643595472648123457";
        assert_eq!(nanoseconds.parse::<PredictedTimes>().unwrap().row(0), [1_643_595_472_648_123_457]);
    }

    #[test]
    fn errors_name_the_row() {
        for (text, message) in [
            ("", "no times: expected one row of whole numbers per worker"),
            (" \n\n", "no times: expected one row of whole numbers per worker"),
            ("1 2\n3 x", "row 2, column 2: 'x': expected a whole number"),
            ("1 2\n3 4.5", "row 2, column 2: '4.5': expected a whole number"),
            ("1 2\n\n3,,4", "row 3, column 2: '': expected a whole number"),
            (",", "row 1, column 1: '': expected a whole number"),
            ("1 -", "row 1, column 2: '-': expected a whole number"),
            ("1 -2", "row 1, column 2: -2 is negative: expected 0 or more"),
            (
                "1 18446744073709551616",
                "row 1, column 2: 18446744073709551616 is too large: expected at most 18446744073709551615",
            ),
            ("1 2\n3", "row 2 has 1 times: expected 2, as in the first row"),
            ("1 2\n4 3", "row 2, column 2: 3 follows 4: expected times in ascending order"),
        ] {
            assert_eq!(text.parse::<PredictedTimes>().unwrap_err().to_string(), message, "{text:?}");
        }
    }
}
