//! The `paceline` command: train one model on many unequal, unreliable workers.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "comments on options are help texts, in which brackets are brackets"
)]
// It panics where standard output can't be written; `output::say` does not.
#![warn(clippy::print_stdout)]

mod attendance;
mod batch;
mod commands;
mod config;
mod contest;
mod destination;
mod failure;
mod http;
mod keeper;
mod logs;
mod numerals;
mod options;
mod output;
mod patient_file;
mod plot;
mod recipe;
mod report;
mod resumed;
mod run_folder;
mod serving;
mod speeds;
mod statistics;
mod status;
mod tensorboard;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use failure::Failure;

// Gradients live in fresh large buffers; this allocator keeps and reuses them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Train one model on many unequal, unreliable workers, and let no slow one hold the others back.
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
  paceline simulate --scheme backup:k=6    the same, waiting for the first six only
  paceline simulate --help                 all schemes, times and settings
  paceline race                            which scheme is first, and why
  paceline whatif times.csv                which scheme suits these times";

#[derive(Subcommand)]
enum Command {
    Train(commands::train::Train),
    Serve(commands::serve::Serve),
    Work(commands::work::Work),
    Simulate(commands::simulate::Simulate),
    Race(commands::race::Race),
    Whatif(commands::whatif::Whatif),
    Report(commands::report::Report),
    Plan(commands::plan::Plan),
    Predictor(commands::predictor::Predictor),
    Replay(commands::replay::Replay),
    Reproduce(commands::reproduce::Reproduce),
    Fit(commands::fit::Fit),
    Data(commands::data::Data),
    Torture(commands::torture::Torture),
    Keys(commands::keys::MakeKeys),
}

fn main() -> ExitCode {
    let outcome = parse().and_then(|(cli, settings)| match cli.command {
        Command::Train(command) => command.run(&settings),
        Command::Serve(command) => command.run(&settings),
        Command::Work(command) => command.run(),
        Command::Simulate(command) => command.run(&settings),
        Command::Race(command) => command.run(&settings),
        Command::Whatif(command) => command.run(),
        Command::Report(command) => command.run(),
        Command::Plan(command) => command.run(),
        Command::Predictor(command) => command.run(),
        Command::Replay(command) => command.run(),
        Command::Reproduce(command) => command.run(),
        Command::Fit(command) => command.run(),
        Command::Data(command) => command.run(),
        Command::Torture(command) => command.run(),
        Command::Keys(command) => command.run(),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Has a number below 0 taken for a value, which its flag refuses by name, rather than for a flag that there is not.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes_values = |arg: &clap::Arg| arg.get_action().takes_values();
    let command = command.mut_args(|arg| if takes_values(&arg) { arg.allow_negative_numbers(true) } else { arg });
    command.mut_subcommands(with_negative_numbers)
}

/// Reads the arguments, with those of a configuration file before them, and says what they all come to.
fn parse() -> Result<(Cli, config::Settings), Failure> {
    let matches = config::matches(with_negative_numbers(Cli::command()), std::env::args_os().collect())?;
    let settings = config::Settings::of(&Cli::command(), &matches);
    let cli = Cli::from_arg_matches(&matches).map_err(Failure::from)?;
    Ok((cli, settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beyond that, help is wrapped.
    const WIDTH: usize = 98;

    fn check(command: &clap::Command, path: &str) {
        let path = format!("{path} {}", command.get_name());
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let (prose, examples) = text.split_once("Example").unwrap_or_else(|| panic!("{path} has no example"));
        let lines: Vec<&str> = prose.lines().collect();
        let flows = |line: &&str| !line.is_empty() && !line.starts_with(' ');
        assert!(
            !lines.windows(2).any(|pair| pair.iter().all(flows)),
            "{path}: paragraphs are wrapped where they are shown"
        );
        let mut begun = false;
        for line in examples.lines().skip(1) {
            assert!(line.chars().count() <= WIDTH, "{path}: too long: {line}");
            assert!(begun || line.starts_with("  paceline ") || line.starts_with("  printf "), "{path}: {line}");
            begun = line.ends_with('\\');
        }
        command.get_subcommands().for_each(|command| check(command, &path));
    }

    #[test]
    fn help_has_examples_that_can_be_typed() {
        check(&Cli::command(), "");
    }
}
