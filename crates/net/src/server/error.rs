//! What ends a server.

use std::io;

use paceline_core::{LedgerError, SpecError, TaskId};
use thiserror::Error;

use crate::address::Address;
use crate::keys::KeysError;

/// Why a server could not run, or could not go on.
#[derive(Debug, Error)]
pub enum ServeError {
    /// An address can't be listened on.
    #[error("can't listen on {address}: {}", in_words(error))]
    Bind {
        /// The address.
        address: Address,
        /// Why.
        error: io::Error,
    },
    /// Strangers could join.
    #[error(
        "whoever reaches {address} could join and see the model: give --keys DIR (paceline keys makes one), or --open to \
         let anyone in"
    )]
    Open {
        /// Where.
        address: Address,
    },
    /// The keys can't be used.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The scheme can't be built.
    #[error(transparent)]
    Scheme(#[from] SpecError),
    /// The scheme broke a law.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// There is no memory for parameters or gradients.
    #[error("no memory for {values} values: {error}")]
    Memory {
        /// How many were needed at once.
        values: usize,
        /// Why.
        error: io::Error,
    },
    /// The operating system denies what every server needs.
    #[error("the system does not let the server work: {0}")]
    System(io::Error),
    /// The scheme committed an update after it had queued newer work behind its task. Such a gradient is late by the
    /// protocol, and was never sent.
    #[error("the scheme committed {0}, whose gradient was not sent: newer work had been queued behind it")]
    Withheld(TaskId),
    /// The scheme committed by [`Compensated`](paceline_core::Step::Compensated) without having said that it would.
    #[error("the scheme corrected {0} for the steps since, but did not say before that it compensates")]
    Forgotten(TaskId),
}

fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "it is in use; is another server running there?".into(),
        io::ErrorKind::AddrNotAvailable => "it is not an address of this machine".into(),
        io::ErrorKind::PermissionDenied => "not permitted; ports below 1024 need privileges".into(),
        _ => error.to_string(),
    }
}
