//! The papers' experiments, as `paceline reproduce` runs them.
//!
//! An experiment is a file here and an [`Experiment`] in [`EXPERIMENTS`]. The conditions of the simulated ones are in
//! `scenarios/`, as configurations that `paceline simulate --config` reads, too.

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
use paceline_config::{Failure, Seeds, whole};
use paceline_report::plot::Figure;
use paceline_workload::DataSource;

pub use forecast_figure::forecast_figure;
pub use train_predictor::train_predictor;

/// An experiment of a paper.
pub struct Experiment {
    /// The name it is chosen by.
    pub name: &'static str,
    /// What it shows, in a line.
    pub summary: &'static str,
    /// Runs it.
    pub run: fn(&Conditions) -> Result<Findings, Failure>,
}

/// What an experiment found.
pub struct Findings {
    /// For people: the paper's comparison as a table, with what is to be said about it.
    pub text: String,
    /// For machines: an object for each line of the comparison.
    pub records: Vec<serde_json::Value>,
    /// The paper's figure; none if it is a table.
    pub panels: Vec<Figure>,
}

/// All experiments.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "cutoff-fig2",
        summary: "throughput when a slow host becomes like the others",
        run: cutoff::fig2,
    },
    Experiment { name: "cutoff-fig3", summary: "run-times as predicted and as they came to be", run: cutoff::fig3 },
    Experiment {
        name: "cutoff-fig4",
        summary: "cutoff against bsp and asp: the held-out loss over time",
        run: cutoff::fig4,
    },
    Experiment { name: "dbw-fig4", summary: "how k and the loss go during training", run: dbw::fig4 },
    Experiment { name: "dbw-fig6", summary: "time to a loss as round trips vary more and more", run: dbw::fig6 },
    Experiment { name: "dbw-fig8", summary: "time to a loss for three batch sizes", run: dbw::fig8 },
    Experiment { name: "dbw-fig9", summary: "what k does when half of the workers become slower", run: dbw::fig9 },
    Experiment { name: "dbw-fig10", summary: "dbw against adasync as round trips vary more and more", run: dbw::fig10 },
    Experiment {
        name: "zipline-table3",
        summary: "how good the barriers are that each planning algorithm finds",
        run: zipline_tables::quality,
    },
    Experiment {
        name: "zipline-table4",
        summary: "how long each planning algorithm takes",
        run: zipline_tables::speed,
    },
    Experiment {
        name: "zipline-fig11",
        summary: "elastic-bsp against bsp, asp, ssp and dssp when communication takes half the time",
        run: zipline_fig11::run,
    },
    Experiment {
        name: "esync-fig3",
        summary: "esync against bsp, asp and dc-asgd, with i.i.d. data and by class",
        run: esync::fig3,
    },
    Experiment { name: "esync-fig4", summary: "samples and bytes per second", run: esync::fig4 },
    Experiment { name: "esync-fig5", summary: "what each worker does with its time", run: esync::fig5 },
    Experiment {
        name: "esync-table1",
        summary: "speedup of esync over bsp, and accuracy beside training alone",
        run: esync::table1,
    },
    Experiment {
        name: "lbbsp-fig8",
        summary: "lb-bsp against bsp, asp and ssp at three levels of unevenness",
        run: lbbsp::fig8,
    },
    Experiment { name: "lbbsp-fig10", summary: "lb-bsp against bsp on a production-like cluster", run: lbbsp::fig10 },
    Experiment { name: "lbbsp-fig11", summary: "predicted and actual speed of one worker", run: lbbsp::fig11 },
    Experiment {
        name: "lbbsp-table3",
        summary: "how well speeds are predicted, and what that is worth",
        run: lbbsp::table3,
    },
    Experiment { name: "lbbsp-fig13", summary: "a GPU cluster when one worker's link changes", run: lbbsp::fig13 },
    Experiment { name: "lbbsp-fig14", summary: "what sizing batches costs", run: lbbsp::fig14 },
];

/// What a user can change about an experiment.
#[derive(Args)]
pub struct Conditions {
    /// Which seeds to run: 7, 1..20 (both ends included) or 1,5,9 [default: 1..4]
    #[arg(long, value_name = "SEEDS", default_value = "1..4", hide_default_value = true)]
    pub seeds: Seeds,

    /// Train on this instead: digits, mnist:DIR, …
    #[arg(long, value_name = "DATA")]
    pub data: Option<DataSource>,

    /// At the paper's size, as far as that can be: hours instead of minutes
    #[arg(long)]
    pub full: bool,

    /// Threads that compute; results are the same for any number [default: all cores]
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=1024))]
    pub threads: Option<u16>,
}
