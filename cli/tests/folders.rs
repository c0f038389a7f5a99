//! Run folders and output files: locked, never replaced by accident, tried before anything is computed, and kept on a
//! full disk.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::tempdir;

use common::process::PacelineProcess;
use common::{json, paceline, refused};

const QUICK: [&str; 8] = ["--model", "softmax", "--data", "digits:600,200", "--batch", "16", "--workers", "2"];

/// The content of every file of a folder.
fn content(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.is_file());
    files.map(|path| (path.file_name().unwrap().display().to_string(), fs::read(&path).unwrap())).collect()
}

#[test]
fn a_folder_has_one_writer_and_a_killed_one_frees_it() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let out = out.to_str().unwrap();
    let run = PacelineProcess::start(&[&["train", "--until", "time=300", "--out", out], &QUICK[..]].concat());
    // The folder is written when the first worker joins.
    run.await_line("worker ");
    let in_use = |id: u32| format!("error: {out} is in use: process {id} writes it; wait until that ends\n");
    assert_eq!(refused(&["train", "--resume", out]), in_use(run.child.id()));
    assert_eq!(
        refused(&["simulate", "--out", out]),
        format!("error: {out} exists and is not empty; choose another folder with --out\n")
    );
    run.kill();
    let resumed = json(&["train", "--resume", out, "--until", "iterations=3", "--json"]);
    assert!(resumed[0]["iterations"].as_u64().unwrap() >= 3, "{resumed:?}");

    // The address is in use, too; the folder is what counts.
    let out = &format!("{out}-served");
    let address = format!("local:paceline-folders-{}", std::process::id());
    let server = PacelineProcess::start(&[&["serve", "--listen", &address, "--out", out], &QUICK[..]].concat());
    server.await_line("waiting for 2 workers");
    let error = refused(&["serve", "--resume", out]);
    assert_eq!(
        error,
        format!("error: {out} is in use: process {} writes it; wait until that ends\n", server.child.id())
    );
    server.kill();
}

#[test]
fn a_finished_run_is_trained_on_only_with_another_goal() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    let path = out.to_str().unwrap();
    json(&[&["train", "--json", "--until", "iterations=20", "--out", path], &QUICK[..]].concat());
    let before = content(&out);
    assert!(refused(&["train", "--resume", path]).contains("is over: iterations=20 ended it after 20 iterations"));
    assert!(
        refused(&["train", "--resume", path, "--until", "iterations=15"]).contains("give another goal with --until")
    );
    assert_eq!(content(&out), before);
    let resumed = json(&["train", "--resume", path, "--until", "iterations=30", "--json"]);
    assert_eq!(resumed[0]["iterations"], 30);
    assert!(refused(&["train", "--resume", path]).contains("iterations=30 ended it"));
}

#[test]
fn no_file_is_replaced_without_force_and_no_input_ever() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (times, run, new) = (path("times.csv"), path("run"), path("new.csv"));
    let simulate = ["simulate", "--model", "none", "--until", "iterations=30", "--workers", "3", "--json"];
    json(&[&simulate[..], &["--record", &times, "--out", &run]].concat());
    let recorded = fs::read(&times).unwrap();
    let replay = format!("trace:{times}");
    let exists = "exists; choose another file, or replace it with --force";
    assert!(refused(&[&simulate[..], &["--record", &times]].concat()).contains(exists));
    let own = refused(&[&simulate[..], &["--times", &replay, "--record", &times, "--force"]].concat());
    assert!(own.contains("is the input "), "{own}");
    json(&[&simulate[..], &["--times", &replay, "--record", &new]].concat());
    let (emulated, listed) = (format!("0=trace:{times}"), path("options.csv"));
    fs::write(&listed, "workers = 3\n").unwrap();
    let own = refused(&["train", "--emulate", &emulated, "--record", &times, "--force"]);
    assert!(own.contains("is the input "), "{own}");
    for command in ["train", "serve", "simulate"] {
        let own = refused(&[command, "--config", &listed, "--record", &listed, "--force"]);
        assert!(own.contains("is the input "), "{command}: {own}");
    }
    assert_eq!(fs::read_to_string(&listed).unwrap(), "workers = 3\n");

    let events = format!("{run}/events.jsonl");
    for force in [&["--force"][..], &[]] {
        assert!(refused(&[&["report", &run, "--out", &events], force].concat()).contains("is the input "));
    }
    let page = path("page.html");
    fs::write(&page, "mine").unwrap();
    assert!(refused(&["report", &run, "--out", &page]).contains(exists));
    assert!(paceline(&["report", &run]).status.success(), "its own report is written again");
    assert!(paceline(&["report", &run, "--out", &page, "--force"]).status.success());
    let model = path("cluster.model");
    fs::write(&model, "good").unwrap();
    assert!(refused(&["predictor", "train", &times, "--out", &model]).contains(exists));
    assert!(refused(&["predictor", "train", &times, "--out", &times, "--force"]).contains("is the input "));
    let (rows, plot) = (path("rows.txt"), path("plot.svg"));
    fs::write(&rows, "10 20 30\n14 25 36\n").unwrap();
    fs::write(&plot, "mine").unwrap();
    assert!(refused(&["plan", "barrier", &rows, "--plot", &plot]).contains(exists));
    let reproduced = path("");
    fs::write(path("lbbsp-fig13.svg"), "mine").unwrap();
    assert!(refused(&["reproduce", "lbbsp-fig13", "--out", &reproduced]).contains(exists));
    assert_eq!(fs::read(&times).unwrap(), recorded);
    assert_eq!(fs::read_to_string(&model).unwrap(), "good");
}

#[test]
fn a_destination_that_cannot_be_written_fails_before_anything_is_computed() {
    // Nobody can create files there, not even root. The runs would take hours.
    let long = ["--until", "time=100000"];
    for destination in [["--out", "/proc/paceline/run"], ["--record", "/proc/times.csv"]] {
        for command in ["train", "serve", "simulate"] {
            let error = refused(&[&[command], &long[..], &destination].concat());
            assert!(error.contains("/proc/"), "{command}: {error}");
        }
    }
    assert!(refused(&["race", "--out", "/proc/paceline"]).contains("--out /proc/paceline"));
    assert!(refused(&["reproduce", "cutoff-fig4", "--out", "/proc/paceline"]).contains("--out /proc/paceline"));
}

/// Runs a shell command, with the program as `$0`.
fn shell(script: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_paceline")]).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn an_event_log_that_cannot_be_written_does_not_lose_the_model() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run");
    // No file may have more than 64 blocks of 512 bytes. The model has 31,400 bytes, the event log soon has more.
    let train = format!("train --until iterations=200 --out {} {}", out.display(), QUICK.join(" "));
    let (code, table, errors) = shell(&format!("trap '' XFSZ; ulimit -f 64; exec \"$0\" {train}"));
    assert_eq!(code, Some(1), "{errors}");
    assert!(table.contains("iterations=200"), "{table}");
    assert!(errors.contains("events.jsonl: File too large"), "{errors}");
    assert!(fs::metadata(out.join("model.safetensors")).unwrap().len() > 31_000);
    assert!(out.join("summary.json").exists());
}

#[test]
fn a_full_disk_keeps_the_model_and_the_table() {
    let folder = tempdir().unwrap();
    let disk = folder.path().display().to_string();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=320k", "tmpfs", &disk]).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        println!("skipped: mounting a tmpfs is not permitted");
        return;
    }
    let train = format!("train --until iterations=2000 --out {disk}/run {}", QUICK.join(" "));
    let (code, table, errors) = shell(&format!("exec \"$0\" {train}"));
    let model = fs::metadata(folder.path().join("run/model.safetensors")).map(|found| found.len());
    // A model that can't fit is refused at once.
    let (none, _, refusal) = shell(&format!("exec \"$0\" train --out {disk}/other {}", QUICK.join(" ")));
    assert!(Command::new("umount").arg(&disk).status().unwrap().success());
    assert_eq!(code, Some(1), "{errors}");
    assert!(table.contains("iterations=2000") && errors.contains("No space left on device"), "{table}{errors}");
    assert!(model.is_ok_and(|bytes| bytes > 31_000), "{errors}");
    assert!(none == Some(2) && refusal.contains("No space left on device"), "{refusal}");
}
