//! `paceline torture`: run every scheme under random faults on a virtual clock.

use std::panic;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::anyhow;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use paceline_core::{SchemeSpec, Setup};
use paceline_torture::{FaultSchedule, TortureReport, schemes, shrink, torture};
use serde_json::json;

use crate::interrupt;
use crate::output::say;
use paceline_config::Failure;
use paceline_config::{scheme, whole};
use paceline_report::numbers::{counted, time};
use paceline_report::progress::bars;
use paceline_runtime::is_interrupted;

/// The largest number of workers that a scheme's settings may require.
const MAX_WORKERS: usize = 64;

/// Run the protocol with every scheme under random faults of workers, network, shards and servers, in virtual time
#[derive(Args)]
#[command(
    after_help = "A seed gives a schedule of faults, and every scheme runs under it. Workers crash, freeze, slow down and lie; \
connections are cut, delayed and reset; servers are killed, stand still, and are cut off from workers or storage. In half of the \
seeds the parameters are in shards beside the workers, or other servers stand by, or both. A failure is printed with the smallest \
schedule found that reproduces it. --seed replays a seed exactly.

Examples:
  paceline torture
  paceline torture --seeds 10000
  paceline torture --seed 17 --scheme backup:k=2"
)]
pub struct TortureArgs {
    /// Number of seeds to run, starting at 0
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = whole::<u64>(1..=100_000_000))]
    seeds: u64,

    /// Run this seed only
    #[arg(long, value_name = "SEED", conflicts_with = "seeds")]
    seed: Option<u64>,

    /// Run this scheme only; may be given several times [default: all schemes, with every dispatch]
    #[arg(long, value_name = "SCHEME", value_parser = scheme)]
    scheme: Vec<SchemeSpec>,

    /// Number of threads; does not change the outcome [default: the number of processors]
    #[arg(long, value_name = "COUNT", value_parser = whole::<u32>(1..=1024))]
    threads: Option<u32>,

    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

/// The counts of all runs so far.
#[derive(Default)]
struct CampaignTotals {
    runs: u64,
    events: u64,
    versions: u64,
    /// The lowest seed with a failure, and the index of the scheme that failed.
    failed: Option<(u64, usize)>,
}

impl TortureArgs {
    pub fn run(self) -> Result<(), Failure> {
        let start = Instant::now();
        for scheme in &self.scheme {
            fitting(scheme, FaultSchedule::from_seed(0)).map_err(Failure::Input)?;
        }
        interrupt::listen_for_result()?;
        let range = self.seed.map_or(0..self.seeds, |seed| seed..seed.saturating_add(1));
        let bar = bars().add(ProgressBar::new(range.end - range.start));
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len} seeds [{elapsed}, {eta} left]");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        // A panic of a scheme is reported as its failure, so the hook prints nothing.
        panic::set_hook(Box::new(|_| {}));
        let (next, done) = (AtomicU64::new(range.start), AtomicU64::new(0));
        let totals = Mutex::new(CampaignTotals::default());
        let threads =
            self.threads.map_or_else(|| thread::available_parallelism().map_or(1, usize::from), |given| given as usize);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        let failed = |totals: &mut CampaignTotals| totals.failed.is_some_and(|(first, _)| first < seed);
                        if seed >= range.end || is_interrupted() || lock(&totals, failed) {
                            break;
                        }
                        self.run_seed(seed, &totals);
                        done.fetch_add(1, Ordering::Relaxed);
                        bar.inc(1);
                    }
                });
            }
        });
        bar.finish_and_clear();
        let totals = totals.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((seed, position)) = totals.failed {
            return Err(self.failure(seed, position));
        }
        let CampaignTotals { runs, events, versions, .. } = totals;
        let (seeds, seconds) = (done.into_inner(), start.elapsed().as_secs_f64());
        if self.json {
            say(
                json!({ "seeds": seeds, "histories": runs, "events": events, "versions": versions, "seconds": seconds }),
            );
        } else {
            let names: Vec<String> = self.scheme.iter().map(SchemeSpec::to_string).collect();
            let schemes = if names.is_empty() { "all schemes".into() } else { names.join(" and ") };
            say(format_args!(
                "no failures in {} with {schemes}: {}, {events} events, {versions} versions, {}",
                counted(seeds as usize, "seed"),
                counted(runs as usize, "run"),
                time(seconds)
            ));
        }
        interrupt::check()
    }

    /// The schemes of a seed, each with its fault schedule.
    fn runs(&self, seed: u64) -> Vec<(SchemeSpec, FaultSchedule)> {
        let schedule = FaultSchedule::from_seed(seed);
        if self.scheme.is_empty() {
            return schemes(schedule.workers).into_iter().map(|scheme| (scheme, schedule.clone())).collect();
        }
        let fit = |scheme: &SchemeSpec| Some((scheme.clone(), fitting(scheme, schedule.clone()).ok()?));
        self.scheme.iter().filter_map(fit).collect()
    }

    fn run_seed(&self, seed: u64, totals: &Mutex<CampaignTotals>) {
        for (position, (scheme, schedule)) in self.runs(seed).iter().enumerate() {
            let result = torture(schedule, &|setup| build(scheme, setup));
            let failed = lock(totals, |totals| {
                totals.runs += 1;
                match result {
                    Ok(TortureReport { events, versions }) => {
                        totals.events += events;
                        totals.versions += versions;
                        false
                    }
                    Err(_) => {
                        let found = (seed, position);
                        totals.failed = Some(totals.failed.map_or(found, |known| known.min(found)));
                        true
                    }
                }
            });
            if failed {
                return;
            }
        }
    }

    /// The error of a failed run, with the smallest fault schedule found.
    fn failure(&self, seed: u64, position: usize) -> Failure {
        let (scheme, schedule) = &self.runs(seed)[position];
        let build = |setup: &Setup| build(scheme, setup);
        let Err(failure) = torture(schedule, &build) else {
            return Failure::Run(anyhow!(
                "seed {seed}, scheme {scheme}: the failure did not recur in the replay; please report this as a bug"
            ));
        };
        let (smallest, failure) = shrink(schedule, failure, &build);
        let FaultSchedule { workers, batch, checkpoint_every, shards, servers, lease, faults, .. } = &smallest;
        let mut text = format!(
            "seed {seed}, scheme {scheme}: {failure}\n\nsmallest schedule found with this failure, {} of {} faults:",
            faults.len(),
            schedule.faults.len()
        );
        text +=
            &format!("\n  {workers} workers with batches of {batch}, a checkpoint every {checkpoint_every} versions");
        if *shards > 0 {
            text += &format!("\n  the parameters in {}", counted(*shards, "shard"));
        }
        if *servers > 1 {
            text += &format!("\n  {servers} servers, with leases of {lease}");
        }
        for (at, fault) in faults {
            text += &format!("\n  {at}: {fault}");
        }
        text += &format!("\n\nreplay with: paceline torture --seed {seed} --scheme {scheme}");
        Failure::Run(anyhow!(text))
    }
}

fn lock<T>(totals: &Mutex<CampaignTotals>, access: impl FnOnce(&mut CampaignTotals) -> T) -> T {
    access(&mut totals.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn build(scheme: &SchemeSpec, setup: &Setup) -> Box<dyn paceline_core::Scheme> {
    scheme.build(setup).expect("the scheme fits the number of workers")
}

/// The schedule with enough workers for the scheme.
fn fitting(scheme: &SchemeSpec, schedule: FaultSchedule) -> anyhow::Result<FaultSchedule> {
    let fits = |workers: &usize| scheme.build(&Setup::new(*workers, schedule.batch)).is_ok();
    match (schedule.workers..=MAX_WORKERS).find(fits) {
        Some(workers) => Ok(FaultSchedule { workers, ..schedule }),
        None => {
            let setup = Setup::new(MAX_WORKERS, schedule.batch);
            Err(scheme
                .build(&setup)
                .err()
                .map_or_else(|| anyhow!("{scheme} supports no number of workers up to {MAX_WORKERS}"), Into::into))
        }
    }
}
