//! Errors that end a server.

use std::io;
use std::net::IpAddr;

use paceline_core::{LedgerError, SchemeError, TaskId};
use paceline_runtime::{LeaseLost, StopReason};
use thiserror::Error;

use crate::address::Address;
use crate::keys::KeysError;

/// Why a server can't start, or can't continue.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The server can't listen on an address.
    #[error("can't listen on {address}: {}", bind_reason(error))]
    Bind {
        /// The address.
        address: Address,
        /// The cause.
        error: io::Error,
    },
    /// The address can be reached from other machines, and no keys are set.
    #[error(
        "{address} can be reached from other machines without keys: give --keys DIR ('paceline keys' generates them), \
         or --open to let any worker join"
    )]
    NoKeys {
        /// The address.
        address: Address,
    },
    /// The keys can't be used.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The scheme can't be built.
    #[error(transparent)]
    Scheme(#[from] SchemeError),
    /// The scheme made an invalid decision.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// Memory for parameters or gradients can't be allocated.
    #[error("can't allocate memory for {values} values: {error}")]
    Memory {
        /// The length of the vector.
        values: usize,
        /// The cause.
        error: io::Error,
    },
    /// A system call that the server needs fails.
    #[error("a system call of the server failed: {0}")]
    System(io::Error),
    /// Another server has taken over the run.
    #[error(transparent)]
    Superseded(#[from] LeaseLost),
    /// The server was stopped before a worker had sent the model.
    #[error("{0}")]
    NoModel(StopReason),
    /// A shard can't be reached, or is gone with its part of the parameters.
    #[error("the shard at {address} is lost: {error}; the run goes on from its last checkpoint with --resume")]
    Shard {
        /// Where it was.
        address: String,
        /// The cause.
        error: io::Error,
    },
    /// There are fewer processes that can be shards than wanted.
    #[error(
        "--shards {wanted}: {found} workers can hold a shard; those that join over TCP can, with --keys if they have key.pem too"
    )]
    TooFewShards {
        /// The number of shards.
        wanted: usize,
        /// The workers that joined over TCP.
        found: usize,
    },
    /// A worker joined by an address that other hosts can't reach its shard at.
    #[error(
        "--shards: a worker joined at {address}, where other hosts can't reach its shard: use this host's address on the network"
    )]
    ShardAddress {
        /// The address.
        address: IpAddr,
    },
    /// All workers that had the newest model are gone.
    #[error("all workers that had the newest model are gone; the run goes on from its last checkpoint with --resume")]
    ModelLost,
    /// The workers are all there and can't sum their updates.
    #[error("the workers can't sum their updates: {reason}")]
    NoSum {
        /// Why, as the first one said.
        reason: String,
    },
    /// Some workers joined by an address that workers on other hosts can't reach.
    #[error(
        "--data-plane collective: a worker joined at {address}, where workers on other hosts can't reach it: use this host's \
         address on the network"
    )]
    MemberAddress {
        /// The address.
        address: IpAddr,
    },
    /// The workers can't sum the updates of this job among themselves.
    #[error(
        "--data-plane collective: {reason}; it is for scripts under bsp, lb-bsp, or local-sgd, adacomm, esync and easgd \
         without outer="
    )]
    NotCollective {
        /// Why.
        reason: String,
    },
    /// The scheme committed an update after it had queued newer work behind the task. The gradient of such a task is
    /// late and is never sent.
    #[error("the scheme committed {0}, whose gradient was not sent: newer work had been queued behind it")]
    GradientNotSent(TaskId),
    /// The scheme committed with [`Compensated`](paceline_core::CommitStep::Compensated), but had not announced that it
    /// compensates, so the model that the update was computed from was not kept.
    #[error("the scheme committed {0} with delay compensation, but had not announced that it compensates")]
    ModelNotKept(TaskId),
}

pub(super) fn no_memory(values: usize) -> impl FnOnce(io::Error) -> ServerError {
    move |error| ServerError::Memory { values, error }
}

fn bind_reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "the address is in use; is another server running?".into(),
        io::ErrorKind::AddrNotAvailable => "this machine does not have the address".into(),
        io::ErrorKind::PermissionDenied => "not permitted; ports below 1024 need privileges".into(),
        _ => error.to_string(),
    }
}
