//! `paceline race`: several schemes under the same conditions.

mod figures;
mod real;

use std::path::{Path, PathBuf};

use clap::Args;
use paceline_core::{SchemeSpec, Setup};
use paceline_run::{Goals, Header};
use paceline_sim::Simulation;
use serde_json::json;

use crate::batch;
use crate::config::Settings;
use crate::contest::{self, Contenders, Ranking, Showing};
use crate::destination::make_folder;
use crate::failure::Failure;
use crate::options::{Late, Scenario, Seeds, whole};
use crate::output::say;
use crate::plot;
use crate::report;
use crate::run_folder::{RunFolder, check_free, next_free};

/// Let schemes race to the same target, under the same conditions
#[derive(Args)]
#[command(
    mut_arg("times", |arg| arg.conflicts_with("real")),
    mut_arg("slow", |arg| arg.default_value("0=3").conflicts_with("real")),
    mut_arg("script", |arg| arg.conflicts_with("real")),
    mut_arg("network", |arg| arg.default_value("latency=0.01,bandwidth=1.25e7").conflicts_with("real")),
    mut_args(contest::small_race),
    after_help = "If nothing else is said, eight workers of uneven times race, one of them three times slower than the \
others, on a network of 100 Mbit/s. The rate of a step is in proportion to the updates in it, so that a sample moves the \
model as far under every scheme.

Examples:
  paceline race
  paceline race --schemes bsp,backup:k=6,dbw,asp --times pareto:1,1.5 --seeds 1..10
  paceline race --network latency=0.05,bandwidth=1e6          when the network is what is slow
  paceline race --times trace:times.csv --slow '' --out RACE
  paceline race --real --schemes bsp,backup:k=3,asp --emulate 0=3"
)]
pub struct Race {
    /// Who takes part: all, or several schemes with commas (`paceline simulate --help` lists them)
    #[arg(long, value_name = "SCHEMES", default_value = "all")]
    schemes: Contenders,

    /// Which seeds to run each scheme with: 7, 1..20 (both ends included) or 1,5,9
    #[arg(long, value_name = "SEEDS", default_value = "1..3")]
    seeds: Seeds,

    /// Threads that compute; results are the same for any number [default: all cores]
    #[arg(long, value_name = "N", conflicts_with = "real", value_parser = whole::<u16>(1..=1024))]
    threads: Option<u16>,

    /// Race with worker processes and real time, one run after another, instead of simulating; 4 workers by default
    #[arg(long)]
    real: bool,

    /// With --real: makes workers late on purpose, as `paceline train --emulate` does; may be given several times
    #[arg(long, value_name = "RANKS=FACTOR|TIMES", requires = "real")]
    emulate: Vec<Late>,

    #[command(flatten)]
    scenario: Scenario,

    #[command(flatten)]
    output: Output,
}

/// Where results go.
#[derive(Args)]
#[command(next_help_heading = "Output")]
struct Output {
    /// Read options from a TOML file whose keys are these flags; flags count more
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Write pictures, a report, and the run folder of every scheme's first seed here [default: a new folder in runs/]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Print JSON: an object with the verdict, then one per scheme
    #[arg(long)]
    json: bool,
}

impl Race {
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        contest::check_target(&self.scenario).map_err(Failure::Input)?;
        let out = self.folder().map_err(Failure::Input)?;
        let showings = if self.real { real::race(&self, settings, &out)? } else { self.simulate(settings, &out)? };
        let ranking = Ranking::new(&showings, &Goals::any(&self.scenario.until));
        self.show(&ranking, &showings, &out).map_err(Failure::Run)
    }

    fn folder(&self) -> anyhow::Result<PathBuf> {
        match &self.output.out {
            Some(out) => check_free(out).map(|()| out.clone()),
            None => next_free("race-"),
        }
    }

    fn simulate(&self, settings: &Settings, out: &Path) -> Result<Vec<Showing>, Failure> {
        let prepared = self.scenario.prepare().map_err(Failure::Input)?;
        let schemes = self.schemes.specs(prepared.setup(), false).map_err(Failure::Input)?;
        make_folder(out).map_err(Failure::Input)?;
        let settings = settings.clone().without(&["schemes", "real", "emulate"]);
        let folder = |simulation: &Simulation| {
            let Simulation { scheme, setup, seed, .. } = simulation;
            if *seed != self.seeds.0[0] {
                return Ok(None);
            }
            let settings = settings.clone().with("scheme", scheme).with("seeds", seed).with("workers", setup.workers);
            let header = Header::new(scheme.clone(), setup);
            RunFolder::create(&out.join(folder_name(scheme)), &settings, &header).map(Some)
        };
        let threads = batch::threads(self.threads);
        contest::simulate(&prepared, &schemes, &self.seeds.0, threads, folder).map_err(Failure::Run)
    }

    /// What schemes are built for when workers are real.
    fn real_setup(&self) -> Setup {
        let workers = self.scenario.cluster.workers.unwrap_or(4) as usize;
        Setup { workers, batch: self.scenario.training.batch, handout: self.scenario.handout }
    }

    fn show(&self, ranking: &Ranking, showings: &[Showing], out: &Path) -> anyhow::Result<()> {
        make_folder(out)?;
        let panels = figures::panels(ranking, showings);
        for ending in ["png", "svg"] {
            plot::save(&out.join("race").with_extension(ending), &panels)?;
        }
        report::write(&out.join("report.html"), &report::run_folders(&[out.to_path_buf()])?)?;
        if self.output.json {
            let winner = ranking.winner().map(|winner| winner.scheme.as_str());
            say(json!({ "winner": winner, "why": ranking.verdict(), "folder": out }));
            for place in &ranking.places {
                say(json!(place));
            }
            return Ok(());
        }
        say(format_args!("{}\n\n{}", ranking.table(), ranking.verdict()));
        for late in &self.emulate {
            say(format_args!("Straggling was emulated: {late}"));
        }
        say(format_args!("A picture, a report and the run folders: {}", out.display()));
        Ok(())
    }
}

/// A scheme as the name of a folder.
fn folder_name(scheme: &SchemeSpec) -> String {
    scheme.to_string().replace([':', ','], "_").replace('/', "-")
}
