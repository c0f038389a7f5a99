//! When a run is over, nothing of it is left. Alone in its process, so that it can count.

mod common;

use std::fs;

use common::{TransportKind, job, run};
use paceline_net::TransportOptions;

/// Open files and mapped memory files of this process.
fn held() -> [usize; 2] {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    [fs::read_dir("/proc/self/fd").unwrap().count(), maps.matches("memfd:paceline").count()]
}

#[test]
fn nothing_is_left_of_a_run() {
    let job = job("backup:k=2,dispatch=push-interrupt", 4, "iterations=50");
    let before = held();
    run(
        &job,
        &[TransportKind::Shared, TransportKind::Tcp, TransportKind::Shared, TransportKind::Tcp],
        3.0,
        TransportOptions::default(),
        &mut (),
    );
    assert_eq!(held(), before);
}
