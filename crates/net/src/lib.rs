//! The real thing: a parameter server and its workers, in processes of their own.
//!
//! - [`Server`]: hears workers, feeds the same events to the same schemes as the simulator, by the real clock.
//! - [`Worker`]: computes gradients for a server.
//! - [`Address`]: where they meet, and by which transport values travel: in shared memory on one host, or over TCP. One run
//!   can mix them.
//!
//! Underneath, from the bottom up: `frame` (bytes on a connection, checked and bounded), `message` (what is said),
//! `link` (a connection), `tls` (an encrypted one), `keys` (who may take part), `region` (memory that can be shared), `fingerprint` (whether both sides mean the same
//! workload).
//!
//! With one order of aggregation, by rank, a synchronous run gives the same model, bit for bit, over every transport and in
//! the simulator.

#[cfg(not(target_os = "linux"))]
compile_error!("paceline-net shares memory by memfd and Unix sockets of Linux");
#[cfg(target_endian = "big")]
compile_error!("paceline-net sends values as they lie in memory, which must be little-endian");

mod address;
mod fingerprint;
mod frame;
mod keys;
mod link;
mod message;
mod payload;
mod region;
mod server;
mod tls;
mod worker;

/// What the fuzzer in `fuzz/` feeds with arbitrary bytes.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::frame::first_message;
    pub use crate::message::{ToServer, ToWorker};
}

pub use address::{Address, AddressError, DEFAULT_PORT};
pub use frame::PROTOCOL;
pub use keys::{Keys, KeysError};
pub use payload::{ParsePayloadFormatError, PayloadFormat};
pub use server::{CONNECTIONS, RunOutcome, ServeError, Server, Stopper, TransportOptions};
pub use worker::{Emulation, WorkError, Worker, WorkerNotice, WorkerOutcome};
