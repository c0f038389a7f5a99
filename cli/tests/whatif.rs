//! `paceline whatif`, end to end.

mod common;

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::tempdir;

use common::{json, paceline, refused};

/// Options of a quick simulation.
const QUICK: [&str; 10] = [
    "--model",
    "softmax",
    "--data",
    "digits:600,200",
    "--seeds",
    "1",
    "--until",
    "loss<0.8,samples=100000",
    "--lr",
    "0.1",
];

/// Worker 0 takes twice as long as the others; worker 2 takes seven times as long in every fifth step.
fn uneven() -> String {
    let row = |step: usize| format!("2,1,{},1\n", if step % 5 == 4 { 7 } else { 1 });
    format!("a,b,c,d\n{}", (0..20).map(row).collect::<String>())
}

#[test]
fn the_winner_is_recommended_first() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("times.csv");
    fs::write(&file, uneven()).unwrap();
    let file = file.to_str().unwrap();
    let arguments = [&["whatif", file, "--schemes", "bsp,backup:k=2,asp", "--json"][..], &QUICK].concat();
    let lines = json(&arguments);
    let (head, places) = (&lines[0], &lines[1..]);
    assert_eq!(places.len(), 3);
    assert_eq!(head["recommended"], places[0]["scheme"]);
    assert_ne!(head["recommended"], "bsp");
    let times: Vec<f64> = places.iter().map(|place| place["time_to_target"].as_f64().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    let workers = head["trace"]["workers"].as_array().unwrap();
    let kinds: Vec<&str> = workers.iter().map(|worker| worker["straggling"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["persistent", "steady", "transient", "steady"]);
    // 16 steps of 2 s and 4 of 7 s; the workers compute 40, 20, 44 and 20 s.
    let waiting = head["trace"]["waiting_share"].as_f64().unwrap();
    assert!((waiting - (1.0 - 124.0 / (4.0 * 60.0))).abs() < 1e-12, "{waiting}");

    let output = paceline(&arguments.iter().copied().filter(|argument| *argument != "--json").collect::<Vec<_>>());
    let text = String::from_utf8(output.stdout).unwrap();
    let recommended = head["recommended"].as_str().unwrap();
    let options = format!("--workers 4 --scheme {recommended} --lr-rule proportional");
    let first = format!("Recommended: {recommended} (paceline train {options})\n");
    assert!(text.starts_with(&format!("{first}{recommended} was first: loss<0.8 after ")), "{text}");
}

/// The analysis of a trace, with a short simulation.
fn analysed(paths: &[&str], more: &[&str]) -> Value {
    json(&[&["whatif", "--schemes", "asp", "--json"][..], &QUICK, more, paths].concat()).remove(0)["trace"].take()
}

#[test]
fn every_format_of_a_trace_gives_the_same_analysis() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    fs::write(path("times.csv"), uneven()).unwrap();
    let expected = analysed(&[&path("times.csv")], &[]);

    // A run on these times: its recorded trace and its folder.
    let (times, record, run) = (format!("trace:{}", path("times.csv")), path("recorded.csv"), path("run"));
    let simulated = [
        "simulate",
        "--model",
        "none",
        "--times",
        &times,
        "--until",
        "iterations=20",
        "--record",
        &record,
        "--out",
        &run,
    ];
    assert!(paceline(&simulated).status.success());
    assert_eq!(analysed(&[&record], &[]), expected);
    assert_eq!(analysed(&[&run], &[]), expected);

    // One profile per rank, in any order, with a span of computing inside each step.
    let mut files = Vec::new();
    for rank in [2, 0, 3, 1] {
        let span = |(step, row): (usize, &str)| {
            let seconds: f64 = row.split(',').nth(rank).unwrap().parse().unwrap();
            let (start, long) = (step as f64 * 8e6, seconds * 1e6);
            format!(
                r#"{{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{step}","pid":77,"tid":1,"ts":{start},"dur":8e6}},
                   {{"ph":"X","cat":"user_annotation","name":"compute","pid":77,"tid":1,"ts":{start},"dur":{long}}}"#
            )
        };
        let events: Vec<String> = uneven().lines().skip(1).enumerate().map(span).collect();
        let text = format!(r#"{{"distributedInfo":{{"rank":{rank}}},"traceEvents":[{}]}}"#, events.join(","));
        files.push(path(&format!("rank{rank}.json")));
        fs::write(files.last().unwrap(), text).unwrap();
    }
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    assert_eq!(analysed(&files, &["--span", "compute"]), expected);
    // Whole steps include waiting, so that no worker seems slow.
    assert_eq!(analysed(&files, &[])["waiting_share"], 0.0);
}

#[test]
fn the_public_trace_has_one_persistent_straggler() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces/llm-persistent-straggler.csv");
    if !file.exists() {
        eprintln!("skipped: {} does not exist", file.display());
        return;
    }
    let file = file.to_str().unwrap();
    let schemes = "bsp,asp,lb-bsp,elastic-bsp";
    let lines = json(&[&["whatif", file, "--schemes", schemes, "--json"][..], &QUICK].concat());
    let trace = &lines[0]["trace"];
    let worker = &trace["workers"][0];
    assert_eq!(worker["straggling"], "persistent");
    assert!((worker["slowness"].as_f64().unwrap() - 2.3).abs() < 0.1, "{worker}");
    assert!((trace["waiting_share"].as_f64().unwrap() - 0.42).abs() < 0.01, "{trace}");
    assert!(trace["workers"].as_array().unwrap()[1..].iter().all(|worker| worker["straggling"] == "steady"));
    let places = &lines[1..];
    assert_eq!(lines[0]["recommended"], places[0]["scheme"]);
    let bsp = places.iter().find(|place| place["scheme"] == "bsp").unwrap();
    assert!((bsp["idle_share"].as_f64().unwrap() - 0.42).abs() < 0.01, "{bsp}");
    assert!(places[0]["speedup"].as_f64().unwrap() > 1.3, "{}", places[0]);
}

#[test]
fn bad_input_is_refused_in_one_line() {
    let folder = tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let (good, spans) = (write("good.csv", &uneven()), write("spans.json", "[]"));
    let (table, events) = (write("table.csv", "a,b\n1,x\n"), write("events.jsonl", "{}\n"));
    let cases: [(&[&str], &str); 10] = [
        (&["/no/such/trace.csv"], "/no/such/trace.csv"),
        (&[&table], "row 2, column 'b': 'x'; expected a number of seconds"),
        (&[&spans], "no span is named 'ProfilerStep': give another name with --span"),
        (&[&events], "line 1 is not a line of an event log"),
        (&[&good, &good], "good.csv is given twice"),
        (&[&good, "--workers", "3"], "the number of workers follows from the trace"),
        (&[&good, "--times", "deterministic:1"], "--times"),
        (&[&good, "--model", "none"], "choose a model"),
        (&[&good, "--until", "iterations=3"], "has no target to compare schemes by"),
        (&[&good, "--schemes", "bsp,backup:k=9"], "scheme 'backup': k=9; expected 1 to 4"),
    ];
    for (arguments, expected) in cases {
        let message = refused(&[&["whatif"], arguments].concat());
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
}
