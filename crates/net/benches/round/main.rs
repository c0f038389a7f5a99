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

use std::process::{Child, Command};

/// The congestion control of all TCP connections. `bbr`, the default of some systems, makes the loopback slower.
const CONGESTION: &str = "reno";

/// The environment variable that makes a process run workers of the benchmark.
const ROLE: &str = "PACELINE_BENCH_WORKERS";

/// Starts another process of this program that runs the workers of `role`.
fn start(role: String) -> Child {
    let program = std::env::current_exe().expect("this program has a path");
    Command::new(program).env(ROLE, role).spawn().expect("this program can be started")
}

fn main() {
    if let Ok(role) = std::env::var(ROLE) {
        return idle::work(&role);
    }
    // Cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            rounds::compare(&rounds::LENGTHS);
            crowd::measure();
        }
        ["rounds", length] => rounds::compare(&[length.parse().expect("a number of parameters")]),
        ["crowd"] => crowd::measure(),
        ["hosts", length] => hosts::compare(length.parse().expect("a number of parameters")),
        ["serve-host", length, workers, payload] => hosts::serve(length, workers, payload),
        _ => eprintln!("expected no argument, 'rounds LENGTH', 'crowd' or 'hosts LENGTH'"),
    }
}
