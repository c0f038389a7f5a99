//! The status of a run, for people, scripts and Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use paceline_core::{Decision, Event, Span, TaskId, Time, WorkerId};
use serde::Serialize;

use crate::commit_watch::{CommitWatch, Standstill};
use crate::{Iteration, Monitor, Notice};

/// The status of a run.
///
/// It reads no clock: whoever updates or reads it passes the present.
#[derive(Debug, Default, Serialize)]
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
    /// How many samples `bsp` would have needed for the progress so far.
    pub worth: f64,
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
    /// What the workers do and did since this process started.
    #[serde(skip)]
    monitor: Monitor,
    /// The last turn: the run's time, and the clock's.
    #[serde(skip)]
    last_turn: Option<(Time, Instant)>,
    /// How often each worker joined, by rank.
    #[serde(skip)]
    joins: BTreeMap<u32, u64>,
    /// The last late task of each member, by rank.
    #[serde(skip)]
    late_tasks: BTreeMap<u32, TaskId>,
    #[serde(skip)]
    commit_watch: CommitWatch,
    #[serde(skip)]
    ending: bool,
}

/// Whether a run is healthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Health {
    /// The state of the run, in one word or two.
    pub state: &'static str,
    /// Why the run is not healthy; `None` if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What one worker does, and did since the process started.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WorkerStatus {
    /// Its rank.
    pub worker: u32,
    /// Whether it is a member of the run.
    pub member: bool,
    /// Whether it has a task.
    pub busy: bool,
    /// Whether this task takes longer than expected.
    pub late: bool,
    /// How often it joined.
    pub joined: u64,
    /// Samples in the updates that it sent, used or not.
    pub samples: u64,
    /// Seconds of computing, as of its last report.
    pub computing_seconds: f64,
    /// Seconds without a task.
    pub waiting_seconds: f64,
}

/// A status with all that is computed when it is read.
#[derive(Debug, Serialize)]
pub(crate) struct FullStatus<'a> {
    #[serde(flatten)]
    status: &'a Status,
    health: Health,
    worker_status: Vec<WorkerStatus>,
}

impl Status {
    /// Records an event and the decisions that followed, at the run's time `at`.
    pub fn on_turn(&mut self, now: Instant, at: Time, event: &Event, decisions: &[Decision]) {
        if matches!(event, Event::Joined { .. }) && self.monitor.members().next().is_none() {
            self.commit_watch.start(now);
        }
        self.monitor.observe(at, event, decisions);
        self.last_turn = Some((at, now));
    }

    /// Records a change of membership, or a delay.
    pub fn on_notice(&mut self, now: Instant, notice: &Notice) {
        match notice {
            Notice::Joined { worker, peer, .. } => {
                self.workers.insert(worker.0, peer.clone());
                *self.joins.entry(worker.0).or_default() += 1;
                self.joined += 1;
            }
            Notice::Left { worker, .. } => {
                self.workers.remove(&worker.0);
                self.late_tasks.remove(&worker.0);
                self.left += 1;
            }
            Notice::Refused { .. } => self.refused += 1,
            Notice::Late { worker, .. } => {
                if let Some(task) = self.monitor.running(*worker) {
                    self.late_tasks.insert(worker.0, task);
                }
            }
            Notice::Payload { .. }
            | Notice::Sharded { .. }
            | Notice::ShardJoined { .. }
            | Notice::ShardLeft { .. }
            | Notice::EvaluatorJoined { .. }
            | Notice::EvaluatorLeft { .. } => {}
            Notice::EvaluatingLast => {}
            Notice::Stalled { span } => self.commit_watch.on_server_stall(now, Duration::from_nanos(span.0)),
        }
        self.last_notice = Some(notice.to_string());
    }

    /// Records an iteration.
    pub fn on_iteration(&mut self, now: Instant, iteration: &Iteration, monitor: &Monitor) {
        self.version = iteration.iteration;
        self.updates += iteration.waited_for as u64;
        self.time = iteration.time;
        self.iteration_seconds = Some(iteration.duration);
        self.worth = monitor.worth();
        self.loss = monitor.loss();
        self.accuracy = monitor.evaluation().and_then(|found| found.accuracy);
        self.commit_watch.on_commit(now, self.workers.len());
    }

    /// Training has ended; results are being computed and written.
    pub fn on_end(&mut self) {
        self.ending = true;
    }

    /// Whether the run is healthy, and its state.
    pub fn health(&self, now: Instant) -> Health {
        if self.ending {
            return Health { state: "finishing", reason: None };
        }
        if !self.commit_watch.has_started() {
            return Health { state: "waiting for workers", reason: None };
        }
        if self.workers.is_empty() {
            let reason = "every worker has left; the run continues when one joins";
            return Health { state: "no workers", reason: Some(reason.into()) };
        }
        match self.commit_watch.standstill(now) {
            None => Health { state: "running", reason: None },
            Some(Standstill { elapsed, longest }) => {
                let (elapsed, longest) = (elapsed.as_secs_f64(), longest.as_secs_f64());
                let reason =
                    format!("no iteration was completed for {elapsed:.0} s; recent ones took at most {longest:.3} s");
                Health { state: "no progress", reason: Some(reason) }
            }
        }
    }

    /// What each worker that ever joined does, by rank.
    pub fn worker_status(&self, now: Instant) -> Vec<WorkerStatus> {
        let run_time = self.last_turn.map_or(Time::START, |(at, then)| {
            at + Span::from_seconds(now.saturating_duration_since(then).as_secs_f64())
        });
        let times = self.monitor.worker_times(run_time);
        let status = |(&worker, &joined): (&u32, &u64)| {
            let task = self.monitor.running(WorkerId(worker));
            let times = times.get(worker as usize);
            WorkerStatus {
                worker,
                member: self.workers.contains_key(&worker),
                busy: task.is_some(),
                late: task.is_some() && task == self.late_tasks.get(&worker).copied(),
                joined,
                samples: self.monitor.worker_samples(WorkerId(worker)),
                computing_seconds: times.map_or(0.0, |times| times.computing),
                waiting_seconds: times.map_or(0.0, |times| times.waiting),
            }
        };
        self.joins.iter().map(status).collect()
    }

    /// The status with all that is computed when it is read.
    pub(crate) fn full(&self, now: Instant) -> FullStatus<'_> {
        FullStatus { status: self, health: self.health(now), worker_status: self.worker_status(now) }
    }

    /// The status in Prometheus' text format.
    pub fn metrics(&self, now: Instant) -> String {
        let mut text = MetricsText::default();
        for (name, help, value) in [
            ("updates_total", "Updates that entered the model.", self.updates),
            ("workers_joined_total", "How often a worker joined.", self.joined),
            ("workers_left_total", "How often a worker left or was lost.", self.left),
            ("refused_total", "How often a connection was refused.", self.refused),
        ] {
            text.add(name, "counter", help, [("", value as f64)]);
        }
        for (name, help, value) in [
            ("version", "Iterations done.", Some(self.version as f64)),
            ("workers", "Workers that are members.", Some(self.workers.len() as f64)),
            ("run_seconds", "Seconds since the run began, at the last iteration.", Some(self.time)),
            ("iteration_seconds", "How long the last iteration took.", self.iteration_seconds),
            ("loss", "Mean of the last training losses.", self.loss),
            ("accuracy", "Last measured held-out accuracy, 0 to 1.", self.accuracy),
            ("worth_samples", "Samples that bsp would have needed for the progress so far.", Some(self.worth)),
            ("checkpoint_version", "The version of the last checkpoint.", self.checkpoint.map(|at| at as f64)),
        ] {
            text.add(name, "gauge", help, value.map(|value| ("", value)));
        }
        let workers = self.worker_status(now);
        let labels: Vec<String> = workers.iter().map(|one| format!("{{worker=\"{}\"}}", one.worker)).collect();
        let mut add = |name, kind, help, value: fn(&WorkerStatus) -> f64| {
            text.add(name, kind, help, labels.iter().map(String::as_str).zip(workers.iter().map(value)));
        };
        add("worker_member", "gauge", "Whether the worker is a member.", |one| one.member.into());
        add("worker_busy", "gauge", "Whether the worker has a task.", |one| one.busy.into());
        add("worker_late", "gauge", "Whether its task takes longer than expected.", |one| one.late.into());
        add("worker_joined_total", "counter", "How often the worker joined.", |one| one.joined as f64);
        add("worker_samples_total", "counter", "Samples in the updates that it sent, used or not.", |one| {
            one.samples as f64
        });
        add("worker_computing_seconds_total", "counter", "Seconds of computing, as of its last report.", |one| {
            one.computing_seconds
        });
        add("worker_waiting_seconds_total", "counter", "Seconds without a task.", |one| one.waiting_seconds);
        text.0
    }
}

/// Metrics in Prometheus' text format.
#[derive(Default)]
struct MetricsText(String);

impl MetricsText {
    /// Adds a metric with its values, each with its labels; nothing if there are no values.
    fn add<'a>(&mut self, name: &str, kind: &str, help: &str, values: impl IntoIterator<Item = (&'a str, f64)>) {
        for (index, (labels, value)) in values.into_iter().enumerate() {
            // Writing to a string can't fail.
            if index == 0 {
                let _ = write!(self.0, "# HELP paceline_{name} {help}\n# TYPE paceline_{name} {kind}\n");
            }
            let _ = writeln!(self.0, "paceline_{name}{labels} {value}");
        }
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
    use paceline_core::{Action, Assignment, Reason, Report, Version, Work};

    const WORKER: WorkerId = WorkerId(3);
    const TASK: TaskId = TaskId { worker: WORKER, number: 0 };

    fn joined() -> Notice {
        Notice::Joined { worker: WORKER, peer: "here".into(), emulated: None }
    }

    fn left() -> Notice {
        Notice::Left { worker: WORKER, reason: "gone".into(), lost: 16, remaining: 0 }
    }

    fn iteration(number: u64) -> Iteration {
        Monitor::default().stepped(Time(number), 1, None, Reason::Free)
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn membership_and_health_are_reported() {
        let start = Instant::now();
        let mut status = Status::default();
        let state = |status: &Status, now| {
            let Health { state, reason } = status.health(now);
            (reason.is_none(), state)
        };
        status.on_notice(start, &joined());
        assert_eq!(state(&status, start + seconds(10_000)), (true, "waiting for workers"));
        status.on_turn(start, Time::START, &Event::Joined { worker: WORKER }, &[]);
        assert_eq!(state(&status, start + seconds(10_000)), (true, "running"), "an iteration may take long");
        status.on_iteration(start + seconds(2), &iteration(1), &Monitor::default());
        assert_eq!(state(&status, start + seconds(42)), (true, "running"));
        assert_eq!(state(&status, start + seconds(43)), (false, "no progress"));
        let reason = "no iteration was completed for 41 s; recent ones took at most 2.000 s";
        assert_eq!(status.health(start + seconds(43)).reason.as_deref(), Some(reason));

        status.on_notice(start, &left());
        status.on_turn(start, Time::START, &Event::Left { worker: WORKER }, &[]);
        assert_eq!(state(&status, start + seconds(43)), (false, "no workers"));
        let text = status.metrics(start);
        assert!(text.contains("# TYPE paceline_workers_left_total counter\npaceline_workers_left_total 1\n"), "{text}");
        assert!(text.contains("\npaceline_version 1\n") && !text.contains("loss"), "{text}");
        let notice = "worker 3 left: gone; 16 samples lost, 0 workers remain";
        assert_eq!(status.last_notice.as_deref(), Some(notice));

        status.on_notice(start, &joined());
        status.on_turn(start + seconds(50), Time::START, &Event::Joined { worker: WORKER }, &[]);
        assert_eq!(state(&status, start + seconds(60)), (true, "running"), "it has just rejoined");
        status.on_end();
        assert_eq!(state(&status, start + seconds(10_000)), (true, "finishing"));
    }

    #[test]
    fn what_each_worker_does_is_reported() {
        let start = Instant::now();
        let second = |count: u64| Time(count * 1_000_000_000);
        let mut status = Status::default();
        status.on_notice(start, &joined());
        let version = Version(0);
        let assignment = Assignment { task: TASK, version, work: Work::Gradient, samples: 4, offset: 0, queued: false };
        let assigned = Decision { action: Action::Assign(assignment), reason: Reason::Free };
        status.on_turn(start, second(5), &Event::Joined { worker: WORKER }, &[assigned]);
        let late = Notice::Late { worker: WORKER, elapsed: Span(2), expected: Span(1) };
        status.on_notice(start, &late);
        let busy = status.worker_status(start)[0];
        assert!(busy.member && busy.busy && busy.late, "{busy:?}");

        let compute = Span::from_seconds(1.5);
        let report = Report { compute, ..Report::default() };
        let reported = Event::Reported { task: TASK, report };
        status.on_turn(start + seconds(2), second(7), &reported, &[]);
        let idle = WorkerStatus {
            worker: 3,
            member: true,
            busy: false,
            late: false,
            joined: 1,
            samples: 4,
            computing_seconds: 1.5,
            waiting_seconds: 3.0,
        };
        assert_eq!(status.worker_status(start + seconds(5)), [idle], "it waits since then");
        let text = status.metrics(start + seconds(5));
        for line in ["member{worker=\"3\"} 1", "late{worker=\"3\"} 0", "waiting_seconds_total{worker=\"3\"} 3"] {
            assert!(text.contains(&format!("\npaceline_worker_{line}\n")), "{text}");
        }
        status.on_notice(start, &left());
        assert!(!status.worker_status(start)[0].member);
        let json = serde_json::to_value(status.full(start)).unwrap();
        assert_eq!((&json["worker_status"][0]["samples"], &json["health"]["state"]), (&4.into(), &"no workers".into()));
    }
}
