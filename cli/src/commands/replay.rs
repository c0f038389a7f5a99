//! `paceline replay`: feed an event log to its scheme again.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use paceline_config::Failure;
use paceline_runtime::{EVENTS, ReplayError, replay};
use paceline_spec::open_input;

use crate::output::say;

/// Feed an event log to its scheme again, and fail at the first decision that differs
#[derive(Args)]
#[command(
    after_help = "Example:\n  paceline simulate --scheme backup:k=6 --out RUN && paceline replay RUN/events.jsonl"
)]
pub struct ReplayArgs {
    /// A run folder, or its events.jsonl
    #[arg(value_name = "RUN")]
    file: PathBuf,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl ReplayArgs {
    pub fn run(self) -> Result<(), Failure> {
        let path = if self.file.is_dir() { self.file.join(EVENTS) } else { self.file };
        let named = || path.display().to_string();
        let file = open_input(&path).with_context(named).map_err(Failure::Input)?;
        let replayed = replay(file).map_err(|error| {
            let bad_input = !matches!(error, ReplayError::Differs { .. });
            let error = anyhow::Error::new(error).context(named());
            if bad_input { Failure::Input(error) } else { Failure::Run(error) }
        })?;
        if self.json {
            say(serde_json::to_string(&replayed).map_err(Failure::run)?);
        } else {
            let cut = if replayed.cut_short { "; the last line was cut short and is ignored" } else { "" };
            say(format_args!(
                "{}: {} events led to the same {} decisions{cut}",
                replayed.scheme, replayed.events, replayed.decisions
            ));
        }
        Ok(())
    }
}
