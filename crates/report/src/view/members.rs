//! What is known of each worker: its speed, its work, and how long others waited for it.

use std::collections::HashMap;

use paceline_core::{Action, ActivityChange, Commit, Decision, Event, LocalLength, TaskId, Time, Work, WorkerId};

/// The share of a new measurement in a worker's present speed.
const NEWEST: f64 = 0.2;

/// Samples by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SampleFate {
    /// In committed updates.
    pub used: u64,
    /// Computed or begun, and not used: late, interrupted, broken, or lost with a worker.
    pub lost: u64,
    /// In tasks under way, or in updates that are neither committed nor discarded.
    pub pending: u64,
}

/// One worker.
#[derive(Debug, Clone, Default)]
pub struct MemberView {
    /// How often it joined.
    pub joined: u64,
    /// Samples of each iteration of its last task.
    pub batch: u32,
    /// What became of its samples.
    pub samples: SampleFate,
    /// Seconds that it computed, and the samples that it computed in them.
    pub computing: f64,
    pub computed: u64,
    /// Seconds per sample, of late.
    pub pace: Option<f64>,
    /// Seconds that other workers waited until this one reported.
    pub waited_for: f64,
    /// Its last report.
    pub reported: Option<Time>,
    /// Whether its task takes longer than usual.
    pub is_late: bool,
    /// Whether something changed since [`Members::settle`].
    pub changed: bool,
    /// Seconds of computing for its present task.
    pub(super) task_computing: f64,
}

impl MemberView {
    /// Seconds per sample over the whole run.
    pub fn mean_pace(&self) -> Option<f64> {
        (self.computed > 0 && self.computing > 0.0).then(|| self.computing / self.computed as f64)
    }
}

/// All workers that ever joined.
#[derive(Debug, Clone, Default)]
pub struct Members {
    /// By rank.
    pub all: Vec<MemberView>,
    /// The samples of updates that are neither committed nor discarded.
    pub(super) unsettled: HashMap<TaskId, u64>,
    /// Those of the last commit, in case that some of them turn out to be broken.
    pub(super) committed: Vec<(TaskId, u64)>,
}

impl Members {
    fn of(&mut self, worker: WorkerId) -> &mut MemberView {
        if worker.index() >= self.all.len() {
            self.all.resize_with(worker.index() + 1, MemberView::default);
        }
        let member = &mut self.all[worker.index()];
        member.changed = true;
        member
    }

    /// What all samples became.
    pub fn samples(&self) -> SampleFate {
        self.all.iter().fold(SampleFate::default(), |sum, member| SampleFate {
            used: sum.used + member.samples.used,
            lost: sum.lost + member.samples.lost,
            pending: sum.pending + member.samples.pending,
        })
    }

    /// The worker's task is late.
    pub fn on_late(&mut self, worker: WorkerId) {
        self.of(worker).is_late = true;
    }

    /// Takes in an event, before the changes that it leads to.
    pub fn on_event(&mut self, now: Time, event: &Event) {
        match event {
            Event::Reported { task, report } | Event::Asked { task, report, .. } => {
                let member = self.of(task.worker);
                member.reported = Some(now);
                member.task_computing += report.compute.seconds();
            }
            Event::Broken { task } => {
                if let Some(&(_, samples)) = self.committed.iter().find(|(broken, _)| broken == task) {
                    let counts = &mut self.of(task.worker).samples;
                    counts.used -= samples;
                    counts.lost += samples;
                }
            }
            _ => {}
        }
    }

    /// Takes in a change of what a worker does.
    pub fn on_change(&mut self, now: Time, event: &Event, change: ActivityChange<'_>) {
        match change {
            ActivityChange::Joined(worker) => self.of(worker).joined += 1,
            ActivityChange::Left(worker, _) => {
                self.unsettled.retain(|task, _| task.worker != worker);
                let member = self.of(worker);
                member.samples.lost += member.samples.pending;
                member.samples.pending = 0;
                (member.task_computing, member.is_late) = (0.0, false);
            }
            ActivityChange::Reported(progress) => {
                let task = progress.assignment.task;
                let size = match event {
                    Event::Reported { report, .. } => report.samples.unwrap_or(progress.assignment.samples),
                    _ => progress.assignment.samples,
                };
                let samples = u64::from(size) * u64::from(progress.reported_iterations());
                let planned = begun(progress.assignment.samples, progress.assignment.work);
                self.unsettled.insert(task, samples);
                let member = self.of(task.worker);
                member.is_late = false;
                member.samples.pending = member.samples.pending.saturating_sub(planned) + samples;
                let computing = std::mem::take(&mut member.task_computing);
                member.computing += computing;
                member.computed += samples;
                if samples > 0 {
                    let pace = computing / samples as f64;
                    member.pace = Some(member.pace.map_or(pace, |before| before + NEWEST * (pace - before)));
                }
            }
            ActivityChange::Interrupted(progress, _) => {
                let planned = begun(progress.assignment.samples, progress.assignment.work);
                let member = self.of(progress.assignment.task.worker);
                member.samples.pending = member.samples.pending.saturating_sub(planned);
                member.samples.lost += planned;
                (member.task_computing, member.is_late) = (0.0, false);
            }
            ActivityChange::Started { task, idle_since } => {
                let assignment = &task.assignment;
                let member = self.of(assignment.task.worker);
                member.batch = assignment.samples;
                member.samples.pending += begun(assignment.samples, assignment.work);
                self.on_wait_end(now, event, assignment.task.worker, idle_since);
            }
        }
    }

    /// A worker had no task since then. If another one's report, or its loss, ended that, it was waited for.
    fn on_wait_end(&mut self, now: Time, event: &Event, waiter: WorkerId, since: Option<Time>) {
        let (Event::Reported { task: TaskId { worker, .. }, .. } | Event::Left { worker }) = event else { return };
        if let Some(since) = since.filter(|_| *worker != waiter) {
            self.of(*worker).waited_for += now.since(since).seconds();
        }
    }

    /// Takes in a decision.
    pub fn on_decision(&mut self, decision: &Decision) {
        match &decision.action {
            Action::Commit(Commit { updates, .. }) => {
                self.committed.clear();
                for update in updates {
                    let Some(samples) = self.unsettled.remove(&update.task) else { continue };
                    self.committed.push((update.task, samples));
                    let counts = &mut self.of(update.task.worker).samples;
                    counts.pending = counts.pending.saturating_sub(samples);
                    counts.used += samples;
                }
            }
            Action::Discard { task } => {
                let samples = self.unsettled.remove(task).unwrap_or(0);
                let counts = &mut self.of(task.worker).samples;
                counts.pending = counts.pending.saturating_sub(samples);
                counts.lost += samples;
            }
            _ => {}
        }
    }

    /// All changes so far are known.
    pub fn settle(&mut self) {
        self.all.iter_mut().for_each(|member| member.changed = false);
    }
}

/// The samples of a task that has started, as far as they are known.
fn begun(samples: u32, work: Work) -> u64 {
    match work.length() {
        Some(LocalLength::Iterations(count)) => u64::from(samples) * u64::from(count),
        _ => u64::from(samples),
    }
}
