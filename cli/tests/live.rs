//! The page that follows a run, as its HTTP port serves it.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::Value;
use tempfile::tempdir;

use common::process::PacelineProcess;
use common::{get, paceline, refused};

const QUICK: [&str; 8] = ["--model", "softmax", "--data", "digits:600,200", "--workers", "2", "--scheme", "bsp"];

fn address(run: &PacelineProcess) -> String {
    run.await_line("watch the run at http://").trim_start_matches("watch the run at http://").to_string()
}

/// The server-sent events of a run: names and data.
fn events(address: &str) -> impl Iterator<Item = (String, Value)> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut name = String::new();
    BufReader::new(stream).lines().map_while(Result::ok).filter_map(move |line| {
        if let Some(event) = line.strip_prefix("event: ") {
            name = event.into();
        }
        line.strip_prefix("data: ").map(|data| (name.clone(), serde_json::from_str(data).unwrap()))
    })
}

#[test]
fn train_serves_a_page_that_follows_the_run_to_its_end() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run").display().to_string();
    // Whoever has the usual port, a run takes another one.
    let _taken = TcpListener::bind("127.0.0.1:7078");
    let run = [&["train", "--out", &out, "--json", "--emulate", "0=deterministic:0.05"], &QUICK[..]].concat();
    let run = PacelineProcess::start(&[&run[..], &["--until", "iterations=60"]].concat());
    let address = address(&run);
    assert!(address.starts_with("127.0.0.1:") && address != "127.0.0.1:7078", "{address}");
    let page = get(&address, "/");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("\"live\":true"), "{}", &page[..300]);
    let mut events = events(&address);
    let (name, first) = events.next().unwrap();
    assert_eq!((name.as_str(), &first["name"], &first["batch"]), ("run", &"run".into(), &64.into()));
    assert!(first["configuration"].as_str().unwrap().contains("emulate"), "{first}");
    let mut iterations = Vec::new();
    let last = loop {
        let (name, change) = events.next().expect("the stream goes on to the end of the run");
        assert_eq!(name, "change");
        iterations.push(change["iterations"].as_u64().unwrap());
        if change["ended"] == true {
            break change;
        }
    };
    assert!(iterations.is_sorted() && iterations.len() > 2 && iterations.last() == Some(&60), "{iterations:?}");
    let sentence = last["headline"]["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("Worker 0 straggled") && last["headline"]["is_costly"] == true, "{last}");
    let summary = run.finish();
    assert_eq!((&summary["iterations"], &last["samples"]["used"]), (&60.into(), &summary["samples_used"]));
    // The report says the same.
    let report = std::fs::read_to_string(folder.path().join("run/report.html")).unwrap();
    assert!(report.contains(sentence) && report.contains("\"live\":false"), "{sentence}");
}

#[test]
fn a_run_that_resumes_shows_what_was_before() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run").display().to_string();
    let run = PacelineProcess::start(&[&["train", "--out", &out], &QUICK[..], &["--until", "time=300"]].concat());
    let before = events(&address(&run)).find(|(_, data)| data["iterations"].as_u64() > Some(20)).unwrap().1;
    run.signal("INT");
    run.end();
    let resumed = PacelineProcess::start(&["train", "--resume", &out, "--until", "time=300"]);
    let (_, first) = events(&address(&resumed)).next().unwrap();
    assert!(first["view"]["time"].as_f64() >= before["time"].as_f64(), "{first}");
    let curves = first["view"]["curves"].as_array().unwrap();
    let loss = curves.iter().find(|curve| curve["chart"] == "training loss").unwrap();
    assert!(loss["points"].as_array().unwrap().len() > 20);
    resumed.signal("INT");
    resumed.end();
}

#[test]
fn the_page_can_be_turned_off_and_other_choices_are_refused() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run").display().to_string();
    let run =
        paceline(&[&["train", "--out", &out, "--http", "off"], &QUICK[..], &["--until", "iterations=3"]].concat());
    assert!(run.status.success() && !String::from_utf8_lossy(&run.stderr).contains("watch the run"));
    assert!(refused(&[&["train", "--http", "local:x"], &QUICK[..]].concat()).contains("neither HOST:PORT nor off"));
}
