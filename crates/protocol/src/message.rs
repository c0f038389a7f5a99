//! The messages between server and worker.
//!
//! ```text
//! worker                          server
//!   Hello ───────────────────────▶            handshake: the requested rank and the token
//!         ◀─────────────────────── Welcome    handshake: rank, workload and payload format
//!   Ready ───────────────────────▶            handshake: the worker's fingerprint; the worker has joined
//!         ◀─── Map, Model, Assign, Continue, Collect, Interrupt, Member
//!   Asked, Report, Dropped, Member ▶
//!         ◀─────────────────────── Finished   the run is over
//! ```
//!
//! If the workers bring the model, the server asks the first of them for it, before the run:
//!
//! ```text
//!   Hello ───────────────────────▶
//!         ◀─────────────────────── SendModel
//!   Tensor, …, Offer ────────────▶
//!         ◀─────────────────────── Refuse     the model has arrived: join again
//! ```
//!
//! An evaluator joins in the same way, as [`Role::Evaluator`]. It gets models to evaluate as assignments, and answers
//! each with [`ToServer::Evaluated`]. A process that holds a part of the parameters, and computes nothing, joins as
//! [`Role::Shard`]. It has joined with the welcome.
//!
//! From its hello on, the worker sends a [`Heartbeat`](ToServer::Heartbeat) every second. Either side may close the
//! connection at any time, and sends the reason before: [`ToWorker::Refuse`], [`ToServer::Leave`].

use paceline_core::{Assignment, Report, Span, Version};
use paceline_store::OptimizerSpec;
use serde::{Deserialize, Serialize};

use crate::fingerprint::Fingerprint;
use crate::group_message::{FromMember, ToMember};
use crate::model_offer::OfferedTraining;
use crate::payload::{PayloadFormat, PayloadRule};
use crate::shard_message::ShardPlace;

/// The secret that the workers of a run share with their server.
pub type Token = [u8; 32];

/// What a process joins as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A worker, with the rank that it had before or was started with; `None` lets the server choose.
    Worker(Option<u32>),
    /// It evaluates models. There is one.
    Evaluator,
    /// It holds parts of the parameters, each at one of these ports of its host.
    Shard {
        /// The ports.
        ports: Vec<u16>,
    },
}

/// A message from a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToServer {
    /// The first message of the handshake.
    Hello {
        /// What it joins as.
        role: Role,
        /// The description of the worker's emulated delays, if it has any.
        emulated: Option<String>,
        /// The token of the keys, if the worker has keys.
        token: Option<Token>,
    },
    /// One tensor of the model that the worker offers.
    Tensor {
        /// Its name.
        name: String,
        /// Its dimensions, outermost first.
        shape: Vec<u64>,
        /// Whether it is trained, or a statistic.
        trainable: bool,
    },
    /// All tensors are named. Their values follow in chunks, in the order of the layout.
    Offer {
        /// How many values.
        values: u64,
        /// How the worker trains the model.
        training: OfferedTraining,
    },
    /// The worker has built the workload and is ready for work.
    Ready {
        /// The fingerprint of its workload.
        fingerprint: Fingerprint,
        /// The ports where others reach its process, as many as [it needs](HeldParameters) for what it may have to hold.
        ports: Vec<u16>,
    },
    /// The worker leaves the run, or can't take part in it.
    Leave {
        /// The reason, in one line.
        reason: String,
        /// Whether it has done all that it was started for.
        is_done: bool,
    },
    /// The worker's process is running. A thread that does not compute sends it, every
    /// [`HEARTBEAT_INTERVAL`](crate::HEARTBEAT_INTERVAL).
    Heartbeat {
        /// Counts the worker's steps: layers, local iterations, tasks, received chunks. It moves as long as the worker
        /// makes progress.
        progress: u64,
    },
    /// The worker wants models in this format, and sends updates in it. Only if the run leaves that to its workers.
    Payload {
        /// The format.
        format: PayloadFormat,
    },
    /// The worker has done a local iteration and asks whether to continue.
    Asked {
        /// The number of the task.
        number: u64,
        /// The local iterations done so far.
        iterations: u32,
        /// Times and system load since the last message about this task.
        report: WireReport,
    },
    /// A task is done.
    Report {
        /// The number of the task.
        number: u64,
        /// Times and system load since the last message about this task.
        report: WireReport,
        /// The mean loss of its samples.
        loss: f64,
        /// Where the gradient or the model difference is.
        gradient: GradientLocation,
        /// The learning rates that the worker's own schedule asks for: of the tensors outside all parameter groups, then
        /// of every group. Empty if the server has the schedule.
        rates: Vec<f64>,
    },
    /// From a worker whose process holds the model together with others.
    Member(FromMember),
    /// The evaluator has evaluated a model.
    Evaluated {
        /// The number of the assignment.
        number: u64,
        /// The mean loss on the held-out set, if it was measured.
        loss: Option<f64>,
        /// The share of correct predictions, 0 to 1, if it was measured.
        accuracy: Option<f64>,
    },
    /// The worker has dropped a cancelled task; its buffers are free. Between the chunks of a gradient it also means
    /// that no more of them follow.
    Dropped {
        /// The number of the task.
        number: u64,
    },
}

/// A [`Report`] as it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct WireReport {
    /// How long the worker computed.
    pub compute: Span,
    /// How long the worker waited for replies.
    pub querying: Span,
    /// The share of the processor time that other processes used recently, 0 to 1.
    pub cpu: Option<f32>,
    /// The share of the memory that is in use, 0 to 1.
    pub memory: Option<f32>,
    /// The part of `compute` in which the worker waited for its data.
    pub loading: Span,
    /// The samples of each iteration, if they were not as many as assigned.
    pub samples: Option<u32>,
}

impl WireReport {
    /// The report, for a task that was assigned `elapsed` ago. The worker can't have spent more time on it, so longer
    /// times are shortened; a load that is not a share is dropped.
    pub(crate) fn bounded(self, elapsed: Span) -> Report {
        let share = |load: Option<f32>| load.filter(|load| (0.0..=1.0).contains(load));
        let compute = self.compute.min(elapsed);
        Report {
            compute,
            querying: self.querying.min(elapsed - compute),
            cpu: share(self.cpu),
            memory: share(self.memory),
            loading: self.loading.min(compute),
            samples: self.samples.filter(|&samples| samples > 0),
        }
    }
}

/// Where a reported gradient is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GradientLocation {
    /// In the shared buffer that the assignment named.
    InPlace,
    /// In the chunks that follow.
    Follows,
    /// Not sent: newer work is queued, so this gradient is late.
    Withheld,
    /// In the shards, which hold the parameters.
    InShards,
    /// In the worker's process, which sums it with those of the others.
    InMembers,
}

/// What a worker's process may have to hold of the parameters, beside what it needs for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum HeldParameters {
    /// Nothing.
    #[default]
    Nothing,
    /// Up to this many parts, each at a port of its own.
    Parts(u8),
    /// All of them, as every worker. It needs one port, for the workers to find each other.
    All,
}

/// A message from the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    /// The server accepts the worker.
    Welcome {
        /// The rank of the worker. Without meaning for others.
        rank: u32,
        /// The workload, in a format that the program defines for its own servers and workers.
        workload_spec: String,
        /// The seed of the initial parameters.
        seed: u64,
        /// The number format of values that are sent.
        payload: PayloadRule,
        /// The optimizer of local iterations.
        optimizer: OptimizerSpec,
        /// The number of the lease under which the run is served. A worker never goes back to a lower one.
        epoch: u64,
        /// What the worker's process may have to hold of the parameters.
        holds: HeldParameters,
    },
    /// To a worker whose process holds the model together with others.
    Member(ToMember),
    /// The parameters are in these shards. Models come from there, and updates go there.
    Shards {
        /// The shards, in the order of their parts.
        places: Vec<ShardPlace>,
        /// Identifies the run to them.
        run: u64,
        /// Identifies the worker's connection to the server.
        session: u64,
    },
    /// The server has no model yet. Send yours, then join again.
    SendModel,
    /// A shared buffer. Its file descriptor is sent along.
    Map {
        /// The purpose and index of the buffer.
        buffer: SharedBuffer,
        /// The length of the buffer in values.
        length: u64,
    },
    /// The parameters follow in chunks.
    Model {
        /// The version of the parameters.
        version: Version,
    },
    /// An assignment. It cancels every earlier task except `after`.
    Assign {
        /// The assignment.
        assignment: Assignment,
        /// The task that the worker finishes first.
        after: Option<u64>,
        /// The shared buffers to use; `None` means the parameters of the last [`Model`](ToWorker::Model).
        buffers: Option<SharedBuffers>,
        /// What else the worker may need to know.
        settings: TaskSettings,
    },
    /// Do one more local iteration.
    Continue {
        /// The number of the task.
        number: u64,
    },
    /// Send the result of the local iterations done so far. May be sent more than once, and too late.
    Collect {
        /// The number of the task.
        number: u64,
    },
    /// A task is cancelled.
    Interrupt {
        /// The number of the task.
        number: u64,
    },
    /// The server refuses or dismisses the worker and closes the connection.
    Refuse {
        /// The reason, in one line.
        reason: String,
        /// Whether the worker may rejoin.
        may_rejoin: bool,
    },
    /// The run is over.
    Finished {
        /// The reason, in one line.
        reason: String,
        /// The last version of the model.
        version: Version,
        /// The shared buffer that holds it, for workers that brought the model. Over TCP it was sent before.
        buffer: Option<u32>,
    },
}

/// What a worker may need to know for a task, beside the assignment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TaskSettings {
    /// How far the run was when the task was made.
    pub run: RunPosition,
    /// The last task of the worker whose update was committed. A replica may start from its state after that task.
    pub committed: Option<u64>,
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct RunPosition {
    /// The learning rate of local iterations.
    pub rate: f32,
    /// How far the schedule of the learning rate has advanced, in steps.
    pub progress: f64,
    /// The samples that all workers have used in committed updates.
    pub used: u64,
    /// Whether a checkpoint is due. A worker with a state of its own saves it too.
    pub checkpoint: bool,
}

/// A shared buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SharedBuffer {
    /// Parameters, which the worker only reads.
    Parameters(u32),
    /// A gradient, which the worker writes.
    Gradient(u32),
}

/// The shared buffers that an assignment uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedBuffers {
    /// The index of the parameter buffer.
    pub parameters: u32,
    /// The index of the gradient buffer.
    pub gradient: u32,
}
