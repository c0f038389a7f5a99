//! The extension module `paceline._paceline`: what the Python package needs of the Rust one.

use pyo3::prelude::*;

/// The native half of the package `paceline`.
#[pymodule]
mod _paceline {
    #[pymodule_export]
    use crate::command::main;
}

mod command;
