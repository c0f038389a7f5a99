//! `paceline serve`: a parameter server for workers on any machine.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::Args;
use paceline_config::Failure;
use paceline_config::file::Configuration;
use paceline_net::{Address, Keys, ShardCount, TransportOptions};
use paceline_report::numbers::counted;
use paceline_runtime::{Lease, LeaseWatch, RunFolderError, has_ended};

use crate::options::JobOptions;
use crate::serving::{ServedRun, ServingOutput};

/// Run a parameter server that workers on any machine can join
#[derive(Args)]
#[command(
    after_help = "Examples (two terminals, or two machines with --listen 0.0.0.0; the last is a standby that has the folder too):
  paceline serve --workers 2 --scheme backup:k=1
  paceline work --join 127.0.0.1        (twice)
  paceline serve --listen 0.0.0.0 --keys keys --shards hosts --workers 8
  paceline serve --listen 0.0.0.0 --keys keys --lease 5 --out /runs/night
  paceline serve --listen 0.0.0.0 --keys keys --standby /runs/night"
)]
pub struct ServeArgs {
    /// Address to listen on: HOST:PORT for TCP, local:NAME for shared memory with workers on this machine; may be given
    /// several times. An address that other machines can reach needs --keys or --open
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7077")]
    listen: Vec<Address>,

    /// Folder with the keys, as `paceline keys` creates it; workers need a copy. Encrypts TCP
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,

    /// Hold the run by a lease in its folder, so that `serve --standby` on another machine that has the folder too can take
    /// it over: the server may go on for this long after the lease was last renewed, and a standby waits twice as long,
    /// in seconds
    #[arg(long, value_name = "SECONDS", value_parser = lease_length)]
    lease: Option<f64>,

    /// Take over the run in this folder when its server lets its lease run out; options not given keep their values
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "resume"])]
    standby: Option<PathBuf>,

    /// Hold the parameters in shards, in the processes of workers that join over TCP, so that no link carries more than two
    /// models a step: on every host one (`hosts`), this many, or `none`: the server holds them
    #[arg(long, value_name = "N", default_value_t)]
    shards: ShardCount,

    /// Let other machines read the status and, without --keys, join unencrypted
    #[arg(long)]
    open: bool,

    #[command(flatten)]
    job: JobOptions,

    #[command(flatten)]
    output: ServingOutput,
}

impl ServeArgs {
    pub fn run(self, configuration: &Configuration) -> Result<(), Failure> {
        let job = self.job.load().map_err(Failure::Input)?;
        let keys = self.keys.as_deref().map(Keys::read).transpose().map_err(Failure::input)?;
        let transport = TransportOptions { keys, open: self.open, shards: self.shards, ..self.job.transport() };
        let run = ServedRun {
            addresses: &self.listen,
            transport,
            output: &self.output,
            configuration,
            inputs: self.job.inputs(),
            open: self.open,
            lease: self.lease.map(Duration::from_secs_f64),
            taken: None,
        };
        let run = match &self.standby {
            None => run,
            Some(folder) => match stand_by(folder).map_err(Failure::input)? {
                Some(lease) => ServedRun { taken: Some((folder, lease)), ..run },
                None => {
                    eprintln!("the run in {} has ended", folder.display());
                    return Ok(());
                }
            },
        };
        run.run(&job, |run, _| {
            let addresses: Vec<String> = run.addresses().iter().map(Address::to_string).collect();
            eprintln!("waiting for {} on {}", counted(job.setup.workers, "worker"), addresses.join(" and "));
            run.run()
        })
    }
}

/// How often a standby looks at the lease.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Waits until the server of the run in `folder` has let its lease run out, and takes the next. `None` if the run has ended.
fn stand_by(folder: &Path) -> anyhow::Result<Option<Lease>> {
    let mut watch = LeaseWatch::new(folder);
    let mut known = String::new();
    loop {
        let has_run_out = watch.has_run_out()?;
        if has_ended(folder) {
            return Ok(None);
        }
        let Some((holder, length)) = watch.holder() else {
            anyhow::bail!("the run in {} has no lease: start its server with --lease SECONDS", folder.display());
        };
        if has_run_out {
            eprintln!("{holder} has let its lease run out: taking over");
            match watch.take(length) {
                Ok(lease) => return Ok(Some(lease)),
                // Another standby was faster.
                Err(RunFolderError::Io { error, .. }) if error.kind() == ErrorKind::AlreadyExists => {
                    watch = LeaseWatch::new(folder);
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
        }
        if known != holder {
            known = holder.into();
            eprintln!("standing by for {}, which {holder} serves", folder.display());
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

fn lease_length(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (1.0..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds, 1 to 3600".into())
}
