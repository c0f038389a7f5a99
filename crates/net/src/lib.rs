//! A parameter server and its workers, in separate processes. Linux only.
//!
//! - [`Server`]: accepts workers and feeds their events to a scheme. The schemes are those that the simulator runs;
//!   time comes from the system clock.
//! - [`Worker`]: computes gradients and local iterations for a server.
//! - [`WorkerSession`]: the same for a program with a loop of its own, which brings the model.
//! - [`LocalWorkers`]: worker processes on the server's machine; [`WorkerOutput`] shows and logs what they print.
//! - [`Address`]: where a server listens. It also selects the transport: `local:NAME` is shared memory on one host,
//!   `HOST:PORT` is TCP. One run can use both.
//!
//! The modules below these, from the bottom up:
//!
//! - `frame`: the wire format, with a checksum and a length limit per frame; `frame_reader` reads it as it arrives.
//! - `socket`: sockets that never block, over TCP or in one host; `tls` encrypts them, a `poller` waits for many.
//! - `connection`: a socket with its `frame_reader`, and its `outbox` for what is to be sent.
//! - `keys`: the token and the certificate that authenticate workers and server.
//! - `shared_memory`: vectors of parameters and gradients that two processes map.
//!
//! Updates are aggregated in the order of ranks. A synchronous run therefore yields the same model, bit for bit, over
//! every transport and in the simulator.
//!
//! The crate needs Linux: shared memory uses `memfd` and abstract Unix sockets, and threads wait with `epoll` and
//! `eventfd`. It also needs a little-endian processor, since values are sent as they are in memory.

#[cfg(not(target_os = "linux"))]
compile_error!("paceline-net runs on Linux only: it uses memfd, abstract Unix sockets, epoll and eventfd");
#[cfg(target_endian = "big")]
compile_error!("paceline-net needs a little-endian processor: it sends values as they are in memory");

mod address;
mod blocking_link;
mod connect;
mod connection;
mod frame;
mod frame_reader;
mod keys;
mod listener;
mod local_workers;
mod outbox;
mod output_lines;
mod poller;
mod private_pages;
#[cfg(test)]
mod scripted_peer;
mod server;
mod shard;
mod shared_memory;
mod socket;
mod socket_buffers;
mod tls;
mod worker;
mod worker_output;

/// Entry points for the fuzz targets in `fuzz/`.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::frame_reader::read_frames;
    pub use paceline_protocol::{ToServer, ToWorker};
}

pub use address::{Address, AddressError, DEFAULT_PORT};
pub use frame::{FRAME_HEADER_BYTES, PROTOCOL_VERSION, frame_bytes};
pub use keys::{Keys, KeysError};
pub use local_workers::{EXIT_TIMEOUT, LocalWorkers};
pub use paceline_protocol::{
    AfterIteration, FromMember, Group, HeldParameters, MemberStep, OfferedTraining, PayloadFormat, PayloadRule, Role,
    RunPosition, ServerSearch, SessionEnd, TaskSettings, ToMember, Welcome, after_iteration,
};
pub use server::{DataPlane, MAX_CONNECTIONS, RunOutcome, Server, ServerError, ShardCount, Stopper, TransportOptions};
pub use shared_memory::{ModelMapping, ValueMemory};
pub use worker::{
    Emulation, GroupMembership, HeldShards, NextOrder, TakenTask, TaskReport, TimeSpent, UpdatePush, Worker,
    WorkerError, WorkerNotice, WorkerOutcome, WorkerSession,
};
pub use worker_output::{OutputStream, ShowOutput, WorkerOutput};
