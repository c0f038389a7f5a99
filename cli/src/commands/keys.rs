//! `paceline keys`: create the keys that authenticate workers and encrypt TCP.

use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;
use paceline_config::Failure;
use paceline_net::{Keys, KeysError};

use crate::output::say;

/// Create a token and a self-signed certificate, to authenticate workers on other machines and encrypt TCP
#[derive(Args)]
#[command(
    after_help = "The server needs the whole folder; workers need its certificate.pem and token, not its key.pem.

Example:
  paceline keys keys
  paceline serve --listen 0.0.0.0 --keys keys
  paceline work --join node0 --keys keys        (on another machine, with a copy)"
)]
pub struct KeysArgs {
    /// Folder to create them in
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl KeysArgs {
    pub fn run(self) -> Result<(), Failure> {
        Keys::generate(&self.folder).map_err(|error| {
            Failure::Input(match error {
                KeysError::File { path, error } if error.kind() == ErrorKind::AlreadyExists => {
                    anyhow!("{} exists, and keys are never overwritten; choose another folder", path.display())
                }
                _ => error.into(),
            })
        })?;
        let folder = self.folder.display();
        say(format_args!(
            "created certificate.pem and token for the server and its workers, key.pem for the server only, in {folder}"
        ));
        Ok(())
    }
}
