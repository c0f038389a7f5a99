//! `paceline race`, end to end.

mod common;

use std::fs;

use serde_json::Value;
use tempfile::tempdir;

use common::{json, paceline, refused};

const QUICK: [&str; 9] =
    ["race", "--model", "softmax", "--data", "digits:600,200", "--until", "loss<0.9,samples=60000", "--lr", "0.1"];

#[test]
fn a_race_ranks_all_schemes_and_leaves_their_run_folders() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("race");
    let out = out.to_str().unwrap();
    let lines = json(&[&QUICK[..], &["--seeds", "1,2", "--out", out, "--json"]].concat());
    let (head, places) = (&lines[0], &lines[1..]);
    assert!(places.len() >= 6, "{}", places.len());
    assert_eq!(head["winner"], places[0]["scheme"]);
    assert!(head["why"].as_str().unwrap().starts_with(&format!("{} wins", head["winner"].as_str().unwrap())));
    for (index, place) in places.iter().enumerate() {
        assert_eq!(place["place"], index + 1);
        for key in ["time_to_target", "spread", "idle_share", "updates", "samples_lost", "bytes", "accuracy"] {
            assert!(place[key].is_f64(), "{key} of {place}");
        }
    }
    assert!(fs::metadata(format!("{out}/race.svg")).unwrap().len() > 10_000);
    // Every scheme's first seed has a run folder, which repeats the runs of the race.
    let config = format!("{out}/asp/config.toml");
    let alone = json(&["simulate", "--config", &config, "--seeds", "1,2", "--json"]);
    let times: Vec<f64> = alone.iter().map(|run| run["time_to_target"].as_f64().unwrap()).collect();
    let asp = places.iter().find(|place| place["scheme"] == "asp").unwrap();
    assert_eq!(asp["time_to_target"].as_f64().unwrap(), (times[0] + times[1]) / 2.0);
    assert!(refused(&[&QUICK[..], &["--out", out]].concat()).contains("exists and is not empty"));
}

#[test]
fn a_race_does_not_depend_on_the_number_of_threads() {
    let folder = tempdir().unwrap();
    let race = |threads: &str| {
        let out = folder.path().join(threads);
        let more = ["--schemes", "bsp,asp,dbw", "--threads", threads, "--out", out.to_str().unwrap(), "--json"];
        let lines = json(&[&QUICK[..], &more].concat());
        let picture = fs::read_to_string(out.join("race.svg")).unwrap();
        (lines[1..].to_vec(), picture)
    };
    let first: (Vec<Value>, String) = race("1");
    assert_eq!(race("2"), first);
}

#[test]
fn a_race_runs_with_real_workers() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("race");
    let more = ["--real", "--workers", "2", "--schemes", "bsp,asp", "--seeds", "1", "--emulate", "0=2"];
    let output = paceline(&[&QUICK[..], &more, &["--out", out.to_str().unwrap()]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains(" wins: loss<0.9 after ") && text.contains("Straggling was emulated: 0=2"), "{text}");
    assert!(out.join("bsp/events.jsonl").exists() && out.join("asp/metrics.csv").exists());
}

#[test]
fn bad_input_is_refused_in_one_line_and_leaves_no_folder() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("out");
    let cases: [(&[&str], &str); 7] = [
        (&["--schemes", "bsp,fastest"], "unknown scheme 'fastest'"),
        (&["--schemes", "backup:k=9"], "scheme 'backup': k=9; expected 1 to 8"),
        (&["--until", "time=5"], "has no target to compare schemes by"),
        (&["--model", "none"], "choose a model"),
        (&["--emulate", "0=3"], "--real"),
        (&["--real", "--times", "deterministic:1"], "--times"),
        (&["--slow", "8=3"], "--slow 8=3: worker 8 does not exist; expected ranks 0 to 7"),
    ];
    for (arguments, expected) in cases {
        let message = refused(&[&["race", "--out", out.to_str().unwrap()], arguments].concat());
        assert!(message.contains(expected), "{arguments:?}: {message}");
        assert!(!out.exists(), "{arguments:?} left a folder behind");
    }
}
