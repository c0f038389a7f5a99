//! `paceline scale`: what a run of many workers costs its coordinator and its links.

use std::fs;
use std::time::Instant;

use anyhow::anyhow;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use paceline_config::{Failure, scheme, whole};
use paceline_core::{SchemeSpec, Setup};
use paceline_net::{FRAME_HEADER_BYTES, frame_bytes};
use paceline_report::numbers::time;
use paceline_report::progress::bars;
use paceline_runtime::is_interrupted;
use paceline_torture::{FrameSize, LinkTraffic, ScaleReport, ScaleSetup, run_at_scale};
use serde::Serialize;
use serde_json::json;

use crate::interrupt;
use crate::output::say;

/// Run a scheme with many workers in virtual time, and count what it costs the coordinator and the links
#[derive(Args)]
#[command(
    after_help = "The scheme and both sides of the protocol are those of a real run, with a shard on every host. There are no \
faults. Bytes are those of the frames that a real run sends; times are those of this machine's processor.

Examples:
  paceline scale
  paceline scale --workers 10000 --hosts 1000 --scheme esync"
)]
pub struct ScaleArgs {
    /// Number of workers
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole::<u32>(1..=100_000))]
    workers: u32,

    /// Number of hosts, each with a shard and its share of the workers
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole::<u32>(1..=100_000))]
    hosts: u32,

    /// Number of parameters of the model
    #[arg(long, value_name = "N", default_value_t = 25_600_000, value_parser = whole::<u64>(1..=1_000_000_000_000))]
    parameters: u64,

    /// How many updates are counted, for every worker on average
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = whole::<u64>(1..=1_000_000))]
    rounds: u64,

    /// The scheme
    #[arg(long, value_name = "SCHEME", default_value = "bsp", value_parser = scheme)]
    scheme: SchemeSpec,

    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// The frames of `paceline-net`.
struct WireFrames;

impl FrameSize for WireFrames {
    fn bytes<M: Serialize>(&self, message: &M) -> u64 {
        frame_bytes(message) as u64
    }

    fn header(&self) -> u64 {
        FRAME_HEADER_BYTES as u64
    }
}

impl ScaleArgs {
    pub fn run(self) -> Result<(), Failure> {
        let start = Instant::now();
        if self.hosts > self.workers {
            let (hosts, workers) = (self.hosts, self.workers);
            return Err(Failure::Input(anyhow!("--hosts {hosts}: expected at most one for each of {workers} workers")));
        }
        let workers = self.workers as usize;
        let scheme = self.scheme.build(&Setup::new(workers, 32)).map_err(|error| Failure::Input(error.into()))?;
        interrupt::listen_for_result()?;
        let bar = bars().add(ProgressBar::new(self.rounds));
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len} rounds [{elapsed}, {eta} left]");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let setup = ScaleSetup {
            workers,
            hosts: self.hosts as usize,
            parameters: self.parameters as usize,
            rounds: self.rounds,
        };
        let report = run_at_scale(setup, scheme, &WireFrames, &mut |round| {
            bar.set_position(round);
            !is_interrupted()
        });
        bar.finish_and_clear();
        let report = report.map_err(|error| Failure::Run(anyhow!("scheme {}: {error}", self.scheme)))?;
        if self.json {
            let ScaleArgs { hosts, parameters, .. } = self;
            say(json!({
                "scheme": self.scheme.to_string(), "workers": workers, "hosts": hosts, "parameters": parameters,
                "memory_bytes": peak_memory(), "wall_seconds": start.elapsed().as_secs_f64(), "counted": report,
            }));
        } else {
            self.print(&report);
        }
        interrupt::check()
    }

    fn print(&self, report: &ScaleReport) {
        let commits = report.commits.max(1) as f64;
        let ScaleArgs { scheme, workers, hosts, .. } = self;
        let (updates, seconds) = (report.updates as f64 / commits, report.seconds / commits);
        say(format_args!(
            "{scheme}: {workers} workers on {hosts} hosts, {} commits of {updates:.1} updates",
            report.commits
        ));
        let links = [
            ("workers to coordinator", report.from_workers),
            ("coordinator to workers", report.to_workers),
            ("coordinator to shards", report.to_shards),
            ("shards to coordinator", report.from_shards),
            ("values over the link of a host", per_host(report.values, *hosts)),
        ];
        say(format_args!("{:<32}{:>12}{:>12}", "per commit", "messages", "MB"));
        for (link, LinkTraffic { messages, bytes }) in links {
            let (messages, megabytes) = (messages as f64 / commits, bytes as f64 / commits / 1e6);
            say(format_args!("{link:<32}{messages:>12.1}{megabytes:>12.4}"));
        }
        say(format_args!(
            "coordinator: {} of processor time a commit, which takes {} of virtual time; {} more to join the sums of squares",
            time(report.processor_seconds / commits),
            time(seconds),
            time(report.joining_seconds)
        ));
        say(format_args!(
            "longest message to a shard: {} bytes; memory of this simulation: {:.0} MB",
            report.longest_message,
            peak_memory() as f64 / 1e6
        ));
    }
}

/// Values leave one host and arrive at another: each is counted at both.
fn per_host(values: LinkTraffic, hosts: u32) -> LinkTraffic {
    let hosts = u64::from(hosts);
    LinkTraffic { messages: 2 * values.messages / hosts, bytes: 2 * values.bytes / hosts }
}

/// The most memory that this process has used.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    1024 * line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default()
}
