//! What server and worker say to each other.
//!
//! ```text
//! worker                          server
//!   Hello ───────────────────────▶       who asks, and for which rank
//!         ◀─────────────────────── Welcome   what to train, how values travel
//!   Ready ───────────────────────▶       the worker's fingerprint of it; from here on it is a member
//!         ◀─── Map, Model, Assign, Continue, Collect, Interrupt
//!   Asked, Report, Dropped ──────▶
//!         ◀─────────────────────── Bye       the run is over
//! ```
//!
//! Either side may close at any time. [`ToWorker::Refuse`] and [`ToServer::Failed`] say why before they do.

use paceline_core::{Assignment, Report, Span, Version};
use paceline_store::OptimizerSpec;
use serde::{Deserialize, Serialize};

use crate::fingerprint::Fingerprint;
use crate::keys::Token;
use crate::payload::PayloadFormat;

/// What a worker says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToServer {
    /// The first word.
    Hello {
        /// The rank it had before or was started with; the server chooses if there is none.
        rank: Option<u32>,
        /// How its answers are delayed on purpose, if they are.
        emulated: Option<String>,
        /// What it shows to be let in.
        token: Option<Token>,
    },
    /// It has made the workload and can begin.
    Ready {
        /// What it made.
        fingerprint: Fingerprint,
    },
    /// It can't take part.
    Failed {
        /// Why, in a line.
        reason: String,
    },
    /// A local iteration is done: one more?
    Asked {
        /// The number of the task.
        number: u64,
        /// How many are done.
        iterations: u32,
        /// How the last of them went.
        words: Words,
    },
    /// A task is done.
    Report {
        /// The number of the task.
        number: u64,
        /// How it went.
        words: Words,
        /// Mean loss of its samples.
        loss: f64,
        /// Where the gradient is, or the model difference.
        gradient: Gradient,
    },
    /// A task that was called off is off the worker's hands; its buffers are free. In the middle of a gradient's
    /// chunks: no more of them follow.
    Dropped {
        /// The number of the task.
        number: u64,
    },
}

/// A [`Report`] as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Words {
    /// How long the worker computed.
    pub compute: Span,
    /// How long it waited for an answer.
    pub querying: Span,
    /// The share of the processors' time that others used lately, 0 to 1.
    pub cpu: Option<f32>,
    /// The share of the memory in use, 0 to 1.
    pub memory: Option<f32>,
}

impl From<Words> for Report {
    fn from(Words { compute, querying, cpu, memory }: Words) -> Report {
        Report { compute, querying, cpu, memory }
    }
}

/// Where a reported gradient is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gradient {
    /// In the shared buffer that the assignment named.
    InPlace,
    /// In the chunks that follow.
    Follows,
    /// Not sent: the worker has newer work in its queue, so this gradient is late.
    Withheld,
}

/// What a server says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    /// The worker may take part.
    Welcome {
        /// Its rank.
        rank: u32,
        /// What to train, in the words of the program that made server and worker.
        workload_spec: String,
        /// The seed of the initial parameters.
        seed: u64,
        /// How values travel if they do.
        payload: PayloadFormat,
        /// What local iterations step the worker's replica by.
        optimizer: OptimizerSpec,
    },
    /// A shared buffer, whose file descriptor comes along.
    Map {
        /// What it is for.
        buffer: Buffer,
        /// Its length in values.
        length: u64,
    },
    /// Parameters follow in chunks.
    Model {
        /// Their version.
        version: Version,
    },
    /// A piece of work. Everything assigned before, but `after`, is called off.
    Assign {
        /// The work.
        assignment: Assignment,
        /// The task to be finished first.
        after: Option<u64>,
        /// Which shared buffers to use, if values are shared; else the last [`Model`](ToWorker::Model) is meant.
        buffers: Option<Buffers>,
        /// What only local iterations need.
        terms: Terms,
    },
    /// Do one more local iteration.
    Continue {
        /// The number of the task.
        number: u64,
    },
    /// Send what local iterations have come to. May be said more than once, and too late.
    Collect {
        /// The number of the task.
        number: u64,
    },
    /// A task is called off.
    Interrupt {
        /// Its number.
        number: u64,
    },
    /// The server wants nothing more to do with this worker, and closes.
    Refuse {
        /// Why, in a line.
        reason: String,
        /// Whether it may come again: it is fine, or will be soon.
        again: bool,
    },
    /// The run is over.
    Bye {
        /// Why, in a line.
        reason: String,
    },
}

/// What a worker needs to iterate on a replica.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// The learning rate.
    pub rate: f32,
    /// The worker's last task whose update was committed: where its replica stood then, if it is to start there.
    pub committed: Option<u64>,
}

/// One of the shared buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Buffer {
    /// Parameters, which the worker only reads.
    Parameters(u32),
    /// A gradient, which the worker writes.
    Gradient(u32),
}

/// The shared buffers that an assignment uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffers {
    /// Where the parameters are.
    pub parameters: u32,
    /// Where the gradient goes.
    pub gradient: u32,
}
