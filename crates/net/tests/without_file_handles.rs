//! The server of a process that has run out of file handles. This is the only test of its process.

mod common;

use std::fs::File;
use std::net::TcpStream;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, sleep};
use std::time::Duration;

use common::{TransportKind, address, job, server, work, worker};
use paceline_net::{Address, TransportOptions};
use paceline_runtime::{Notice, Observer, ServerObserver};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// The processor time of this process so far.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap()
}

struct NoticeChannel(Sender<String>);

impl Observer for NoticeChannel {
    fn on_notice(&mut self, notice: &Notice) {
        self.0.send(notice.to_string()).unwrap();
    }
}

impl ServerObserver for NoticeChannel {}

#[test]
fn a_server_without_file_handles_says_so_once_waits_and_accepts_when_one_is_free() {
    let job = job("bsp", 1, "iterations=5");
    let server = server(TransportOptions::default());
    let address = address(&server, TransportKind::Tcp);
    let Address::Tcp { host, port } = &address else { unreachable!("the address is a TCP address") };
    let (sender, notices) = channel();
    let of_server = job.clone();
    let running = thread::spawn(move || server.run(&of_server, &mut NoticeChannel(sender)).unwrap());
    // This connection tells that the server runs, and has all other handles that it needs.
    drop(TcpStream::connect((host.as_str(), *port)).unwrap());
    let first = notices.recv().unwrap();
    assert!(first.contains("connection closed before the handshake"), "{first}");

    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..getrlimit(Resource::Nofile) }).unwrap();
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    // The last handle is the client's.
    files.pop();
    let waiting = TcpStream::connect((host.as_str(), *port)).unwrap();
    let notice = notices.recv().unwrap();
    assert!(notice.contains("Too many open files"), "{notice}");

    let (before, pause) = (processor_time(), Duration::from_millis(500));
    sleep(pause);
    let used = processor_time() - before;
    assert!(used < pause / 5, "{used:?} of processor time in {pause:?}");
    let second = notices.try_recv();
    assert!(second.is_err(), "it says so once: {second:?}");

    drop((files, waiting));
    work(worker(address.clone(), 0), &job).unwrap();
    assert_eq!(running.join().unwrap().summary.iterations, 5);
}
