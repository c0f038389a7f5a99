//! `paceline keys`: make what keeps strangers out of a run.

use std::path::PathBuf;

use clap::Args;
use paceline_net::Keys;

use crate::failure::Failure;
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
pub struct MakeKeys {
    /// The folder to make them in
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl MakeKeys {
    pub fn run(self) -> Result<(), Failure> {
        Keys::generate(&self.folder).map_err(|error| Failure::Input(error.into()))?;
        let folder = self.folder.display();
        say(format_args!(
            "made {folder}/certificate.pem and {folder}/token for server and workers, {folder}/key.pem for the server alone"
        ));
        Ok(())
    }
}
