//! `paceline predictor`, end to end.

mod common;

use std::fs;
use std::path::Path;

use tempfile::{TempDir, tempdir};

use common::{json, paceline, refused};

/// A cluster with two hosts that are slow in turn.
const CLUSTER: [&str; 6] = ["simulate", "--model", "none", "--times", "regimes:2,1,0.05,3,30,20,20", "--json"];

/// Records a run with this number of workers, and returns the path of the trace.
fn record(folder: &Path, workers: &str, scheme: &str) -> String {
    let trace = folder.join(format!("{workers}.csv")).to_str().unwrap().to_string();
    json(
        &[&CLUSTER[..], &["--workers", workers, "--scheme", scheme, "--until", "iterations=240", "--record", &trace]]
            .concat(),
    );
    trace
}

/// A folder with a trace of six workers and a model trained on it for a few epochs.
fn pretrained() -> (TempDir, String, String) {
    let folder = tempdir().unwrap();
    let trace = record(folder.path(), "6", "bsp");
    let model = folder.path().join("model").to_str().unwrap().to_string();
    let found = json(&train(&trace, &model)).remove(0);
    for key in ["validation_elbo", "training_elbo", "seconds"] {
        assert!(found[key].is_f64(), "{key} is missing in {found}");
    }
    for key in ["error", "covered", "throughput", "waiting_for_all"] {
        assert!(found["assessed"]["dmm"][key].is_f64(), "{key} is missing in {found}");
    }
    assert_eq!(
        (found["workers"].as_u64(), found["iterations"].as_u64(), found["epochs"].as_u64()),
        (Some(6), Some(240), Some(3))
    );
    (folder, trace, model)
}

fn train<'a>(trace: &'a str, model: &'a str) -> Vec<&'a str> {
    let size = ["--lag", "5", "--latent", "2", "--hidden", "4", "--epochs", "3", "--json"];
    [&["predictor", "train", trace, "--out", model], &size[..]].concat()
}

#[test]
fn a_model_is_trained_evaluated_and_used() {
    let (folder, trace, model) = pretrained();
    let picture = folder.path().join("forecast.svg");
    let show =
        ["predictor", "show", &model, &trace, "--iterations", "30,100", "--plot", picture.to_str().unwrap(), "--json"];
    let report = json(&show).remove(0);
    assert_eq!((report["workers"].as_u64(), report["lag"].as_u64()), (Some(6), Some(5)));
    assert!(report["next_late"].as_array().unwrap().len() == 6 && report["covered"].is_f64(), "{report}");
    assert!(fs::metadata(picture).unwrap().len() > 1000);

    let scheme = format!("cutoff:predictor=dmm,model={model}");
    let run = folder.path().join("run").to_str().unwrap().to_string();
    let limits = ["--workers", "6", "--until", "iterations=60", "--seeds", "2", "--out", &run];
    json(&[&CLUSTER[..], &["--scheme", &scheme], &limits].concat());
    let replayed = json(&["replay", &format!("{run}/events.jsonl"), "--json"]).remove(0);
    assert_eq!(replayed["scheme"], scheme);
}

#[test]
fn the_same_seed_gives_the_same_file() {
    let (folder, trace, model) = pretrained();
    let again = folder.path().join("again");
    json(&train(&trace, again.to_str().unwrap()));
    assert_eq!(fs::read(&model).unwrap(), fs::read(&again).unwrap());
}

#[test]
fn models_and_traces_that_do_not_fit_are_refused() {
    let (folder, trace, model) = pretrained();
    let scheme = format!("cutoff:predictor=dmm,model={model}");
    let other = refused(&[&CLUSTER[..], &["--workers", "8", "--scheme", &scheme]].concat());
    assert!(other.contains("a model of this cluster; the model was trained for 6 workers: expected 8"), "{other}");
    let trace_of_eight = record(folder.path(), "8", "bsp");
    let other = refused(&["predictor", "show", &model, &trace_of_eight]);
    assert!(other.contains("the model was trained for 6 workers: expected 8"), "{other}");

    let uneven = record(folder.path(), "7", "cutoff");
    let new = folder.path().join("new").display().to_string();
    let message = refused(&train(&uneven, &new));
    assert!(message.contains("7.csv: not of a fully synchronous run: worker"), "{message}");
    let lost = refused(&train(&trace, "no/such/folder/model"));
    assert!(lost.contains("--out no/such/folder/model: folder no/such/folder does not exist"), "{lost}");
    let picture = refused(&["predictor", "show", &model, &trace, "--plot", "x.gif"]);
    assert!(picture.contains("--plot x.gif: expected a name that ends in .svg or .png"), "{picture}");

    let mut bytes = fs::read(&model).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 64;
    let damaged = folder.path().join("damaged").to_str().unwrap().to_string();
    fs::write(&damaged, bytes).unwrap();
    let message = refused(
        &[&CLUSTER[..], &["--workers", "6", "--scheme", &format!("cutoff:predictor=dmm,model={damaged}")]].concat(),
    );
    assert!(message.contains("damaged: corrupt: the checksum"), "{message}");
    let message = refused(&["predictor", "show", &trace, &trace]);
    assert!(message.contains("6.csv: not a whole safetensors file"), "{message}");
    let message = refused(&["simulate", "--scheme", "cutoff:predictor=dmm"]);
    assert!(message.contains("scheme 'cutoff': model is missing"), "{message}");
    let help = paceline(&["predictor", "train", "--help"]);
    assert!(String::from_utf8(help.stdout).unwrap().contains("Example:"));
}
