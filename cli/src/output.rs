//! Standard output.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Prints text and a line break to standard output. If that fails, the program exits: with code 0 if the reader has
/// closed the pipe, as `| head` does, else with an error.
pub fn say(line: impl Display) {
    exit_unless_written(writeln!(io::stdout(), "{line}"));
}

/// The same, but the program goes on if the reader has closed the pipe: the result is saved, whoever has seen it.
pub fn say_before_saving(line: impl Display) {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        outcome => exit_unless_written(outcome),
    }
}

/// Exits if standard output could not be written.
pub fn exit_unless_written(outcome: io::Result<()>) {
    match outcome {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            eprintln!("error: can't write to standard output: {error}");
            std::process::exit(1);
        }
    }
}
