//! `paceline serve`: a parameter server for workers on any machine.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Args;
use paceline_config::Failure;
use paceline_config::file::Configuration;
use paceline_net::{Address, Keys, ShardCount, TransportOptions};
use paceline_objects::Place;
use paceline_report::numbers::counted;
use paceline_runtime::{Job, Lease, LeaseWatch, RunFolderError, StoredRun, folder_leases, has_ended};
use paceline_store::ObjectStorage;

use crate::launched::{LaunchOptions, interrupt_with_parent};
use crate::options::JobOptions;
use crate::script::ScriptOptions;
use crate::serving::{HttpDefault, ServedRun, ServingOutput};

/// Run a parameter server that workers on any machine can join
#[derive(Args)]
#[command(
    after_help = "Examples (two terminals, or two machines with --listen 0.0.0.0; a standby has the folder too, or the place):
  paceline serve --workers 2 --scheme backup:k=1
  paceline work --join 127.0.0.1        (twice)
  paceline serve --listen 0.0.0.0 --keys keys --shards hosts --workers 8
  paceline serve --listen 0.0.0.0 --keys keys --script --workers 2
  paceline work --join 10.0.0.1 --keys keys --rank 0 --workers 2 -- python script.py
  paceline serve --listen 0.0.0.0 --keys keys --lease 5 --out /runs/night
  paceline serve --listen 0.0.0.0 --keys keys --standby /runs/night
  paceline serve --listen 0.0.0.0 --keys keys --lease 5 --checkpoints s3://bucket/night
  paceline serve --listen 0.0.0.0 --keys keys --standby s3://bucket/night"
)]
pub struct ServeArgs {
    /// Address to listen on: HOST:PORT for TCP, local:NAME for shared memory with workers on this machine; may be given
    /// several times. An address that other machines can reach needs --keys or --open
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7077")]
    listen: Vec<Address>,

    /// Folder with the keys, as `paceline keys` creates it; workers need a copy. Encrypts TCP
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,

    /// Hold the run by a lease in its folder, or at the place of --checkpoints, so that `serve --standby` on another machine
    /// that has the folder or reaches the place can take it over: the server may go on for this long after the lease was last renewed, and a standby waits twice as long,
    /// in seconds
    #[arg(long, value_name = "SECONDS", value_parser = lease_length)]
    lease: Option<f64>,

    /// Take over the run in this folder, or with its checkpoints at this place, when its server lets its lease run out;
    /// options not given keep their values
    #[arg(long, value_name = "DIR|PLACE", conflicts_with = "resume")]
    standby: Option<PathBuf>,

    /// Hold the parameters in shards, so that no link carries more than two models a step: in the process of one worker on
    /// every host (`hosts`), of N workers, or in N processes of `paceline shard` (`apart:N`). By default the server holds them
    #[arg(long, value_name = "N", default_value_t)]
    shards: ShardCount,

    /// Train the model of a script that uses the Python package. Its workers bring it: `paceline work … -- python script.py`
    #[arg(long)]
    script: bool,

    /// Let other machines read the status and, without --keys, join unencrypted
    #[arg(long)]
    open: bool,

    #[command(flatten)]
    launch: LaunchOptions,

    #[command(flatten)]
    job: JobOptions,

    #[command(flatten)]
    output: ServingOutput,
}

/// Whose model is served.
enum ServedModel<'a> {
    Own(Box<Job>),
    /// Its workers bring it.
    OfScript(ScriptOptions<'a>),
}

impl ServeArgs {
    pub fn run(self, configuration: &Configuration) -> Result<(), Failure> {
        if let Some(parent) = self.launch.parent {
            interrupt_with_parent(parent).map_err(Failure::run)?;
        }
        let model = if self.script {
            ServedModel::OfScript(ScriptOptions::new(&self.job, &self.output, configuration, "the script")?)
        } else {
            ServedModel::Own(Box::new(self.job.load().map_err(Failure::Input)?))
        };
        let keys = self.keys.as_deref().map(Keys::read).transpose().map_err(Failure::input)?;
        let transport = TransportOptions { keys, open: self.open, shards: self.shards, ..self.job.transport() };
        let run = ServedRun {
            addresses: &self.listen,
            transport,
            output: &self.output,
            http: HttpDefault::Off,
            configuration: match &model {
                ServedModel::Own(_) => configuration,
                ServedModel::OfScript(script) => script.configuration(),
            },
            inputs: self.job.inputs(),
            open: self.open,
            lease: self.lease.map(Duration::from_secs_f64),
            taken: None,
            storage: self.output.storage().map_err(Failure::Input)?,
            launch: &self.launch,
        };
        self.output.check_folder("--standby", self.standby.as_deref()).map_err(Failure::Input)?;
        let elsewhere = |source| ServedElsewhere::new(source, run.storage.as_ref());
        let lease = match &self.output.resume {
            Some(source) => elsewhere(source).resume(run.lease).map_err(Failure::Input)?,
            None => None,
        };
        let run = match &self.standby {
            None => ServedRun { taken: lease.map(|lease| (None, lease)), ..run },
            Some(source) => match elsewhere(source).stand_by().map_err(Failure::Input)? {
                Some(lease) => {
                    let folder = Some(source.as_path()).filter(|path| Place::of(path).is_none());
                    ServedRun { taken: Some((folder, lease)), ..run }
                }
                None => {
                    eprintln!("the run in {} has ended", source.display());
                    return Ok(());
                }
            },
        };
        let job = match &model {
            ServedModel::Own(job) => job,
            ServedModel::OfScript(script) => return run.run_script(script, None),
        };
        run.run(job, |run, _| {
            let addresses: Vec<String> = run.addresses().iter().map(Address::to_string).collect();
            tracing::info!("waiting for {} on {}", counted(job.setup.workers, "worker"), addresses.join(" and "));
            run.run()
        })
    }
}

/// How many times a standby looks at a lease before it would run out.
const LOOKS: u32 = 8;

/// The shortest time between two looks.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);

/// A run that another process serves.
struct ServedElsewhere<'a> {
    /// Its folder or its place.
    source: &'a Path,
    /// Where its leases are.
    leases: Arc<dyn ObjectStorage>,
    /// The place, if it is one.
    stored: Option<StoredRun>,
}

impl<'a> ServedElsewhere<'a> {
    fn new(source: &'a Path, storage: Option<&Arc<dyn ObjectStorage>>) -> Self {
        let storage = storage.filter(|_| Place::of(source).is_some());
        let leases = storage.cloned().unwrap_or_else(|| folder_leases(source));
        ServedElsewhere { source, leases, stored: storage.cloned().map(StoredRun::new) }
    }

    fn has_ended(&self) -> Result<bool, RunFolderError> {
        self.stored.as_ref().map_or_else(|| Ok(has_ended(self.source)), StoredRun::has_ended)
    }

    /// Waits until its server has let its lease run out, and takes the next. `None` if the run has ended.
    fn stand_by(&self) -> anyhow::Result<Option<Lease>> {
        let mut watch = LeaseWatch::new(self.leases.clone());
        let (mut known, mut is_failing) = (String::new(), false);
        loop {
            let state = watch.has_run_out().and_then(|has_run_out| Ok((has_run_out, self.has_ended()?)));
            let has_run_out = match state {
                Ok((_, true)) => return Ok(None),
                Ok((has_run_out, false)) => has_run_out,
                // The storage may come back, as it was there before.
                Err(error) if !known.is_empty() => {
                    if !std::mem::replace(&mut is_failing, true) {
                        eprintln!("{error}; it is tried again");
                    }
                    thread::sleep(SHORTEST_LOOK);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            is_failing = false;
            let source = self.source.display();
            let Some((holder, length)) = watch.holder() else {
                anyhow::bail!("the run in {source} has no lease: start its server with --lease SECONDS");
            };
            if has_run_out {
                eprintln!("{holder} has let its lease run out: taking over");
                match watch.take_next(length) {
                    Ok(lease) => return Ok(Some(lease)),
                    // Another standby was faster.
                    Err(RunFolderError::Io { error, .. }) if error.kind() == ErrorKind::AlreadyExists => {
                        watch = LeaseWatch::new(self.leases.clone());
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            if known != holder {
                known = holder.into();
                eprintln!("standing by for {source}, which {holder} serves");
            }
            thread::sleep(SHORTEST_LOOK.max(length / LOOKS));
        }
    }

    /// Refuses a run at a place whose server renews its lease, and takes the next one after it has run out, if `length` is
    /// given. A run folder has a lock for that.
    fn resume(&self, length: Option<Duration>) -> anyhow::Result<Option<Lease>> {
        if self.stored.is_none() {
            return Ok(None);
        }
        let mut watch = LeaseWatch::new(self.leases.clone());
        while !watch.has_run_out()? && !self.has_ended()? {
            let Some((holder, length)) = watch.holder() else { break };
            if watch.was_renewed() {
                let source = self.source.display();
                anyhow::bail!(
                    "{source} is in use: {holder} serves it; wait until that ends, or stand by with --standby"
                );
            }
            thread::sleep(SHORTEST_LOOK.max(length / LOOKS));
        }
        Ok(length.map(|length| watch.take_next(length)).transpose()?)
    }
}

fn lease_length(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (1.0..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds, 1 to 3600".into())
}
