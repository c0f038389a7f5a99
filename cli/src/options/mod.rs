//! Options that several commands share.

mod emulation;
mod job;
mod join;

use std::path::PathBuf;

use clap::Args;

pub use emulation::{DelaySpec, StragglerSpec};
pub use job::JobOptions;
pub use join::{JoinOptions, failure};

/// `--config`. `paceline_config::file` reads the file before the flags are parsed.
#[derive(Debug, Clone, Args)]
pub struct ConfigFile {
    /// Read options from a TOML file whose keys are these flags; flags on the command line take precedence
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigFile {
    /// The file, if one is given.
    pub fn path(&self) -> Option<&PathBuf> {
        self.config.as_ref()
    }
}
