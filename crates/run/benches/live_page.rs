//! What the page that follows a run costs the run: `cargo bench -p paceline-run`.
//!
//! Runs with 96 workers without a page, with a page at which nobody looks, and with one listener, in turns. The coordinator's
//! processor time is what the run waits for; that of the process includes the thread that serves the page, and the workers.
//! `-- 24 500 9` takes 24 workers, 500 iterations and nine runs of each. Before that, the observer of the page alone: what it does
//! for an event is all that the coordinator does for the page.

use std::env;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use paceline_core::{Action, Event, Ledger, Report, SchemeSpec, Setup, TaskId, Time, WorkerId};
use paceline_net::Worker;
use paceline_report::live::follow;
use paceline_run::RunBuilder;
use paceline_runtime::{EventLogHeader, Job, LivePage, Observer};
use paceline_workload::{Order, Partition, Sampler, SoftmaxRegression, Workload, synthetic_digits};
use rustix::time::{ClockId, clock_gettime};

/// How a run is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageUse {
    Off,
    Unseen,
    Listened,
}

const USES: [PageUse; 3] = [PageUse::Off, PageUse::Unseen, PageUse::Listened];

/// Microseconds per iteration: on the wall, of the coordinator's processor, of the process's.
type Costs = [f64; 3];

const NAMES: [&str; 3] = ["wall", "coordinator", "process"];

fn clocks(start: Instant) -> [f64; 3] {
    let seconds = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    [start.elapsed().as_secs_f64(), seconds(ClockId::ThreadCPUTime), seconds(ClockId::ProcessCPUTime)]
}

/// Reads what the page sends until the run has ended.
fn listen(page: SocketAddr) -> u64 {
    let mut stream = TcpStream::connect(page).expect("the page is there");
    stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the page reads");
    let (mut bytes, mut buffer) = (0, vec![0; 1 << 16]);
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        bytes += count as u64;
    }
    bytes
}

fn measure(page: PageUse, workers: usize, iterations: u64) -> Costs {
    let splits = synthetic_digits(1, 600, 200).expect("there are digits");
    let sampler = Sampler::new(splits.train().labels(), Partition::Iid, Order::Epochs, workers, 1);
    let workload: Arc<dyn Workload> =
        Arc::new(SoftmaxRegression::new(splits, sampler.expect("every worker has samples"), 0.0));
    let job = Job::new(workload.clone(), Setup::new(workers, 1));
    let goals = format!("iterations={iterations}").parse().expect("this is a goal");
    let job = Job { scheme: "bsp".parse().expect("this is a scheme"), goals, ..job };
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    let run =
        RunBuilder::new(&job, ["127.0.0.1:0".parse().expect("this is an address")]).folder(folder.path().join("run"));
    let run = if page == PageUse::Off { run } else { run.http(listener) };
    let run = run.prepare().expect("the run is prepared");
    let server = run.addresses()[0].clone();
    thread::scope(|scope| {
        if page == PageUse::Listened {
            scope.spawn(move || assert!(listen(address) > 0));
        }
        for _ in 0..workers {
            scope.spawn(|| Worker::new(server.clone()).run(|_| Ok(workload.clone()), &mut |_| {}));
        }
        let start = Instant::now();
        let before = clocks(start);
        let ended = run.run().expect("the run ends");
        let after = clocks(start);
        drop(ended);
        std::array::from_fn(|clock| 1e6 * (after[clock] - before[clock]) / iterations as f64)
    })
}

/// How often the page takes in what happened, in events.
const FOLDED: usize = 8192;

/// Nanoseconds that the observer of a page takes for an event of a `bsp` run.
fn observer_cost(workers: usize, rounds: u64) -> f64 {
    let (spec, setup) = ("bsp".parse::<SchemeSpec>().expect("this is a scheme"), Setup::new(workers, 1));
    let header = EventLogHeader::new(spec.clone(), &setup);
    let mut ledger = Ledger::new(spec.build(&setup).expect("the scheme suits the workers"));
    let ranks = || (0..workers as u32).map(WorkerId);
    let joined = ranks().map(|worker| Event::Joined { worker });
    let reported = |number| {
        move |worker| {
            let task = TaskId { worker, number };
            Event::Reported { task, report: Report::default() }
        }
    };
    let mut turns = Vec::new();
    for event in joined.chain((0..rounds).flat_map(|number| ranks().map(reported(number)))) {
        let now = Time(1000 * turns.len() as u64);
        let decisions = ledger.handle(now, event.clone()).expect("the event is possible").to_vec();
        let steps = decisions.iter().find_map(|decision| match &decision.action {
            Action::Commit(commit) => Some(commit.version),
            _ => None,
        });
        turns.push((now, event, decisions));
        if let Some(version) = steps {
            let event = Event::Committed { version, aggregate: None };
            let decisions = ledger.handle(now, event.clone()).expect("the event is possible").to_vec();
            turns.push((now, event, decisions));
        }
    }
    let (mut observer, page) = follow("run".into(), header, String::new());
    let mut spent = Duration::ZERO;
    for turns in turns.chunks(FOLDED) {
        let start = Instant::now();
        turns.iter().for_each(|(now, event, decisions)| observer.on_turn(*now, event, decisions));
        spent += start.elapsed();
        page.advance();
    }
    1e9 * spent.as_secs_f64() / turns.len() as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    // Cargo adds `--bench`.
    let numbers: Vec<usize> = env::args().filter_map(|argument| argument.parse().ok()).collect();
    let [workers, iterations, rounds] = *numbers else { return compare(96, 300, 9) };
    compare(workers, iterations as u64, rounds);
}

fn compare(workers: usize, iterations: u64, rounds: usize) {
    let observer = median((0..rounds).map(|_| observer_cost(workers, iterations)).collect());
    println!("the observer of the page takes {observer:.0} ns for an event");
    let runs: Vec<[Costs; 3]> = (0..rounds).map(|_| USES.map(|page| measure(page, workers, iterations))).collect();
    println!("{workers} workers, {iterations} iterations, {rounds} runs of each; medians in µs per iteration");
    for (clock, name) in NAMES.iter().enumerate() {
        for (index, page) in USES.iter().enumerate() {
            let of = |run: &[Costs; 3]| run[index][clock];
            let ratio = median(runs.iter().map(|run| of(run) / run[0][clock]).collect());
            let page = format!("page {page:?}").to_lowercase();
            println!("{name:>12}  {page:<14} {:>9.1}  × {ratio:.3}", median(runs.iter().map(of).collect()));
        }
    }
}
