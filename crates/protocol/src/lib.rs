//! The protocol between a server and its workers, as two state machines without I/O.
//!
//! - [`ServerProtocol`]: the server's side. It takes connections, messages, closed connections and the time. It gives
//!   messages, commits and closed connections through a [`ServerHost`]. Inside, a [`Ledger`](paceline_core::Ledger) runs
//!   the scheme.
//! - [`WorkerProtocol`]: the worker's side of one session. [`ServerSearch`] says which server it joins.
//! - [`ModelIntake`]: what a server does before, if the workers bring the model.
//! - [`ToServer`], [`ToWorker`]: the messages; [`ToShard`], [`FromShard`]: those of processes that hold a part of the model;
//!   [`ToMember`], [`FromMember`]: those of workers that hold it together.
//!
//! A driver moves the bytes: `paceline-net` over sockets and shared memory, `paceline-torture` on a virtual clock under
//! faults. Both drive the code in this crate.
//!
//! A worker can be gone or late, and these are different things. It is *gone* if its heartbeats stay away; it is then
//! dismissed within seconds, however long its task takes. It is *late* if its task takes longer than its history lets
//! expect; then the user gets a notice, and a scheme that watches for it an event, and nothing else happens. Only a worker that sends heartbeats but makes no
//! progress for far longer than expected is dismissed. A worker dismissed for any of this may rejoin. Times at which the
//! server itself stood still count for no worker.

mod codec;
mod fingerprint;
mod group_message;
mod message;
mod model_offer;
mod notice;
mod payload;
mod server;
mod server_search;
mod shard_message;
mod tasks;
mod worker;

use paceline_core::Span;

pub use codec::{Codec, EncodedChunk};
pub use fingerprint::Fingerprint;
pub use group_message::{FromMember, Group, MemberStep, ToMember};
pub use message::{
    GradientLocation, HeldParameters, Role, RunPosition, SharedBuffer, SharedBuffers, TaskSettings, ToServer, ToWorker,
    Token, WireReport,
};
pub use model_offer::{ModelIntake, OfferStep, OfferedTraining};
pub use notice::Notice;
pub use paceline_workload::Evaluation;
pub use payload::{CHUNK_LIMIT, INT8_BLOCK, PayloadFormat, PayloadRule};
pub use server::{
    HANDSHAKE_TIMEOUT, ParameterHolders, PeerTrust, ReportedUpdate, ServerConfig, ServerHost, ServerProtocol,
    SessionId, max_ranks, token_matches,
};
pub use server_search::ServerSearch;
pub use shard_message::{
    FromShard, PushedUpdate, ShardGreeting, ShardPlace, ShardSave, ShardSum, ShardUpdate, ToShard, WorkerToShard,
};
pub use worker::{
    AfterIteration, NextTask, Reaction, ResultStatus, SessionEnd, Welcome, WorkerProtocol, after_iteration,
};

/// The most parts of the parameters that one process holds.
pub const MAX_PARTS: u8 = 8;

/// The time between two heartbeats of a worker.
pub const HEARTBEAT_INTERVAL: Span = Span(1_000_000_000);
