//! One round: every worker pushes a gradient, the server aggregates and steps, every worker pulls.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use paceline_net::Address;
use paceline_runtime::{Iteration, Monitor, Observer, ServerObserver};
use rustix::net::sockopt;

use crate::{bare_sum, idle, peers};

pub const LENGTHS: [usize; 3] = [100_000, 1_000_000, 25_600_000];
const WORKERS: [usize; 3] = [2, 4, 8];

/// Rounds before the measurement, in which pages are touched and connections reach full speed.
const WARM_UP: usize = 5;

/// How late the last worker is in some rounds, and how many of them are measured at most.
const LATE: Duration = Duration::from_millis(100);
const LATE_ROUNDS: usize = 30;

/// The number of rounds to measure: a few seconds for every length.
pub fn rounds(length: usize) -> usize {
    (200_000_000 / length).clamp(15, 500)
}

/// Median, shortest and longest round, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct RoundTimes {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl RoundTimes {
    pub fn of(mut milliseconds: Vec<f64>) -> Self {
        milliseconds.sort_by(f64::total_cmp);
        let last = milliseconds.len() - 1;
        RoundTimes { median: milliseconds[last / 2], min: milliseconds[0], max: milliseconds[last] }
    }
}

/// The milliseconds of every round.
#[derive(Default)]
pub struct RoundRecorder(pub Vec<f64>);

impl Observer for RoundRecorder {
    fn on_iteration(&mut self, iteration: &Iteration, _monitor: &Monitor) {
        self.0.push(iteration.duration * 1e3);
    }
}

impl ServerObserver for RoundRecorder {}

fn own(address: &Address, length: usize, workers: usize) -> RoundTimes {
    let job = idle::job("bsp", length, workers, rounds(length) + WARM_UP);
    let mut durations = RoundRecorder::default();
    idle::run(&job, address, &vec![Duration::ZERO; workers], &mut durations);
    RoundTimes::of(durations.0.split_off(WARM_UP))
}

/// What is left of a round when the last worker, which is late, has its gradient.
fn own_after_last(address: &Address, length: usize, workers: usize) -> RoundTimes {
    let rounds = rounds(length).min(LATE_ROUNDS);
    let job = idle::job("bsp", length, workers, rounds + WARM_UP);
    let mut durations = RoundRecorder::default();
    let mut tasks = vec![Duration::ZERO; workers];
    tasks[workers - 1] = LATE;
    idle::run(&job, address, &tasks, &mut durations);
    let left = durations.0.split_off(WARM_UP).into_iter().map(|round| round - LATE.as_secs_f64() * 1e3);
    RoundTimes::of(left.collect())
}

/// Bytes per second that two threads copy, each byte counted as read and as written.
fn copy_speed() -> f64 {
    const LENGTH: usize = 16 * 1024 * 1024;
    const REPEATS: usize = 9;
    let one = || {
        let (from, mut to) = (vec![1.0f32; LENGTH], vec![0.0f32; LENGTH]);
        let time = |_| {
            let started = Instant::now();
            to.copy_from_slice(black_box(&from));
            black_box(&to);
            started.elapsed().as_secs_f64()
        };
        let mut times: Vec<f64> = (0..REPEATS).map(time).collect();
        times.sort_by(f64::total_cmp);
        (2 * size_of::<f32>() * LENGTH) as f64 / times[REPEATS / 2]
    };
    thread::scope(|scope| {
        let other = scope.spawn(one);
        one() + other.join().expect("copying can't fail")
    })
}

/// Bytes per second through this many loopback connections at once, each from one buffer to another, in the chunk size
/// of the server.
fn loopback_speed(connections: usize) -> f64 {
    const LENGTH: usize = 32 * 1024 * 1024;
    const PORTION: usize = 256 * 1024;
    const REPEATS: usize = 10;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let fast = |stream: &TcpStream| {
        sockopt::set_tcp_congestion(stream, crate::CONGESTION).expect("the system has it");
        sockopt::set_socket_send_buffer_size(stream, 2 * PORTION).expect("a size");
        sockopt::set_socket_recv_buffer_size(stream, 2 * PORTION).expect("a size");
    };
    let start = Barrier::new(2 * connections + 1);
    let started = thread::scope(|scope| {
        for _ in 0..connections {
            let mut near = TcpStream::connect(address).expect("it listens");
            let mut far = listener.accept().expect("it connects").0;
            [&near, &far].into_iter().for_each(fast);
            let start = &start;
            scope.spawn(move || {
                let bytes = vec![1_u8; LENGTH];
                start.wait();
                for part in (0..REPEATS).flat_map(|_| bytes.chunks(PORTION)) {
                    near.write_all(part).expect("the other end reads");
                }
            });
            scope.spawn(move || {
                let mut bytes = vec![1_u8; LENGTH];
                start.wait();
                for _ in 0..REPEATS {
                    for part in bytes.chunks_mut(PORTION) {
                        far.read_exact(part).expect("the other end writes");
                    }
                }
            });
        }
        start.wait();
        Instant::now()
    });
    (connections * REPEATS * LENGTH) as f64 / started.elapsed().as_secs_f64()
}

/// Measures all transports and the other libraries and prints a table.
pub fn compare(lengths: &[usize]) {
    let speed = copy_speed();
    let loopback = WORKERS.map(loopback_speed);
    println!(
        "two threads copy at {:.1} GB/s (read + written); {WORKERS:?} loopback connections move {:.1?} GB/s; TCP congestion \
         control: {}",
        speed / 1e9,
        loopback.map(|speed| speed / 1e9),
        crate::CONGESTION
    );
    for remark in peers::remarks() {
        println!("{remark}");
    }
    println!("{:>10} × workers  {:<16} {:>9} {:>18} {:>8}", "parameters", "", "ms", "from – to", "× bound");
    for &length in lengths {
        for (workers, loopback) in WORKERS.into_iter().zip(loopback) {
            let vector = (size_of::<f32>() * length) as f64;
            let count = workers as f64;
            // Every gradient is read, the parameters are read and written. Over TCP all of them also pass the loopback,
            // to the server and back. (A ring of workers would send 1/n less, and a real network needs no copies at the
            // other end.)
            let shared_bound = (count + 2.0) * vector / speed * 1e3;
            let tcp_bound = shared_bound + 2.0 * count * vector / loopback * 1e3;
            let local = Address::Local { name: format!("paceline-bench-{}", std::process::id()) };
            let tcp = "127.0.0.1:0".parse().expect("a valid address");
            let row = |name: &str, times: Option<RoundTimes>, bound: f64| {
                if let Some(RoundTimes { median, min, max }) = times {
                    let range = format!("{min:.2} – {max:.2}");
                    let ratio = median / bound;
                    println!("{length:>10} × {workers:<7}  {name:<16} {median:>9.2} {range:>18} {ratio:>8.2}");
                }
            };
            row("bare sum", Some(bare_sum::measure(length, workers)), shared_bound);
            row("shared memory", Some(own(&local, length, workers)), shared_bound);
            row("after the last", Some(own_after_last(&local, length, workers)), shared_bound);
            row("TCP", Some(own(&tcp, length, workers)), tcp_bound);
            row("Gloo", peers::gloo(length, workers), tcp_bound);
            row("OpenMPI", peers::open_mpi(length, workers, false), shared_bound);
            row("OpenMPI over TCP", peers::open_mpi(length, workers, true), tcp_bound);
        }
    }
}
