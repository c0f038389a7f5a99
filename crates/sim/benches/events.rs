//! The simulator's speed without a model: worker events per second for 10 to 100,000 workers, and peak memory.
//!
//! `cargo bench -p paceline-sim --bench events`. With valgrind installed, instruction counts are printed too. They do
//! not depend on the load of the machine.

use std::process::Command;
use std::time::Instant;

use paceline_core::{Decision, Event, Setup, Time};
use paceline_runtime::Observer;
use paceline_sim::{Script, Simulation, Slowness, Times};

const SCHEMES: [&str; 6] =
    ["bsp", "backup:k=HALF", "backup:k=HALF,dispatch=push-interrupt", "asp", "ssp:staleness=3", "dssp:min=3,max=15"];

/// Counts the reports and interrupted tasks.
#[derive(Default)]
struct WorkerEventCounter(u64);

impl Observer for WorkerEventCounter {
    fn on_turn(&mut self, _now: Time, event: &Event, decisions: &[Decision]) {
        self.0 += u64::from(matches!(event, Event::Reported { .. }));
        let interrupted = |decision: &&Decision| matches!(decision.action, paceline_core::Action::Interrupt { .. });
        self.0 += decisions.iter().filter(interrupted).count() as u64;
    }
}

/// Runs for about this number of worker events; returns their exact number.
fn run(scheme: &str, workers: usize, events: u64) -> u64 {
    let simulation = Simulation {
        scheme: scheme.replace("HALF", &(workers / 2).max(1).to_string()).parse().expect("the schemes exist"),
        setup: Setup::new(workers, 1),
        times: Times::load(&"shifted-exponential:0.3,0.7".parse().expect("valid times")).expect("no file is read"),
        slowness: Slowness::default(),
        script: Script::default(),
        network: None,
        training: None,
        goals: format!("samples={}", events / 2).parse().expect("a valid goal"),
        seed: 1,
    };
    let mut counted = WorkerEventCounter::default();
    simulation.run(&mut counted).expect("no law is broken");
    counted.0
}

fn peak_memory_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
}

/// Instructions per worker event, from two runs of this program under callgrind that differ only in length.
fn instructions_per_event(scheme: &str, workers: usize) -> Option<f64> {
    let count = |events: u64| {
        let program = std::env::current_exe().ok()?;
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(program)
            .args(["--count", scheme, &workers.to_string(), &events.to_string()])
            .output()
            .ok()?;
        let done: f64 = String::from_utf8(output.stdout).ok()?.trim().parse().ok()?;
        let log = String::from_utf8(output.stderr).ok()?;
        let line = log.lines().find(|line| line.contains("Collected :"))?;
        Some((done, line.split_whitespace().last()?.parse::<f64>().ok()?))
    };
    let (few, many) = (count(20 * workers as u64)?, count(60 * workers as u64)?);
    Some((many.1 - few.1) / (many.0 - few.0))
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, scheme, workers, events] = arguments.as_slice()
        && flag == "--count"
    {
        let (workers, events) = (workers.parse().expect("a number"), events.parse().expect("a number"));
        println!("{}", run(scheme, workers, events));
        return;
    }
    let valgrind = Command::new("valgrind").arg("--version").output().is_ok();
    if !valgrind {
        println!("instruction counts skipped: valgrind is not installed");
    }
    println!("{:<38} {:>8} {:>12} {:>10} {:>14}", "scheme", "workers", "events/s", "ns/event", "instr./event");
    for scheme in SCHEMES {
        for workers in [10, 100, 1_000, 10_000, 100_000] {
            let start = Instant::now();
            let events = run(scheme, workers, 2_000_000.max(10 * workers as u64));
            let seconds = start.elapsed().as_secs_f64();
            let instructions =
                (valgrind && workers <= 10_000).then(|| instructions_per_event(scheme, workers)).flatten();
            println!(
                "{scheme:<38} {workers:>8} {:>12.0} {:>10.0} {:>14}",
                events as f64 / seconds,
                1e9 * seconds / events as f64,
                instructions.map_or("-".into(), |count| format!("{count:.0}")),
            );
        }
    }
    if let Some(mebibytes) = peak_memory_mib() {
        println!("peak memory, including n = 100,000: {mebibytes:.0} MiB");
    }
}
