//! Hosts that fail, in network namespaces: a shard's, the server's, both at once, and a network that is cut in two.

use std::process::Command;
use std::thread;

use serde_json::Value;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../experiments/network");

/// The exit status where hosts can't be made.
const SKIPPED: i32 = 77;

/// The summary of a run in which this fails; `None` where hosts can't be made.
fn run(failure: &str, scheme: &str, shards: &str) -> Option<Value> {
    let mut command = Command::new(format!("{FOLDER}/hosts"));
    command.args(["4", "--", &format!("{FOLDER}/failures"), failure, scheme, shards]);
    let output = command.env("PACELINE", env!("CARGO_BIN_EXE_paceline")).output().expect("the script is there");
    let message = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(SKIPPED) {
        eprintln!("{message}");
        return None;
    }
    assert!(output.status.success(), "{failure}, {scheme}, {shards}: {message}");
    Some(serde_json::from_slice(&output.stdout).expect(&message))
}

#[test]
fn a_run_reaches_its_target_whichever_host_fails() {
    for (scheme, shards) in [("bsp", "hosts"), ("dbw", "hosts"), ("esync", "hosts"), ("bsp", "none")] {
        thread::scope(|scope| {
            for failure in ["worker", "server", "both", "cut"] {
                scope.spawn(move || {
                    if let Some(summary) = run(failure, scheme, shards) {
                        assert_eq!(summary["reached"], true, "{failure}, {scheme}, {shards}: {summary}");
                    }
                });
            }
        });
    }
}
