//! Standard output.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Writes a line, or several, to standard output. If it can't be written, the program is over: quietly, if nobody
/// reads on, as behind `| head`.
pub fn say(line: impl Display) {
    written(writeln!(io::stdout(), "{line}"));
}

/// Ends the program if standard output could not be written.
pub fn written(outcome: io::Result<()>) {
    match outcome {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            eprintln!("error: can't write to standard output: {error}");
            std::process::exit(1);
        }
    }
}
