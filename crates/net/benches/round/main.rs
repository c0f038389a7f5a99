//! The cost of a synchronous round, compared with Gloo and OpenMPI: `cargo bench -p paceline-net`.
//!
//! Workers are processes of the same program. `cargo bench -p paceline-net -- crowd` runs only the second part,
//! `-- rounds 1000000` only the rounds of one length. `-- hosts 1000000` compares rounds between hosts with limited links:
//! `experiments/network/hosts 4 --rate 1gbit --congestion reno -- cargo bench -p paceline-net -- hosts 1000000`.

mod bare_sum;
mod crowd;
mod hosts;
mod idle;
mod peers;
mod rounds;

use std::env;
use std::process::{Child, Command};

/// The congestion control of TCP connections within this machine. `bbr`, the default of some systems, makes the loopback
/// slower.
const CONGESTION: &str = "reno";

/// The congestion control of all TCP connections: between hosts it is the system's, as Gloo's is.
fn congestion() -> Option<String> {
    env::var_os("HOSTS").is_none().then(|| CONGESTION.into())
}

/// The environment variable that makes a process run workers of the benchmark.
const ROLE: &str = "PACELINE_BENCH_WORKERS";

/// Starts another process of this program that runs the workers of `role`.
fn start(role: String) -> Child {
    let program = env::current_exe().expect("this program has a path");
    Command::new(program).env(ROLE, role).spawn().expect("this program can be started")
}

fn main() {
    if let Ok(role) = env::var(ROLE) {
        return idle::work(&role);
    }
    // Cargo adds `--bench`.
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            rounds::compare(&rounds::LENGTHS);
            crowd::measure();
        }
        ["rounds", length] => rounds::compare(&[length.parse().expect("a number of parameters")]),
        ["crowd"] => crowd::measure(),
        ["hosts", length] => hosts::compare(length.parse().expect("a number of parameters"), ""),
        ["hosts", length, only] => hosts::compare(length.parse().expect("a number of parameters"), only),
        ["serve-host", length, workers, shards, payload] => hosts::serve(length, workers, shards, payload),
        _ => eprintln!("expected no argument, 'rounds LENGTH', 'crowd' or 'hosts LENGTH [ONLY]'"),
    }
}
