//! The law checker: verifies the ledger from events and decisions alone, with state of its own.

use std::collections::{BTreeMap, BTreeSet};

use paceline_core::{Action, Assignment, Commit, Decision, Event, Ledger, LocalLength, TaskId, WorkerId};

/// A range of a worker's samples, and how many of them it says it used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SampleRange {
    worker: WorkerId,
    start: u64,
    end: u64,
    used: u64,
}

/// The state of a run as derived from its events and decisions.
#[derive(Debug, Clone, Default)]
pub(crate) struct LawChecker {
    pub(crate) version: u64,
    pub(crate) present: BTreeSet<WorkerId>,
    /// Tasks that are running or queued, with the local iterations at the last question.
    open: BTreeMap<TaskId, (Assignment, u32)>,
    /// Reported updates that are neither committed nor discarded.
    arrived: BTreeMap<TaskId, SampleRange>,
    /// The latest commits' updates. Some of them may turn out to be broken.
    committed: BTreeMap<TaskId, SampleRange>,
    /// The samples in the model, in the order of their commits.
    applied: Vec<SampleRange>,
    /// The same samples by worker and start: no sample may enter the model twice.
    by_start: BTreeMap<(WorkerId, u64), u64>,
    used: u64,
    /// The most samples that each worker can have taken with it when it left last.
    pub(crate) last_losses: BTreeMap<WorkerId, u64>,
}

impl LawChecker {
    /// The most samples that are lost if the worker leaves: its tasks and its updates.
    fn at_stake(&self, worker: WorkerId) -> u64 {
        let open = self.open.iter().filter(|(task, _)| task.worker == worker).map(|(_, (assignment, asked))| {
            let iterations = match assignment.work.length() {
                None => 1,
                Some(LocalLength::Iterations(count)) => count,
                // An iteration may be under way.
                Some(LocalLength::AskAndWait | LocalLength::AskAndContinue) => asked + 1,
            };
            u64::from(assignment.samples) * u64::from(iterations)
        });
        let arrived = self.arrived.values().filter(|range| range.worker == worker).map(|range| range.used);
        open.chain(arrived).sum()
    }

    /// Checks an event and the decisions on it; the error says which law is broken.
    pub(crate) fn observe(&mut self, event: &Event, decisions: &[Decision]) -> Result<(), String> {
        if !matches!(event, Event::Committed { .. } | Event::Broken { .. }) {
            self.committed.clear();
        }
        match *event {
            Event::Joined { worker } => {
                self.present.insert(worker);
            }
            Event::Left { worker } => {
                self.present.remove(&worker);
                self.last_losses.insert(worker, self.at_stake(worker));
                self.open.retain(|task, _| task.worker != worker);
                self.arrived.retain(|task, _| task.worker != worker);
            }
            Event::Reported { task, report } => {
                let (assignment, asked) =
                    self.open.remove(&task).ok_or(format!("{task} is reported, but was not assigned"))?;
                let iterations = match assignment.work.length() {
                    None => 1,
                    Some(LocalLength::Iterations(count)) => count,
                    Some(LocalLength::AskAndWait | LocalLength::AskAndContinue) => asked,
                };
                let (start, samples) = (assignment.offset, report.samples.unwrap_or(assignment.samples));
                // A worker that used more took them from elsewhere.
                let end = start + u64::from(samples.min(assignment.samples)) * u64::from(iterations);
                let used = u64::from(samples) * u64::from(iterations);
                self.arrived.insert(task, SampleRange { worker: task.worker, start, end, used });
                self.start_queued(task.worker);
            }
            Event::Asked { task, iterations, .. } => {
                self.open.get_mut(&task).ok_or(format!("{task} asks, but was not assigned"))?.1 = iterations;
            }
            Event::Broken { task } => self.take_out(task)?,
            Event::Committed { .. } | Event::Late { .. } | Event::Timer | Event::Planned { .. } => {}
        }
        decisions.iter().try_for_each(|decision| self.carry_out(&decision.action))
    }

    fn carry_out(&mut self, action: &Action) -> Result<(), String> {
        match action {
            Action::Commit(Commit { version, updates, .. }) => {
                self.version += 1;
                if version.0 != self.version {
                    return Err(format!("{version} follows version {}", self.version - 1));
                }
                for share in updates.iter() {
                    let task = share.task;
                    let range = self.arrived.remove(&task).ok_or(format!("{task} is committed, but has no update"))?;
                    self.apply(range)?;
                    self.committed.insert(task, range);
                }
            }
            Action::Discard { task } => {
                self.arrived.remove(task).ok_or(format!("{task} is discarded, but has no update"))?;
            }
            Action::Assign(assignment) => {
                let worker = assignment.task.worker;
                if !self.present.contains(&worker) {
                    return Err(format!("{worker} gets an assignment, but is not in the run"));
                }
                if assignment.queued {
                    // A queued task replaces the one queued before.
                    self.open.retain(|task, (open, _)| task.worker != worker || !open.queued);
                } else {
                    self.open.retain(|task, _| task.worker != worker);
                }
                self.open.insert(assignment.task, (*assignment, 0));
            }
            Action::Interrupt { task } => {
                self.open.remove(task).ok_or(format!("{task} is interrupted, but is not running"))?;
                self.start_queued(task.worker);
            }
            Action::Continue { task } | Action::Collect { task } if !self.open.contains_key(task) => {
                return Err(format!("{task} gets an answer, but is not running"));
            }
            Action::Continue { .. } | Action::Collect { .. } | Action::Hold { .. } | Action::Wake { .. } => {}
        }
        Ok(())
    }

    /// The worker's queued task starts.
    fn start_queued(&mut self, worker: WorkerId) {
        let first = TaskId { worker, number: 0 };
        for (_, (assignment, _)) in self.open.range_mut(first..).take_while(|(task, _)| task.worker == worker) {
            assignment.queued = false;
        }
    }

    /// The commit of this update left it out.
    fn take_out(&mut self, task: TaskId) -> Result<(), String> {
        let range = self.committed.remove(&task).ok_or(format!("{task} is broken, but was not just committed"))?;
        self.applied.retain(|applied| *applied != range);
        self.by_start.remove(&(range.worker, range.start));
        self.used -= range.used;
        Ok(())
    }

    fn apply(&mut self, range: SampleRange) -> Result<(), String> {
        let SampleRange { worker, start, end, used } = range;
        let before = self.by_start.range(..(worker, end)).next_back();
        if let Some((&(other, from), &to)) = before.filter(|&(&(other, _), &to)| other == worker && to > start) {
            return Err(format!(
                "samples {start}..{end} of {other} are committed, but the model contains {from}..{to} already"
            ));
        }
        self.by_start.insert((worker, start), end);
        self.applied.push(range);
        self.used += used;
        Ok(())
    }

    /// Compares the ledger's counts with the checker's; the error says what differs.
    pub(crate) fn compare(&self, ledger: &Ledger) -> Result<(), String> {
        let samples = ledger.samples();
        let settled = samples.used + samples.stale + samples.dropped + samples.reissued;
        if samples.issued != settled + samples.outstanding {
            return Err(format!("not every sample is accounted for: {samples:?}"));
        }
        if (samples.used, ledger.version().0, ledger.live()) != (self.used, self.version, self.present.len()) {
            let expected = (self.used, self.version, self.present.len());
            return Err(format!(
                "the ledger has {samples:?}, {}, {} workers; expected (used, version, workers) = {expected:?}",
                ledger.version(),
                ledger.live()
            ));
        }
        Ok(())
    }

    /// The state to store in a checkpoint.
    pub(crate) fn mark(&self) -> CheckerMark {
        CheckerMark { applied: self.applied.len(), version: self.version }
    }

    /// Returns to a checkpoint: later commits are no longer in the model.
    pub(crate) fn restore(&mut self, mark: CheckerMark) {
        let lost = self.applied.split_off(mark.applied);
        for SampleRange { worker, start, used, .. } in lost {
            self.by_start.remove(&(worker, start));
            self.used -= used;
        }
        self.version = mark.version;
        self.open.clear();
        self.arrived.clear();
        self.present.clear();
    }
}

/// A state that the checker can return to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CheckerMark {
    applied: usize,
    pub(crate) version: u64,
}
