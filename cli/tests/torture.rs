//! `paceline torture` as its users see it.

mod common;

use common::{json, paceline, refused};

#[test]
fn a_campaign_replays_with_any_number_of_threads() {
    let run = |threads: &str| {
        let mut report = json(&["torture", "--seeds", "3", "--threads", threads, "--json"]).remove(0);
        report.as_object_mut().unwrap().remove("seconds");
        report
    };
    let report = run("1");
    assert_eq!(report["seeds"], 3);
    assert!(report["histories"].as_u64().unwrap() > 3 * 20 && report["versions"].as_u64().unwrap() > 100, "{report}");
    assert_eq!(report, run("3"));
    let one = ["torture", "--seed", "11", "--scheme", "backup:k=5", "--json"];
    assert_eq!(json(&one)[0]["events"], json(&one)[0]["events"]);
}

#[test]
fn invalid_arguments_are_refused_in_one_line() {
    assert!(refused(&["torture", "--scheme", "backup:k=2000"]).contains("scheme 'backup': k=2000"));
    assert!(refused(&["torture", "--seeds", "0"]).contains("expected a whole number from 1 to 100000000"));
    assert!(refused(&["torture", "--seed", "-1"]).contains("'-1' for '--seed <SEED>': expected a whole number"));
    assert!(refused(&["torture", "--seeds", "5", "--seed", "1"]).contains("cannot be used with"));
    let help = paceline(&["torture", "--help"]);
    assert!(String::from_utf8(help.stdout).unwrap().contains("paceline torture --seeds 10000"));
}

#[test]
fn bytes_at_scale_are_those_of_the_arithmetic() {
    let arguments = ["scale", "--workers", "40", "--hosts", "4", "--parameters", "655360", "--rounds", "3", "--json"];
    let report = json(&arguments).remove(0);
    let counted = |name: &str| report["counted"][name].as_u64().unwrap();
    assert_eq!((counted("commits"), counted("updates")), (3, 120));
    let bytes = |link: &str| report["counted"][link]["bytes"].as_u64().unwrap();
    // 40 blocks, each with a sum of squares for 40 updates and one for their mean.
    let sums = 3 * 40 * 41 * 8;
    assert!((sums..sums + 3 * 4 * 64).contains(&bytes("from_shards")), "{report}");
    // Every worker gets and sends the three quarters of the model that are on other hosts.
    let values = 3 * 2 * 40 * 655_360 * 4 / 4 * 3;
    assert!((values..values + values / 500).contains(&bytes("values")), "{report}");
    assert!(
        refused(&["scale", "--workers", "2", "--hosts", "3"]).contains("--hosts 3: expected at most one for each of 2")
    );
}
