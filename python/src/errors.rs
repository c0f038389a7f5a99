//! Failures as the package's exceptions, with the sentences of the command line.

use paceline::Failure;
use pyo3::PyErr;
use pyo3::import_exception;

import_exception!(paceline.errors, InputError);
import_exception!(paceline.errors, RunError);

/// The exception of a failure.
pub fn exception(failure: &Failure) -> PyErr {
    match failure {
        Failure::Input(_) | Failure::Help(_) => InputError::new_err(failure.to_string()),
        Failure::Run(_) | Failure::Ended(_) => RunError::new_err(failure.to_string()),
    }
}
