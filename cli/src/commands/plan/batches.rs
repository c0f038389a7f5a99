//! `paceline plan batches`: batch sizes with which all workers finish together.

use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use paceline_config::Failure;
use paceline_core::batching::{Cost, balance};
use paceline_spec::read_text;
use serde::Serialize;

use crate::output::say;

/// Samples per worker without `--total`.
const BATCH: u64 = 64;

/// Split an iteration's samples so that the last worker finishes as early as possible
#[derive(Args)]
#[command(after_help = "\
Each line of the file is a worker: its speed in samples per second, or its costs: seconds per sample, fixed seconds, \
smallest batch, largest batch and, optionally, seconds of communication. `#` starts a comment.

Example:
  printf '100\\n50\\n0.002 0.1 32 384 0.05\\n' > workers.txt
  paceline plan batches workers.txt --total 192")]
pub struct BatchesArgs {
    /// Workers: a line each, with numbers separated by blanks, tabs or commas
    file: PathBuf,

    /// Samples of all workers together [default: 64 per worker]
    #[arg(long, value_name = "N")]
    total: Option<u64>,

    /// Print one JSON object instead of text: batches, seconds, worker_seconds
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Serialize)]
struct PlannedBatches {
    /// Samples of each worker.
    batches: Vec<u32>,
    /// Predicted time of the iteration.
    seconds: f64,
    /// Predicted time of each worker.
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

    fn plan(&self) -> anyhow::Result<PlannedBatches> {
        let costs = parse(&read_text(&self.file)?)?;
        if costs.is_empty() {
            bail!("no workers; expected a line per worker");
        }
        let batches = balance(&costs, self.total.unwrap_or(BATCH * costs.len() as u64))?;
        let worker_seconds: Vec<f64> = costs.iter().zip(&batches).map(|(cost, &batch)| cost.seconds(batch)).collect();
        let seconds = worker_seconds.iter().copied().fold(0.0, f64::max);
        Ok(PlannedBatches { batches, seconds, worker_seconds })
    }
}

fn parse(text: &str) -> anyhow::Result<Vec<Cost>> {
    let mut costs = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("");
        let cells = line.split(|separator: char| separator.is_whitespace() || separator == ',');
        let cells: Vec<&str> = cells.filter(|cell| !cell.is_empty()).collect();
        if !cells.is_empty() {
            costs.push(cost(&cells).with_context(|| format!("line {}", index + 1))?);
        }
    }
    Ok(costs)
}

fn cost(cells: &[&str]) -> anyhow::Result<Cost> {
    let number = |cell: &str| {
        let number = cell.parse().ok().filter(|number: &f64| number.is_finite());
        number.ok_or_else(|| anyhow!("'{cell}' is not a number"))
    };
    let samples = |cell: &str| cell.parse().map_err(|_| anyhow!("'{cell}' is not a number of samples"));
    match cells {
        [speed] => match number(speed)? {
            speed if speed > 0.0 => Ok(Cost::of_speed(speed)),
            speed => Err(anyhow!("speed {speed}; expected samples per second, above 0")),
        },
        [per_sample, fixed, least, most, rest @ ..] if rest.len() <= 1 => {
            let communication = rest.first().map_or(Ok(0.0), |cell| number(cell))?;
            let fixed = number(fixed)? + communication;
            Ok(Cost { per_sample: number(per_sample)?, fixed, least: samples(least)?, most: samples(most)? })
        }
        _ => Err(anyhow!("{} numbers; expected 1 (a speed), or 4 or 5 (costs)", cells.len())),
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
        assert_eq!(error("100\n0"), "line 2: speed 0; expected samples per second, above 0");
        assert_eq!(error("fast"), "line 1: 'fast' is not a number");
        assert_eq!(error("NaN"), "line 1: 'NaN' is not a number");
        assert_eq!(error("1 2"), "line 1: 2 numbers; expected 1 (a speed), or 4 or 5 (costs)");
        assert_eq!(error("1 2 3.5 4"), "line 1: '3.5' is not a number of samples");
    }
}
