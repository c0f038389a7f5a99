//! A run in the terminal, from its page and from its folder.

mod common;

use paceline_report::view::SeenRun;
use paceline_watch::{RunNews, RunSource};
use serde_json::Value;
use tempfile::tempdir;

use common::process::PacelineProcess;
use common::{paceline, refused};

const QUICK: [&str; 8] = ["--model", "softmax", "--data", "digits:600,200", "--workers", "2", "--scheme", "bsp"];

fn printed(arguments: &[&str]) -> String {
    let output = paceline(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_run_that_goes_on_is_seen_at_its_address_and_in_its_folder() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("run").display().to_string();
    let run = [&["train", "--out", &out, "--emulate", "0=deterministic:0.05"], &QUICK[..]].concat();
    let run = PacelineProcess::start(&[&run[..], &["--until", "time=300"]].concat());
    let line = run.await_line("watch the run at http://");
    let address = line.trim_start_matches("watch the run at ");
    // The folder is read again when it has grown.
    let news = out.parse::<RunSource>().unwrap().follow();
    let mut known = 0;
    while known < 40 {
        if let Ok(RunNews::Run(page)) = news.recv() {
            let seen = SeenRun::new(*page);
            assert!(!seen.ended && seen.iterations >= known);
            known = seen.iterations;
        }
    }
    for source in [address, address.trim_start_matches("http://"), &out] {
        let text = printed(&["watch", source]);
        assert!(text.starts_with("Paceline run ") && text.contains("\n0 ◆ "), "{source}: {text}");
        assert!(text.contains("Worker 0 straggled") && text.contains("step the model"), "{source}: {text}");
        assert!(!text.contains('\u{1b}'), "plain text");
    }
    assert!(printed(&["watch", address]).lines().next().unwrap().ends_with("● live"));
    assert!(printed(&["watch", &out]).lines().next().unwrap().ends_with("not finished"));
    let json: Value = serde_json::from_str(&printed(&["watch", address, "--json"])).unwrap();
    assert_eq!((&json["name"], json["view"]["workers"].as_array().unwrap().len()), (&"run".into(), 2));
    run.signal("INT");
    run.end();
    let last = news.iter().last();
    assert!(matches!(last, Some(RunNews::Run(page)) if page.has_ended()), "the end is the last that is new");
    let text = printed(&["watch", &out, "--once"]);
    assert!(text.lines().next().unwrap().ends_with("ended"), "{text}");
    let json: Value = serde_json::from_str(&printed(&["watch", &out, "--json"])).unwrap();
    assert!(json["view"]["headline"]["sentence"].as_str().unwrap().starts_with("Worker 0 straggled"), "{json}");
}

#[test]
fn what_cannot_be_watched_is_refused() {
    assert!(refused(&["watch", "nowhere"]).contains("neither a run folder nor an address"));
    assert!(refused(&["watch", "127.0.0.1:1"]).contains("no answer from http://127.0.0.1:1"));
    let folder = tempdir().unwrap();
    assert!(refused(&["watch", folder.path().to_str().unwrap()]).contains("has no events.jsonl"));
    let train = [&["train", "--tui"], &QUICK[..]].concat();
    assert!(refused(&train).contains("--tui needs a terminal"));
    assert!(refused(&[&train[..], &["--http", "off"]].concat()).contains("--tui cannot be used with --http off"));
}
