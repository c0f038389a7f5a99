//! A witness: books of its own, kept from events and decisions alone, against which the ledger's are held.

use std::collections::{BTreeMap, BTreeSet};

use paceline_core::{Action, Assignment, Decision, Event, Ledger, LocalLength, TaskId, WorkerId};

/// Samples of a worker's stream: whose, from where, up to where.
type Stretch = (WorkerId, u64, u64);

/// What a run has come to, as far as a bystander can tell.
#[derive(Debug, Clone, Default)]
pub(crate) struct Witness {
    pub(crate) version: u64,
    pub(crate) present: BTreeSet<WorkerId>,
    /// Tasks that somebody is at or has queued, with the iterations that were asked about.
    open: BTreeMap<TaskId, (Assignment, u32)>,
    arrived: BTreeMap<TaskId, Stretch>,
    /// What the model is made of, in the order it was applied.
    applied: Vec<Stretch>,
    /// The same by worker and beginning: nothing may enter the model twice.
    by_beginning: BTreeMap<(WorkerId, u64), u64>,
    used: u64,
}

impl Witness {
    /// Takes note of a turn; says what is wrong with it.
    pub(crate) fn observe(&mut self, event: &Event, decisions: &[Decision]) -> Result<(), String> {
        match *event {
            Event::Joined { worker } => {
                self.present.insert(worker);
            }
            Event::Left { worker } => {
                self.present.remove(&worker);
                self.open.retain(|task, _| task.worker != worker);
                self.arrived.retain(|task, _| task.worker != worker);
            }
            Event::Reported { task, .. } => {
                let (assignment, asked) = self.open.remove(&task).ok_or(format!("{task} was never handed out"))?;
                let iterations = match assignment.work.length() {
                    None => 1,
                    Some(LocalLength::Iterations(count)) => count,
                    Some(LocalLength::AskAndWait | LocalLength::AskAndContinue) => asked,
                };
                let end = assignment.offset + u64::from(assignment.samples) * u64::from(iterations);
                self.arrived.insert(task, (task.worker, assignment.offset, end));
                self.begin_queued(task.worker);
            }
            Event::Asked { task, iterations, .. } => {
                self.open.get_mut(&task).ok_or(format!("{task} was never handed out"))?.1 = iterations;
            }
            Event::Committed { .. } | Event::Timer => {}
        }
        decisions.iter().try_for_each(|decision| self.carry_out(&decision.action))
    }

    fn carry_out(&mut self, action: &Action) -> Result<(), String> {
        match action {
            Action::Commit { version, updates, .. } => {
                self.version += 1;
                if version.0 != self.version {
                    return Err(format!("{version} follows version {}", self.version - 1));
                }
                for share in updates.iter() {
                    let task = share.task;
                    let stretch = self.arrived.remove(&task).ok_or(format!("{task} is committed, but not there"))?;
                    self.apply(stretch)?;
                }
            }
            Action::Discard { task } => {
                self.arrived.remove(task).ok_or(format!("{task} is discarded, but not there"))?;
            }
            Action::Assign(assignment) => {
                let worker = assignment.task.worker;
                if !self.present.contains(&worker) {
                    return Err(format!("{worker} is given work, but not there"));
                }
                if assignment.queued {
                    // What was queued before is replaced.
                    self.open.retain(|task, (open, _)| task.worker != worker || !open.queued);
                } else {
                    self.open.retain(|task, _| task.worker != worker);
                }
                self.open.insert(assignment.task, (*assignment, 0));
            }
            Action::Interrupt { task } => {
                self.open.remove(task).ok_or(format!("{task} is interrupted, but nobody is at it"))?;
                self.begin_queued(task.worker);
            }
            Action::Continue { task } | Action::Collect { task } if !self.open.contains_key(task) => {
                return Err(format!("{task} is answered, but nobody is at it"));
            }
            Action::Continue { .. } | Action::Collect { .. } | Action::Hold { .. } | Action::Wake { .. } => {}
        }
        Ok(())
    }

    /// Whoever is done with a task is at what was queued behind it.
    fn begin_queued(&mut self, worker: WorkerId) {
        let first = TaskId { worker, number: 0 };
        for (_, (assignment, _)) in self.open.range_mut(first..).take_while(|(task, _)| task.worker == worker) {
            assignment.queued = false;
        }
    }

    fn apply(&mut self, stretch: Stretch) -> Result<(), String> {
        let (worker, begin, end) = stretch;
        let before = self.by_beginning.range(..(worker, end)).next_back();
        if let Some((&(other, from), &to)) = before.filter(|&(&(other, _), &to)| other == worker && to > begin) {
            return Err(format!("samples {begin}..{end} of {other} enter the model, which has {from}..{to}"));
        }
        self.by_beginning.insert((worker, begin), end);
        self.applied.push(stretch);
        self.used += end - begin;
        Ok(())
    }

    /// Holds the ledger's books against these; says what differs.
    pub(crate) fn compare(&self, ledger: &Ledger) -> Result<(), String> {
        let samples = ledger.samples();
        let settled = samples.used + samples.stale + samples.dropped + samples.reissued;
        if samples.issued != settled + samples.outstanding {
            return Err(format!("not every sample is accounted for: {samples:?}"));
        }
        if (samples.used, ledger.version().0, ledger.live()) != (self.used, self.version, self.present.len()) {
            let ours = (self.used, self.version, self.present.len());
            return Err(format!(
                "the ledger has {samples:?}, {}, {} workers; it should be {ours:?}",
                ledger.version(),
                ledger.live()
            ));
        }
        Ok(())
    }

    /// What a checkpoint has to remember.
    pub(crate) fn mark(&self) -> Mark {
        Mark { applied: self.applied.len(), version: self.version }
    }

    /// Goes back to a checkpoint: whatever was applied since is not in the model any more.
    pub(crate) fn return_to(&mut self, mark: Mark) {
        let redone = self.applied.split_off(mark.applied);
        for (worker, begin, end) in redone {
            self.by_beginning.remove(&(worker, begin));
            self.used -= end - begin;
        }
        self.version = mark.version;
        self.open.clear();
        self.arrived.clear();
        self.present.clear();
    }
}

/// A moment that a witness can go back to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mark {
    applied: usize,
    pub(crate) version: u64,
}
