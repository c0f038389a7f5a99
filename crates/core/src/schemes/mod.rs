//! The schemes, one file each, and the catalogue that finds them by name.

mod adacomm;
mod adasync;
mod asp;
mod b_dbw;
mod backup;
mod bsp;
mod cutoff;
mod dbw;
mod dc_asgd;
mod dssp;
mod easgd;
mod elastic_bsp;
mod esync;
mod lb_bsp;
mod local_sgd;
mod settings;
mod ssp;

use crate::{Dispatch, Scheme};

use settings::Settings;
pub use settings::{BuildContext, SchemeError, SchemeSpec};

/// The run that a scheme is built for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setup {
    /// How many workers the run starts with.
    pub workers: usize,
    /// Samples per worker and iteration.
    pub batch: u32,
    /// How work is dispatched; `None` for the scheme's default.
    pub dispatch: Option<Dispatch>,
}

type Build = fn(&Settings<'_>, &Setup) -> Result<Box<dyn Scheme>, SchemeError>;

/// A scheme in the catalogue.
#[derive(Debug)]
pub struct SchemeEntry {
    /// The name it is chosen by.
    pub name: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// Its settings: key and meaning with default.
    pub settings: &'static [(&'static str, &'static str)],
    /// Whether it waits for k of n workers, so that it has a setting `dispatch`.
    pub dispatches: bool,
    build: Build,
}

impl SchemeEntry {
    /// The keys of its settings.
    pub(crate) fn keys(&self) -> Vec<&'static str> {
        let own = self.settings.iter().map(|(key, _)| *key);
        own.chain(self.dispatches.then_some("dispatch")).collect()
    }
}

// Settings of dbw and b-dbw.
const FORMULAS: (&str, &str) =
    ("formulas", "robust (less sensitive to noise) or printed (as in the paper); default robust");
const BETA: (&str, &str) = ("beta", "k rises when the loss has risen by more than this factor; default 1.01");
const MEMORY: (&str, &str) = (
    "memory",
    "which round trips are used: all, window-N (iterations) or discount-FACTOR (per iteration); default all",
);

/// A setting of schemes that average replicas.
const GLOBAL_RATE: (&str, &str) =
    ("rate", "global learning rate: how far the model moves towards the mean replica; default 1");

/// All schemes.
pub const CATALOGUE: &[SchemeEntry] = &[
    SchemeEntry {
        name: "bsp",
        summary: "wait for every worker in every iteration",
        settings: &[],
        dispatches: true,
        build: bsp::build,
    },
    SchemeEntry {
        name: "backup",
        summary: "wait for the first k workers in every iteration",
        settings: &[("k", "gradients to wait for, 1 to the number of workers; required")],
        dispatches: true,
        build: backup::build,
    },
    SchemeEntry {
        name: "dbw",
        summary: "wait for the first k workers; k is chosen in every iteration to lower the loss fastest",
        settings: &[
            ("window", "iterations that estimates of the gradient and its noise are averaged over; default 5"),
            FORMULAS,
            BETA,
            MEMORY,
        ],
        dispatches: true,
        build: dbw::build,
    },
    SchemeEntry {
        name: "b-dbw",
        summary: "wait for the first k workers; k is chosen in every iteration for the most gradients per second",
        settings: &[FORMULAS, BETA, MEMORY],
        dispatches: true,
        build: b_dbw::build,
    },
    SchemeEntry {
        name: "adasync",
        summary: "wait for the first k workers; k grows as the loss falls",
        settings: &[("first", "gradients to wait for in the first iteration; default 1")],
        dispatches: true,
        build: adasync::build,
    },
    SchemeEntry {
        name: "cutoff",
        summary: "wait for the first k workers, interrupt the others; k is predicted for the most gradients per second",
        settings: &[
            (
                "predictor",
                "of run times: normal (independent, same for all workers), dmm (a model pretrained on this cluster) or \
                 oracle (simulated only); default normal",
            ),
            ("model", "file of the pretrained model for dmm, written by `paceline predictor train`"),
            ("samples", "number of draws that dmm predicts from; default 32"),
            ("lag", "iterations that normal uses; default 20"),
            ("seed", "seed of dmm's draws, and of imputed run times; default 1"),
        ],
        dispatches: true,
        build: cutoff::build,
    },
    SchemeEntry {
        name: "lb-bsp",
        summary: "wait for every worker, with batch sizes chosen so that all workers finish together",
        settings: &[
            ("mode", "cpu (predict speeds) or gpu (profile each device first); default cpu"),
            ("predictor", "of speeds: narx, memoryless, ema, arima, rnn or lstm; default narx"),
            ("warm-up", "iterations in which ema is used while a network learns; default 500"),
            ("weights", "initial weights of the network, numbers separated by /; default untrained"),
            (
                "update",
                "blocking (sizes from the newest reports) or non-blocking (computed beforehand); default by mode",
            ),
            ("change", "share of the iteration's time that new sizes must save to be adopted; default 0.01"),
            ("least", "smallest batch of a worker; default 1"),
            ("most", "largest batch of a worker; default as many samples as fit"),
            ("k", "gradients to wait for; default all"),
        ],
        dispatches: true,
        build: lb_bsp::build,
    },
    SchemeEntry {
        name: "asp",
        summary: "never wait: apply every update as it arrives",
        settings: &[],
        dispatches: false,
        build: asp::build,
    },
    SchemeEntry {
        name: "ssp",
        summary: "apply updates on arrival, with a bound on how far a worker may be ahead of the slowest",
        settings: &[("staleness", "iterations a worker may be ahead; default 3")],
        dispatches: false,
        build: ssp::build,
    },
    SchemeEntry {
        name: "dssp",
        summary: "like ssp, with the bound chosen at run time for the shortest predicted wait",
        settings: &[
            ("min", "lower end of the bound; default 3"),
            ("max", "upper end of the bound; default 15 or min, whichever is larger"),
        ],
        dispatches: false,
        build: dssp::build,
    },
    SchemeEntry {
        name: "elastic-bsp",
        summary: "apply updates on arrival up to a barrier, planned for the shortest predicted wait",
        settings: &[
            ("r", "iterations of each worker to look ahead for the barrier; default 15"),
            ("interval", "predict last (the last interval again), ema or median (of the last 5); default last"),
        ],
        dispatches: false,
        build: elastic_bsp::build,
    },
    SchemeEntry {
        name: "dc-asgd",
        summary: "like asp, with stale gradients corrected for the steps since",
        settings: &[("lambda", "strength of the correction; default 0.04")],
        dispatches: false,
        build: dc_asgd::build,
    },
    SchemeEntry {
        name: "esync",
        summary: "fast workers iterate locally until the slowest is about to finish, then replicas are averaged",
        settings: &[
            ("mode", "blocking (workers wait for the answer whether to continue) or non-blocking; default blocking"),
            ("margin", "seconds added to the predicted time of one more local iteration; default 0.001"),
            GLOBAL_RATE,
        ],
        dispatches: false,
        build: esync::build,
    },
    SchemeEntry {
        name: "local-sgd",
        summary: "every worker does the same number of local iterations, then replicas are averaged",
        settings: &[("tau", "local iterations per round; required"), GLOBAL_RATE],
        dispatches: false,
        build: local_sgd::build,
    },
    SchemeEntry {
        name: "adacomm",
        summary: "like local-sgd, with fewer local iterations per round as the loss falls",
        settings: &[
            ("tau", "local iterations per round at first; default 20"),
            ("interval", "seconds between changes of that number; default 60"),
            GLOBAL_RATE,
        ],
        dispatches: false,
        build: adacomm::build,
    },
    SchemeEntry {
        name: "easgd",
        summary: "every worker keeps its own replica; model and replicas are pulled towards each other",
        settings: &[
            ("tau", "local iterations between exchanges; default 10"),
            ("beta", "how far the model moves towards the mean replica, 0.001 to 1; default 0.9"),
        ],
        dispatches: false,
        build: easgd::build,
    },
];
