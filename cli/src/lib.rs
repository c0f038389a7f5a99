//! The `paceline` command: train one model on many unequal, unreliable workers.
//!
//! A program of one's own gets all of its commands for models and schemes of its own:
//!
//! ```no_run
//! use paceline::core::{Scheme, SchemeEntry, SchemeError, SchemeSpec, Settings, Setup};
//!
//! /// Waits for half of the workers.
//! fn build(_: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
//!     format!("backup:k={}", setup.workers.div_ceil(2)).parse::<SchemeSpec>()?.build(setup)
//! }
//!
//! static HALF: SchemeEntry = SchemeEntry::new("half", "wait for half of the workers", [0, 158, 115], build);
//!
//! fn main() -> std::process::ExitCode {
//!     paceline::core::add_scheme(&HALF).expect("no other scheme has this name");
//!     paceline::main()
//! }
//! ```
//!
//! The first model that is added with [`models::add_model`] is the default of `--model`. The parts that commands are made
//! of are re-exported: schemes in [`core`], models in [`models`] and [`workload`], the simulator in [`sim`], the server
//! and its workers in [`net`], a run as one call in [`run`], what it leaves in [`runtime`].
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "doc comments on options are help texts, where brackets are plain text"
)]
// `println!` panics if standard output can't be written; `output::say` does not.
#![warn(clippy::print_stdout)]

#[cfg(doctest)]
#[doc = include_str!("../../docs/library.md")]
mod library {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/write-a-scheme.md")]
mod write_a_scheme {}

pub mod analysis;
mod commands;
mod comparison;
mod destination;
mod interrupt;
mod launched;
mod launcher;
mod live_screen;
mod logs;
mod options;
mod output;
mod program;
mod script;
mod serving;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use paceline_config::file::{self, Configuration};
use paceline_models::Model;

pub use paceline_config::Failure;
pub use {
    paceline_core as core, paceline_models as models, paceline_net as net, paceline_run as run,
    paceline_runtime as runtime, paceline_sim as sim, paceline_store as store, paceline_workload as workload,
};

/// Train one model on many unequal, unreliable workers, without waiting for stragglers.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  paceline train                           4 worker processes on this machine
  paceline simulate                        8 uneven workers, on a virtual clock
  paceline simulate --scheme backup:k=6    the same, waiting only for the first six
  paceline simulate --help                 all schemes and options
  paceline race                            which scheme reaches the target first, and why
  paceline whatif times.csv                which scheme suits these recorded times
  paceline watch 127.0.0.1:7078            a run in the terminal: who straggles, and what it costs";

/// What every command tells the shell.
const EXIT_CODES: &str = "\
Exit codes: 0 success, 1 error, 2 wrong usage, 3 target missed, 4 diverged, 5 no workers left, 130 interrupted";

#[derive(Subcommand)]
enum Command {
    Train(commands::train::TrainArgs),
    Serve(commands::serve::ServeArgs),
    Work(commands::work::WorkArgs),
    Shard(commands::shard::ShardArgs),
    Simulate(commands::simulate::SimulateArgs),
    Race(commands::race::RaceArgs),
    Whatif(commands::whatif::WhatifArgs),
    Evaluate(commands::evaluate::EvaluateArgs),
    Report(commands::report::ReportArgs),
    Watch(commands::watch::WatchArgs),
    #[command(subcommand)]
    Plan(commands::plan::PlanCommand),
    #[command(subcommand)]
    Predictor(commands::predictor::PredictorCommand),
    Replay(commands::replay::ReplayArgs),
    Reproduce(commands::reproduce::ReproduceArgs),
    Fit(commands::fit::FitArgs),
    #[command(subcommand)]
    Data(commands::data::DataCommand),
    Torture(commands::torture::TortureArgs),
    Scale(commands::scale::ScaleArgs),
    Keys(commands::keys::KeysArgs),
    Doctor(commands::doctor::DoctorArgs),
}

/// The emulated delays of a worker: a factor, or times such as `lognormal:-2,0.5`, drawn by its rank.
///
/// # Errors
/// If the text is neither, or its trace can't be read.
pub fn emulation(text: &str, rank: Option<u32>) -> anyhow::Result<net::Emulation> {
    // Without a rank, the process number makes workers differ.
    text.parse::<options::DelaySpec>()?.load(core::WorkerId(rank.unwrap_or_else(std::process::id)), 0)
}

/// Runs the command that the arguments of this process name, and returns its exit code.
///
/// `train` starts this same program as its workers, so add models and schemes before.
pub fn main() -> ExitCode {
    run_command(std::env::args_os().collect()).into()
}

/// Runs a command for a program whose process has arguments of its own, such as an interpreter's, and returns its exit
/// code. `start` is how that program is started, which `train` does for its workers: an executable and its first
/// arguments. `arguments` are those of the command, without a program's name.
///
/// # Panics
/// If `start` is empty.
pub fn main_from(start: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
    assert!(!start.is_empty(), "a program is started by an executable");
    program::set_start(start);
    run_command(std::iter::once("paceline".into()).chain(arguments).collect())
}

/// The first argument is the program's name.
fn run_command(arguments: Vec<OsString>) -> u8 {
    let outcome = parse(arguments.clone()).and_then(|(command, configuration)| match command {
        Command::Train(command) => command.run(&configuration),
        Command::Serve(command) => command.run(&configuration),
        Command::Work(command) => command.run(),
        Command::Shard(command) => command.run(),
        Command::Simulate(command) => command.run(&configuration),
        Command::Race(command) => command.run(&configuration, &arguments),
        Command::Whatif(command) => command.run(&configuration),
        Command::Evaluate(command) => command.run(),
        Command::Report(command) => command.run(),
        Command::Watch(command) => command.run(),
        Command::Plan(command) => command.run(),
        Command::Predictor(command) => command.run(),
        Command::Replay(command) => command.run(),
        Command::Reproduce(command) => command.run(),
        Command::Fit(command) => command.run(),
        Command::Data(command) => command.run(),
        Command::Torture(command) => command.run(),
        Command::Scale(command) => command.run(),
        Command::Keys(command) => command.run(),
        Command::Doctor(command) => command.run(),
    });
    match outcome {
        Ok(()) => 0,
        Err(failure) => report(&failure),
    }
}

/// Prints why a command failed, and returns the exit code.
fn report(failure: &Failure) -> u8 {
    match failure {
        Failure::Help(text) => output::exit_unless_written(text.print()),
        // The exit code says it to who does not read standard error any more.
        Failure::Ended(_) => _ = writeln!(io::stderr(), "{failure}"),
        Failure::Input(_) | Failure::Run(_) => _ = writeln!(io::stderr(), "error: {failure}"),
    }
    failure.exit_code()
}

/// Accepts negative numbers as values, so that the flag refuses them by name instead of clap by an unknown flag.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes_values = |arg: &clap::Arg| arg.get_action().takes_values();
    let command = command.mut_args(|arg| if takes_values(&arg) { arg.allow_negative_numbers(true) } else { arg });
    command.mut_subcommands(with_negative_numbers)
}

/// Adds the exit codes to the help of every command.
fn with_exit_codes(command: clap::Command) -> clap::Command {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    command.after_help(format!("{EXIT_CODES}\n\n{help}")).mut_subcommands(with_exit_codes)
}

/// Makes the first model that was added the default, and names all of them in the help.
fn with_added_models(command: clap::Command) -> clap::Command {
    let added = Model::added();
    let Some(&first) = added.first() else { return command };
    let adapt = |arg: clap::Arg| match arg.get_id().as_str() {
        "model" => {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let names: Vec<&str> = added.iter().map(|model| model.name()).collect();
            arg.help(format!("{help}; or {}", names.join(", "))).default_value(first.name())
        }
        "data" if first.has_own_data() => arg.default_value("own"),
        _ => arg,
    };
    command.mut_subcommands(|command| command.mut_args(&adapt))
}

/// Reads the arguments, after those of a configuration file, and returns the command and its full configuration.
fn parse(arguments: Vec<OsString>) -> Result<(Command, Configuration), Failure> {
    let command = with_negative_numbers(with_exit_codes(with_added_models(Cli::command())));
    let matches = file::matches(command.clone(), arguments)?;
    let configuration = Configuration::of(&command, &matches);
    let cli = Cli::from_arg_matches(&matches).map_err(Failure::from)?;
    Ok((cli.command, configuration))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer lines of help are wrapped.
    const WIDTH: usize = 98;

    fn check(command: &clap::Command, path: &str) {
        let path = format!("{path} {}", command.get_name());
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let (prose, examples) = text.split_once("Example").unwrap_or_else(|| panic!("{path} has no example"));
        let lines: Vec<&str> = prose.lines().collect();
        let flows = |line: &&str| !line.is_empty() && !line.starts_with(' ');
        assert!(
            !lines.windows(2).any(|pair| pair.iter().all(flows)),
            "{path}: a paragraph is one line, which clap wraps"
        );
        let mut continued = false;
        for line in examples.lines().skip(1) {
            assert!(line.chars().count() <= WIDTH, "{path}: too long: {line}");
            assert!(continued || line.starts_with("  paceline ") || line.starts_with("  printf "), "{path}: {line}");
            continued = line.ends_with('\\');
        }
        command.get_subcommands().for_each(|command| check(command, &path));
    }

    #[test]
    fn every_command_has_examples_that_can_be_typed() {
        check(&with_exit_codes(Cli::command()), "");
    }
}
