//! Schemes whose timing has a closed form, checked to one per cent.

mod common;

use common::{observed, summary, timing, with_dispatch};
use paceline_core::{Decision, Dispatch, Event, Reason, Time};
use paceline_runtime::Observer;
use paceline_sim::Simulation;

const EXPONENTIAL: &str = "shifted-exponential:0,1";

fn harmonic(n: usize) -> f64 {
    (1..=n).map(|i| 1.0 / i as f64).sum()
}

fn close(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.01, "found {found}, expected {expected}");
}

fn mean_iteration(simulation: &Simulation) -> f64 {
    let summary = summary(simulation);
    summary.time / summary.iterations as f64
}

fn slowed(mut simulation: Simulation, slowness: &str) -> Simulation {
    simulation.slowness = slowness.parse().unwrap();
    simulation
}

#[test]
fn bsp_waits_for_the_largest_of_n_exponentials() {
    close(mean_iteration(&timing("bsp", 16, EXPONENTIAL, "iterations=20000")), harmonic(16));
}

#[test]
fn interrupting_backup_waits_for_the_kth_smallest() {
    for k in [1, 8, 15, 16] {
        let scheme = format!("backup:k={k}");
        let simulation = with_dispatch(timing(&scheme, 16, EXPONENTIAL, "iterations=40000"), Dispatch::PushInterrupt);
        close(mean_iteration(&simulation), harmonic(16) - harmonic(16 - k));
    }
}

#[test]
fn asp_has_the_throughput_of_all_workers() {
    let summary = summary(&timing("asp", 16, EXPONENTIAL, "time=20000"));
    close(summary.updates_committed as f64 / summary.time, 16.0);
    assert_eq!(summary.idle_share, 0.0);
}

#[test]
fn one_slow_worker_holds_back_bsp_but_not_backup() {
    for dispatch in [Dispatch::Pull, Dispatch::PushWait, Dispatch::PushInterrupt] {
        let timing = |scheme| slowed(timing(scheme, 16, "deterministic:1", "iterations=100"), "3=5");
        close(mean_iteration(&with_dispatch(timing("bsp"), dispatch)), 5.0);
        close(mean_iteration(&with_dispatch(timing("backup:k=15"), dispatch)), 1.0);
    }
}

/// Records the leads at which workers start, from the reasons of the decisions.
#[derive(Default)]
struct LeadRecorder(Vec<u64>);

impl Observer for LeadRecorder {
    fn on_turn(&mut self, _now: Time, _event: &Event, decisions: &[Decision]) {
        self.0.extend(decisions.iter().filter_map(|decision| match decision.reason {
            Reason::WithinBound { lead, .. } => Some(lead),
            _ => None,
        }));
    }
}

#[test]
fn ssp_runs_at_the_slowest_workers_rate_with_the_allowed_lead() {
    for staleness in [0, 1, 4] {
        let scheme = format!("ssp:staleness={staleness}");
        let simulation = slowed(timing(&scheme, 4, "deterministic:1", "time=1000"), "2=5");
        let mut leads = LeadRecorder::default();
        let summary = observed(&simulation, &mut leads);
        // 200 iterations of the slow worker, and 200 plus the lead of every other worker.
        close(summary.updates_committed as f64, (200 + 3 * (200 + staleness)) as f64);
        assert_eq!(leads.0.iter().max(), Some(&staleness));
        // In the steady state, fast workers start with exactly this lead whenever the slow worker reports.
        let settled = &leads.0[leads.0.len() / 2..];
        assert!(settled.iter().all(|&lead| lead == staleness || lead == 0), "{settled:?}");
    }
}

#[test]
fn dssp_commits_between_ssp_at_its_bounds() {
    let updates = |scheme| summary(&slowed(timing(scheme, 4, "deterministic:1", "time=1000"), "2=5")).updates_committed;
    let (low, range, high) = (updates("ssp:staleness=1"), updates("dssp:min=1,max=6"), updates("ssp:staleness=6"));
    assert!(low <= range && range <= high, "{low} {range} {high}");
    assert_eq!(updates("dssp:min=2,max=2"), updates("ssp:staleness=2"));
}

#[test]
fn dssp_waits_less_than_ssp_at_its_lower_bound() {
    // The slow worker takes 2.5 times as long. The fast worker ends 0.5 s before it after two more iterations, and 1.5
    // s before it after one.
    let idle = |scheme| summary(&slowed(timing(scheme, 2, "uniform:0.9,1.1", "time=2000"), "1=2.5")).idle_share;
    assert!(idle("dssp:min=0,max=4") < idle("ssp:staleness=0"));
}

#[test]
fn a_shared_link_bounds_the_iteration_rate() {
    let mut simulation = timing("bsp", 8, "deterministic:1", "iterations=50");
    simulation.network = Some("latency=0.25,bandwidth=100,bytes=50".parse().unwrap());
    // Each worker's parameters take 0.5 s on the link, one after another; so do the gradients: the last worker gets its
    // parameters after 8 × 0.5 + 0.25 s, computes for 1 s, and is the last to send for another 0.5 + 0.25 s.
    close(mean_iteration(&simulation), 4.25 + 1.0 + 0.75);
    // 2 × 8 messages of 50 bytes per iteration, and the parameters of the unfinished last iteration.
    assert_eq!(summary(&simulation).bytes, 50 * 2 * 8 * 50 + 8 * 50);
}
