//! `paceline race`, end to end.

mod common;

use std::fs;

use serde_json::Value;
use tempfile::tempdir;

use common::{json, paceline, refused};

const QUICK: [&str; 9] =
    ["race", "--model", "softmax", "--data", "digits:600,200", "--until", "loss<0.9,samples=60000", "--lr", "0.1"];

#[test]
fn a_race_ranks_all_contestants_and_leaves_their_run_folders() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("race");
    let out = out.to_str().unwrap();
    let lines = json(&[&QUICK[..], &["--seeds", "1..3", "--out", out, "--json"]].concat());
    let (head, places) = (&lines[0], &lines[1..]);
    assert!(places.len() >= 8, "{}", places.len());
    let leaders = head["leaders"].as_array().unwrap();
    assert_eq!(leaders[0], places[0]["scheme"]);
    assert!(head["winner"].is_null() == (leaders.len() > 1), "{head}");
    for (index, place) in places.iter().enumerate() {
        assert_eq!(place["place"], index + 1);
        let numbers =
            ["time_to_target", "spread", "idle_share", "updates", "samples_lost", "bytes", "accuracy", "rate"];
        for key in numbers.iter().chain(&["speedup", "speedup_low", "speedup_high"]) {
            assert!(place[key].is_f64(), "{key} of {place}");
        }
        let (low, high) = (place["speedup_low"].as_f64().unwrap(), place["speedup_high"].as_f64().unwrap());
        let expected = match (low, high) {
            (low, _) if low > 1.0 => "faster",
            (_, high) if high < 1.0 => "slower",
            _ => "none",
        };
        assert_eq!(place["difference"], expected, "{place}");
    }
    assert!(fs::metadata(format!("{out}/race.svg")).unwrap().len() > 10_000);
    // Every contestant's first seed has a run folder, which repeats the runs of the race.
    for (name, folder) in [("asp", "asp"), ("bsp on workers 1-7", "bsp-on-workers-1-7")] {
        let config = format!("{out}/{folder}/config.toml");
        let alone = json(&["simulate", "--config", &config, "--seeds", "1..3", "--json"]);
        let times: Vec<f64> = alone.iter().map(|run| run["time_to_target"].as_f64().unwrap()).collect();
        let place = places.iter().find(|place| place["scheme"] == name).unwrap();
        assert_eq!(place["time_to_target"].as_f64().unwrap(), times.iter().sum::<f64>() / 3.0, "{name}");
    }
    assert!(refused(&[&QUICK[..], &["--out", out]].concat()).contains("exists and is not empty"));
}

/// The table and the sentences below it.
fn text(arguments: &[&str]) -> String {
    let output = paceline(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn speedups_come_with_intervals() {
    let folder = tempdir().unwrap();
    let out = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let quick = |more: &[&str]| text(&[&QUICK[..], more].concat());
    let table = quick(&["--schemes", "asp", "--out", &out("five")]);
    let row = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{table}"));
    assert!(row("asp ").contains(" to ") && row("bsp on workers 1-7 ").contains(" to "), "{table}");
    assert!(row("bsp  ").contains(" 1.00 ") && table.contains("bsp on worker "), "{table}");
    // A cluster without slow workers has no subset that is faster, and here nobody is alone.
    let table = quick(&["--schemes", "asp", "--no-baselines", "--slow", "", "--seeds", "1,2", "--out", &out("two")]);
    assert!(!table.contains("\nbsp") && table.contains("asp ran alone: loss<0.9 after "), "{table}");
    let table = quick(&["--schemes", "asp", "--slow", "", "--seeds", "1,2", "--out", &out("even")]);
    assert!(table.contains("(too few seeds)") && table.contains("Too few seeds to tell who is faster"), "{table}");
    assert!(!table.contains(" wins") && !table.contains("bsp on workers"), "{table}");
}

#[test]
fn every_contestant_has_its_own_best_rate() {
    let folder = tempdir().unwrap();
    let out = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let small_rate = [&QUICK[..7], &["--lr", "0.005"]].concat();
    let tune = [&small_rate[..], &["--schemes", "bsp,asp", "--seeds", "1..3", "--tune", "lr", "--out"]].concat();
    let table = text(&[&tune[..], &[&out("table")]].concat());
    assert!(table.lines().next().unwrap().contains("  rate  "), "{table}");
    assert!(table.contains("(edge)") && table.contains("a wider grid may be better"), "{table}");
    let lines = json(&[&tune[..], &[&out("json"), "--json"]].concat());
    assert!(lines.len() >= 4, "{lines:?}");
    for place in &lines[1..] {
        let factor = (place["rate"].as_f64().unwrap() / 0.005).log2();
        assert!((factor - factor.round()).abs() < 1e-5, "{place}");
        assert_eq!(place["rate_at_edge"], factor.abs() > 2.9, "{place}");
    }
    let config = fs::read_to_string(folder.path().join("json/asp/config.toml")).unwrap();
    let asp = lines.iter().find(|place| place["scheme"] == "asp").unwrap();
    assert!(config.contains(&format!("lr = \"{}\"", asp["rate"])), "{config}");
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
    let more = ["--real", "--workers", "2", "--schemes", "bsp,asp,auto", "--seeds", "1", "--emulate", "0=2"];
    let output = paceline(&[&QUICK[..], &more, &["--out", out.to_str().unwrap()]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains(": loss<0.9 after ") && text.contains("Straggling was emulated: 0=2"), "{text}");
    assert!(text.contains("\nbsp on worker ") && text.contains("too few seeds"), "{text}");
    assert!(["bsp", "asp", "auto"].iter().all(|name| out.join(name).join("events.jsonl").exists()));
    assert!(!out.join("tuning").exists());
}

#[test]
fn workers_of_a_subset_emulate_the_ranks_that_they_stand_for() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let emulate = ["--emulate", "3=deterministic:0.02", "--emulated-ranks", "1,3", "--workers", "2"];
    let job = ["--model", "softmax", "--data", "digits:600,200", "--until", "iterations=3", "--json"];
    let summary = &json(&[&["train", "--out", out.to_str().unwrap()], &emulate[..], &job].concat())[0];
    let emulated: Vec<&String> = summary["emulated"].as_object().unwrap().keys().collect();
    assert_eq!(emulated, ["1"], "{summary}");
}

#[test]
fn bad_input_is_refused_in_one_line_and_leaves_no_folder() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("out");
    let cases: [(&[&str], &str); 14] = [
        (&["--schemes", "bsp,fastest"], "unknown scheme 'fastest'"),
        (&["--schemes", "backup:k=9"], "scheme 'backup': k=9; expected 1 to 8"),
        (&["--until", "time=5"], "has no target to compare schemes by"),
        (&["--model", "none"], "choose a model"),
        (&["--emulate", "0=3"], "--real"),
        (&["--real", "--times", "deterministic:1"], "--times"),
        (&["--real", "--network", "latency=0.1,bandwidth=1e6"], "--network"),
        (&["--real", "--script", "changes.txt"], "--script"),
        (&["--real", "--model", "none"], "choose a model"),
        (&["--real", "--emulate", "4=3"], "--emulate 4=3: worker 4 does not exist; expected ranks 0 to 3"),
        (&["--tune", "momentum"], "--tune"),
        (&["--seeds", ""], "expected a seed (7)"),
        (&["--only", "3-8"], "--only 3-8: worker 8 does not exist; expected ranks 0 to 7"),
        (&["--slow", "8=3"], "--slow 8=3: worker 8 does not exist; expected ranks 0 to 7"),
    ];
    for (arguments, expected) in cases {
        let message = refused(&[&["race", "--out", out.to_str().unwrap()], arguments].concat());
        assert!(message.contains(expected), "{arguments:?}: {message}");
        assert!(!out.exists(), "{arguments:?} left a folder behind");
    }
}
