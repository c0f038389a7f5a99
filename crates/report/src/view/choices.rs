//! What a scheme chose during a run: k, batch sizes, local iterations, barriers.

use paceline_core::{Action, ActivityChange, Decision, Reason, Time, Work};

use super::curve::MergedCurve;

/// Up to this many workers have a curve each; of more, the smallest, mean and largest value are shown.
const MAX_CURVES: usize = 16;

/// A value of every worker.
#[derive(Debug, Clone)]
struct WorkerCurves {
    /// Of each worker, or of three.
    curves: Vec<MergedCurve>,
    /// The present values, by rank; `None` if a worker has none.
    present: Vec<Option<u32>>,
    /// How many values were taken in since the three were last updated.
    since: usize,
    points: usize,
    summarized: bool,
}

impl WorkerCurves {
    fn new(workers: usize, points: usize) -> Self {
        WorkerCurves { curves: Vec::new(), present: Vec::new(), since: 0, points, summarized: workers > MAX_CURVES }
    }

    fn curve(&mut self, index: usize) -> &mut MergedCurve {
        if index >= self.curves.len() {
            self.curves.resize_with(index + 1, || MergedCurve::new(self.points));
        }
        &mut self.curves[index]
    }

    fn add(&mut self, now: Time, worker: usize, value: u32) {
        if !self.summarized {
            if worker < MAX_CURVES {
                self.curve(worker).add(now.seconds(), f64::from(value));
            }
            return;
        }
        if worker >= self.present.len() {
            self.present.resize(worker + 1, None);
        }
        self.present[worker] = Some(value);
        self.since += 1;
        if self.since >= self.present.len() {
            self.since = 0;
            let known = || self.present.iter().flatten().copied();
            let sum: u64 = known().map(u64::from).sum();
            let of_three = [
                f64::from(known().min().unwrap_or(0)),
                sum as f64 / known().count() as f64,
                f64::from(known().max().unwrap_or(0)),
            ];
            of_three.into_iter().enumerate().for_each(|(index, value)| self.curve(index).add(now.seconds(), value));
        }
    }

    fn named(&self) -> impl Iterator<Item = (String, &MergedCurve)> {
        let name = |index: usize| match (self.summarized, index) {
            (false, _) => format!("worker {index}"),
            (true, 0) => "smallest".into(),
            (true, 1) => "mean".into(),
            (true, _) => "largest".into(),
        };
        self.curves.iter().enumerate().map(move |(index, curve)| (name(index), curve))
    }
}

/// The choices so far.
#[derive(Debug, Clone)]
pub struct SchemeChoices {
    batch: u32,
    sizes: WorkerCurves,
    varied: bool,
    local: WorkerCurves,
    barriers: MergedCurve,
    last_barrier: Option<Time>,
}

impl SchemeChoices {
    /// Nothing is chosen yet. `batch` samples are what a worker gets if the scheme chooses nothing.
    pub fn new(workers: usize, batch: u32, points: usize) -> Self {
        let curves = || WorkerCurves::new(workers, (4 * points / workers.clamp(1, MAX_CURVES)).clamp(20, points));
        let (sizes, local, barriers) = (curves(), curves(), MergedCurve::new(points));
        SchemeChoices { batch, sizes, varied: false, local, barriers, last_barrier: None }
    }

    /// Takes in a change of what a worker does.
    pub fn on_change(&mut self, now: Time, change: ActivityChange<'_>) {
        if let ActivityChange::Reported(task) = change
            && matches!(task.assignment.work, Work::Local(_))
        {
            self.local.add(now, task.assignment.task.worker.index(), task.reported_iterations().max(1));
        }
    }

    /// Takes in a decision.
    pub fn on_decision(&mut self, now: Time, decision: &Decision) {
        if let Action::Assign(assignment) = &decision.action {
            if !self.varied && assignment.samples != self.batch {
                self.varied = true;
                self.sizes.curves.iter_mut().for_each(MergedCurve::unsettle);
            }
            self.sizes.add(now, assignment.task.worker.index(), assignment.samples);
        }
        if let Reason::AtBarrier { at, wait, .. } = decision.reason
            && self.last_barrier != Some(at)
        {
            self.last_barrier = Some(at);
            self.barriers.add(at.seconds(), wait.seconds());
        }
    }

    /// The curves of what the scheme chose: the name of each chart and curve.
    pub fn curves(&self) -> Vec<(&'static str, String, &MergedCurve)> {
        let sizes = self.sizes.named().filter(|_| self.varied);
        let sizes = sizes.map(|(name, curve)| ("batch size (samples)", name, curve));
        let local = self.local.named().map(|(name, curve)| ("local iterations per round", name, curve));
        let barriers = std::iter::once(("barriers: planned wait (s)", "wait".into(), &self.barriers));
        sizes.chain(local).chain(barriers.filter(|_| self.last_barrier.is_some())).collect()
    }

    /// All changes so far are known.
    pub fn settle(&mut self) {
        let workers = self.sizes.curves.iter_mut().chain(&mut self.local.curves);
        workers.chain(std::iter::once(&mut self.barriers)).for_each(MergedCurve::settle);
    }
}
