//! The simulated cluster.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use paceline_sim::{NetworkSpec, Script, Slowness, Times, TimesSpec};

use crate::whole;

/// How many workers there are if neither the user nor a trace says.
const WORKERS: usize = 8;

/// As many can be simulated in seconds per iteration, within a few gigabytes.
const MOST_WORKERS: u64 = 1_000_000;

/// The workers, their times and their network.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cluster")]
pub struct Cluster {
    /// How many workers there are at the start [default: 8, or as many as a trace has]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=MOST_WORKERS))]
    pub workers: Option<u32>,

    /// How long a task takes, in seconds: deterministic:T, uniform:LOW,HIGH, shifted-exponential:SHIFT,SCALE,
    /// pareto:SCALE,SHAPE, lognormal:MU,SIGMA, normal:MEAN,DEVIATION, markov:NORMAL,SLOW,P_FALL,P_RECOVER (per task),
    /// correlated:HOSTS,MU,SIGMA,SHARE (log-normal, hosts' workers slow together),
    /// regimes:HOSTS,MEAN,DEVIATION,FACTOR,FIRST[,NORMAL,SLOW] (normal; a host FACTOR slower for its FIRST tasks, then,
    /// after about NORMAL tasks each, the next for about SLOW), bursts:HOSTS,MEAN,DEVIATION,FACTOR,P_BEGIN,P_END (each
    /// host up to FACTOR slower while another job is there, which comes and goes with these probabilities per task),
    /// periodic:HOSTS,MEAN,DEVIATION,FACTOR,PERIOD,LENGTH (each host in turn FACTOR slower for LENGTH of PERIOD tasks),
    /// contention:l1|l2|l3|production[,T] (machines shared with tasks that come and go; T alone), gpu:T (three types of
    /// GPU) or trace:FILE (CSV or Parquet, a row per step, a column per worker). That is for --batch samples; more or
    /// fewer take in proportion
    #[arg(long, value_name = "TIMES", default_value = "shifted-exponential:0.3,0.7")]
    pub times: TimesSpec,

    /// Makes workers slower by a factor, e.g. 0=3.0,4-7=2
    #[arg(long, value_name = "RANKS=FACTOR,…", default_value = "")]
    pub slow: Slowness,

    /// A file of timed changes, a line each: "160 slow 8-15 5", "170 link 2 3", "200 leave 3", "210 crash 4 2.5",
    /// "300 join 3-4"
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,

    /// How long messages take: latency=SECONDS, bandwidth=BYTES_PER_SECOND of the server's link, link=BYTES_PER_SECOND of
    /// each worker's own and bytes=N per message, with commas; no time at all if not given
    #[arg(long, value_name = "NETWORK")]
    pub network: Option<NetworkSpec>,
}

impl Cluster {
    /// Reads the script and checks that everything is about workers that there are.
    pub fn load(&self, times: &Times) -> anyhow::Result<(usize, Script)> {
        let traced = times.traced_workers();
        let workers = self.workers.map_or(traced.unwrap_or(WORKERS), |workers| workers as usize);
        if let Some(traced) = traced.filter(|&traced| traced < workers) {
            bail!("--workers {workers}, but the trace is of {traced}");
        }
        if let Some(last) = self.slow.last().filter(|last| last.index() >= workers) {
            bail!("--slow names {last}, but there are {workers} workers, 0 to {}", workers - 1);
        }
        let script = match &self.script {
            Some(path) => Script::read(path, workers)?,
            None => Script::default(),
        };
        Ok((workers, script))
    }
}
