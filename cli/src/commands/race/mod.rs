//! `paceline race`: compare schemes under the same conditions.

mod real;

use std::path::{Path, PathBuf};

use clap::Args;
use paceline_config::file::Configuration;
use paceline_config::{Failure, Scenario, SchemeList, Seeds, parallel, whole};
use paceline_core::{SchemeSpec, Setup};
use paceline_report::comparison::{Ranking, SchemeRuns, panels};
use paceline_report::{page, plot};
use paceline_runtime::{EventLogHeader, Goals, RunFolder, check_free, is_interrupted, next_free, set_aside};
use paceline_sim::Simulation;
use serde_json::json;

use crate::comparison;
use crate::destination::make_folder;
use crate::interrupt;
use crate::options::{ConfigFile, StragglerSpec};
use crate::output::say;

/// Compare how fast schemes reach the same target under the same conditions
#[derive(Args)]
#[command(
    mut_arg("times", |arg| arg.conflicts_with("real")),
    mut_arg("slow", |arg| arg.default_value("0=3").conflicts_with("real")),
    mut_arg("script", |arg| arg.conflicts_with("real")),
    mut_arg("network", |arg| arg.default_value("latency=0.01,bandwidth=1.25e7").conflicts_with("real")),
    mut_args(comparison::small_defaults),
    after_help = "By default there are eight workers with varying times, one of them three times slower than the \
others, on a network of 100 Mbit/s. The learning rate of a step is proportional to the updates in it, so that a sample \
moves the model equally far under every scheme.

Examples:
  paceline race
  paceline race --schemes bsp,backup:k=6,dbw,asp --times pareto:1,1.5 --seeds 1..10
  paceline race --network latency=0.05,bandwidth=1e6          when the network is the bottleneck
  paceline race --times trace:times.csv --slow '' --out RACE
  paceline race --real --schemes bsp,backup:k=3,asp --emulate 0=3"
)]
pub struct RaceArgs {
    /// Schemes to compare: all, or a list with commas (`paceline simulate --help` lists them)
    #[arg(long, value_name = "SCHEMES", default_value = "all")]
    schemes: SchemeList,

    /// Seeds to run each scheme with: 7, 1..20 (both ends included) or 1,5,9
    #[arg(long, value_name = "SEEDS", default_value = "1..3")]
    seeds: Seeds,

    /// Threads; the results do not depend on their number [default: all cores]
    #[arg(long, value_name = "N", conflicts_with = "real", value_parser = whole::<u16>(1..=1024))]
    threads: Option<u16>,

    /// Run worker processes, one run after another, instead of simulating; 4 workers by default
    #[arg(long)]
    real: bool,

    /// With --real: emulate stragglers, as `paceline train --emulate` does; may be given several times
    #[arg(long, value_name = "RANKS=FACTOR|TIMES", requires = "real")]
    emulate: Vec<StragglerSpec>,

    #[command(flatten)]
    scenario: Scenario,

    #[command(flatten)]
    output: RaceOutput,
}

/// Where results go.
#[derive(Args)]
#[command(next_help_heading = "Output")]
struct RaceOutput {
    #[command(flatten)]
    config: ConfigFile,

    /// Folder for pictures, a report, and the run folder of every scheme's first seed [default: a new one in runs/]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Print JSON: an object with the winner and the reason, then one per scheme
    #[arg(long)]
    json: bool,
}

impl RaceArgs {
    pub fn run(self, configuration: &Configuration) -> Result<(), Failure> {
        comparison::check_target(&self.scenario).map_err(Failure::Input)?;
        let out = self.folder().map_err(Failure::Input)?;
        interrupt::listen_for_result()?;
        let results =
            if self.real { real::race(&self, configuration, &out)? } else { self.simulate(configuration, &out)? };
        let results = comparison::complete(results, self.seeds.0.len()).inspect_err(|_| {
            // No run is complete, so there is nothing in the folder but perhaps the options. It may be in use otherwise.
            let _ = std::fs::remove_file(out.join(real::OPTIONS)).and(std::fs::remove_dir(&out));
        })?;
        let ranking = Ranking::new(&results, &Goals::any(&self.scenario.until));
        let out = self.write(&ranking, &results, out).map_err(Failure::Run)?;
        self.show(&ranking, &out);
        interrupt::check()
    }

    fn folder(&self) -> anyhow::Result<PathBuf> {
        match &self.output.out {
            Some(out) => Ok(check_free(out).map(|()| out.clone())?),
            None => Ok(next_free("race-")),
        }
    }

    fn simulate(&self, configuration: &Configuration, out: &Path) -> Result<Vec<SchemeRuns>, Failure> {
        let prepared = self.scenario.prepare().map_err(Failure::Input)?;
        let schemes = self.schemes.specs(prepared.setup(), false).map_err(Failure::Input)?;
        make_folder(out).map_err(Failure::Input)?;
        let configuration = configuration.clone().without(&["schemes", "real", "emulate"]);
        let folder = |simulation: &Simulation| {
            let Simulation { scheme, setup, seed, .. } = simulation;
            if *seed != self.seeds.0[0] {
                return Ok(None);
            }
            let configuration =
                configuration.clone().with("scheme", scheme).with("seeds", seed).with("workers", setup.workers);
            let header = EventLogHeader::new(scheme.clone(), setup);
            let layout = simulation.training.as_ref().map(|training| training.workload.layout());
            let folder = out.join(folder_name(scheme));
            Ok(Some(RunFolder::create(&folder, &configuration.to_string(), &header, layout)?))
        };
        let threads = parallel::threads(self.threads);
        comparison::simulate(&prepared, &schemes, &self.seeds.0, threads, folder).map_err(Failure::Run)
    }

    /// The setup that schemes are built for with `--real`.
    fn real_setup(&self) -> Setup {
        let workers = self.scenario.cluster.workers.unwrap_or(4) as usize;
        self.scenario.training.setup(workers, self.scenario.dispatch)
    }

    /// Writes pictures and report. Returns the folder, which has another name after an interrupt if the user named it.
    fn write(&self, ranking: &Ranking, results: &[SchemeRuns], out: PathBuf) -> anyhow::Result<PathBuf> {
        let panels = panels(ranking, results);
        for ending in plot::FORMATS {
            plot::save(&out.join("race").with_extension(ending), &panels)?;
        }
        page::write(&out.join("report.html"), &page::run_folders(std::slice::from_ref(&out))?)?;
        Ok(if is_interrupted() && self.output.out.is_some() { set_aside(&out)? } else { out })
    }

    fn show(&self, ranking: &Ranking, out: &Path) {
        if self.output.json {
            let winner = ranking.winner().map(|winner| winner.scheme.as_str());
            say(json!({ "winner": winner, "why": ranking.explanation(), "folder": out }));
            for place in &ranking.places {
                say(json!(place));
            }
            return;
        }
        say(format_args!("{}\n\n{}", ranking.table(), ranking.explanation()));
        for straggler in &self.emulate {
            say(format_args!("Straggling was emulated: {straggler}"));
        }
        say(format_args!("Pictures, report and run folders: {}", out.display()));
    }
}

/// A scheme as the name of a folder.
fn folder_name(scheme: &SchemeSpec) -> String {
    scheme.to_string().replace([':', ','], "_").replace('/', "-")
}
