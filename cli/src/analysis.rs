//! Commands that return their result instead of printing it, for bindings to other languages.
//!
//! `arguments` are those of the command, such as `--workers=8`, without its name. Nothing handles signals:
//! [`request_interrupt`](crate::runtime::request_interrupt) ends a command early.

use std::ffi::OsString;

use paceline_report::live_table::LiveTable;
use paceline_runtime::{Observer, Summary};
use serde_json::Value;

use crate::{Command, Failure, parse};

/// `paceline simulate` with one seed. The observer sees the run.
///
/// # Errors
/// As the command. That a run missed its target is no error.
pub fn simulate(arguments: Vec<OsString>, observer: &mut dyn Observer) -> Result<Summary, Failure> {
    match parse(named("simulate", arguments))? {
        (Command::Simulate(command), configuration) => command.run_observed(&configuration, observer),
        _ => unreachable!("the command is simulate"),
    }
}

/// `paceline whatif`: the objects that its `--json` prints.
///
/// # Errors
/// As the command.
pub fn whatif(arguments: Vec<OsString>) -> Result<Vec<Value>, Failure> {
    match parse(named("whatif", arguments))? {
        (Command::Whatif(command), configuration) => {
            Ok(command.compare(&configuration, |names, runs| Ok(LiveTable::silent(names, runs)))?.json_lines())
        }
        _ => unreachable!("the command is whatif"),
    }
}

fn named(command: &str, arguments: Vec<OsString>) -> Vec<OsString> {
    ["paceline", command].into_iter().map(OsString::from).chain(arguments).collect()
}
