//! `--init`, `paceline evaluate`, and options that change gradients, with real processes.

mod common;

use std::fs;

use common::{json, refused};
use tempfile::tempdir;

const MODEL: [&str; 4] = ["--model", "softmax", "--data", "digits:600,200"];

#[test]
fn a_model_is_evaluated_and_started_from() {
    let folder = tempdir().unwrap();
    let (run, more) = (folder.path().join("run"), folder.path().join("more"));
    let (run, more) = (run.to_str().unwrap(), more.to_str().unwrap());
    let weights = format!("{run}/model.safetensors");
    let train = |until: &str, options: &[&str]| {
        json(&[&["train", "--workers", "2", "--json", "--until", until], &MODEL[..], options].concat()).remove(0)
    };
    let summary = train("iterations=30", &["--out", run]);
    let evaluated = |arguments: &[&str]| json(&[&["evaluate", "--json"], arguments].concat()).remove(0);
    for arguments in [&[run][..], &[&[weights.as_str()], &MODEL[..]].concat()] {
        let evaluation = evaluated(arguments);
        assert_eq!(evaluation["accuracy"], summary["accuracy"], "{evaluation}");
        assert_eq!(evaluation["weights"], weights.as_str());
    }
    // Without a final model, the last checkpoint counts.
    fs::remove_file(&weights).unwrap();
    assert_eq!(evaluated(&[run])["accuracy"], summary["accuracy"]);

    let started = train("iterations=1", &["--out", more]);
    assert!(started["loss"].as_f64() > Some(1.5), "{started}");
    let first = train("iterations=30", &["--out", &format!("{more}-1")]);
    let weights = format!("{more}-1/model.safetensors");
    let second = train("iterations=1", &["--init", &weights, "--out", &format!("{more}-2")]);
    assert!(second["loss"].as_f64() < Some(1.2 * first["loss"].as_f64().unwrap()), "{first} then {second}");
    let simulated = [&["simulate", "--json", "--until", "iterations=1", "--init", &weights], &MODEL[..]].concat();
    assert!(json(&simulated)[0]["loss"].as_f64() < started["loss"].as_f64());
}

#[test]
fn weights_that_do_not_fit_are_refused_by_name() {
    let folder = tempdir().unwrap();
    let empty = folder.path().to_str().unwrap();
    let message = refused(&["evaluate", empty, "--model", "softmax"]);
    assert!(message.contains("config.toml"), "{message}");
    fs::write(folder.path().join("config.toml"), "model = \"softmax\"\ndata = \"digits:600,200\"\n").unwrap();
    let message = refused(&["evaluate", empty]);
    assert!(message.contains("holds no model: expected model.safetensors or a checkpoint"), "{message}");
    let file = folder.path().join("weights.safetensors");
    fs::write(&file, b"no tensors").unwrap();
    let file = file.to_str().unwrap();
    let message = refused(&["evaluate", file]);
    assert!(message.contains("Name it with --model"), "{message}");
    for message in [
        refused(&[&["evaluate", file], &MODEL[..]].concat()),
        refused(&[&["train", "--init", file], &MODEL[..]].concat()),
        refused(&[&["simulate", "--init", file], &MODEL[..]].concat()),
    ] {
        assert!(message.contains("weights.safetensors is not a valid model"), "{message}");
    }
}

#[test]
fn options_that_change_gradients_reach_the_workers() {
    let folder = tempdir().unwrap();
    let mut losses = Vec::new();
    for (index, options) in [&[][..], &["--micro-batch", "5"], &["--clip-gradient", "0.01"], &["--clip-sum", "0.01"]]
        .into_iter()
        .enumerate()
    {
        let out = folder.path().join(index.to_string());
        let train = ["train", "--workers", "2", "--json", "--until", "iterations=40", "--out", out.to_str().unwrap()];
        let summary = &json(&[&train[..], &MODEL, options].concat())[0];
        losses.push(summary["loss"].as_f64().unwrap());
    }
    let [plain, portions, clipped, sum] = losses[..] else { panic!("{losses:?}") };
    assert!((plain - portions).abs() < 1e-3, "portions add up to the same gradient: {losses:?}");
    // Steps of length 0.001 hardly change the loss.
    assert!(clipped > 1.5 * plain && sum > 1.5 * plain, "{losses:?}");
}
