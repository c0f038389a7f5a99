//! `paceline plan`, end to end.

mod common;

use std::fs;

use tempfile::tempdir;

use common::{json, refused};

#[test]
fn a_barrier_is_planned_from_a_file() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("times.csv");
    // Nanoseconds since 1970 must keep every digit.
    fs::write(&file, "1643595472648123401,1643595472648123410\n1643595472648123405,1643595472648123406\n").unwrap();
    let file = file.to_str().unwrap();
    for algorithm in ["zipline", "zipline-basic", "zipline-opt", "zipline-opt-bs", "naive"] {
        let planned = json(&["plan", "barrier", file, "--algorithm", algorithm, "--json"]);
        assert_eq!(planned[0]["wait"], 4, "{algorithm}");
        assert_eq!(planned[0]["at"], 1_643_595_472_648_123_405_u64, "{algorithm}");
        assert_eq!(planned[0]["iterations"], serde_json::json!([1, 1]), "{algorithm}");
    }
    let picture = folder.path().join("barrier.svg");
    json(&["plan", "barrier", file, "--json", "--plot", picture.to_str().unwrap()]);
    assert!(fs::metadata(picture).unwrap().len() > 1000);
    let message = refused(&["plan", "barrier", file, "--plot", "p.foo"]);
    assert!(message.contains("--plot p.foo: expected a name that ends in .svg or .png"), "{message}");
    let message = refused(&["plan", "barrier", file, "--plot", "nodir/p.svg"]);
    assert!(message.contains("--plot nodir/p.svg: folder nodir does not exist"), "{message}");
}

#[test]
fn bad_times_are_refused_with_file_and_row() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("times.txt");
    for (times, problem) in [
        ("", "no times"),
        ("1 2\n3 x\n", "row 2, column 2: 'x': expected a whole number"),
        ("1 2\n3\n", "row 2 has 1 times"),
        ("1 2\n4 3\n", "row 2, column 2: 3 follows 4"),
    ] {
        fs::write(&file, times).unwrap();
        let message = refused(&["plan", "barrier", file.to_str().unwrap()]);
        assert!(message.contains("times.txt: ") && message.contains(problem), "{message}");
    }
}

#[test]
fn batches_are_planned_from_speeds_and_costs() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("workers.txt");
    let path = file.to_str().unwrap();
    fs::write(&file, "# speeds\n100\n50\n150\n").unwrap();
    let planned = &json(&["plan", "batches", path, "--total", "300", "--json"])[0];
    assert_eq!(planned["batches"], serde_json::json!([100, 50, 150]));
    assert_eq!(planned["seconds"], 1.0);
    fs::write(&file, "0.1 0 10 20\n0.1, 0, 10, 20, 0.5\n").unwrap();
    // The second worker's half second of communication takes as long as five samples.
    let planned = &json(&["plan", "batches", path, "--total", "35", "--json"])[0];
    assert_eq!(planned["batches"], serde_json::json!([20, 15]));
    let message = refused(&["plan", "batches", path, "--total", "41"]);
    assert!(message.contains("expected 20 to 40, the sums of the workers' bounds"), "{message}");
    fs::write(&file, "# no workers\n").unwrap();
    let message = refused(&["plan", "batches", path]);
    assert!(message.contains("workers.txt: no workers; expected a line per worker"), "{message}");
    fs::write(&file, "100\nfast\n").unwrap();
    let message = refused(&["plan", "batches", path]);
    assert!(message.contains("workers.txt: line 2: 'fast' is not a number"), "{message}");
}

#[test]
fn predictors_trained_on_a_recorded_run_serve_the_next() {
    let folder = tempdir().unwrap();
    let run = folder.path().join("run");
    let cluster = ["simulate", "--workers", "4", "--model", "none", "--times", "contention:production", "--until"];
    let recorded = ["iterations=700", "--scheme", "lb-bsp", "--out", run.to_str().unwrap(), "--json"];
    json(&[&cluster[..], &recorded].concat());
    let events = run.join("events.jsonl");
    let events = events.to_str().unwrap();
    let predictors = json(&["plan", "speeds", events, "--json"]);
    assert_eq!(predictors.len(), 6);
    let narx = &predictors[0];
    assert_eq!(narx["next"].as_array().unwrap().len(), 4);
    let scheme = format!("lb-bsp:weights={}", narx["weights"].as_str().unwrap());
    json(&[&cluster[..], &["iterations=50", "--json", "--scheme", &scheme]].concat());
    let message = refused(&["plan", "speeds", events, "--first", "700"]);
    assert!(message.contains("no worker did more than 700 tasks"), "{message}");
    let message = refused(&[&cluster[..], &["iterations=50", "--scheme", "lb-bsp:weights=1/2"]].concat());
    assert!(message.contains("scheme 'lb-bsp': weights=1/2; expected 17 numbers for predictor narx"), "{message}");
}

#[test]
fn iteration_times_are_fitted_to_rows() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("rows.csv");
    let path = file.to_str().unwrap();
    fs::write(&file, "h,i,seconds\n2,1,0.8\n2,2,1.5\n1,1,1.1\n").unwrap();
    let expected = serde_json::json!({ "workers": 2, "expected": [1.1, 1.5] });
    assert_eq!(json(&["plan", "times", path, "--json"]), [expected]);
    let expected = serde_json::json!({ "workers": 3, "expected": [1.1, 1.5, 1.5] });
    assert_eq!(json(&["plan", "times", path, "--workers", "3", "--json"]), [expected]);
    for (rows, problem) in [
        ("", "no rows; expected h,i,seconds"),
        ("1,1,0.5\n1,1\n", "line 2: '1,1'; expected h,i,seconds"),
        ("1,1,0.5\n1,1,-3\n", "line 2: -3 s is not a round trip"),
        ("1,1,0.5\n0,1,1\n", "line 2: no cell for 0 gradients waited for"),
    ] {
        fs::write(&file, rows).unwrap();
        let message = refused(&["plan", "times", path]);
        assert!(message.contains("rows.csv: ") && message.contains(problem), "{message}");
    }
}
