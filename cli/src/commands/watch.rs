//! `paceline watch`: a run in the terminal.

use std::io::{self, IsTerminal};

use clap::Args;
use paceline_config::Failure;
use paceline_report::view::SeenRun;
use paceline_runtime::{RunEnding, is_interrupted};
use paceline_watch::{RunSource, WatchEnding, WatchError, as_text, show};
use rustix::termios::tcgetwinsize;

use crate::interrupt;
use crate::output::say;

/// Columns of the text where there is no terminal.
const TEXT_WIDTH: u16 = 120;

/// Watch a run in the terminal: who straggles, what it costs, every worker and decision
#[derive(Args)]
#[command(after_help = "Without a terminal, as before a pipe, it prints the run once. ? on the screen shows the keys.

Examples:
  paceline watch 127.0.0.1:7078                the run whose page is at this address
  paceline watch http://node1:7078
  paceline watch runs/1                        a run folder: the run has ended, or goes on
  paceline watch runs/1 --once                 print it once, as text
  paceline watch 127.0.0.1:7078 --json         all of it as one JSON object")]
pub struct WatchArgs {
    /// Address of a run's page, as the run prints it when it starts; or a run folder
    #[arg(value_name = "ADDRESS|RUN")]
    run: String,

    /// Print the run once, as text
    #[arg(long)]
    once: bool,

    /// Print the run once, as one JSON object
    #[arg(long)]
    json: bool,
}

impl WatchArgs {
    pub fn run(self) -> Result<(), Failure> {
        let source: RunSource = self.run.parse().map_err(Failure::input)?;
        if self.json {
            say(source.json().map_err(Failure::input)?.trim_end());
            return Ok(());
        }
        let run = SeenRun::new(source.read().map_err(Failure::input)?);
        if self.once || !has_screen() {
            let width = tcgetwinsize(io::stdout()).map_or(0, |size| size.ws_col);
            say(as_text(&run, source.is_live(), if width == 0 { TEXT_WIDTH } else { width }));
            return Ok(());
        }
        interrupt::listen(|| {})?;
        let is_live = source.is_live();
        match show(run, is_live, &source.follow(), is_interrupted) {
            Ok(WatchEnding::Quit) => Ok(()),
            Ok(WatchEnding::Interrupted | WatchEnding::Over) => Err(Failure::Ended(RunEnding::Interrupted)),
            Err(error @ WatchError::Terminal(_)) => Err(Failure::run(error)),
            Err(error) => Err(Failure::input(error)),
        }
    }
}

/// Whether there is a screen to draw on, and keys to read.
pub fn has_screen() -> bool {
    let is_plain = std::env::var("TERM").is_ok_and(|terminal| terminal == "dumb");
    io::stdout().is_terminal() && io::stdin().is_terminal() && !is_plain
}
