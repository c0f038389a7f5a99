//! Ctrl-C: every command ends with its result so far, and says so; a second one ends it at once.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use tempfile::tempdir;

use common::paceline;
use common::process::PacelineProcess;

/// Waits until `is_ready`, while the process runs.
fn wait(process: &mut PacelineProcess, is_ready: impl Fn() -> bool) {
    while !is_ready() {
        assert!(process.child.try_wait().unwrap().is_none(), "the process has exited");
        thread::yield_now();
    }
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[test]
fn an_interrupted_simulation_shows_its_result_and_frees_its_folder() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let command = ["simulate", "--data", "digits:600,200", "--until", "time=1e9", "--out", out.to_str().unwrap()];
    for aside in ["run-interrupted", "run-interrupted-2"] {
        let mut run = PacelineProcess::start(&command);
        wait(&mut run, || lines(&out.join("metrics.csv")) > 2);
        run.signal("INT");
        let (code, table, errors) = run.end();
        assert_eq!(code, Some(130), "{errors:?}");
        assert!(table.contains("interrupted"), "{table}");
        assert!(!out.exists() && folder.path().join(aside).join("model.safetensors").exists());
        assert!(paceline(&["replay", folder.path().join(aside).to_str().unwrap()]).status.success());
    }
}

#[test]
fn an_interrupted_comparison_ranks_the_runs_that_are_complete() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("race");
    let named = ["--out", out.to_str().unwrap(), "--seeds", "1", "--threads", "1"];
    let race = PacelineProcess::start(&[&["race"], &named[..]].concat());
    // The first of sixteen schemes is done.
    race.await_line("bsp ");
    race.signal("TERM");
    let (code, table, errors) = race.end();
    assert_eq!(code, Some(130), "{errors:?}");
    assert!(table.contains("bsp") && table.contains("race-interrupted"), "{table}{errors:?}");
    assert!(!out.exists() && folder.path().join("race-interrupted/report.html").exists(), "{errors:?}");

    let endless = ["--schemes", "bsp,asp", "--until", "loss<-1", "--data", "digits:600,200"];
    let mut race = PacelineProcess::start(&[&["race"], &named[..], &endless].concat());
    wait(&mut race, || lines(&out.join("bsp/metrics.csv")) > 2);
    race.signal("INT");
    let (code, table, errors) = race.end();
    assert_eq!((code, table.as_str()), (Some(130), ""), "{errors:?}");
    assert!(errors.contains(&"0 of 2 runs are done".to_string()) && !out.exists(), "{errors:?}");
}

#[test]
fn an_interrupted_experiment_prints_the_runs_that_are_complete() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("figures");
    let options = ["lbbsp-fig8", "--seeds", "1", "--threads", "1", "--out", out.to_str().unwrap()];
    let run = PacelineProcess::start(&[&["reproduce"], &options[..]].concat());
    // A run of the first level takes a fraction of a second, all of them take many.
    thread::sleep(std::time::Duration::from_secs(1));
    run.signal("INT");
    let (code, table, errors) = run.end();
    assert_eq!(code, Some(130), "{errors:?}");
    let complete = table.contains("Only the runs that were complete count");
    assert!(complete != errors.contains(&"no run is complete".to_string()), "{table}{errors:?}");
    assert!(!out.exists(), "a figure of a part of the runs would mislead");
}

#[test]
fn an_interrupted_training_of_a_predictor_writes_the_best_so_far() {
    let folder = tempdir().unwrap();
    let [times, model] = ["times.csv", "cluster.model"].map(|name| folder.path().join(name).display().to_string());
    let record = ["simulate", "--model", "none", "--workers", "4", "--until", "iterations=300", "--record", &times];
    assert!(paceline(&record).status.success());
    let options = ["--epochs", "1000000", "--patience", "1000000", "--lag", "5"];
    let run = PacelineProcess::start(&[&["predictor", "train", &times, "--out", &model], &options[..]].concat());
    // An epoch takes milliseconds; the signal handler is installed long before.
    thread::sleep(std::time::Duration::from_secs(2));
    run.signal("INT");
    let (code, table, errors) = run.end();
    assert_eq!(code, Some(130), "{errors:?}");
    assert!(table.contains("epochs in") && Path::new(&model).exists(), "{table}");
}

#[test]
fn a_second_interrupt_ends_a_server_that_is_stuck() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let quick = ["--model", "softmax", "--data", "digits:600,200", "--workers", "1", "--until", "time=300"];
    let mut run = PacelineProcess::start(&[&["train", "--out", out.to_str().unwrap()], &quick[..]].concat());
    // The report is a pipe that nobody reads: writing it takes for ever, as on a stuck disk.
    wait(&mut run, || lines(&out.join("metrics.csv")) > 2);
    assert!(Command::new("mkfifo").arg(out.join("report.html")).status().unwrap().success());
    run.signal("INT");
    wait(&mut run, || out.join("model.safetensors").exists());
    assert!(run.child.try_wait().unwrap().is_none(), "it is stuck");
    run.signal("INT");
    assert_eq!(run.end().0, Some(130));
}
