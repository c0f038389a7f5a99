//! Hosts in network namespaces: that fail (a shard's, the server's, both at once), a network that is cut in two, links with
//! delays.

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

#[test]
fn delays_of_links_add_up() {
    // A connection takes a round trip over two links.
    let listen = "import socket; socket.create_server(('10.0.0.1', 9000)).accept()[0].recv(1)";
    let connect = "import socket, time
while True:
    start = time.monotonic()
    try:
        socket.create_connection(('10.0.0.1', 9000), timeout=10)
        break
    except ConnectionError:
        time.sleep(0.1)
print((time.monotonic() - start) * 1000)";
    let on_hosts = "\"$0\" on 1 python3 -c \"$1\" & \"$0\" on 2 python3 -c \"$2\"; wait";
    let script = format!("{FOLDER}/hosts");
    let mut command = Command::new(&script);
    command.args(["2", "--delay", "15", "--rate", "1gbit", "--", "bash", "-c", on_hosts, &script, listen, connect]);
    let output = command.output().expect("the script is there");
    let message = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(SKIPPED) {
        return eprintln!("{message}");
    }
    let milliseconds: f64 = String::from_utf8_lossy(&output.stdout).trim().parse().expect(&message);
    assert!(milliseconds >= 4.0 * 15.0, "{milliseconds}");
}
