//! When a run is over, nothing of it is left. Alone in its process, so that it can count.

mod common;

use std::fs;

use common::{Road, job, run};
use paceline_net::Transport;

/// Open files and mapped memory files of this process.
fn held() -> [usize; 2] {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    [fs::read_dir("/proc/self/fd").unwrap().count(), maps.matches("memfd:paceline").count()]
}

#[test]
fn nothing_is_left_of_a_run() {
    let job = job("backup:k=2,handout=push-interrupt", 4, "iterations=50");
    let before = held();
    run(&job, &[Road::Shared, Road::Tcp, Road::Shared, Road::Tcp], 3.0, Transport::default(), &mut ());
    assert_eq!(held(), before);
}
