//! Updates of a large model are added up while the last one is awaited.

mod common;

use std::sync::Arc;

use common::bowl::Bowl;
use common::{TransportKind, run};
use paceline_core::Setup;
use paceline_net::TransportOptions;
use paceline_runtime::Job;
use paceline_store::Layout;

#[test]
fn a_late_worker_changes_no_bit() {
    let layout = Layout::new([("weight", vec![500_000])], [("mean", vec![100])]);
    let mut job = Job {
        scheme: "bsp".parse().unwrap(),
        workload_spec: "bowl".into(),
        optimizer: "momentum:0.5".parse().unwrap(),
        rate: 0.05,
        goals: "iterations=12".parse().unwrap(),
        seed: 3,
        ..Job::new(Arc::new(Bowl::new(layout)), Setup::new(3, 16))
    };
    for clip in [None, Some(20.0)] {
        job.clip_sum = clip;
        let run = |slower, transport| run(&job, &[transport; 3], slower, TransportOptions::default(), &mut ());
        let expected = run(1.0, TransportKind::Tcp);
        for transport in [TransportKind::Shared, TransportKind::Tcp] {
            let late = run(10.0, transport);
            assert!(late.parameters == expected.parameters, "clip {clip:?}, {transport:?}");
            assert_eq!(late.summary.loss, expected.summary.loss);
        }
    }
}
