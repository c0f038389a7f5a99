//! A run leaves no open files and no shared memory behind. Alone in its process, so that it can count them.

mod common;

use std::fs;

use common::{TransportKind, job, run};
use paceline_net::TransportOptions;

/// The numbers of open files and of mapped shared-memory files of this process.
fn open_resources() -> [usize; 2] {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    [fs::read_dir("/proc/self/fd").unwrap().count(), maps.matches("memfd:paceline").count()]
}

#[test]
fn a_run_leaks_no_files_and_no_shared_memory() {
    let job = job("backup:k=2,dispatch=push-interrupt", 4, "iterations=50");
    let before = open_resources();
    run(
        &job,
        &[TransportKind::Shared, TransportKind::Tcp, TransportKind::Shared, TransportKind::Tcp],
        3.0,
        TransportOptions::default(),
        &mut (),
    );
    assert_eq!(open_resources(), before);
}
