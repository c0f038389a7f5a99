//! The status of a run, for people, scripts and Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::{Iteration, Monitor, Notice};

/// The status of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Status {
    /// The scheme.
    pub scheme: String,
    /// How many workers the run starts with.
    pub expected_workers: usize,
    /// The members: rank and address.
    pub workers: BTreeMap<u32, String>,
    /// Iterations done: the model's version.
    pub version: u64,
    /// Updates that entered the model.
    pub updates: u64,
    /// Seconds since the run began.
    pub time: f64,
    /// How long the last iteration took, in seconds.
    pub iteration_seconds: Option<f64>,
    /// Mean of the last training losses.
    pub loss: Option<f64>,
    /// Last measured held-out accuracy.
    pub accuracy: Option<f64>,
    /// The version of the last checkpoint.
    pub checkpoint: Option<u64>,
    /// How often a worker joined.
    pub joined: u64,
    /// How often a worker left or was lost.
    pub left: u64,
    /// How often a connection was refused.
    pub refused: u64,
    /// The last change of membership, as text.
    pub last_notice: Option<String>,
}

impl Status {
    /// Records a change of membership.
    pub fn on_notice(&mut self, notice: &Notice) {
        match notice {
            Notice::Joined { worker, peer, .. } => {
                self.workers.insert(worker.0, peer.clone());
                self.joined += 1;
            }
            Notice::Left { worker, .. } => {
                self.workers.remove(&worker.0);
                self.left += 1;
            }
            Notice::Refused { .. } => self.refused += 1,
            Notice::Late { .. } | Notice::Stalled { .. } => {}
        }
        self.last_notice = Some(notice.to_string());
    }

    /// Records an iteration.
    pub fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        self.version = iteration.iteration;
        self.updates += iteration.waited_for as u64;
        self.time = iteration.time;
        self.iteration_seconds = Some(iteration.duration);
        self.loss = monitor.loss();
        self.accuracy = monitor.evaluation().map(|found| found.accuracy);
    }

    /// Whether the run is healthy, and its state.
    pub fn health(&self) -> (bool, &'static str) {
        match (self.version, self.workers.len()) {
            (0, present) if present < self.expected_workers => (true, "waiting for workers"),
            (_, 0) => (false, "no workers"),
            _ => (true, "running"),
        }
    }

    /// The status in Prometheus' text format.
    pub fn metrics(&self) -> String {
        let counters = [
            ("updates_total", "Updates that entered the model.", Some(self.updates as f64)),
            ("workers_joined_total", "How often a worker joined.", Some(self.joined as f64)),
            ("workers_left_total", "How often a worker left or was lost.", Some(self.left as f64)),
            ("refused_total", "How often a connection was refused.", Some(self.refused as f64)),
        ];
        let gauges = [
            ("version", "Iterations done.", Some(self.version as f64)),
            ("workers", "Workers that are members.", Some(self.workers.len() as f64)),
            ("run_seconds", "Seconds since the run began, at the last iteration.", Some(self.time)),
            ("iteration_seconds", "How long the last iteration took.", self.iteration_seconds),
            ("loss", "Mean of the last training losses.", self.loss),
            ("accuracy", "Last measured held-out accuracy, 0 to 1.", self.accuracy),
            (
                "checkpoint_version",
                "The version of the last checkpoint.",
                self.checkpoint.map(|version| version as f64),
            ),
        ];
        let mut text = String::new();
        let kinds = [("counter", &counters[..]), ("gauge", &gauges[..])];
        for (kind, (name, help, value)) in kinds.iter().flat_map(|(kind, all)| all.iter().map(move |one| (kind, one))) {
            if let Some(value) = value {
                // Writing to a string can't fail.
                let _ = write!(
                    text,
                    "# HELP paceline_{name} {help}\n# TYPE paceline_{name} {kind}\npaceline_{name} {value}\n"
                );
            }
        }
        text
    }
}

/// A status that one thread updates and others read.
#[derive(Debug, Clone, Default)]
pub struct SharedStatus(Arc<Mutex<Status>>);

impl SharedStatus {
    /// Locks the status to read or change it.
    pub fn lock(&self) -> MutexGuard<'_, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::WorkerId;

    #[test]
    fn membership_and_health_are_reported() {
        let mut status = Status { expected_workers: 1, ..Status::default() };
        assert_eq!(status.health(), (true, "waiting for workers"));
        let worker = WorkerId(3);
        status.on_notice(&Notice::Joined { worker, peer: "here".into(), emulated: None });
        status.version = 1;
        assert_eq!(status.health(), (true, "running"));
        status.on_notice(&Notice::Left { worker, reason: "gone".into(), lost: 16, remaining: 0 });
        assert_eq!(status.health(), (false, "no workers"));
        let text = status.metrics();
        assert!(text.contains("# TYPE paceline_workers_left_total counter\npaceline_workers_left_total 1\n"), "{text}");
        assert!(text.contains("\npaceline_version 1\n") && !text.contains("loss"), "{text}");
        let notice = "worker 3 left: gone; 16 samples lost, 0 workers remain";
        assert_eq!(status.last_notice.as_deref(), Some(notice));
    }
}
