//! The extension module `paceline._paceline`: what the Python package needs of the Rust one.
//!
//! - `command`: the command `paceline`.
//! - `analysis`: simulations and `whatif` as calls.
//! - `scheme`, `turn`: schemes written in Python.
//! - `interruptible`: long work without the interpreter's lock that ends at Ctrl-C.
//! - `errors`: failures as the package's exceptions.

mod analysis;
mod command;
mod errors;
mod interruptible;
mod scheme;
mod turn;

/// The native half of the package `paceline`.
#[pyo3::pymodule]
mod _paceline {
    #[pymodule_export]
    use crate::analysis::{simulate, whatif};
    #[pymodule_export]
    use crate::command::main;
    #[pymodule_export]
    use crate::scheme::{PyAggregate, PyAssignment, PyQuestion, PySetup, PyUpdate};
    #[pymodule_export]
    use crate::turn::PyTurn;
}
