//! `paceline race --real`: runs `paceline train` once per contestant and seed, one after another.

use std::fs::File;
use std::io::Read;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use paceline_config::file::Configuration;
use paceline_config::{Contestant, Failure};
use paceline_core::{SchemeSpec, Setup, WorkerId};
use paceline_report::comparison::{ContestantRuns, RunResult};
use paceline_report::live_table::{LiveRow, LiveTable};
use paceline_runtime::{Goals, MetricsRow, RunEnding, Summary, is_interrupted, read_metrics};
use paceline_sim::{FastWorkers, Script, Simulation, Slowness, Times};
use paceline_trace::{PROFILER_STEP, Trace};
use rustix::process::{Pid, Signal, kill_process};

use super::{Heat, RaceArgs, baselines, tuning};
use crate::comparison;
use crate::destination::make_folder;
use crate::program::ProgramStart;

/// How often the live table is updated.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The exit codes of a run that ended by itself.
const ENDED: [RunEnding; 4] = [RunEnding::Reached, RunEnding::TargetMissed, RunEnding::Diverged, RunEnding::NoWorkers];

/// The file with the options of all runs, in the folder of the race.
pub const OPTIONS: &str = "train.toml";

/// Options of `race` that `train` does not have.
const RACE_ONLY: &[&str] = &[
    "schemes",
    "suite",
    "lr-of",
    "seeds",
    "tune",
    "no-baselines",
    "threads",
    "real",
    "emulate",
    "times",
    "only",
    "slow",
    "script",
    "network",
];

/// The folder of a run that is not part of the race, in the folder of the race. It is removed after the run.
const SCRATCH: &str = "tuning";

/// Iterations of the run that measures the workers.
const PILOT_ITERATIONS: u32 = 10;

/// Trains with every contestant and seed, each run in a folder of its own.
pub fn race(race: &RaceArgs, configuration: &Configuration, out: &Path) -> Result<Vec<ContestantRuns>, Failure> {
    let setup = race.real_setup();
    race.emulate.iter().try_for_each(|straggler| straggler.check(setup.workers)).map_err(Failure::Input)?;
    let schemes = race.schemes.specs(&setup, false).map_err(Failure::Input)?;
    // A scheme that can be simulated may need data that real workers don't report.
    let real = |scheme: &SchemeSpec| scheme.build(&setup).map(drop);
    schemes.iter().try_for_each(real).map_err(Failure::input)?;
    let configuration = configuration.clone().without(RACE_ONLY).with("workers", setup.workers);
    make_folder(out).map_err(Failure::Input)?;
    let config = out.join(OPTIONS);
    std::fs::write(&config, configuration.to_string()).map_err(Failure::run)?;
    let mut contestants = race.contestants(&schemes);
    let track = RealTrack { race, setup, config, out };
    if !race.no_baselines {
        baselines::add(&mut contestants, track.fast_workers().map_err(Failure::Run)?, &race.scenario);
    }
    race.hold(contestants, setup.workers, |heat| track.run(heat).map_err(Failure::Run))
}

/// What all runs have in common.
struct RealTrack<'a> {
    race: &'a RaceArgs,
    setup: Setup,
    config: PathBuf,
    out: &'a Path,
}

impl RealTrack<'_> {
    fn run(&self, heat: &Heat<'_>) -> anyhow::Result<Vec<ContestantRuns>> {
        let live = LiveTable::new(&heat.names(), heat.seeds.len());
        let mut results: Vec<ContestantRuns> = heat.contestants.iter().map(comparison::without_runs).collect();
        for (index, contestant) in heat.contestants.iter().enumerate() {
            for (number, &seed) in heat.seeds.iter().enumerate() {
                let name = comparison::folder_name(&contestant.to_string());
                let name = match number {
                    _ if heat.tuning => SCRATCH.into(),
                    0 => name,
                    _ => format!("{name}-seed-{seed}"),
                };
                let run = RealRun { track: self, contestant, seed, until: None, folder: self.out.join(name) };
                if is_interrupted() {
                    return Ok(results);
                }
                if let Some(result) = run.train(|row| live.show(index, row))? {
                    live.finish_run(index, &result.summary);
                    results[index].runs.push(result);
                }
                if heat.tuning {
                    run.remove_folder();
                }
            }
        }
        Ok(results)
    }

    /// The fast workers, by the times of a short run if some are emulated to be slow. `None` if there is only one.
    fn fast_workers(&self) -> anyhow::Result<Option<FastWorkers>> {
        let ranks: Vec<WorkerId> = (0..self.setup.workers as u32).map(WorkerId).collect();
        if self.race.emulate.is_empty() {
            return Ok((ranks.len() > 1).then(|| FastWorkers { fastest: ranks[0], subset: None }));
        }
        eprintln!("measuring the workers");
        let contestant = self.race.scenario.contestant(&baselines::baseline(), None);
        let (seed, until) = (tuning::seeds(&self.race.seeds.0)[0], Some(format!("iterations={PILOT_ITERATIONS}")));
        let run = RealRun { track: self, contestant: &contestant, seed, until, folder: self.out.join(SCRATCH) };
        if run.train(|_| ())?.is_none() {
            return Ok(None);
        }
        let trace = Trace::read_all(std::slice::from_ref(&run.folder), PROFILER_STEP)?;
        run.remove_folder();
        let simulation = Simulation {
            scheme: contestant.scheme.clone(),
            setup: self.setup,
            times: Times::of_trace(trace),
            slowness: Slowness::default(),
            script: Script::default(),
            network: None,
            training: None,
            goals: Goals::any(&self.race.scenario.until),
            seed,
        };
        Ok(simulation.fast_workers(&ranks)?)
    }
}

/// One run of `paceline train`.
struct RealRun<'a> {
    track: &'a RealTrack<'a>,
    contestant: &'a Contestant,
    seed: u64,
    /// When it stops, if not as the race says.
    until: Option<String>,
    folder: PathBuf,
}

impl RealRun<'_> {
    /// Trains to the end. `None` after an interrupt, which leaves no folder.
    fn train(&self, show: impl Fn(&LiveRow)) -> anyhow::Result<Option<RunResult>> {
        let mut command = self.command()?;
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
            self.remove_folder();
            return Ok(None);
        }
        if !ENDED.iter().any(|ending| output.status.code() == Some(ending.exit_code().into())) {
            let message = String::from_utf8_lossy(&output.stderr);
            bail!("{} with seed {}: {}", self.contestant, self.seed, message.trim().trim_start_matches("error: "));
        }
        let summary: Summary = serde_json::from_slice(&output.stdout).context("summary of 'paceline train'")?;
        let point = |line: &MetricsRow| line.accuracy.map(|accuracy| (line.time, accuracy));
        let mut curve: Vec<_> = read_metrics(&self.folder)?.iter().filter_map(point).collect();
        curve.extend(summary.final_accuracy());
        Ok(Some(RunResult { summary, curve }))
    }

    fn command(&self) -> anyhow::Result<Command> {
        let RealTrack { race, setup, config, .. } = self.track;
        let Contestant { scheme, ranks, rate } = self.contestant;
        let mut command = ProgramStart::find()?.command();
        command.arg("train").arg("--json").arg("--config").arg(config).arg("--out").arg(&self.folder);
        command.args(["--scheme", &scheme.to_string(), "--seed", &self.seed.to_string(), "--lr", &rate.0.to_string()]);
        if let Some(until) = &self.until {
            command.args(["--until", until]);
        }
        if let Some(ranks) = ranks {
            let setup = setup.restricted_to(ranks.workers().len());
            command.args(["--workers", &setup.workers.to_string(), "--lr-rule", &setup.rate_rule.to_string()]);
            command.args(["--emulated-ranks", &ranks.to_string()]);
        }
        for straggler in &race.emulate {
            command.args(["--emulate", &straggler.to_string()]);
        }
        Ok(command)
    }

    fn remove_folder(&self) {
        // Fails if the run has not created it.
        let _ = std::fs::remove_dir_all(&self.folder);
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
