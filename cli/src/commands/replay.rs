//! `paceline replay`: feed an event log to its scheme again.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use paceline_config::Failure;
use paceline_runtime::{EVENTS, ReplayError, open_events, replay};

use crate::output::say;

/// Feed an event log to its scheme again, and fail at the first decision that differs
#[derive(Args)]
#[command(
    after_help = "Example:\n  paceline simulate --scheme backup:k=6 --out RUN && paceline replay RUN/events.jsonl"
)]
pub struct ReplayArgs {
    /// A run folder, or a segment of its event log
    #[arg(value_name = "RUN")]
    file: PathBuf,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl ReplayArgs {
    pub fn run(self) -> Result<(), Failure> {
        let path = if self.file.is_dir() { self.file.join(EVENTS) } else { self.file.clone() };
        let named = || path.display().to_string();
        let log = open_events(&self.file).with_context(named).map_err(Failure::Input)?;
        let replayed = replay(log).map_err(|error| {
            let bad_input = !matches!(error, ReplayError::Differs { .. });
            let error = anyhow::Error::new(error).context(named());
            if bad_input { Failure::Input(error) } else { Failure::Run(error) }
        })?;
        if self.json {
            say(serde_json::to_string(&replayed).map_err(Failure::run)?);
        } else {
            let cut = if replayed.cut_short { "; the last line was cut short and is ignored" } else { "" };
            let from = match replayed.from_version.0 {
                0 => String::new(),
                version => format!(", from version {version} on"),
            };
            say(format_args!(
                "{}: {} events led to the same {} decisions{from}{cut}",
                replayed.scheme, replayed.events, replayed.decisions
            ));
        }
        Ok(())
    }
}
