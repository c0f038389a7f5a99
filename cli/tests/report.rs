//! Reports and TensorBoard files of run folders.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::tempdir;

use common::{json, paceline, refused};

fn simulate(out: &Path, more: &[&str]) {
    let output = paceline(&[&["simulate", "--out", out.to_str().unwrap()], more].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_large_run_makes_a_small_page() {
    let folder = tempdir().unwrap();
    for scheme in ["bsp", "esync", "elastic-bsp", "lb-bsp"] {
        let out = folder.path().join(scheme);
        let size = ["--workers", "16", "--until", "samples=1024000", "--model", "none", "--slow", "0-3=3"];
        simulate(
            &out,
            &[&size[..], &["--scheme", scheme, "--network", "latency=0.01,bandwidth=1e8,bytes=1e6"]].concat(),
        );
        let bytes = fs::metadata(out.join("report.html")).unwrap().len();
        assert!((100_000..3_000_000).contains(&bytes), "{scheme}: {bytes}");
    }
    // A page of all runs has the same limit.
    let out = folder.path().join("all.html");
    let line = json(&["report", folder.path().to_str().unwrap(), "--out", out.to_str().unwrap(), "--json"]).remove(0);
    assert_eq!(line["runs"].as_array().unwrap().len(), 4);
    assert!(line["bytes"].as_u64().unwrap() < 3_000_000, "{line}");
}

#[test]
fn a_folder_without_a_run_is_refused() {
    let folder = tempdir().unwrap();
    assert!(
        refused(&["report", folder.path().to_str().unwrap()]).contains("has no events.jsonl; expected a run folder")
    );
    assert!(refused(&["report", "/no/such/run"]).contains("/no/such/run"));
    fs::write(folder.path().join("events.jsonl"), "{}").unwrap();
    assert!(refused(&["report", folder.path().to_str().unwrap()]).contains("line 1 is not a line of an event log"));
    assert!(!folder.path().join("report.html").exists());
}

#[test]
fn a_report_of_a_killed_run_covers_its_complete_lines() {
    let folder = tempdir().unwrap();
    let run = folder.path().join("run");
    simulate(&run, &["--data", "digits:600,200", "--until", "iterations=30", "--evaluate-every", "0"]);
    for name in ["events.jsonl", "metrics.csv"] {
        let bytes = fs::read(run.join(name)).unwrap();
        let cut = bytes.len() - if name == "metrics.csv" { 60 } else { 20 };
        fs::write(run.join(name), &bytes[..cut]).unwrap();
    }
    let run = run.to_str().unwrap();
    assert_eq!(json(&["report", run, "--json"]).len(), 1);
    assert_eq!(json(&["replay", run, "--json"])[0]["cut_short"], true);
    let text = String::from_utf8(paceline(&["replay", run]).stdout).unwrap();
    assert!(text.contains("the last line was cut short"), "{text}");
    let quick = ["--schemes", "bsp", "--data", "digits:600,200", "--until", "loss<2.2,iterations=10", "--seeds", "1"];
    assert_eq!(json(&[&["whatif", run, "--json"], &quick[..]].concat()).len(), 2);
}

#[test]
fn sixteen_runs_make_a_small_page() {
    let folder = tempdir().unwrap();
    for number in 0..16 {
        let scheme = ["bsp", "esync", "lb-bsp", "backup:k=6"][number % 4];
        let size = ["--workers", "16", "--model", "none", "--until", "iterations=1000", "--slow", "0=3"];
        simulate(&folder.path().join(number.to_string()), &[&size[..], &["--scheme", scheme]].concat());
    }
    let out = folder.path().join("all.html");
    let line = json(&["report", folder.path().to_str().unwrap(), "--out", out.to_str().unwrap(), "--json"]).remove(0);
    let bytes = line["bytes"].as_u64().unwrap();
    assert!((500_000..3_000_000).contains(&bytes), "{bytes}");
}

/// The data of a page.
fn data_of(page: &Path) -> Value {
    let text = fs::read_to_string(page).unwrap();
    let (_, data) = text.split_once("id=\"data\">").unwrap();
    serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn runs_that_differ_by_their_seed_are_ranked_as_in_a_race() {
    let folder = tempdir().unwrap();
    let job = ["--model", "softmax", "--data", "digits:600,200", "--until", "loss<0.9,samples=60000", "--slow", "0=3"];
    for scheme in ["bsp", "backup:k=6", "asp"] {
        for seed in ["1", "2", "3"] {
            let out = folder.path().join(format!("{}-{seed}", scheme.replace(':', "_")));
            simulate(&out, &[&job[..], &["--scheme", scheme, "--seeds", seed]].concat());
        }
    }
    let page = folder.path().join("all.html");
    json(&["report", folder.path().to_str().unwrap(), "--out", page.to_str().unwrap(), "--json"]);
    let data = data_of(&page);
    let contestants = data["contestants"].as_array().unwrap();
    assert_eq!((contestants.len(), &contestants[1]["name"]), (3, &"bsp".into()), "bsp comes second, or first");
    assert_eq!(contestants[0]["runs"], serde_json::json!([0, 1, 2]));
    let rank = &contestants[0]["rank"];
    assert_eq!((&rank["place"], &rank["runs"]), (&1.into(), &3.into()));
    assert!(rank["difference"] != "unknown" && rank["times"].as_array().unwrap().len() == 3, "{rank}");
    let (low, high) = (rank["speedup_low"].as_f64().unwrap(), rank["speedup_high"].as_f64().unwrap());
    assert!(low < rank["speedup"].as_f64().unwrap() && rank["speedup"].as_f64().unwrap() < high, "{rank}");
    let verdict = data["comparison"]["verdict"].as_str().unwrap();
    assert!(verdict.contains("loss<0.9 after ") && verdict.contains(" times as fast as "), "{verdict}");
    assert_eq!(data["comparison"]["answers"][0]["name"], "Safe");
    let story = data["runs"][0]["view"]["story"].as_str().unwrap();
    assert!(story.ends_with("of virtual time."), "{story}");
}

#[test]
fn tensorboard_reads_what_the_run_wrote() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    simulate(&out, &["--data", "digits:600,200", "--until", "iterations=20", "--scheme", "backup:k=6"]);
    let script = "
import sys
try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    sys.exit(77)
events = EventAccumulator(sys.argv[1]).Reload()
for tag in sorted(events.Tags()['scalars']):
    for event in events.Scalars(tag):
        print(tag, event.step, event.wall_time, event.value, sep=',')
";
    let python = std::env::var("PACELINE_PYTHON").unwrap_or_else(|_| "python3".into());
    let output = Command::new(python).args(["-c", script, out.to_str().unwrap()]).output();
    let Some(output) = output.ok().filter(|output| output.status.code() != Some(77)) else {
        eprintln!("skipped: no Python with TensorBoard on this machine; set PACELINE_PYTHON to one");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let read = |tag: &str| text.lines().filter(|line| line.starts_with(&format!("{tag},"))).collect::<Vec<_>>();
    assert_eq!((read("loss").len(), read("updates per step").len(), read("accuracy").len()), (20, 20, 2), "{text}");
    let metrics = fs::read_to_string(out.join("metrics.csv")).unwrap();
    for (line, scalar) in metrics.lines().skip(1).zip(read("loss")) {
        let cells: Vec<&str> = line.split(',').collect();
        let scalar: Vec<f64> = scalar.split(',').skip(1).map(|cell| cell.parse().unwrap()).collect();
        let expected: [f64; 3] = [0, 1, 4].map(|column: usize| cells[column].parse().unwrap());
        assert_eq!((scalar[0], scalar[1], scalar[2] as f32), (expected[0], expected[1], expected[2] as f32));
    }
}
