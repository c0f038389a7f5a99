//! With keys, only peers that have them can join.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use common::{TransportKind, job, run, work, worker};
use paceline_net::{Address, Keys, Server, Stopper, TransportOptions, Worker, WorkerError};
use tempfile::tempdir;

#[test]
fn only_workers_with_the_keys_join_and_encryption_does_not_change_the_model() {
    let folder = tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| {
        Keys::generate(&folder.path().join(name)).unwrap();
        folder.path().join(name)
    });
    // `mixed` has the right certificate and a wrong token.
    std::fs::copy(ours.join("certificate.pem"), theirs.join("ours.pem")).unwrap();
    let [ours, theirs] = [ours, theirs].map(|folder| (Keys::read(&folder).unwrap(), folder));
    std::fs::rename(theirs.1.join("ours.pem"), theirs.1.join("certificate.pem")).unwrap();
    let mixed = Keys::read(&theirs.1).unwrap();

    let job = job("bsp", 2, "iterations=20");
    let expected = run(&job, &[TransportKind::Tcp; 2], 1.0, TransportOptions::default(), &mut ()).parameters;
    let transport = TransportOptions { keys: Some(ours.0.clone()), ..TransportOptions::default() };
    let server = Server::bind(&["127.0.0.1:0".parse().unwrap()], transport).unwrap();
    let address = server.addresses()[0].clone();
    let outcome = thread::scope(|scope| {
        // A failure must not leave the server waiting.
        let _guard = StopOnPanic(server.stopper());
        let running = scope.spawn(|| server.run(&job, &mut ()).unwrap());
        let with = |keys: Option<Keys>, rank| Worker { keys, ..worker(address.clone(), rank) };
        let refused = |keys| match work(with(keys, 0), &job) {
            Err(WorkerError::Refused { reason, .. } | WorkerError::Lost { reason, .. }) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(Some(mixed)), "wrong token: start the worker with the --keys DIR of the server");
        assert!(refused(Some(theirs.0)).contains("does the server use the same --keys?"));
        assert!(refused(None).contains("does the server require --keys?"));
        send_partial_handshake(&address);
        let workers = [0, 1].map(|rank| with(Some(ours.0.clone()), rank));
        let workers = workers.map(|worker| scope.spawn(|| work(worker, &job).unwrap()));
        workers.into_iter().for_each(|worker| assert!(worker.join().unwrap().tasks >= 20));
        running.join().unwrap()
    });
    assert!(outcome.parameters == expected, "encrypted, and the same bits");
}

/// Stops the run if the test panics.
struct StopOnPanic(Stopper);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop("the test failed");
        }
    }
}

/// Sends the first bytes of a TLS handshake, closes, and expects the server to close.
fn send_partial_handshake(address: &Address) {
    let mut stream = TcpStream::connect(address.to_string()).unwrap();
    stream.write_all(&[22, 3, 1]).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(stream.read_to_end(&mut Vec::new()).is_ok());
}

#[test]
fn listening_for_other_machines_needs_keys_or_open() {
    let everywhere: Address = "0.0.0.0:0".parse().unwrap();
    let bind = |transport| Server::bind(std::slice::from_ref(&everywhere), transport).map(drop);
    let error = bind(TransportOptions::default()).unwrap_err().to_string();
    assert!(error.contains("0.0.0.0:0") && error.contains("--keys DIR") && error.contains("--open"), "{error}");
    bind(TransportOptions { open: true, ..TransportOptions::default() }).unwrap();
    let folder = tempdir().unwrap();
    Keys::generate(folder.path()).unwrap();
    bind(TransportOptions { keys: Some(Keys::read(folder.path()).unwrap()), ..TransportOptions::default() }).unwrap();
}
