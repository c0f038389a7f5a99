//! `paceline race`: compare schemes under the same conditions.

mod baselines;
mod real;
mod suite;
mod tuning;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use paceline_config::file::Configuration;
use paceline_config::{Contestant, Failure, PreparedScenario, Scenario, SchemeList, Seeds, parallel, whole};
use paceline_core::{SchemeSpec, Setup};
use paceline_report::comparison::{ContestantRuns, Ranking, panels};
use paceline_report::live_table::LiveTable;
use paceline_report::page::Recommendation;
use paceline_report::plot;
use paceline_runtime::{Goals, RunFolder, check_free, is_interrupted, next_free, set_aside};
use paceline_sim::Simulation;
use serde_json::json;

use crate::comparison;
use crate::destination::make_folder;
use crate::interrupt;
use crate::options::{ConfigFile, StragglerSpec};
use crate::output::say;
use tuning::Tuned;

/// Compare how fast schemes reach the same target under the same conditions
#[derive(Args)]
#[command(
    mut_arg("times", |arg| arg.conflicts_with("real")),
    mut_arg("only", |arg| arg.conflicts_with("real")),
    mut_arg("slow", |arg| arg.default_value("0=3").conflicts_with("real")),
    mut_arg("script", |arg| arg.conflicts_with("real")),
    mut_arg("network", |arg| arg.default_value("latency=0.01,bandwidth=1.25e7").conflicts_with("real")),
    mut_args(comparison::small_defaults),
    after_help = "By default there are eight workers with varying times, one of them three times slower than the \
others, on a network of 100 Mbit/s. The learning rate of a step is proportional to the updates in it, so that a sample \
moves the model equally far under every scheme.

Contestants are compared seed by seed. A speedup comes with its 95 % confidence interval; where that includes 1, the seeds \
show no difference. Beside the schemes, bsp runs on the fast workers alone, if that is faster, and on the fastest one.

Examples:
  paceline race
  paceline race --schemes bsp,asp --tune lr                   each at its own best learning rate
  paceline race --schemes bsp,backup:k=6,dbw,asp --times pareto:1,1.5 --seeds 1..10
  paceline race --network latency=0.05,bandwidth=1e6          when the network is the bottleneck
  paceline race --times trace:times.csv --slow '' --out RACE
  paceline race --suite experiments/scenarios --seeds 1..10   in many clusters, one table
  paceline race --real --schemes bsp,backup:k=3,asp --emulate 0=3"
)]
pub struct RaceArgs {
    /// Schemes to compare: all, or a list with commas (`paceline simulate --help` lists them)
    #[arg(long, value_name = "SCHEMES", default_value = "all")]
    schemes: SchemeList,

    /// Seeds to run each contestant with: 7, 1..20 (both ends included) or 1,5,9; at least 3 to tell them apart
    #[arg(long, value_name = "SEEDS", default_value = "1..5")]
    seeds: Seeds,

    /// Run every contestant at the best of seven learning rates from 1/8 to 8 times --lr, found with two other seeds
    #[arg(long, value_name = "WHAT", value_enum)]
    tune: Option<Tuned>,

    /// Race in every scenario of a folder (*.toml, with these flags as keys), and compare the contestants over all of them.
    /// Flags on the command line take precedence
    #[arg(long, value_name = "DIR", conflicts_with = "real")]
    suite: Option<PathBuf>,

    /// Leave out what runs beside the schemes: bsp on all workers, on the fast ones and on the fastest alone
    #[arg(long)]
    no_baselines: bool,

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

    /// Folder for pictures, a page, and the run folder of every contestant's first seed; with --suite, for the table
    /// [default: a new one in runs/]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Print JSON: an object with the winner and the reason (with --suite, the scenarios), then one per contestant
    #[arg(long)]
    json: bool,
}

impl RaceArgs {
    /// `arguments` are those of the program.
    pub fn run(self, configuration: &Configuration, arguments: &[OsString]) -> Result<(), Failure> {
        if let Some(folder) = &self.suite {
            return suite::run(&self, folder, arguments);
        }
        comparison::check_target(&self.scenario).map_err(Failure::Input)?;
        let out = self.folder().map_err(Failure::Input)?;
        interrupt::listen_for_result()?;
        let results =
            if self.real { real::race(&self, configuration, &out)? } else { self.simulated(configuration, &out)? };
        let results = comparison::complete(results, self.seeds.0.len()).inspect_err(|_| {
            // No run is complete, so there is nothing in the folder but perhaps the options. It may be in use otherwise.
            let _ = std::fs::remove_file(out.join(real::OPTIONS)).and(std::fs::remove_dir(&out));
        })?;
        let ranking = Ranking::new(&results, &Goals::any(&self.scenario.until));
        let out = self.write(&ranking, results, out).map_err(Failure::Run)?;
        self.show(&ranking, &out);
        interrupt::check()
    }

    fn folder(&self) -> anyhow::Result<PathBuf> {
        match &self.output.out {
            Some(out) => Ok(check_free(out).map(|()| out.clone())?),
            None => Ok(next_free("race-")),
        }
    }

    fn simulated(&self, configuration: &Configuration, out: &Path) -> Result<Vec<ContestantRuns>, Failure> {
        let prepared = self.scenario.prepare().map_err(Failure::Input)?;
        let (contestants, _) = self.simulated_contestants(&prepared)?;
        make_folder(out).map_err(Failure::Input)?;
        self.hold(contestants, prepared.setup().workers, |heat| {
            self.simulate(&prepared, configuration, out, heat).map_err(Failure::Run)
        })
    }

    /// The schemes on all workers.
    fn contestants(&self, schemes: &[SchemeSpec]) -> Vec<Contestant> {
        schemes.iter().map(|scheme| self.scenario.contestant(scheme, None)).collect()
    }

    /// The schemes and the baselines, and the index of the one on the fast workers.
    fn simulated_contestants(
        &self,
        prepared: &PreparedScenario<'_>,
    ) -> Result<(Vec<Contestant>, Option<usize>), Failure> {
        let schemes = self.schemes.specs(prepared.setup(), false).map_err(Failure::Input)?;
        let mut contestants = self.contestants(&schemes);
        if self.no_baselines {
            return Ok((contestants, None));
        }
        let fast = prepared.fast_workers(&baselines::baseline()).map_err(Failure::Run)?;
        let fast = baselines::add(&mut contestants, fast, &self.scenario);
        Ok((contestants, Some(fast)))
    }

    /// Tunes the contestants if that is wanted, and runs them with the seeds of the race.
    fn hold(
        &self,
        contestants: Vec<Contestant>,
        workers: usize,
        run: impl Fn(&Heat<'_>) -> Result<Vec<ContestantRuns>, Failure>,
    ) -> Result<Vec<ContestantRuns>, Failure> {
        if self.tune.is_none() {
            return run(&Heat { contestants: &contestants, seeds: &self.seeds.0, tuning: false });
        }
        let grid = tuning::grid(&contestants, workers, self.scenario.training.lr_rule);
        let results = run(&Heat { contestants: &grid, seeds: &tuning::seeds(&self.seeds.0), tuning: true })?;
        if is_interrupted() {
            return Ok(contestants.iter().map(comparison::without_runs).collect());
        }
        let (tuned, at_edge): (Vec<Contestant>, Vec<bool>) = tuning::best(&grid, &results).into_iter().unzip();
        let mut results = run(&Heat { contestants: &tuned, seeds: &self.seeds.0, tuning: false })?;
        results.iter_mut().zip(at_edge).for_each(|(result, at_edge)| result.at_edge = Some(at_edge));
        Ok(results)
    }

    fn simulate(
        &self,
        prepared: &PreparedScenario<'_>,
        configuration: &Configuration,
        out: &Path,
        heat: &Heat<'_>,
    ) -> anyhow::Result<Vec<ContestantRuns>> {
        let configuration =
            configuration.clone().without(&["schemes", "real", "emulate", "tune", "no-baselines", "lr-of"]);
        let configuration = configuration.with("workers", prepared.workers());
        let folder = |contestant: &Contestant, simulation: &Simulation| {
            if heat.tuning || simulation.seed != self.seeds.0[0] {
                return Ok(None);
            }
            comparison::run_folder(out, &configuration, contestant, simulation).map(Some)
        };
        self.simulate_heat(prepared, heat, folder)
    }

    /// Runs a heat. `folder` creates a run's folder, for the runs that get one.
    fn simulate_heat(
        &self,
        prepared: &PreparedScenario<'_>,
        heat: &Heat<'_>,
        folder: impl Fn(&Contestant, &Simulation) -> anyhow::Result<Option<RunFolder>> + Sync,
    ) -> anyhow::Result<Vec<ContestantRuns>> {
        let threads = parallel::threads(self.threads);
        let live = LiveTable::new(&heat.names(), heat.seeds.len());
        comparison::simulate(prepared, heat.contestants, heat.seeds, threads, &live, folder)
    }

    /// The setup that schemes are built for with `--real`.
    fn real_setup(&self) -> Setup {
        let workers = self.scenario.cluster.workers.unwrap_or(4) as usize;
        self.scenario.training.setup(workers, self.scenario.dispatch)
    }

    /// Writes pictures and report. Returns the folder, which has another name after an interrupt if the user named it.
    fn write(&self, ranking: &Ranking, results: Vec<ContestantRuns>, out: PathBuf) -> anyhow::Result<PathBuf> {
        let panels = panels(ranking, &results);
        for ending in plot::FORMATS {
            plot::save(&out.join("race").with_extension(ending), &panels)?;
        }
        let answers = Recommendation::all(&results, ranking);
        comparison::write_page(&out, "Race".into(), results, ranking, answers)?;
        Ok(if is_interrupted() && self.output.out.is_some() { set_aside(&out)? } else { out })
    }

    fn show(&self, ranking: &Ranking, out: &Path) {
        if self.output.json {
            let winner = ranking.winner().map(|winner| &winner.name);
            let leaders: Vec<&String> = ranking.leaders().iter().map(|leader| &leader.name).collect();
            say(json!({ "winner": winner, "leaders": leaders, "why": ranking.explanation(), "folder": out }));
            for place in &ranking.places {
                say(json!(place));
            }
            return;
        }
        say(format_args!("{}\n\n{}", ranking.table(), ranking.explanation()));
        for straggler in &self.emulate {
            say(format_args!("Straggling was emulated: {straggler}"));
        }
        say(format_args!("Pictures, page (report.html) and run folders: {}", out.display()));
    }
}

/// Contestants that run with the same seeds.
struct Heat<'a> {
    contestants: &'a [Contestant],
    seeds: &'a [u64],
    /// Whether it is only for tuning.
    tuning: bool,
}

impl Heat<'_> {
    /// What is shown while they run.
    fn names(&self) -> Vec<String> {
        let names = comparison::names(self.contestants).into_iter();
        names.map(|name| if self.tuning { format!("tuning {name}") } else { name }).collect()
    }
}
