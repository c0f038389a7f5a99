//! `paceline simulate` and `paceline replay`, end to end.

mod common;

use std::fs;

use serde_json::Value;
use tempfile::tempdir;

use common::{json, paceline, refused};

const QUICK: [&str; 6] = ["simulate", "--data", "digits:600,200", "--until", "iterations=12", "--json"];

fn quick(more: &[&str]) -> Vec<Value> {
    json(&[&QUICK, more].concat())
}

#[test]
fn json_output_has_one_object_per_run_with_all_keys() {
    let runs = quick(&["--seeds", "1..3"]);
    assert_eq!(runs.iter().map(|run| run["seed"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
    let keys = [
        "scheme",
        "seed",
        "workers",
        "iterations",
        "time",
        "reached",
        "time_to_target",
        "loss",
        "accuracy",
        "updates_committed",
        "updates_discarded",
        "updates_broken",
        "samples_used",
        "samples_lost",
        "idle_share",
        "bytes",
    ];
    for run in &runs {
        for key in keys {
            assert!(!run[key].is_null(), "{key} is missing in {run}");
        }
    }
    assert_ne!(runs[0]["time"], runs[1]["time"]);
}

#[test]
fn the_folder_of_a_run_that_diverges_can_be_read() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let runs = quick(&["--model", "mlp", "--lr", "100", "--out", out.to_str().unwrap()]);
    assert_eq!(runs[0]["stopped_by"], "the loss is no longer finite");
    assert!(runs[0]["updates_broken"].as_u64().unwrap() > 0, "{}", runs[0]);
    assert!(out.join("report.html").exists());
    assert!(paceline(&["replay", out.join("events.jsonl").to_str().unwrap()]).status.success());
}

#[test]
fn trace_adds_one_object_per_iteration() {
    let lines = quick(&["--trace", "--scheme", "backup:k=6"]);
    assert_eq!(lines.len(), 13);
    for (index, line) in lines[..12].iter().enumerate() {
        assert_eq!(line["iteration"], index + 1);
        assert_eq!(line["waited_for"], 6);
        assert_eq!(line["reason"], "6 of 8 gradients are in");
        assert!(line["time"].is_f64() && line["duration"].is_f64() && line["loss"].is_f64(), "{line}");
    }
    assert_eq!(lines[12]["iterations"], 12);
}

#[test]
fn the_same_seeds_give_the_same_output_bytes() {
    for scheme in ["bsp", "backup:k=5", "asp"] {
        let run = |threads: &str| {
            let arguments =
                [&QUICK[..], &["--scheme", scheme, "--seeds", "1..3", "--trace", "--threads", threads]].concat();
            paceline(&arguments).stdout
        };
        let first = run("1");
        assert_eq!(run("2"), first, "{scheme}");
        assert_eq!(run("2"), first, "{scheme}");
    }
}

#[test]
fn a_run_folder_repeats_and_replays_its_run() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let out = out.to_str().unwrap();
    let first = quick(&["--scheme", "backup:k=5", "--slow", "0=3", "--seeds", "7", "--out", out]);
    for file in ["config.toml", "events.jsonl", "metrics.csv", "model.safetensors", "summary.json"] {
        assert!(fs::metadata(format!("{out}/{file}")).unwrap().len() > 0, "{file}");
    }
    let again = json(&["simulate", "--config", &format!("{out}/config.toml"), "--json"]);
    assert_eq!(again, first);
    let other = json(&["simulate", "--config", &format!("{out}/config.toml"), "--scheme", "bsp", "--json"]);
    assert_eq!((&other[0]["scheme"], &other[0]["seed"]), (&Value::from("bsp"), &Value::from(7)));

    let events = format!("{out}/events.jsonl");
    assert_eq!(json(&["replay", &events, "--json"])[0]["scheme"], "backup:k=5");
    let tampered = format!("{out}/tampered.jsonl");
    fs::write(&tampered, fs::read_to_string(&events).unwrap().replacen("\"weight\":0.2", "\"weight\":0.3", 1)).unwrap();
    let output = paceline(&["replay", &tampered]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("differs"));
    // Nothing is overwritten.
    assert!(refused(&[&QUICK[..], &["--out", out]].concat()).contains("exists and is not empty"));
}

#[test]
fn flags_take_precedence_over_a_file_and_goals_add_up() {
    let folder = tempdir().unwrap();
    let config = folder.path().join("config.toml");
    fs::write(&config, "until = \"iterations=3\"\nbatch = 8\nmodel = \"none\"\n").unwrap();
    let config = config.to_str().unwrap();
    let run = |more: &[&str]| json(&[&["simulate", "--json", "--config", config], more].concat()).remove(0);
    assert_eq!(run(&[])["iterations"], 3);
    // A flag replaces the file's value; goals of a flag given twice add up.
    assert_eq!(run(&["--until", "iterations=7", "--until", "iterations=5"])["iterations"], 5);
    assert_eq!(run(&["--batch", "2"])["samples_used"], 3 * 8 * 2);
    assert!(refused(&["simulate", "--batch", "2", "--batch", "3"]).contains("multiple times"));
}

#[test]
fn recorded_times_give_the_same_run() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("times.csv");
    let first = quick(&["--model", "none", "--record", file.to_str().unwrap()]);
    let again = quick(&["--model", "none", "--times", &format!("trace:{}", file.display())]);
    assert_eq!(again, first);
}

#[test]
fn bad_input_is_refused_in_one_line_and_leaves_no_folder() {
    let folder = tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let out = folder.path().join("out");
    let trace = |path: &str| format!("trace:{path}");
    let ragged = trace(&write("ragged.csv", "a,b\n1,2\n3\n"));
    let not_a_number = trace(&write("nan.csv", "a,b\n1,NaN\n"));
    let empty = trace(&write("empty.csv", ""));
    let one = trace(&write("one.csv", "a\n1\n"));
    let script = write("script.txt", "5 leave 77\n");
    let config = write("config.toml", "scheme = \"bsp\"\nlearning-rate = 3\n");
    let value = write("value.toml", "scheme = \"ssp:staleness=x\"\nbatch = 0\n");
    let syntax = write("syntax.toml", "scheme = \"bsp\"\nbatch =\n");
    let cases: [(&[&str], &str); 37] = [
        (&["--scheme", "bspp"], "unknown scheme 'bspp'; expected"),
        (&["--scheme", "ssp:slack=1"], "scheme 'ssp' has no setting 'slack'; expected staleness"),
        (&["--scheme", "backup:k=17", "--workers", "16"], "scheme 'backup': k=17; expected 1 to 16"),
        (&["--scheme", "backup:k=0"], "scheme 'backup': k=0; expected 1 to 8"),
        (&["--scheme", "asp", "--dispatch", "pull"], "dispatch pull has no effect"),
        (&["--lr", "-0.1"], "'-0.1' for '--lr <RATE>': expected a number above 0"),
        (&["--lr", "nan"], "expected a number above 0"),
        (&["--workers", "0"], "'0' for '--workers <N>': expected a whole number from 1 to 1000000"),
        (&["--workers", "100000000"], "expected a whole number from 1 to 1000000"),
        (&["--workers", "1e3"], "'1e3' for '--workers <N>': expected a whole number from 1 to 1000000"),
        (&["--workers", "-1"], "'-1' for '--workers <N>': expected"),
        (&["--batch", "4294967295"], "'4294967295' for '--batch <N>': expected a whole number from 1 to 1000000"),
        (&["--batch", "many"], "'many' for '--batch <N>': expected a whole number from 1"),
        (&["--times", &empty], "the trace is empty"),
        (&["--times", &ragged], "row 3 has 1 cells; expected 2, as in the first row"),
        (&["--times", &not_a_number], "row 2, column 'b': 'NaN'; expected a number of seconds"),
        (&["--times", "trace:/no/such/file.csv"], "/no/such/file.csv"),
        (&["--times", &one, "--workers", "2"], "--workers 2, but the trace has 1; expected at most 1"),
        (&["--times", "uniform:2,1"], "times 'uniform:low=2,high=1'; expected low from 0 to high"),
        (&["--times", "normal:-5,1"], "times 'normal:mean=-5,deviation=1'; expected mean above 0"),
        (&["--network", "latency=-1"], "network: latency=-1; expected seconds, at least 0"),
        (&["--network", "latency=1,latency=2"], "network: latency is given twice"),
        (&["--slow", "0=2,0=3"], "slowdown '0=2,0=3'; expected each RANKS at most once"),
        (&["--slow", "9=2"], "--slow 9=2: worker 9 does not exist; expected ranks 0 to 7"),
        (&["--script", &script], "line 1: worker 77 can't leave or crash"),
        (&["--until", "loss>3"], "goal 'loss>3'; expected loss<X"),
        (&["--until", "accuracy>0.5", "--model", "none"], "needs a model"),
        (&["--seeds", "5..1"], "expected a seed"),
        (&["--seeds", "1..1000000000"], "expected at most 100000 seeds"),
        (&["--seeds", "1,1"], "seed 1 is given twice"),
        (&["--model", "gpt"], "unknown model 'gpt'; expected"),
        (&["--data", "mnist:/no/such/folder"], "/no/such/folder"),
        (&["--record", "nodir/times.csv"], "--record nodir/times.csv: folder nodir does not exist"),
        (&["--data", "text:nosuch"], "nosuch: No such file or directory (os error 2)\n"),
        (&["--config", &config], "unknown key 'learning-rate'; expected"),
        (&["--config", &value], "value.toml"),
        (&["--config", &syntax], "syntax.toml, line 2"),
    ];
    for (arguments, expected) in cases {
        let message = refused(&[&["simulate", "--out", out.to_str().unwrap()], arguments].concat());
        assert!(message.contains(expected), "{arguments:?}: {message}");
        assert!(!out.exists(), "{arguments:?} left a folder behind");
    }
    assert!(refused(&["simulate", "--out", "/dev/null/run"]).contains("/dev/null/run"));
}

#[test]
fn help_lists_examples_schemes_and_settings() {
    for arguments in [&["--help"][..], &["simulate", "--help"]] {
        let output = paceline(arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("Examples:\n  paceline "), "{text}");
    }
    let help = String::from_utf8(paceline(&["simulate", "--help"]).stdout).unwrap();
    assert!(help.contains("ssp") && help.contains("staleness: "), "{help}");
}
