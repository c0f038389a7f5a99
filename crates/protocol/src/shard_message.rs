//! The messages to and from a shard: a process that holds a part of the parameters.
//!
//! ```text
//! coordinator                     shard
//!   Measure, values ─────────────▶            how fast its link is
//!         ◀─────────────────────── Measured   for every vector of values
//!   Coordinate, parameters, state ▶           the part it holds, once
//!   Deliver ─────────────────────▶            send the newest version to workers
//!   Attempt, Measure ────────────▶            sum updates, and step by the sum beside the present version
//!         ◀─────────────────────── Norms      with sums of squares
//!   Accept, Keep ────────────────▶            that is the next version
//!   Forecast ────────────────────▶            how the next step is probably made
//!   Discard, Forget ─────────────▶            updates that are not needed, a worker's connection that has ended
//!   Fetch ───────────────────────▶
//!         ◀─────────────────────── Held       with parameters and state
//!   Retain ──────────────────────▶            keep the newest version until it is saved
//!
//! coordinator, another connection shard
//!   Save ────────────────────────▶            write the version that is retained
//!         ◀─────────────────────── Saved
//!
//! worker                          shard
//!   Work ────────────────────────▶
//!         ◀─────────────────────── Model      with its part
//!   Push, Confirm, Dropped ──────▶            with its part of an update
//!   Payload ─────────────────────▶            the format of models
//!
//! worker on the same host         shard
//!   Share ───────────────────────▶            memory of the worker, once
//!         ◀─────────────────────── Model
//!   WriteModel ──────────────────▶            where the part goes
//!         ◀─────────────────────── Written
//!   PushShared ──────────────────▶            where the part of an update is
//!         ◀─────────────────────── Taken
//! ```

use paceline_core::{TaskId, Version};
use paceline_store::{OptimizerRules, WrittenParts};
use serde::{Deserialize, Serialize};

use crate::message::Token;
use crate::payload::{PayloadFormat, PayloadRule};

/// Where a shard is, and which part of the parameters it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardPlace {
    /// Its address: a host or IP address, and a port.
    pub address: String,
    /// Where its part starts.
    pub start: u64,
    /// How many values it has.
    pub length: u64,
}

/// What a shard writes, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardSave {
    /// The run.
    pub run: u64,
    /// The version that the shard retains.
    pub version: Version,
    /// Where its part starts.
    pub start: u64,
    /// The place, as a user writes it. Credentials are the shard's own.
    pub place: String,
    /// The name of the checkpoint.
    pub checkpoint: String,
}

/// The first message on a connection to a shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ShardGreeting {
    /// A coordinator that measures the link. Vectors follow, each of which is answered. Then comes another greeting.
    Measure {
        /// The token of the keys, if there are keys.
        token: Option<Token>,
        /// How many vectors.
        vectors: u8,
        /// How many values in each, at most 1,048,576.
        length: u32,
    },
    /// The coordinator of a run. The parameters and the vectors of the optimizer's state follow, in chunks.
    Coordinate {
        /// The token of the keys, if there are keys.
        token: Option<Token>,
        /// Identifies the run to its workers.
        run: u64,
        /// How many values the shard holds.
        length: u64,
        /// How they are stepped.
        rules: OptimizerRules,
        /// The steps that the optimizer has taken.
        steps: u64,
        /// The version of the parameters.
        version: Version,
        /// Whether an update is kept with the model that it was computed from.
        keeps_models: bool,
        /// The number format of models that are sent.
        payload: PayloadRule,
    },
    /// A worker of a run.
    Work {
        /// The token of the keys, if there are keys.
        token: Option<Token>,
        /// The run.
        run: u64,
        /// The worker's session with the coordinator.
        session: u64,
        /// How many shards the run has.
        shards: u32,
    },
    /// The coordinator of a run: write a part of a checkpoint. It has another connection.
    Save {
        /// The token of the keys, if there are keys.
        token: Option<Token>,
        /// What is written.
        save: ShardSave,
    },
}

/// An update in a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ShardUpdate {
    /// The task that it is the result of.
    pub task: TaskId,
    /// The session of the worker that sends it.
    pub session: u64,
    /// Its weight in the sum.
    pub weight: f32,
}

/// How updates are summed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardSum {
    /// The updates, in order.
    pub updates: Vec<ShardUpdate>,
    /// Gradients are corrected for their delay by this factor, if one is given: DC-ASGD.
    pub lambda: Option<f32>,
}

/// A message of the coordinator to a shard. `P` says how a step is made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToShard<P> {
    /// Send the newest version to the workers of these sessions, unless they have it.
    Deliver {
        /// The sessions.
        sessions: Vec<u64>,
    },
    /// Wait for the updates, sum them, and write the next version beside the present one.
    Attempt {
        /// How the values are stepped.
        plan: P,
        /// What is summed.
        sum: ShardSum,
    },
    /// Wait for the updates, and sum them.
    Measure(ShardSum),
    /// What the last attempt has written is the next version. These updates are settled.
    Accept {
        /// How the values were stepped.
        plan: P,
        /// The updates of the commit.
        tasks: Vec<TaskId>,
    },
    /// The next version has the values of the present one. These updates are settled.
    Keep(Vec<TaskId>),
    /// How the next step is made if it sums as many updates as the last: a shard may begin while they arrive.
    Forecast(P),
    /// These updates are not needed.
    Discard(Vec<TaskId>),
    /// The worker of a session has left.
    Forget {
        /// The session.
        session: u64,
    },
    /// Send parameters and state.
    Fetch,
    /// Keep the newest version with its state until it is saved, in place of one that was kept before.
    Retain,
}

/// An update that a worker sends to a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushedUpdate {
    /// The task that it is the result of.
    pub task: TaskId,
    /// The version that it was computed from.
    pub version: Version,
    /// Whether it may still change: it counts when it is confirmed, unless another one follows.
    pub is_draft: bool,
}

/// A message of a worker to a shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum WorkerToShard {
    /// The shard's part of an update follows in chunks. It takes the place of a draft.
    Push {
        /// The update.
        update: PushedUpdate,
    },
    /// The draft of this task's update is the update.
    Confirm {
        /// The task.
        task: TaskId,
    },
    /// This task's update is not sent, or no more of it. What has arrived of it does not count.
    Dropped {
        /// The task.
        task: TaskId,
    },
    /// A worker on the same host: its memory for models and updates comes with this message, as a file descriptor.
    Share {
        /// Its number. It takes the place of the vector that had this number before.
        vector: u8,
        /// Where the shard's part starts.
        start: u64,
        /// How many values the memory has.
        length: u64,
    },
    /// The shard's part of an update is in shared memory.
    PushShared {
        /// The update.
        update: PushedUpdate,
        /// Where it is.
        vector: u8,
    },
    /// The model that was announced goes to shared memory.
    WriteModel {
        /// Where its part goes.
        vector: u8,
    },
    /// The worker wants models in this format. Only if the run leaves that to its workers.
    Payload {
        /// The format.
        format: PayloadFormat,
    },
}

/// A message of a shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromShard {
    /// To the coordinator: a vector of a measurement has arrived.
    Measured,
    /// To the coordinator: the sums of squares of a step follow, block by block, each as two values.
    Norms {
        /// How many sums.
        sums: u64,
        /// The updates that are not finite or did not arrive, by their place in the sum.
        broken: Vec<u32>,
    },
    /// To the coordinator: the parameters and the optimizer's state follow.
    Held {
        /// The version of the parameters.
        version: Version,
        /// The steps that the optimizer has taken.
        steps: u64,
    },
    /// To the coordinator: the parts of a checkpoint that were written, or why they could not be.
    Saved(Result<WrittenParts, String>),
    /// To a worker: the shard's part of a model follows. A worker on the same host says where it goes.
    Model {
        /// Its version.
        version: Version,
    },
    /// To a worker on the same host: the part of a model is in shared memory.
    Written,
    /// To a worker on the same host: the part of an update is taken from shared memory.
    Taken,
}
