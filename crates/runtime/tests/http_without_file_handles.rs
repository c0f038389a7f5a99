//! The HTTP port of a process that has run out of file handles. This is the only test of its process.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::Duration;

use paceline_runtime::{SharedStatus, StatusServer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

fn processor_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap()
}

#[test]
fn a_process_without_file_handles_says_so_once_waits_and_answers_when_one_is_free() {
    let (sender, warnings) = channel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server =
        StatusServer::start(listener, SharedStatus::default(), None, move |warning| sender.send(warning).unwrap());
    let server = server.unwrap();

    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..getrlimit(Resource::Nofile) }).unwrap();
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    // The last handle is the client's.
    files.pop();
    let mut client = TcpStream::connect(server.address()).unwrap();
    client.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
    let warning = warnings.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(warning.contains("Too many open files"), "{warning}");

    let (before, pause) = (processor_time(), Duration::from_millis(500));
    sleep(pause);
    let used = processor_time() - before;
    assert!(used < pause / 5, "{used:?} of processor time in {pause:?}");

    drop(files);
    let mut answer = String::new();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("waiting for workers\n"), "{answer}");
    drop(server);
    assert!(warnings.try_recv().is_err(), "it says so once");
}
