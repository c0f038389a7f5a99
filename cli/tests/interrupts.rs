//! Ctrl-C: every command ends with its result so far, and says so; a second one ends it at once.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::tempdir;

use common::paceline;
use common::process::PacelineProcess;

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
        run.wait_until(|| lines(&out.join("metrics.csv")) > 2);
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
    let named = ["--out", out.to_str().unwrap(), "--seeds", "1", "--threads", "1", "--no-baselines"];
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
    race.wait_until(|| lines(&out.join("bsp/metrics.csv")) > 2);
    race.signal("INT");
    let (code, table, errors) = race.end();
    assert_eq!((code, table.as_str()), (Some(130), ""), "{errors:?}");
    assert!(errors.contains(&"0 of 2 runs are done".to_string()) && !out.exists(), "{errors:?}");

    let mut race = PacelineProcess::start(&[&["race", "--tune", "lr"], &named[..], &endless].concat());
    race.await_handler();
    race.signal("INT");
    let (code, table, errors) = race.end();
    assert_eq!((code, table.as_str()), (Some(130), ""), "{errors:?}");
    assert!(errors.contains(&"0 of 2 runs are done".to_string()) && !out.exists(), "{errors:?}");
}

#[test]
fn an_interrupted_race_of_processes_ranks_the_runs_that_are_complete() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("race");
    // Under asp the fast worker makes all iterations at once; under bsp each of them takes half a second.
    let schemes = ["--schemes", "asp,bsp", "--workers", "2", "--emulate", "0=deterministic:0.5", "--seeds", "1"];
    let job = ["--model", "softmax", "--data", "digits:600,200", "--until", "loss<-1,iterations=200"];
    let named = ["race", "--real", "--no-baselines", "--out", out.to_str().unwrap()];
    let mut race = PacelineProcess::start(&[&named[..], &schemes, &job].concat());
    race.await_line("asp ");
    race.wait_until(|| lines(&out.join("bsp/metrics.csv")) > 1);
    race.signal("INT");
    let (code, table, errors) = race.end();
    assert_eq!(code, Some(130), "{errors:?}");
    assert!(errors.contains(&"1 of 2 runs are done".to_string()), "{errors:?}");
    assert!(table.contains("\nasp ") && !table.contains("\nbsp "), "{table}");
    let aside = folder.path().join("race-interrupted");
    assert!(!out.exists() && aside.join("asp/summary.json").exists() && !aside.join("bsp").exists());
}

#[test]
fn an_interrupted_recommendation_compares_the_schemes_that_are_complete() {
    let folder = tempdir().unwrap();
    let times = folder.path().join("times.csv");
    fs::write(&times, "1,1,1,3\n".repeat(30)).unwrap();
    let run = PacelineProcess::start(&["whatif", times.to_str().unwrap(), "--seeds", "1", "--threads", "1"]);
    // The first of many schemes is done.
    run.await_line("bsp ");
    run.signal("HUP");
    let (code, table, errors) = run.end();
    assert_eq!(code, Some(130), "{errors:?}");
    assert!(table.contains("30 steps of 4 workers") && table.contains("bsp"), "{table}");
    assert!(!table.contains("\nasp "), "{table}");
    assert!(errors.iter().any(|line| line.ends_with(" of 22 runs are done")), "{errors:?}");
}

#[test]
fn an_interrupted_experiment_prints_the_runs_that_are_complete() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("figures");
    let options = ["lbbsp-fig8", "--seeds", "1", "--threads", "1", "--out", out.to_str().unwrap()];
    let run = PacelineProcess::start(&[&["reproduce"], &options[..]].concat());
    run.await_line("1 of 4 runs are done");
    run.signal("INT");
    let (code, table, errors) = run.end();
    assert_eq!(code, Some(130), "{errors:?}");
    assert!(table.contains("Only the runs that were complete count"), "{table}{errors:?}");
    assert!(!out.exists(), "a figure of a part of the runs would mislead");

    // Its first run takes minutes.
    let mut run = PacelineProcess::start(&["reproduce", "cutoff-fig4", "--full", "--out", out.to_str().unwrap()]);
    run.await_handler();
    run.signal("INT");
    let (code, table, errors) = run.end();
    assert_eq!((code, table.as_str()), (Some(130), ""), "{errors:?}");
    assert!(errors.contains(&"no run is complete".to_string()) && !out.exists(), "{errors:?}");
}

#[test]
fn an_interrupted_training_of_a_predictor_writes_the_best_so_far() {
    let folder = tempdir().unwrap();
    let [times, model] = ["times.csv", "cluster.model"].map(|name| folder.path().join(name).display().to_string());
    let record = ["simulate", "--model", "none", "--workers", "4", "--until", "iterations=300", "--record", &times];
    assert!(paceline(&record).status.success());
    let options = ["--epochs", "1000000", "--patience", "1000000", "--lag", "5"];
    let mut run = PacelineProcess::start(&[&["predictor", "train", &times, "--out", &model], &options[..]].concat());
    run.await_handler();
    run.signal("INT");
    let (code, table, errors) = run.end();
    assert_eq!(code, Some(130), "{errors:?}");
    assert!(table.contains("epochs in") && Path::new(&model).exists(), "{table}");
}

#[test]
fn an_interrupted_fit_and_campaign_print_what_they_have() {
    let endless = [
        &["fit", "--model", "softmax", "--data", "digits:600,200", "--until", "time=300"][..],
        &["torture", "--seeds", "100000000", "--threads", "1"],
    ];
    let [fit, torture] = endless.map(|command| {
        let mut run = PacelineProcess::start(&[command, &["--json"]].concat());
        run.await_handler();
        run.signal("INT");
        let (code, text, errors) = run.end();
        assert_eq!(code, Some(130), "{command:?}: {errors:?}");
        assert!(errors[0].starts_with("interrupted: ends with the result so far"), "{errors:?}");
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    });
    assert_eq!(fit["ending"], "interrupted");
    assert!(fit["iterations"].as_u64().unwrap() >= 1, "{fit}");
    assert!(torture["seeds"].as_u64().unwrap() < 100_000_000, "{torture}");
}

#[test]
fn a_second_interrupt_ends_a_server_that_is_stuck() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let quick = ["--model", "softmax", "--data", "digits:600,200", "--workers", "1", "--until", "time=300"];
    let mut run = PacelineProcess::start(&[&["train", "--out", out.to_str().unwrap()], &quick[..]].concat());
    // The report is a pipe that nobody reads: writing it takes for ever, as on a stuck disk.
    run.wait_until(|| lines(&out.join("metrics.csv")) > 2);
    assert!(Command::new("mkfifo").arg(out.join("report.html")).status().unwrap().success());
    run.signal("INT");
    run.wait_until(|| out.join("model.safetensors").exists());
    assert!(run.child.try_wait().unwrap().is_none(), "it is stuck");
    run.signal("INT");
    assert_eq!(run.end().0, Some(130));
}

#[test]
fn an_interrupted_worker_leaves_when_its_task_is_done() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let run = ["--workers", "2", "--until", "time=1e9", "--out", out.to_str().unwrap()];
    let server = PacelineProcess::start(&[&["serve", "--listen", "127.0.0.1:0"], &run[..]].concat());
    let address = server.await_line("waiting for 2 workers on ").rsplit(' ').next().unwrap().to_string();
    let work = ["work", "--join", &address, "--emulate", "uniform:0.2,0.2"];
    let workers = [PacelineProcess::start(&work), PacelineProcess::start(&work)];
    for _ in 0..2 {
        assert!(server.await_line("worker ").contains("joined"));
    }
    let [first, second] = workers;
    first.await_line("joined");
    first.signal("TERM");
    let (code, text, errors) = first.end();
    assert_eq!(code, Some(130), "{errors:?}");
    assert!(text.contains(" tasks; it has left") || text.contains(" task; it has left"), "{text}{errors:?}");
    assert!(errors.iter().any(|line| line.starts_with("interrupted: leaves when")), "{errors:?}");
    assert!(server.await_line("worker ").contains("left: its process was interrupted"));
    server.signal("INT");
    assert_eq!(server.end().0, Some(130));
    assert_eq!(second.end().0, Some(0));

    // Nobody is there.
    let mut alone = PacelineProcess::start(&["work", "--join", &address]);
    alone.await_handler();
    alone.signal("TERM");
    assert_eq!(alone.end().0, Some(130));
}

#[test]
fn the_workers_of_an_interrupted_server_wait_for_it_if_asked_to() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let out = out.to_str().unwrap();
    let run = ["--workers", "2", "--until", "iterations=60", "--out", out];
    let first = PacelineProcess::start(&[&["serve", "--listen", "127.0.0.1:0", "--keep-workers"], &run[..]].concat());
    let address = first.await_line("waiting for 2 workers on ").rsplit(' ').next().unwrap().to_string();
    let work = ["work", "--join", &address, "--emulate", "uniform:0.02,0.02"];
    let workers = [PacelineProcess::start(&work), PacelineProcess::start(&work)];
    for _ in 0..2 {
        first.await_line("worker ");
    }
    first.signal("TERM");
    assert_eq!(first.end().0, Some(130));
    for worker in &workers {
        let line = worker.await_line("disconnected");
        assert!(line.contains("the server is stopped; the run goes on when it is back"), "{line}");
    }

    let second = PacelineProcess::start(&["serve", "--listen", &address, "--resume", out, "--json"]);
    assert_eq!(second.finish()["iterations"], 60);
    for worker in workers {
        let (code, text, errors) = worker.end();
        assert_eq!(code, Some(0), "{errors:?}");
        assert!(text.contains("the run has ended: iterations=60 is reached"), "{text}");
    }
}
