//! `paceline plan batches`: how many samples each worker gets, so that all finish together.

use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use paceline_config::Failure;
use paceline_core::batching::{Cost, balance};
use serde::Serialize;

use crate::output::say;

/// A worker's share of the samples if the user does not say how many there are.
const BATCH: u64 = 64;

/// Split an iteration's samples so that the slowest worker is done as early as can be
#[derive(Args)]
#[command(after_help = "\
A line of the file is a worker: its speed in samples per second, or what samples cost it: seconds per sample, fixed \
seconds, fewest samples, most samples, and, if there is any, seconds of communication. `#` begins a comment.

Example:
  printf '100\\n50\\n0.002 0.1 32 384 0.05\\n' > workers.txt
  paceline plan batches workers.txt --total 192")]
pub struct BatchesArgs {
    /// The workers: a line each, with blanks, tabs or commas between the numbers
    file: PathBuf,

    /// How many samples there are in all [default: 64 per worker]
    #[arg(long, value_name = "N")]
    total: Option<u64>,

    /// Print one JSON object instead of text: batches, seconds, and each worker's own seconds
    #[arg(long)]
    json: bool,
}

/// What is printed.
#[derive(Serialize)]
struct Planned {
    /// Each worker's samples.
    batches: Vec<u32>,
    /// How long the iteration is predicted to take.
    seconds: f64,
    /// How long each worker is.
    worker_seconds: Vec<f64>,
}

impl BatchesArgs {
    pub fn run(self) -> Result<(), Failure> {
        let planned = self.plan().with_context(|| self.file.display().to_string()).map_err(Failure::Input)?;
        if self.json {
            say(serde_json::to_string(&planned).map_err(Failure::run)?);
            return Ok(());
        }
        say(format_args!("iteration takes {:.6} s\nworker  samples  seconds", planned.seconds));
        for (worker, (batch, seconds)) in planned.batches.iter().zip(&planned.worker_seconds).enumerate() {
            say(format_args!("{worker:>6}  {batch:>7}  {seconds:.6}"));
        }
        Ok(())
    }

    fn plan(&self) -> anyhow::Result<Planned> {
        let costs = parse(&std::fs::read_to_string(&self.file)?)?;
        if costs.is_empty() {
            bail!("there is no worker in it: expected a line for each");
        }
        let batches = balance(&costs, self.total.unwrap_or(BATCH * costs.len() as u64))?;
        let worker_seconds: Vec<f64> = costs.iter().zip(&batches).map(|(cost, &batch)| cost.seconds(batch)).collect();
        let seconds = worker_seconds.iter().copied().fold(0.0, f64::max);
        Ok(Planned { batches, seconds, worker_seconds })
    }
}

fn parse(text: &str) -> anyhow::Result<Vec<Cost>> {
    let mut costs = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("");
        let words = line.split(|separator: char| separator.is_whitespace() || separator == ',');
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        if !words.is_empty() {
            costs.push(cost(&words).with_context(|| format!("line {}", index + 1))?);
        }
    }
    Ok(costs)
}

fn cost(words: &[&str]) -> anyhow::Result<Cost> {
    let number = |word: &str| {
        let number = word.parse().ok().filter(|number: &f64| number.is_finite());
        number.ok_or_else(|| anyhow!("'{word}' is not a number"))
    };
    let samples = |word: &str| word.parse().map_err(|_| anyhow!("'{word}' is not a number of samples"));
    match words {
        [speed] => match number(speed)? {
            speed if speed > 0.0 => Ok(Cost::of_speed(speed)),
            speed => Err(anyhow!("a speed of {speed} samples per second; it must be above 0")),
        },
        [per_sample, fixed, least, most, rest @ ..] if rest.len() <= 1 => {
            let communication = rest.first().map_or(Ok(0.0), |word| number(word))?;
            let fixed = number(fixed)? + communication;
            Ok(Cost { per_sample: number(per_sample)?, fixed, least: samples(least)?, most: samples(most)? })
        }
        _ => Err(anyhow!("{} numbers; expected a speed, or 4 or 5 that say what samples cost", words.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_and_costs_are_read() {
        let costs = parse("# two workers\n100\n\n0.002, 0.1, 32, 384, 0.05 # a GPU\n").unwrap();
        assert_eq!(costs[0], Cost::of_speed(100.0));
        assert_eq!(costs[1], Cost { per_sample: 0.002, fixed: 0.1 + 0.05, least: 32, most: 384 });
    }

    #[test]
    fn errors_name_the_line_and_the_value() {
        let error = |text: &str| format!("{:#}", parse(text).unwrap_err());
        assert_eq!(error("100\n0"), "line 2: a speed of 0 samples per second; it must be above 0");
        assert_eq!(error("fast"), "line 1: 'fast' is not a number");
        assert_eq!(error("NaN"), "line 1: 'NaN' is not a number");
        assert_eq!(error("1 2"), "line 1: 2 numbers; expected a speed, or 4 or 5 that say what samples cost");
        assert_eq!(error("1 2 3.5 4"), "line 1: '3.5' is not a number of samples");
    }
}
