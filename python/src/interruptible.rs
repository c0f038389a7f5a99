//! Long work that ends at Ctrl-C.

use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use paceline::runtime::{request_interrupt, withdraw_interrupt};
use pyo3::prelude::*;

/// How often signals are looked for.
const INTERVAL: Duration = Duration::from_millis(100);

/// Runs `work` on a thread of its own, without the interpreter's lock. A signal whose handler raises an exception, as that
/// of Ctrl-C does, interrupts it; the result is then that exception.
pub fn interruptible<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    let (running, mut ended) = channel::<()>();
    let (outcome, raised) = thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let _running = running;
            // A scheme in Python takes the lock for every event. That is cheap in a thread that has had it before.
            Python::attach(|py| py.detach(work))
        });
        let mut raised = None;
        loop {
            let (message, same) = py.detach(move || (ended.recv_timeout(INTERVAL), ended));
            ended = same;
            if message == Err(RecvTimeoutError::Disconnected) {
                break;
            }
            if let Err(exception) = py.check_signals() {
                request_interrupt();
                raised = Some(exception);
            }
        }
        (py.detach(move || thread.join()), raised)
    });
    let outcome = outcome.unwrap_or_else(|panic| resume_unwind(panic));
    match raised {
        Some(exception) => {
            withdraw_interrupt();
            Err(exception)
        }
        None => Ok(outcome),
    }
}
