//! The extension module `paceline._paceline`: what the Python package needs of the Rust one.
//!
//! - `command`: the command `paceline`.
//! - `analysis`: simulations and `whatif` as calls.
//! - `scheme`, `turn`: schemes written in Python.
//! - `session`: a worker's session, for a training loop in Python; `member`: its part in groups; `memory`: the values that it shares with its server;
//!   `copies`: copies into them beside the backward pass.
//! - `interruptible`: long work without the interpreter's lock that ends at Ctrl-C.
//! - `errors`: failures as the package's exceptions.

mod analysis;
mod command;
mod copies;
mod errors;
mod interruptible;
mod member;
mod memory;
mod scheme;
mod session;
mod turn;

/// The native half of the package `paceline`.
#[pyo3::pymodule]
mod _paceline {
    #[pymodule_export]
    use crate::analysis::{simulate, whatif};
    #[pymodule_export]
    use crate::command::main;
    #[pymodule_export]
    use crate::copies::{PyCopies, PyUpdatePush};
    #[pymodule_export]
    use crate::member::{PyGroup, PyGroupMembership, PyStep};
    #[pymodule_export]
    use crate::memory::PyMemory;
    #[pymodule_export]
    use crate::scheme::{PyAggregate, PyAssignment, PyQuestion, PySetup, PyUpdate};
    #[pymodule_export]
    use crate::session::{PySession, PyTakenTask};
    #[pymodule_export]
    use crate::turn::PyTurn;
}
