//! `paceline keys`: make what keeps strangers out of a run.

use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;
use paceline_config::Failure;
use paceline_net::{Keys, KeysError};

use crate::output::say;

/// Make a token and a self-signed certificate that keep strangers out of runs on other machines
#[derive(Args)]
#[command(
    after_help = "The server needs the whole folder; workers need its certificate.pem and token, not its key.pem.

Example:
  paceline keys keys
  paceline serve --listen 0.0.0.0 --keys keys
  paceline work --join node0 --keys keys        (on another machine, with a copy)"
)]
pub struct KeysArgs {
    /// The folder to make them in
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl KeysArgs {
    pub fn run(self) -> Result<(), Failure> {
        Keys::generate(&self.folder).map_err(|error| {
            Failure::Input(match error {
                KeysError::File { path, error } if error.kind() == ErrorKind::AlreadyExists => {
                    anyhow!(
                        "{} is there already, and keys are never overwritten; choose another folder",
                        path.display()
                    )
                }
                _ => error.into(),
            })
        })?;
        let folder = self.folder.display();
        say(format_args!(
            "made {folder}/certificate.pem and {folder}/token for server and workers, {folder}/key.pem for the server alone"
        ));
        Ok(())
    }
}
