//! Keys keep strangers out, and those who have them in.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use common::{TransportKind, job, run, work, worker};
use paceline_net::{Address, Keys, Server, Stopper, TransportOptions, WorkError, Worker};
use tempfile::tempdir;

#[test]
fn only_who_has_the_keys_takes_part_and_learns_the_same() {
    let folder = tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| {
        Keys::generate(&folder.path().join(name)).unwrap();
        folder.path().join(name)
    });
    // The right certificate, but not the token.
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
        // Whatever fails here must not leave the server waiting.
        let _guard = EndOnPanic(server.stopper());
        let running = scope.spawn(|| server.run(&job, &mut ()).unwrap());
        let with = |keys: Option<Keys>, rank| Worker { keys, ..worker(address.clone(), rank) };
        let refused = |keys| match work(with(keys, 0), &job) {
            Err(WorkError::Refused { reason, .. } | WorkError::Lost { reason, .. }) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(Some(mixed)), "it showed a wrong token");
        assert!(refused(Some(theirs.0)).contains("does it use the same --keys?"));
        assert!(refused(None).contains("does it want --keys?"));
        slowly(&address);
        let workers = [0, 1].map(|rank| with(Some(ours.0.clone()), rank));
        let workers = workers.map(|worker| scope.spawn(|| work(worker, &job).unwrap()));
        workers.into_iter().for_each(|worker| assert!(worker.join().unwrap().tasks >= 20));
        running.join().unwrap()
    });
    assert!(outcome.parameters == expected, "encrypted, and the same bits");
}

struct EndOnPanic(Stopper);

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop("the test failed");
        }
    }
}

/// Begins a greeting byte by byte and is let go before it is whole.
fn slowly(address: &Address) {
    let mut stream = TcpStream::connect(address.to_string()).unwrap();
    stream.write_all(&[22, 3, 1]).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(stream.read_to_end(&mut Vec::new()).is_ok());
}

#[test]
fn other_machines_are_let_in_with_keys_or_explicitly() {
    let everywhere: Address = "0.0.0.0:0".parse().unwrap();
    let bind = |transport| Server::bind(std::slice::from_ref(&everywhere), transport).map(drop);
    let error = bind(TransportOptions::default()).unwrap_err().to_string();
    assert!(error.contains("0.0.0.0:0") && error.contains("--keys DIR") && error.contains("--open"), "{error}");
    bind(TransportOptions { open: true, ..TransportOptions::default() }).unwrap();
    let folder = tempdir().unwrap();
    Keys::generate(folder.path()).unwrap();
    bind(TransportOptions { keys: Some(Keys::read(folder.path()).unwrap()), ..TransportOptions::default() }).unwrap();
}
