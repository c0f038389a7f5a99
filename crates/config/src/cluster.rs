//! The simulated cluster.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use paceline_sim::{NetworkSpec, RankSet, Script, Slowness, Times, TimesSpec};

use crate::whole;

/// Number of workers without `--workers` and without a trace.
const DEFAULT_WORKERS: usize = 8;

/// Limit on simulated workers: an iteration takes seconds and a few gigabytes.
const MAX_WORKERS: u64 = 1_000_000;

/// The workers, their times and their network.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cluster")]
pub struct Cluster {
    /// Number of workers at the start [default: 8, or those of a trace]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=MAX_WORKERS))]
    pub workers: Option<u32>,

    /// Use only some of these workers, e.g. 1-7 or 0,3; they keep their times, slowness and links, and get ranks from 0
    #[arg(long, value_name = "RANKS")]
    pub only: Option<RankSet>,

    /// Time of a task of --batch samples, in seconds; other sizes take time in proportion. Values are given in order or
    /// by key: normal:0.3,0.02 is normal:mean=0.3,deviation=0.02. One of deterministic:SECONDS, uniform:LOW,HIGH,
    /// shifted-exponential:SHIFT,SCALE, pareto:SCALE,SHAPE, lognormal:MU,SIGMA, normal:MEAN,DEVIATION,
    /// markov:NORMAL,SLOW,P-FALL,P-RECOVER (probabilities per task), correlated:HOSTS,MU,SIGMA,SHARE (log-normal; the
    /// workers of a host are slow together), regimes:HOSTS,MEAN,DEVIATION,FACTOR,FIRST[,NORMAL,SLOW] (normal; the first
    /// host is FACTOR times slower for FIRST tasks; then, after about NORMAL tasks each, the next host for about SLOW
    /// tasks), bursts:HOSTS,MEAN,DEVIATION,FACTOR,P-BEGIN,P-END (normal; a host is up to FACTOR times slower during
    /// another job, which begins and ends with these probabilities per task),
    /// periodic:HOSTS,MEAN,DEVIATION,FACTOR,PERIOD,LENGTH (normal; each host in turn is FACTOR times slower for LENGTH
    /// of PERIOD tasks), contention:CLUSTER[,SECONDS] (machines shared with other tasks; CLUSTER is l1, l2, l3 or
    /// production, SECONDS the time without other tasks), gpu:SECONDS (GPUs of three types; SECONDS on the slowest) or
    /// trace:FILE (.csv, a row per step, a column per worker)
    #[arg(long, value_name = "TIMES", default_value = "shifted-exponential:0.3,0.7")]
    pub times: TimesSpec,

    /// Slow workers down by a factor, e.g. 0=3.0,4-7=2
    #[arg(long, value_name = "RANKS=FACTOR,…", default_value = "")]
    pub slow: Slowness,

    /// File of timed changes, one per line: "160 slow 8-15 5", "170 link 2 3", "200 leave 3", "210 crash 4 2.5",
    /// "300 join 3-4"
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,

    /// Network: latency=SECONDS, bandwidth=BYTES_PER_SECOND of the server's link, link=BYTES_PER_SECOND of each
    /// worker's link and bytes=N per message, with commas; without it, messages take no time
    #[arg(long, value_name = "NETWORK")]
    pub network: Option<NetworkSpec>,
}

impl Cluster {
    /// Reads the script, and checks that all options name existing workers.
    pub fn load(&self, times: &Times) -> anyhow::Result<(usize, Script)> {
        let traced = times.traced_workers();
        let workers = self.workers.map_or(traced.unwrap_or(DEFAULT_WORKERS), |workers| workers as usize);
        if let Some(traced) = traced.filter(|&traced| traced < workers) {
            bail!("--workers {workers}, but the trace has {traced}; expected at most {traced}");
        }
        if let Some(last) = self.slow.last().filter(|last| last.index() >= workers) {
            bail!("--slow {}: {last} does not exist; expected ranks 0 to {}", self.slow, workers - 1);
        }
        if let Some(only) = self.only.as_ref().filter(|only| only.last().index() >= workers) {
            bail!("--only {only}: {} does not exist; expected ranks 0 to {}", only.last(), workers - 1);
        }
        let script = match &self.script {
            Some(path) => Script::read(path, workers)?,
            None => Script::default(),
        };
        Ok((workers, script))
    }
}
