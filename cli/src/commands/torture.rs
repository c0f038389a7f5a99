//! `paceline torture`: put every scheme through random faults on a virtual clock.

use std::panic;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::anyhow;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use paceline_core::{SchemeSpec, Setup};
use paceline_torture::{History, Survival, schemes, shorten, torture};
use serde_json::json;

use crate::output::say;
use paceline_config::Failure;
use paceline_config::{scheme, whole};
use paceline_report::numbers::{counted, time};
use paceline_report::progress::bars;

/// The most workers a scheme's own settings may ask for.
const MOST_WORKERS: usize = 64;

/// Put schemes through random joins, crashes, freezes, bad networks, clock jumps and server restarts, in virtual time
#[derive(Args)]
#[command(
    after_help = "A seed is a history of faults; every scheme lives through it. One that fails is shown with the shortest \
history found, and is replayed exactly with --seed.

Examples:
  paceline torture
  paceline torture --seeds 10000
  paceline torture --seed 17 --scheme backup:k=2"
)]
pub struct TortureArgs {
    /// How many seeds to try, from 0 on
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = whole::<u64>(1..=100_000_000))]
    seeds: u64,

    /// Try this seed alone
    #[arg(long, value_name = "SEED", conflicts_with = "seeds")]
    seed: Option<u64>,

    /// Try this scheme alone; may be given several times [default: all, with all ways to hand out work]
    #[arg(long, value_name = "SCHEME", value_parser = scheme)]
    scheme: Vec<SchemeSpec>,

    /// Threads that try seeds; the outcome does not depend on them [default: as many as there are processors]
    #[arg(long, value_name = "COUNT", value_parser = whole::<u32>(1..=1024))]
    threads: Option<u32>,

    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

/// What came of the seeds tried so far.
#[derive(Default)]
struct Tally {
    histories: u64,
    events: u64,
    versions: u64,
    /// The lowest seed that failed, and where its scheme stands in the list.
    failed: Option<(u64, usize)>,
}

impl TortureArgs {
    pub fn run(self) -> Result<(), Failure> {
        let began = Instant::now();
        for scheme in &self.scheme {
            fitting(scheme, History::of(0)).map_err(Failure::Input)?;
        }
        let range = self.seed.map_or(0..self.seeds, |seed| seed..seed.saturating_add(1));
        let bar = bars().add(ProgressBar::new(range.end - range.start));
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len} seeds [{elapsed}, {eta} left]");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        // A panic is an outcome here, which is told with its history.
        panic::set_hook(Box::new(|_| {}));
        let (next, tally) = (AtomicU64::new(range.start), Mutex::new(Tally::default()));
        let threads =
            self.threads.map_or_else(|| thread::available_parallelism().map_or(1, usize::from), |given| given as usize);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        let enough = |tally: &mut Tally| tally.failed.is_some_and(|(failed, _)| failed < seed);
                        if seed >= range.end || lock(&tally, enough) {
                            break;
                        }
                        self.try_seed(seed, &tally);
                        bar.inc(1);
                    }
                });
            }
        });
        bar.finish_and_clear();
        let tally = tally.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((seed, position)) = tally.failed {
            return Err(self.told(seed, position));
        }
        let Tally { histories, events, versions, .. } = tally;
        let (seeds, seconds) = (range.end - range.start, began.elapsed().as_secs_f64());
        if self.json {
            say(
                json!({ "seeds": seeds, "histories": histories, "events": events, "versions": versions, "seconds": seconds }),
            );
        } else {
            let names: Vec<String> = self.scheme.iter().map(SchemeSpec::to_string).collect();
            let who = if names.is_empty() { "all schemes".into() } else { names.join(" and ") };
            say(format_args!(
                "{who} survived {}: {histories} {}, {events} events, {versions} versions, {}",
                counted(seeds as usize, "seed"),
                if histories == 1 { "history" } else { "histories" },
                time(seconds)
            ));
        }
        Ok(())
    }

    /// The schemes of a seed, each with the history that it lives through.
    fn trials(&self, seed: u64) -> Vec<(SchemeSpec, History)> {
        let history = History::of(seed);
        if self.scheme.is_empty() {
            return schemes(history.workers).into_iter().map(|scheme| (scheme, history.clone())).collect();
        }
        let fit = |scheme: &SchemeSpec| fitting(scheme, history.clone()).ok().map(|history| (scheme.clone(), history));
        self.scheme.iter().filter_map(fit).collect()
    }

    fn try_seed(&self, seed: u64, tally: &Mutex<Tally>) {
        for (position, (scheme, history)) in self.trials(seed).iter().enumerate() {
            let survived = torture(history, &|setup| build(scheme, setup));
            let failed = lock(tally, |tally| {
                tally.histories += 1;
                match survived {
                    Ok(Survival { events, versions }) => {
                        tally.events += events;
                        tally.versions += versions;
                        false
                    }
                    Err(_) => {
                        let found = (seed, position);
                        tally.failed = Some(tally.failed.map_or(found, |known| known.min(found)));
                        true
                    }
                }
            });
            if failed {
                return;
            }
        }
    }

    /// A failure in words, with the shortest history found.
    fn told(&self, seed: u64, position: usize) -> Failure {
        let (scheme, history) = &self.trials(seed)[position];
        let make = |setup: &Setup| build(scheme, setup);
        let Err(failure) = torture(history, &make) else {
            return Failure::Run(anyhow!(
                "seed {seed}, scheme {scheme}: it failed once and survived when it was replayed"
            ));
        };
        let (shortest, failure) = shorten(history, failure, &make);
        let History { workers, batch, checkpoint_every, troubles, .. } = &shortest;
        let mut text = format!(
            "seed {seed}, scheme {scheme}: {failure}\n\nthe shortest history found that fails so, {} of {} troubles:",
            troubles.len(),
            history.troubles.len()
        );
        text +=
            &format!("\n  {workers} workers with batches of {batch}, a checkpoint every {checkpoint_every} versions");
        for (at, trouble) in troubles {
            text += &format!("\n  {at}: {trouble}");
        }
        text += &format!("\n\nto replay it: paceline torture --seed {seed} --scheme {scheme}");
        Failure::Run(anyhow!(text))
    }
}

fn lock<T>(tally: &Mutex<Tally>, look: impl FnOnce(&mut Tally) -> T) -> T {
    look(&mut tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn build(scheme: &SchemeSpec, setup: &Setup) -> Box<dyn paceline_core::Scheme> {
    scheme.build(setup).expect("it was built for as many workers before")
}

/// The history with as many workers as the scheme needs.
fn fitting(scheme: &SchemeSpec, history: History) -> anyhow::Result<History> {
    let fits =
        |workers: &usize| scheme.build(&Setup { workers: *workers, batch: history.batch, dispatch: None }).is_ok();
    match (history.workers..=MOST_WORKERS).find(fits) {
        Some(workers) => Ok(History { workers, ..history }),
        None => {
            let setup = Setup { workers: MOST_WORKERS, batch: history.batch, dispatch: None };
            Err(scheme.build(&setup).err().map_or_else(|| anyhow!("{scheme} fits no number of workers"), Into::into))
        }
    }
}
