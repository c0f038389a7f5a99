//! Ctrl-C, SIGTERM and SIGHUP: the first one asks for the result so far, the second one ends the program at once.

use paceline_config::Failure;
use paceline_runtime::{RunEnding, is_interrupted, request_interrupt};

/// Handles the signals from now on. `on_first` is called at the first one.
pub fn listen(on_first: impl Fn() + Send + 'static) -> Result<(), Failure> {
    // This is the program's only handler, so setting it fails only if the system refuses.
    ctrlc::set_handler(move || {
        if request_interrupt() {
            paceline_watch::restore_terminal();
            std::process::exit(RunEnding::Interrupted.exit_code().into());
        }
        on_first();
    })
    .map_err(Failure::run)
}

/// Handles the signals of a command that looks for the interrupt itself, and ends with its result so far.
pub fn listen_for_result() -> Result<(), Failure> {
    listen(|| eprintln!("interrupted: ends with the result so far; interrupt again to end at once"))
}

/// An error if the command was interrupted.
pub fn check() -> Result<(), Failure> {
    if is_interrupted() { Err(Failure::Ended(RunEnding::Interrupted)) } else { Ok(()) }
}
