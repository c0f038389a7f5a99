//! `paceline plan times`: DBW's expected iteration time for every k.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use paceline_config::{Failure, whole};
use paceline_core::{Memory, RoundTripTable};
use paceline_report::numbers::{number, time};
use paceline_report::tables::aligned;
use paceline_spec::read_text;
use serde_json::json;

use crate::output::say;

/// Fit DBW's expected iteration times to measured round trips
#[derive(Args)]
#[command(after_help = "\
A row h,i,seconds means: after an iteration that waited for h gradients, the i-th gradient of the next version arrived \
that many seconds after the version was committed. If there is no row for h = i = k, the expected time of k is the \
smallest that the other rows allow.

Example:
  printf '2,1,0.8\\n2,2,1.5\\n1,1,1.1\\n' > rows.csv
  paceline plan times rows.csv")]
pub struct TimesArgs {
    /// Rows of h,i,seconds; a header and lines that start with # are skipped
    file: PathBuf,

    /// Number of workers [default: the largest h or i]
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=65_535))]
    workers: Option<u16>,

    /// Print one JSON object instead of a table: workers, expected (seconds for k = 1, 2, …)
    #[arg(long)]
    json: bool,
}

/// A measured round trip: h, i, seconds.
type RoundTripRow = (usize, usize, f64);

impl TimesArgs {
    pub fn run(self) -> Result<(), Failure> {
        let expected = self.fit().with_context(|| self.file.display().to_string()).map_err(Failure::Input)?;
        if self.json {
            say(json!({ "workers": expected.len(), "expected": expected }));
        } else {
            let head = ["k", "expected", "gradients per second"].map(String::from);
            let rows = (1..)
                .zip(&expected)
                .map(|(k, seconds)| [k.to_string(), time(*seconds), number(f64::from(k) / seconds, 3)]);
            say(aligned(std::iter::once(head).chain(rows)));
        }
        Ok(())
    }

    fn fit(&self) -> anyhow::Result<Vec<f64>> {
        let samples = parse(&read_text(&self.file)?)?;
        let largest = samples.iter().map(|&(_, (h, i, _))| h.max(i)).max();
        let Some(workers) = self.workers.map(usize::from).or(largest) else { bail!("no rows; expected h,i,seconds") };
        let mut table = RoundTripTable::new(workers, Memory::All)?;
        for (line, (waited_for, rank, seconds)) in samples {
            table.observe(waited_for, rank, seconds).with_context(|| format!("line {line}"))?;
        }
        Ok(table.expected_all().to_vec())
    }
}

/// The rows with their line numbers, counted from 1.
fn parse(text: &str) -> anyhow::Result<Vec<(usize, RoundTripRow)>> {
    let lines = (1..).zip(text.lines()).map(|(line, text)| (line, text.trim()));
    let rows = lines.filter(|(line, text)| {
        let header = *line == 1 && text.starts_with(char::is_alphabetic);
        !(text.is_empty() || text.starts_with('#') || header)
    });
    rows.map(|(line, text)| {
        let sample =
            row(text).with_context(|| format!("line {line}: '{text}'; expected h,i,seconds, such as 4,1,0.8"))?;
        Ok((line, sample))
    })
    .collect()
}

fn row(text: &str) -> Option<RoundTripRow> {
    let mut parts = text.split(',').map(str::trim);
    let sample = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_with_their_line_numbers() {
        let samples = parse("h,i,seconds\n# two workers\n2,1,0.5\n\n 2 , 2 , 1e0 \n").unwrap();
        assert_eq!(samples, [(3, (2, 1, 0.5)), (5, (2, 2, 1.0))]);
    }

    #[test]
    fn a_malformed_row_is_named_with_its_line() {
        for text in ["2,1", "2,1,0.5,7", "2,x,1", "-1,1,1", "names,again,here"] {
            let error = format!("{:#}", parse(&format!("1,1,1\n{text}\n")).unwrap_err());
            assert_eq!(error, format!("line 2: '{text}'; expected h,i,seconds, such as 4,1,0.8"));
        }
    }
}
