//! What a synchronous round costs, beside its peers: `cargo bench -p paceline-net`.
//!
//! Workers are processes of this same program. `cargo bench -p paceline-net -- crowd` runs the second part alone, and
//! `-- rounds 1000000` the rounds of one length.

mod crowd;
mod idle;
mod peers;
mod rounds;

use std::process::{Child, Command};

/// Congestion control of all TCP connections, ours and the peers': `bbr`, the default of some systems, makes loopback
/// slower for everyone.
const CONGESTION: &str = "reno";

/// What this process is: the benchmark itself, or some workers of it.
const ROLE: &str = "PACELINE_BENCH_WORKERS";

/// Starts another process of this program that runs workers as `role` says.
fn start(role: String) -> Child {
    let program = std::env::current_exe().expect("this program has a path");
    Command::new(program).env(ROLE, role).spawn().expect("this program can be started")
}

fn main() {
    if let Ok(role) = std::env::var(ROLE) {
        return idle::work(&role);
    }
    // Cargo adds `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            rounds::compare(&rounds::LENGTHS);
            crowd::measure();
        }
        ["rounds", length] => rounds::compare(&[length.parse().expect("a number of parameters")]),
        ["crowd"] => crowd::measure(),
        _ => eprintln!("expected nothing, `rounds LENGTH` or `crowd`"),
    }
}
