//! `paceline plan` as its users see it.

mod common;

use std::fs;

use common::{json, refused};
use tempfile::tempdir;

#[test]
fn a_barrier_is_planned_from_a_file() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("times.csv");
    // Nanoseconds since 1970 keep every digit.
    fs::write(&file, "1643595472648123401,1643595472648123410\n1643595472648123405,1643595472648123406\n").unwrap();
    let file = file.to_str().unwrap();
    for algorithm in ["zipline", "zipline-basic", "zipline-opt", "zipline-opt-bs", "naive"] {
        let planned = json(&["plan", "barrier", file, "--algorithm", algorithm, "--json"]);
        assert_eq!(planned[0]["wait"], 4, "{algorithm}");
        assert_eq!(planned[0]["at"], 1_643_595_472_648_123_405_u64, "{algorithm}");
        assert_eq!(planned[0]["iterations"], serde_json::json!([1, 1]), "{algorithm}");
    }
    for name in ["barrier.svg", "barrier.png"] {
        let picture = folder.path().join(name);
        json(&["plan", "barrier", file, "--json", "--plot", picture.to_str().unwrap()]);
        assert!(fs::metadata(picture).unwrap().len() > 1000, "{name}");
    }
}

#[test]
fn bad_times_are_refused_by_file_and_row() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("times.txt");
    for (times, problem) in [
        ("", "no times"),
        ("1 2\n3 x\n", "row 2, column 2: \"x\" is no whole number"),
        ("1 2\n3\n", "row 2 has 1 times"),
        ("1 2\n4 3\n", "row 2, column 2: 3 comes after 4"),
    ] {
        fs::write(&file, times).unwrap();
        let message = refused(&["plan", "barrier", file.to_str().unwrap()]);
        assert!(message.contains("times.txt: ") && message.contains(problem), "{message}");
    }
}
