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
fn the_answers_come_first_each_with_its_command() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("times.csv");
    fs::write(&file, uneven()).unwrap();
    let file = file.to_str().unwrap();
    let arguments = [&["whatif", file, "--schemes", "bsp,backup:k=2,asp", "--json"][..], &QUICK].concat();
    let lines = json(&arguments);
    let (head, places) = (&lines[0], &lines[1..]);
    assert_eq!(places.len(), 3);
    // One seed is too few to leave bsp.
    assert_eq!((&head["recommended"], &head["safe"]["over_bsp"]), (&Value::from("bsp"), &Value::Null));
    assert_eq!(head["bold"]["scheme"], places[0]["scheme"]);
    assert_ne!(head["bold"]["scheme"], "bsp");
    assert_eq!(head["bold"]["over_safe"], places[0]["speedup"]);
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
    let scheme = head["bold"]["scheme"].as_str().unwrap();
    let command = |scheme: &str| {
        format!(
            "paceline train --scheme {scheme} --workers 4 --until 'loss<0.8,samples=100000' --model softmax \
             --data digits:600,200 --batch 64 --lr 0.1 --lr-rule proportional --evaluate-every 1000"
        )
    };
    assert_eq!((&head["safe"]["command"], &head["bold"]["command"]), (&command("bsp").into(), &command(scheme).into()));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("Safe: stay with bsp. 1 seed can't tell what is faster from noise"), "{text}");
    assert_eq!(lines[1], format!("  {}", command("bsp")));
    assert!(lines[2].starts_with(&format!("Bold: {scheme}, ")) && lines[2].contains("(1 seed, no interval)"), "{text}");
    assert_eq!(lines[3], format!("  {}", command(scheme)));
    assert_eq!(lines[4], format!("On one machine, add --emulate 0-3=trace:{file} for the recorded times."));
    assert!(lines[6].starts_with(&format!("{scheme} was first: loss<0.8 after ")), "{text}");
}

#[test]
fn the_safe_answer_uses_no_stale_gradients_and_the_bold_one_says_what_it_rests_on() {
    let folder = tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let one_slow = path("slow.csv", &format!("a,b,c,d\n{}", "9,1,1,1\n".repeat(8)));
    let three_seeds: Vec<&str> = QUICK.iter().map(|option| if *option == "1" { "1..3" } else { option }).collect();
    let arguments = |file: &str, schemes: &str| {
        let first = ["whatif", file, "--schemes", schemes, "--json"].map(String::from);
        first.into_iter().chain(three_seeds.iter().map(ToString::to_string)).collect::<Vec<_>>()
    };
    let answers = |file: &str, schemes: &str, more: &[&str]| {
        let arguments = arguments(file, schemes);
        json(&arguments.iter().map(String::as_str).chain(more.iter().copied()).collect::<Vec<_>>()).remove(0)
    };
    let found = answers(&one_slow, "bsp,backup:k=3,ssp,asp", &[]);
    assert_eq!((&found["safe"]["scheme"], &found["safe"]["step_kind"]), (&"backup:k=3".into(), &"fresh".into()));
    assert!(found["safe"]["over_bsp_low"].as_f64().unwrap() > 3.0, "{found}");
    assert_eq!(found["recommended"], found["safe"]["scheme"]);

    let found = answers(&one_slow, "bsp,asp", &[]);
    assert_eq!(found["safe"]["scheme"], "bsp");
    assert!(found["safe"]["why"].as_str().unwrap().starts_with("stay with bsp. Without stale gradients"), "{found}");
    assert_eq!((&found["bold"]["scheme"], &found["bold"]["step_kind"]), (&"asp".into(), &"stale".into()));
    let why = found["bold"]["why"].as_str().unwrap();
    assert!(why.contains("3 seeds)") && why.contains("as with softmax on digits:600,200 and sgd."), "{why}");

    // On some of the workers, the rate remains meant for a step of all.
    let found = answers(&one_slow, "bsp,asp", &["--only", "1-3", "--optimizer", "momentum:0.5;*bias:decay=0"]);
    let command = found["safe"]["command"].as_str().unwrap();
    assert!(command.contains("--workers 3 ") && command.contains("--lr-rule proportional:4 "), "{command}");
    assert!(command.contains("--optimizer 'momentum:0.5;*bias:decay=0'"), "{command}");

    // Nobody straggles: nothing to gain.
    let even = path("even.csv", &format!("a,b,c,d\n{}", "1,1.1,1,1\n1,1,1.05,1.1\n".repeat(8)));
    let found = answers(&even, "bsp,backup:k=3,lb-bsp", &[]);
    assert_eq!((&found["safe"]["scheme"], &found["safe"]["over_bsp"]), (&"bsp".into(), &Value::Null));
}

#[test]
fn the_printed_command_trains() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("times.csv");
    fs::write(&file, format!("a,b\n{}", "0.002,0.001\n".repeat(4))).unwrap();
    let file = file.to_str().unwrap();
    let found = json(&[&["whatif", file, "--schemes", "bsp,asp", "--json"][..], &QUICK].concat()).remove(0);
    let command = found["bold"]["command"].as_str().unwrap().replace('\'', "");
    let emulation = format!("0-1=trace:{file}");
    let arguments: Vec<&str> = command.split(' ').skip(1).chain(["--emulate", &emulation, "--json"]).collect();
    let output = paceline(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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
    let cluster = lines[0]["cluster"].as_array().unwrap();
    assert_eq!(
        (cluster.len(), &cluster[0]["kind"], &cluster[0]["worker"]),
        (1, &"slower".into(), &0.into()),
        "{cluster:?}"
    );
    assert_eq!(cluster[0]["text"], "Worker 0: 2.25 times slower than the median, all the time.");
    assert!(trace["workers"].as_array().unwrap()[1..].iter().all(|worker| worker["straggling"] == "steady"));
    let places = &lines[1..];
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
