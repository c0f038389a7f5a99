//! The command `paceline`.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the command that `sys.argv` names, without the interpreter's lock, and returns its exit code.
///
/// Signals are the command's own: it ends as the native one does.
#[pyfunction]
pub fn main(py: Python<'_>) -> PyResult<u8> {
    let signal = py.import("signal")?;
    signal.call_method1("signal", (signal.getattr("SIGINT")?, signal.getattr("SIG_DFL")?))?;
    let sys = py.import("sys")?;
    let interpreter: OsString = sys.getattr("executable")?.extract()?;
    let mut arguments: Vec<OsString> = sys.getattr("argv")?.extract()?;
    arguments.remove(0);
    // `-P`: a folder or file of the user that is called paceline is not this package.
    let start = vec![interpreter, "-P".into(), "-m".into(), "paceline".into()];
    Ok(py.detach(|| paceline::main_from(start, arguments)))
}
