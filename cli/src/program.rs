//! How this program is started again: `train` does it for its workers, `race --real` for its runs.

use std::ffi::OsString;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::Context;

static START: OnceLock<Vec<OsString>> = OnceLock::new();

/// Says how this program is started: the executable and its first arguments. Without it, the executable alone.
pub fn set_start(start: Vec<OsString>) {
    // A process runs one command, which was started in one way.
    START.get_or_init(|| start);
}

/// How this program is started.
#[derive(Debug, Clone)]
pub struct ProgramStart(Vec<OsString>);

impl ProgramStart {
    /// How this program was started.
    pub fn find() -> anyhow::Result<Self> {
        let own = || anyhow::Ok(vec![std::env::current_exe().context("path of this program")?.into()]);
        START.get().cloned().map_or_else(own, Ok).map(ProgramStart)
    }

    /// A command that starts it, so far without arguments of its own.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.0[0]);
        command.args(&self.0[1..]);
        command
    }
}
