//! A synchronous round between hosts, compared with Gloo's ring over the same links. To be run within
//! `experiments/network/hosts`.

use std::env;
use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use paceline_net::{PayloadFormat, ShardCount};

use crate::rounds::{RoundRecorder, RoundTimes};
use crate::{ROLE, idle, peers};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/network/hosts");

/// A round may take seconds.
const WARM_UP: usize = 8;
const ROUNDS: usize = 5;

/// The address of the server, and of Gloo's rank 0: on the first host.
fn address() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 7077))
}

/// A program on a host, counted from 1.
fn on(host: usize, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(SCRIPT);
    command.args(["on", &host.to_string()]).arg(program).stdout(Stdio::piped());
    command
}

/// Runs the programs side by side.
fn run(programs: Vec<Command>) -> Vec<Output> {
    let start = |mut program: Command| program.spawn().expect("the program can be started");
    let children: Vec<_> = programs.into_iter().map(start).collect();
    let output = |child: std::process::Child| child.wait_with_output().expect("the program was started");
    children.into_iter().map(output).collect()
}

/// A server on the first host, and a worker on every host, with or without a shard beside it.
fn own(length: usize, hosts: usize, shards: ShardCount, payload: PayloadFormat) -> Option<RoundTimes> {
    let program = env::current_exe().expect("this program has a path");
    let mut server = on(1, &program);
    let (length, workers) = (length.to_string(), hosts.to_string());
    server.args(["serve-host", &length, &workers, &shards.to_string(), &payload.to_string()]);
    let worker = |host: usize| {
        let mut worker = on(host, &program);
        worker.env(ROLE, idle::role(address(), host - 1..host, Duration::ZERO));
        worker
    };
    let programs = std::iter::once(server).chain((1..=hosts).map(worker)).collect();
    peers::times(&run(programs)[0].stdout)
}

/// The server of [`own`]. Prints the milliseconds of every round.
pub fn serve(length: &str, workers: &str, shards: &str, payload: &str) {
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let job = idle::job("bsp", number(length), number(workers), WARM_UP + ROUNDS);
    let address = address().to_string().parse().expect("a valid address");
    let mut durations = RoundRecorder::default();
    idle::bind(&address, payload.parse().expect("a payload"), shards.parse().expect("a number of shards"))
        .run(&job, &mut durations)
        .expect("idle workers do not fail");
    durations.0[WARM_UP..].iter().for_each(|milliseconds| println!("{milliseconds}"));
}

/// Gloo's all-reduce, one process on every host.
fn gloo(length: usize, hosts: usize) -> Option<RoundTimes> {
    let process = |rank: usize| {
        let mut process = on(rank + 1, "python3");
        process.args(peers::gloo_arguments("eth0", address(), [rank, hosts, length, ROUNDS]));
        process
    };
    peers::has_gloo().then(|| run((0..hosts).map(process).collect()))?.iter().find_map(|one| peers::times(&one.stdout))
}

/// Bits per second of a rate in the words of `tc`.
fn bits_per_second(rate: &str) -> Option<f64> {
    let units = [("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
    units.into_iter().find_map(|(unit, bits)| Some(rate.strip_suffix(unit)?.parse::<f64>().ok()? * bits))
}

/// Measures rounds of `length` parameters in every format beside Gloo, and prints a table. Of ours, it measures those whose
/// name begins with `only`.
pub fn compare(length: usize, only: &str) {
    let Some(hosts) = env::var("HOSTS").ok().and_then(|hosts| hosts.parse::<usize>().ok()) else {
        return eprintln!("skipped: there are no hosts; run this within experiments/network/hosts");
    };
    let rate = env::var("HOSTS_RATE").unwrap_or_default();
    let models = 2.0 * (hosts - 1) as f64 / hosts as f64;
    let bound = bits_per_second(&rate).map(|bits| models * 32.0 * length as f64 / bits * 1e3);
    let links = if rate.is_empty() { "unlimited" } else { &rate };
    let mut read = on(1, "cat");
    read.arg("/proc/sys/net/ipv4/tcp_congestion_control");
    let system = run(vec![read]);
    let system = String::from_utf8_lossy(&system[0].stdout).trim().to_string();
    println!("{length} parameters, {hosts} hosts, links: {links}, congestion control: {system}");
    let cited = bound.map_or("unknown".into(), |bound| format!("{bound:.0} ms"));
    println!("the bound of a ring and of shards, {models:.2} models in f32 per link: {cited}");
    if !peers::has_gloo() {
        println!("skipped Gloo: python3 has no torch.distributed with gloo");
    }
    let ring = gloo(length, hosts);
    println!("{:<15} {:>9} {:>18} {:>8} {:>8}", "", "ms", "from – to", "× Gloo", "× bound");
    let ratio = |median: f64, of: Option<f64>| of.map_or("".into(), |of| format!("{:.2}", median / of));
    let row = |name: &str, times: Option<RoundTimes>| match times {
        Some(RoundTimes { median, min, max }) => println!(
            "{name:<15} {median:>9.0} {:>18} {:>8} {:>8}",
            format!("{min:.0} – {max:.0}"),
            ratio(median, ring.map(|ring| ring.median)),
            ratio(median, bound),
        ),
        None => println!("{name:<15} {:>9}", "none"),
    };
    row("Gloo", ring);
    let formats = [PayloadFormat::F32, PayloadFormat::Bf16, PayloadFormat::Int8];
    let sharded = formats.map(|payload| (format!("shards, {payload}"), ShardCount::Hosts, payload));
    let one_server = ("one server, f32".to_string(), ShardCount::None, PayloadFormat::F32);
    for (name, shards, payload) in std::iter::once(one_server).chain(sharded) {
        if name.starts_with(only) {
            row(&name, own(length, hosts, shards, payload));
        }
    }
}
