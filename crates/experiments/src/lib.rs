//! The papers' experiments, as `paceline reproduce` runs them.
//!
//! An experiment is a file here and an [`Experiment`] in [`EXPERIMENTS`]. The conditions of simulated experiments are
//! in `scenarios/`, as configurations that `paceline simulate --config` also reads.

mod cutoff;
mod dbw;
mod esync;
mod forecast_figure;
mod lbbsp;
mod target;
mod train_predictor;
mod zipline_fig11;
mod zipline_tables;

use clap::Args;
use paceline_config::{Failure, Seeds, parallel, whole};
use paceline_report::plot::Figure;
use paceline_report::progress::bars;
use paceline_runtime::{RunEnding, is_interrupted};
use paceline_workload::DataSource;

pub use forecast_figure::forecast_figure;
pub use train_predictor::train_predictor;

/// Ends an experiment that was interrupted before it had a complete run.
fn check_interrupt() -> Result<(), Failure> {
    if is_interrupted() { Err(Failure::Ended(RunEnding::Interrupted)) } else { Ok(()) }
}

/// An experiment of a paper.
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it measures, in one line.
    pub summary: &'static str,
    /// Runs it.
    pub run: fn(&Conditions) -> Result<Findings, Failure>,
}

/// The results of an experiment.
pub struct Findings {
    /// The paper's comparison as a table, with an explanation.
    pub text: String,
    /// The same as JSON objects.
    pub records: Vec<serde_json::Value>,
    /// The paper's figure; empty for a table.
    pub panels: Vec<Figure>,
}

/// All experiments.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment { name: "cutoff-fig2", summary: "throughput when a slow host becomes fast", run: cutoff::fig2 },
    Experiment { name: "cutoff-fig3", summary: "predicted and observed run-times", run: cutoff::fig3 },
    Experiment { name: "cutoff-fig4", summary: "held-out loss over time: cutoff, bsp and asp", run: cutoff::fig4 },
    Experiment { name: "dbw-fig4", summary: "k and the loss during training", run: dbw::fig4 },
    Experiment { name: "dbw-fig6", summary: "time to a loss for round trips of increasing variance", run: dbw::fig6 },
    Experiment { name: "dbw-fig8", summary: "time to a loss for three batch sizes", run: dbw::fig8 },
    Experiment { name: "dbw-fig9", summary: "k when half of the workers become slower", run: dbw::fig9 },
    Experiment {
        name: "dbw-fig10",
        summary: "dbw and adasync for round trips of increasing variance",
        run: dbw::fig10,
    },
    Experiment {
        name: "zipline-table3",
        summary: "quality of the barriers that each planning algorithm finds",
        run: zipline_tables::quality,
    },
    Experiment { name: "zipline-table4", summary: "run-time of each planning algorithm", run: zipline_tables::speed },
    Experiment {
        name: "zipline-fig11",
        summary: "elastic-bsp, bsp, asp, ssp and dssp when communication takes half the time",
        run: zipline_fig11::run,
    },
    Experiment {
        name: "esync-fig3",
        summary: "esync, bsp, asp and dc-asgd, with i.i.d. data and data by class",
        run: esync::fig3,
    },
    Experiment { name: "esync-fig4", summary: "samples and bytes per second", run: esync::fig4 },
    Experiment { name: "esync-fig5", summary: "shares of each worker's time by activity", run: esync::fig5 },
    Experiment {
        name: "esync-table1",
        summary: "speedup of esync over bsp, and accuracy compared with a single worker",
        run: esync::table1,
    },
    Experiment {
        name: "lbbsp-fig8",
        summary: "lb-bsp, bsp, asp and ssp at three levels of heterogeneity",
        run: lbbsp::fig8,
    },
    Experiment { name: "lbbsp-fig10", summary: "lb-bsp and bsp on a production-like cluster", run: lbbsp::fig10 },
    Experiment { name: "lbbsp-fig11", summary: "predicted and actual speed of one worker", run: lbbsp::fig11 },
    Experiment {
        name: "lbbsp-table3",
        summary: "errors of speed predictors, and their effect on iteration time",
        run: lbbsp::table3,
    },
    Experiment { name: "lbbsp-fig13", summary: "a GPU cluster when one worker's link changes", run: lbbsp::fig13 },
    Experiment { name: "lbbsp-fig14", summary: "cost of choosing batch sizes", run: lbbsp::fig14 },
];

/// The options of an experiment.
#[derive(Args)]
pub struct Conditions {
    /// Seeds to run: 7, 1..20 (both ends included) or 1,5,9 [default: 1..4]
    #[arg(long, value_name = "SEEDS", default_value = "1..4", hide_default_value = true)]
    pub seeds: Seeds,

    /// Data to train on instead of the experiment's own: digits, mnist:DIR, …
    #[arg(long, value_name = "DATA")]
    pub data: Option<DataSource>,

    /// Run at the paper's size where possible; takes hours instead of minutes
    #[arg(long)]
    pub full: bool,

    /// Threads; the results do not depend on their number [default: all cores]
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=1024))]
    pub threads: Option<u16>,
}

impl Conditions {
    /// Runs all jobs, several at once. Returns the results of the complete ones, in the order of the jobs. Where there
    /// are no progress bars, a line tells how many are done.
    fn run<Job: Sync, Done: Send>(
        &self,
        jobs: &[Job],
        work: impl Fn(&Job) -> anyhow::Result<Done> + Sync,
    ) -> Result<Vec<Done>, Failure> {
        let at_once = parallel::threads(self.threads).min(jobs.len());
        let (mut results, without_bars) = (Vec::new(), bars().is_hidden());
        let each = |done| {
            results.push(done);
            if without_bars {
                eprintln!("{} of {} runs are done", results.len(), jobs.len());
            }
        };
        // An incomplete run counts for nothing, and its failure may follow from the interrupt.
        let complete = |job: &Job| Some(work(job)).filter(|_| !is_interrupted()).transpose();
        parallel::run(jobs, at_once, complete, each).map_err(Failure::Run)?;
        Ok(results)
    }
}
