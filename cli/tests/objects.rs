//! Runs whose checkpoints are in object storage: a bucket of a local server, or a folder. Other machines are processes with
//! empty folders of their own.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::thread;

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use common::local_s3::{LocalS3, TestPlace};
use common::process::PacelineProcess;
use common::{get, json};

const SMALL: [&str; 8] = ["--model", "softmax", "--data", "digits:600,200", "--batch", "16", "--lr", "0.05"];

/// A model of several blocks.
const BLOCKS: [&str; 10] =
    ["--model", "mlp", "--data", "digits:600,200", "--batch", "16", "--lr", "0.05", "--optimizer", "adam"];

/// An address that no other process listens on.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// A folder, and a bucket where it can be had, each with the names of its objects.
fn places(folder: &TempDir, s3: Option<&LocalS3>, prefix: &str) -> Vec<TestPlace> {
    let path = folder.path().join(prefix);
    [TestPlace::folder(&path)].into_iter().chain(s3.map(|s3| TestPlace::bucket(s3.port, prefix))).collect()
}

fn work(place: &TestPlace, join: &str, rank: usize) -> PacelineProcess {
    let slow = ["--emulate", "deterministic:0.02", "--json"];
    place.start(&[&["work", "--join", join, "--rank", &rank.to_string()], &slow[..]].concat())
}

/// Waits until the place has a whole checkpoint.
fn await_checkpoint(server: &mut PacelineProcess, http: &str) {
    server.wait_until(|| {
        let status: Value = serde_json::from_str(get(http, "/status").rsplit("\r\n\r\n").next().unwrap()).unwrap();
        status["checkpoint"].as_u64() > Some(0)
    });
}

/// The run reached its target, with one row per iteration and a log that replays.
fn check(folder: &Path, run: &Value) {
    assert_eq!(run["reached"], true, "{run}");
    let replayed = json(&["replay", folder.to_str().unwrap(), "--json"]);
    assert!(replayed[0]["events"].as_u64() > run["iterations"].as_u64(), "{replayed:?}");
    let metrics = fs::read_to_string(folder.join("metrics.csv")).unwrap();
    assert_eq!(metrics.lines().count() as u64, run["iterations"].as_u64().unwrap() + 1, "one row per iteration");
}

#[test]
fn a_standby_with_an_empty_folder_takes_over_from_a_server_that_is_killed() {
    let (folder, s3) = (tempdir().unwrap(), LocalS3::start());
    for scheme in ["bsp", "dbw", "esync"] {
        for (index, place) in places(&folder, s3.as_ref(), scheme).iter().enumerate() {
            let out = |name: &str| folder.path().join(format!("{scheme}-{name}-{index}"));
            let [first_out, second_out, third_out] =
                ["first", "second", "third"].map(|name| out(name).display().to_string());
            let [first, second, third, http] = [(); 4].map(|()| free_address());
            let rest = ["--listen", &first, "--workers", "2", "--scheme", scheme, "--out", &first_out, "--http", &http];
            // The time limit ends the run if an expected line never comes.
            let limits = ["--lease", "1", "--checkpoint-every", "0.1", "--until", "time=300"];
            let stored = ["--checkpoints", &place.place];
            let mut server = place.start(&[&["serve"], &SMALL[..], &rest, &limits, &stored].concat());
            server.await_line("waiting for 2 workers");
            let stand_by = |listen: &str, out: &str| {
                let until = ["--until", "loss<0.8", "--json", "--http", "127.0.0.1:0"];
                let rest = ["serve", "--standby", &place.place, "--listen", listen, "--out", out];
                let standby = place.start(&[&rest[..], &until].concat());
                standby.await_line("standing by for ");
                standby
            };
            let standbys = [stand_by(&second, &second_out), stand_by(&third, &third_out)];
            let join = format!("{first},{second},{third}");
            let workers = [0, 1].map(|rank| work(place, &join, rank));
            await_checkpoint(&mut server, &http);
            // A server that renews its lease keeps its run.
            let refused = place.refused(&["serve", "--resume", &place.place, "--listen", "127.0.0.1:0"]);
            assert!(refused.contains("is in use: process ") && refused.contains("--standby"), "{refused}");
            server.kill();
            assert!(!Path::new(&first_out).join("checkpoints").exists(), "they are at the place only");
            // One of two takes over.
            let ended = standbys.map(PacelineProcess::end);
            let is_winner = |(_, _, errors): &&(_, _, Vec<String>)| {
                errors.iter().any(|line| line.starts_with("resumed from version "))
            };
            assert_eq!(ended.iter().filter(is_winner).count(), 1, "{ended:?}");
            let (code, text, errors) = ended.iter().find(is_winner).unwrap();
            assert_eq!(*code, Some(0), "{errors:?}");
            let outs = [&second_out, &third_out];
            let winner = ended.iter().zip(outs).find(|(ended, _)| is_winner(ended)).unwrap().1;
            check(Path::new(winner), &serde_json::from_str(text).unwrap());
            let (code, _, errors) = ended.iter().find(|ended| !is_winner(ended)).unwrap();
            assert_eq!(*code, Some(0), "{errors:?}");
            assert!(errors.last().unwrap().ends_with("has ended"), "{errors:?}");
            for worker in workers {
                assert!(worker.finish()["reason"].as_str().unwrap().contains("loss<0.8"), "{scheme}");
            }
        }
    }
}

/// Copies a folder with all below it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() { copy(&path, &target) } else { _ = fs::copy(&path, &target).unwrap() }
    }
}

#[test]
fn shards_write_their_parts_and_another_number_of_them_gives_the_same_bits() {
    let (folder, s3) = (tempdir().unwrap(), LocalS3::start());
    for (index, place) in places(&folder, s3.as_ref(), "sharded").iter().enumerate() {
        let out = |name: &str| folder.path().join(format!("{name}-{index}")).display().to_string();
        let (address, http, first) = (free_address(), free_address(), out("first"));
        let rest = ["--listen", &address, "--http", &http, "--out", &first, "--shards", "3", "--workers", "3"];
        let stored = ["--checkpoints", &place.place, "--checkpoint-every", "0.1", "--until", "time=300"];
        let mut server = place.start(&[&["serve"], &BLOCKS[..], &rest, &stored].concat());
        server.await_line("waiting for 3 workers");
        let workers = [0, 1, 2].map(|rank| work(place, &address, rank));
        await_checkpoint(&mut server, &http);
        server.kill();
        workers.into_iter().for_each(PacelineProcess::kill);

        // Goes on with this many shards, from a place that may be a copy.
        let resume = |place: &TestPlace, shards: &str| {
            let (address, out) = (free_address(), out(shards));
            let rest = ["--listen", &address, "--out", &out, "--shards", shards, "--until", "iterations=60", "--json"];
            let server = place.start(&[&["serve", "--resume", &place.place], &rest[..]].concat());
            server.await_line("resumed from version ");
            let workers = [0, 1, 2].map(|rank| work(place, &address, rank));
            check(Path::new(&out), &server.finish());
            workers.into_iter().for_each(|worker| _ = worker.finish());
            fs::read(format!("{out}/model.safetensors")).unwrap()
        };
        if let Some(s3) = s3.as_ref().filter(|_| place.place.starts_with("s3://")) {
            let objects = s3.objects();
            let manifest = objects.iter().find(|object| object.ends_with(".json")).unwrap().trim_end_matches(".json");
            let parts = objects.iter().filter(|object| object.starts_with(&format!("{manifest}/values-")));
            assert_eq!(parts.count(), 3, "every shard has written its part: {objects:?}");
            resume(place, "2");
        } else {
            let models = ["3", "2", "1"].map(|shards| {
                let own = folder.path().join(format!("copy-{shards}"));
                copy(&folder.path().join("sharded"), &own);
                resume(&TestPlace::folder(&own), shards)
            });
            assert!(models[0] == models[1] && models[0] == models[2], "the models differ");
        }
    }
}

/// A store that answers every request in this way, from a thread that ends with the test.
fn answering(status: &'static str, body: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let length = body.len();
            let _ = write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
        }
    });
    port
}

#[test]
fn a_place_that_does_not_work_is_refused_at_the_start() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run").display().to_string();
    let train = |place: &TestPlace| place.refused(&["train", "--checkpoints", &place.place, "--out", &out]);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nobody = TestPlace::bucket(port, "run");
    for message in [train(&nobody), nobody.refused(&["serve", "--standby", "s3://bucket/run"])] {
        assert!(message.contains("s3://bucket/run: ") && message.contains("Connection refused"), "{message}");
    }
    let body = "<Error><Code>InvalidAccessKeyId</Code><Message>The key does not exist.</Message></Error>";
    let message = train(&TestPlace::bucket(answering("403 Forbidden", body), "run"));
    let expected = "s3://bucket/run: The key does not exist (InvalidAccessKeyId); are AWS_ACCESS_KEY_ID and ";
    assert!(message.contains(expected), "{message}");
    let nowhere = TestPlace { place: "/runs/1".into(), endpoint: String::new() };
    assert!(train(&nowhere).contains("'/runs/1': expected s3://BUCKET/PREFIX or file:///FOLDER"));
    assert!(!Path::new(&out).exists(), "nothing is left behind");

    let place = TestPlace::folder(&folder.path().join("place"));
    assert!(place.refused(&["train", "--resume", &place.place]).contains("has no run"));
    let quick = ["--workers", "1", "--until", "iterations=5", "--json"];
    let start = [&["train", "--out", &out, "--checkpoints", &place.place], &SMALL[..], &quick].concat();
    place.start(&start).finish();
    let again = folder.path().join("again").display().to_string();
    let message = place.refused(&["train", "--checkpoints", &place.place, "--out", &again]);
    assert!(message.contains("has a run already"), "{message}");
    let message = place.refused(&["train", "--resume", &place.place, "--out", &again]);
    assert!(message.contains("is over: iterations=5 ended it"), "{message}");
    let message = place.refused(&["train", "--resume", &out, "--out", &again]);
    assert!(message.contains("cannot be used with --resume"), "{message}");

    let Some(s3) = LocalS3::start() else { return };
    let missing = TestPlace { place: "s3://nothing/run".into(), ..TestPlace::bucket(s3.port, "") };
    assert!(train(&missing).contains("s3://nothing/run: The specified bucket does not exist (NoSuchBucket)"));
}

#[test]
fn training_goes_on_while_the_store_is_away() {
    let Some(s3) = LocalS3::start() else { return };
    let folder = tempdir().unwrap();
    let (place, port) = (TestPlace::bucket(s3.port, "run"), s3.port);
    let (out, http) = (folder.path().join("run").display().to_string(), free_address());
    let rest = ["--workers", "1", "--checkpoint-every", "0.1", "--until", "time=300", "--http", &http, "--out", &out];
    let mut run = place.start(&[&["train", "--checkpoints", &place.place], &SMALL[..], &rest].concat());
    run.await_line("watch the run at http://");
    await_checkpoint(&mut run, &http);
    drop(s3);
    let line = run.await_line("checkpoint failed: ");
    assert!(line.contains("s3://bucket/run/checkpoints") && line.contains("training continues"), "{line}");
    let _s3 = LocalS3::start_at(port).unwrap();
    run.await_line("checkpoints are written again");
    run.signal("INT");
    assert_eq!(run.child.wait().unwrap().code(), Some(130));
}
