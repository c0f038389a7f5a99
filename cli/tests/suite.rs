//! `paceline race --suite`, end to end, and the scenarios in `experiments/scenarios`.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::tempdir;

use common::{json, paceline, refused};

/// A scenario of a small model that takes a moment.
const SMALL: &str = r#"
model = "softmax"
data = "digits:600,200"
workers = 4
batch = 16
lr = 0.1
until = "loss<0.9,samples=20000"
network = "latency=0.001"
"#;

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../experiments/scenarios")
}

fn scenarios(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect()
}

#[test]
fn every_shipped_scenario_says_what_it_is_and_runs() {
    let folders = [shipped(), shipped().join("held-out")];
    let counts = folders.each_ref().map(|folder| scenarios(folder).len());
    assert!(counts[0] >= 12 && counts[1] >= 3, "{counts:?}");
    for folder in folders {
        for path in scenarios(&folder) {
            let text = fs::read_to_string(&path).unwrap();
            let first = text.lines().next().unwrap();
            assert!(first.starts_with("# ") && first.ends_with('.'), "{}: {first}", path.display());
            assert!(text.contains("\nlr-of = [") && text.contains("\nlr = "), "{} has no rates", path.display());
        }
        // All are checked before the first run, whose limit is met at once.
        let out = tempdir().unwrap();
        let out = out.path().join("suite");
        let arguments = ["race", "--suite", folder.to_str().unwrap(), "--out", out.to_str().unwrap(), "--json"];
        let limits =
            ["--schemes", "bsp,asp", "--no-baselines", "--seeds", "1", "--until", "accuracy>0.99,iterations=3"];
        let lines = json(&[&arguments[..], &limits].concat());
        assert_eq!(lines[0]["scenarios"].as_array().unwrap().len(), scenarios(&folder).len());
        assert_eq!(lines.len(), 3, "a line for each scheme");
    }
}

#[test]
fn a_suite_compares_contestants_over_its_scenarios() {
    let folder = tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write(
        "even.toml",
        &format!("# Workers alike.\ntimes = \"deterministic:1\"\nslow = \"\"{SMALL}lr-of = [\"asp=0.4\"]\n"),
    );
    // The trace is beside it.
    write("traced.toml", &format!("# Recorded times.\ntimes = \"trace:times.csv\"\nslow = \"\"{SMALL}"));
    write("times.csv", "1,1,1,4\n1.1,1,1.2,4\n");
    fs::create_dir(folder.path().join("inside")).unwrap();
    write("inside/aside.toml", "this is not read");
    let out = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let suite = folder.path().to_str().unwrap();
    let race = ["race", "--suite", suite, "--schemes", "bsp,asp,local-sgd:tau=2", "--seeds", "1..4"];

    let lines = json(&[&race[..], &["--out", &out("first"), "--json"]].concat());
    let names: Vec<&str> =
        lines[0]["scenarios"].as_array().unwrap().iter().map(|found| found["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["even", "traced"]);
    assert_eq!(lines[0]["scenarios"][1]["description"], "Recorded times.");
    let row =
        |name: &str| lines.iter().find(|line| line["scheme"] == name).unwrap_or_else(|| panic!("{name}: {lines:?}"));
    let asp = row("asp");
    assert_eq!((&asp["scenarios"]["even"]["rate"], &asp["scenarios"]["traced"]["rate"]), (&0.4.into(), &0.1.into()));
    // The ratios follow from the times.
    let time = |row: &str, scenario: &str, seed: u64| row_time(&lines, row, scenario, seed);
    let best_without = |scenario: &str, seeds: [u64; 2]| {
        let mean = |name: &str| seeds.map(|seed| time(name, scenario, seed).ln()).iter().sum::<f64>();
        let names = lines[1..].iter().map(|line| line["scheme"].as_str().unwrap());
        names.min_by(|a, b| mean(a).total_cmp(&mean(b))).unwrap()
    };
    for scenario in ["even", "traced"] {
        let (odd, even) = (best_without(scenario, [2, 4]), best_without(scenario, [1, 3]));
        let best = |seed: u64| if seed % 2 == 1 { odd } else { even };
        let logs = [1, 2, 3, 4].map(|seed| (time("asp", scenario, seed) / time(best(seed), scenario, seed)).ln());
        let expected = (logs.iter().sum::<f64>() / 4.0).exp();
        let found = asp["scenarios"][scenario]["ratio"].as_f64().unwrap();
        assert!((found - expected).abs() < 1e-9, "{scenario}: {found}, expected {expected}");
    }
    // Without a faster part of the workers, the fast workers are all.
    assert_eq!(row("bsp on the fast workers")["scenarios"]["even"], row("bsp")["scenarios"]["even"]);
    assert_ne!(row("bsp on the fast workers")["scenarios"]["traced"], row("bsp")["scenarios"]["traced"]);

    // The number of threads changes nothing; --lr replaces the rates of single schemes.
    let again = json(&[&race[..], &["--out", &out("again"), "--json", "--threads", "1"]].concat());
    assert_eq!(again[1..], lines[1..]);
    let output = paceline(&[&race[..], &["--out", &out("rate"), "--lr", "0.2", "--tune", "lr"]].concat());
    let (table, progress) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success() && progress.contains("scenario 2 of 2: traced"), "{progress}");
    assert!(table.starts_with("contestant ") && table.contains(" 2  traced: Recorded times. (best: "), "{table}");
    let text = fs::read_to_string(folder.path().join("rate/suite.jsonl")).unwrap();
    for line in text.lines().skip(1).map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()) {
        let factor = (line["scenarios"]["even"]["rate"].as_f64().unwrap() / 0.2).log2();
        assert!((factor - factor.round()).abs() < 1e-5, "{line}");
    }
    assert!(fs::metadata(folder.path().join("rate/suite.svg")).unwrap().len() > 2000);
}

fn row_time(lines: &[serde_json::Value], row: &str, scenario: &str, seed: u64) -> f64 {
    let row = lines.iter().find(|line| line["scheme"] == row).unwrap();
    row["scenarios"][scenario]["times"][seed.to_string()].as_f64().unwrap()
}

#[test]
fn bad_suites_are_refused_and_leave_no_folder() {
    let folder = tempdir().unwrap();
    let suite = folder.path().join("suite");
    let out = folder.path().join("out");
    fs::create_dir(&suite).unwrap();
    let refuse = |more: &[&str]| {
        let arguments = ["race", "--suite", suite.to_str().unwrap(), "--out", out.to_str().unwrap()];
        let message = refused(&[&arguments[..], more].concat());
        assert!(!out.exists(), "{message} left a folder behind");
        message
    };
    assert!(refuse(&[]).contains("it has no scenario; expected files that end in .toml"));
    fs::write(suite.join("good.toml"), SMALL).unwrap();
    for (text, expected) in [
        ("# Broken.\nworkers = \n", "broken.toml, line 2: "),
        ("# Broken.\nworkers = 4\nwrokers = 4\n", "broken.toml, line 3: unknown key 'wrokers'"),
        ("# Broken.\n\ntimes = \"slow\"\n", "broken.toml, line 3: invalid value 'slow' for '--times <TIMES>'"),
        ("lr-of = [\"aps=1\"]\n", "broken.toml, line 1: invalid value 'aps=1' for '--lr-of <SCHEME=RATE>'"),
        ("times = \"trace:none.csv\"\n", "none.csv"),
        ("slow = \"9=2\"\n", "broken.toml: --slow 9=2: worker 9 does not exist"),
        ("until = \"time=5\"\n", "broken.toml: --until time=5 has no target"),
    ] {
        fs::write(suite.join("broken.toml"), text).unwrap();
        let message = refuse(&[]);
        assert!(message.contains(expected), "{message}");
    }
    fs::remove_file(suite.join("broken.toml")).unwrap();
    assert!(refuse(&["--real"]).contains("--real"));
    assert!(refuse(&["--schemes", "backup:k=9"]).contains("good.toml: scheme 'backup': k=9; expected 1 to 4"));
    let config = suite.join("good.toml");
    assert!(refuse(&["--config", config.to_str().unwrap()]).contains("expected one of them"));
    let missing = refused(&["race", "--suite", folder.path().join("none").to_str().unwrap()]);
    assert!(missing.contains("No such file or directory"), "{missing}");
}
