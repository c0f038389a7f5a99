//! `paceline race --real`: runs `paceline train` once per scheme and seed, one after another.

use std::fs::File;
use std::io::Read;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use paceline_config::Failure;
use paceline_config::file::Configuration;
use paceline_core::SchemeSpec;
use paceline_report::comparison::{RunResult, SchemeRuns};
use paceline_report::live_table::{LiveRow, LiveTable};
use paceline_runtime::{MetricsRow, RunEnding, Summary, is_interrupted, read_metrics};
use rustix::process::{Pid, Signal, kill_process};

use super::{RaceArgs, folder_name};
use crate::destination::make_folder;

/// How often the live table is updated.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The exit codes of a run that ended by itself.
const ENDED: [RunEnding; 4] = [RunEnding::Reached, RunEnding::TargetMissed, RunEnding::Diverged, RunEnding::NoWorkers];

/// The file with the options of all runs, in the folder of the race.
pub const OPTIONS: &str = "train.toml";

/// Options of `race` that `train` does not have.
const RACE_ONLY: &[&str] = &["schemes", "seeds", "threads", "real", "emulate", "times", "slow", "script", "network"];

/// Trains with every scheme and seed, each run in a folder of its own.
pub fn race(race: &RaceArgs, configuration: &Configuration, out: &Path) -> Result<Vec<SchemeRuns>, Failure> {
    let setup = race.real_setup();
    let schemes = race.schemes.specs(&setup, false).map_err(Failure::Input)?;
    // A scheme that can be simulated may need data that real workers don't report.
    let real = |scheme: &SchemeSpec| scheme.build(&setup).map(drop);
    schemes.iter().try_for_each(real).map_err(Failure::input)?;
    let configuration = configuration.clone().without(RACE_ONLY).with("workers", setup.workers);
    make_folder(out).map_err(Failure::Input)?;
    let config = out.join(OPTIONS);
    std::fs::write(&config, configuration.to_string()).map_err(Failure::run)?;
    let live = LiveTable::new(&schemes, race.seeds.0.len());
    let mut results = Vec::new();
    for (index, scheme) in schemes.iter().enumerate() {
        let mut runs = Vec::new();
        for (number, &seed) in race.seeds.0.iter().enumerate() {
            let name = folder_name(scheme);
            let folder = out.join(if number == 0 { name } else { format!("{name}-seed-{seed}") });
            let run = RealRun { race, config: &config, scheme, seed, folder };
            if is_interrupted() {
                break;
            }
            let result = run.train(|row| live.show(index, row)).map_err(Failure::Run)?;
            if let Some(result) = result {
                live.finish_run(index, &result.summary);
                runs.push(result);
            }
        }
        results.push(SchemeRuns { scheme: scheme.clone(), runs });
    }
    Ok(results)
}

/// One run of `paceline train`.
struct RealRun<'a> {
    race: &'a RaceArgs,
    config: &'a Path,
    scheme: &'a SchemeSpec,
    seed: u64,
    folder: PathBuf,
}

impl RealRun<'_> {
    /// Trains to the end. `None` after an interrupt, which leaves no folder.
    fn train(&self, show: impl Fn(&LiveRow)) -> anyhow::Result<Option<RunResult>> {
        let program = std::env::current_exe().context("path of this program")?;
        let mut command = Command::new(program);
        command.arg("train").arg("--json").arg("--config").arg(self.config).arg("--out").arg(&self.folder);
        command.args(["--scheme", &self.scheme.to_string(), "--seed", &self.seed.to_string()]);
        for straggler in &self.race.emulate {
            command.args(["--emulate", &straggler.to_string()]);
        }
        // Ctrl-C reaches it once: from here, not also from the terminal.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let pid = Pid::from_child(&child);
        let mut stopped = false;
        // A thread reads its output, so that the child never blocks on a full pipe.
        let reader = thread::spawn(|| child.wait_with_output());
        while !reader.is_finished() {
            thread::sleep(POLL_INTERVAL);
            live_row(&self.folder).iter().for_each(&show);
            if is_interrupted() && !std::mem::replace(&mut stopped, true) {
                // Fails only if it has just exited.
                let _ = kill_process(pid, Signal::INT);
            }
        }
        let output = reader.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        if is_interrupted() {
            // Fails if the run has not created it yet.
            let _ = std::fs::remove_dir_all(&self.folder);
            return Ok(None);
        }
        if !ENDED.iter().any(|ending| output.status.code() == Some(ending.exit_code().into())) {
            let message = String::from_utf8_lossy(&output.stderr);
            bail!("{} with seed {}: {}", self.scheme, self.seed, message.trim().trim_start_matches("error: "));
        }
        let summary: Summary = serde_json::from_slice(&output.stdout).context("summary of 'paceline train'")?;
        let point = |line: &MetricsRow| line.accuracy.map(|accuracy| (line.time, accuracy));
        let mut curve: Vec<_> = read_metrics(&self.folder)?.iter().filter_map(point).collect();
        curve.extend(summary.final_accuracy());
        Ok(Some(RunResult { summary, curve }))
    }
}

/// The state of a run, from its metrics file; `None` before the first row.
fn live_row(folder: &Path) -> Option<LiveRow> {
    let mut text = String::new();
    File::open(folder.join("metrics.csv")).ok()?.read_to_string(&mut text).ok()?;
    // The last row may be incomplete.
    let complete = &text[..text.rfind('\n')?];
    let lines: Vec<MetricsRow> =
        csv::Reader::from_reader(complete.as_bytes()).deserialize().filter_map(Result::ok).collect();
    Some(LiveRow {
        time: lines.last()?.time,
        updates: lines.iter().map(|line| line.waited_for).sum(),
        loss: lines.last()?.loss,
        accuracy: lines.iter().rev().find_map(|line| line.accuracy),
    })
}
