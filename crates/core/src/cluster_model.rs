//! A model of the cluster from the workers' reports alone: the times that each worker's latest iterations and transfers took.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::recent::RecentValues;
use crate::{Question, Span, Time, Update, WorkerId};

/// How many of a worker's latest iterations are kept.
const KEPT: usize = 32;

/// How many of a worker's latest transfers are kept.
const TRANSFERS: usize = 5;

/// A worker has changed when this many iterations in a row took a multiple of the usual time, or a part of it. What was seen
/// before says nothing about it any more.
const IN_A_ROW: usize = 3;

/// That multiple of the median. They must also be longer, or shorter, than nine tenths of the times before.
const CHANGE: f64 = 1.5;

/// A worker whose times change again within this many iterations varies: that is no change, and nothing is forgotten.
const APART: usize = KEPT;

/// A task is overdue after this multiple of the longest time …
const OVERDUE: f64 = 2.0;

/// … of at least this many iterations.
const KNOWN: usize = 8;

/// A task counts as overdue after this many seconds at the latest, so that the time can come.
const LONGEST: f64 = 1e6;

/// One worker's latest times.
#[derive(Debug, Serialize, Deserialize)]
struct WorkerModel {
    /// Seconds of an iteration of the run's batch size, oldest first.
    #[serde(with = "crate::number")]
    iterations: VecDeque<f64>,
    /// How many iterations must follow before it can have changed again.
    #[serde(default)]
    settling: usize,
    /// Seconds of a model's way to the worker and of its update's way back.
    transfers: RecentValues,
}

/// What is known of a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct RecentTimes {
    /// The worker.
    pub worker: WorkerId,
    /// Seconds of its latest iterations of the run's batch size, oldest first. Empty if it has done none.
    pub iterations: Vec<f64>,
    /// Seconds of a model's way to it and of its update's way back.
    pub transfer: f64,
}

/// The latest times of every worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ClusterModel {
    batch: u32,
    workers: Vec<WorkerModel>,
}

impl ClusterModel {
    /// Nothing is known yet of workers whose usual batch has this many samples.
    pub(crate) fn new(batch: u32) -> Self {
        ClusterModel { batch, workers: Vec::new() }
    }

    fn worker(&mut self, worker: WorkerId) -> &mut WorkerModel {
        while worker.index() >= self.workers.len() {
            let transfers = RecentValues::new(TRANSFERS);
            self.workers.push(WorkerModel { iterations: VecDeque::new(), settling: 0, transfers });
        }
        &mut self.workers[worker.index()]
    }

    /// An update has arrived. Returns whether its worker has changed.
    pub(crate) fn on_reported(&mut self, now: Time, update: &Update) -> bool {
        let compute = update.report.compute.seconds();
        // The iterations of a worker that asks are known already.
        if update.work.length().is_some_and(crate::LocalLength::asks) || compute <= 0.0 {
            return false;
        }
        let samples = f64::from(update.samples) * f64::from(update.iterations);
        let seconds = compute * f64::from(self.batch) / samples;
        let worker = self.worker(update.task.worker);
        worker.transfers.push((now.since(update.started).seconds() - compute).max(0.0));
        worker.on_iteration(seconds)
    }

    /// A worker has done a local iteration of a task of `samples` that was assigned at `assigned`. Returns whether the worker
    /// has changed.
    pub(crate) fn on_asked(&mut self, now: Time, question: &Question, samples: u32, assigned: Time) -> bool {
        let compute = question.report.compute.seconds();
        if compute <= 0.0 || samples == 0 {
            return false;
        }
        let seconds = compute * f64::from(self.batch) / f64::from(samples);
        let worker = self.worker(question.task.worker);
        if question.iterations == 1 {
            // The way back is about as long as the way there.
            worker.transfers.push(2.0 * (now.since(assigned).seconds() - compute).max(0.0));
        }
        worker.on_iteration(seconds)
    }

    /// A worker left. It may come back as another machine.
    pub(crate) fn on_left(&mut self, worker: WorkerId) {
        self.worker(worker).iterations.clear();
    }

    /// When a task of this many samples is overdue, which a worker began at `since`: when it takes [`OVERDUE`] times as long as
    /// any of the worker's latest iterations would. `None` if too little is known.
    pub(crate) fn overdue(&self, worker: WorkerId, samples: u32, since: Time) -> Option<Time> {
        let model = self.workers.get(worker.index()).filter(|model| model.iterations.len() >= KNOWN)?;
        let longest = model.iterations.iter().copied().fold(0.0, f64::max) * f64::from(samples) / f64::from(self.batch);
        let expected = longest + model.transfers.median().unwrap_or(0.0);
        Some(since + Span::from_seconds((OVERDUE * expected).min(LONGEST)))
    }

    /// What is known of these workers.
    pub(crate) fn tracks(&self, workers: impl Iterator<Item = WorkerId>) -> Vec<RecentTimes> {
        let track = |worker: WorkerId| {
            let state = self.workers.get(worker.index());
            RecentTimes {
                worker,
                iterations: state.map_or_else(Vec::new, |state| state.iterations.iter().copied().collect()),
                transfer: state.and_then(|state| state.transfers.median()).unwrap_or(0.0),
            }
        };
        workers.map(track).collect()
    }
}

impl WorkerModel {
    fn on_iteration(&mut self, seconds: f64) -> bool {
        if !seconds.is_finite() {
            return false;
        }
        if self.iterations.len() == KEPT {
            self.iterations.pop_front();
        }
        self.iterations.push_back(seconds);
        self.settling = self.settling.saturating_sub(1);
        let changed = self.settling == 0 && self.has_changed();
        if changed {
            self.settling = APART;
            self.iterations.drain(..self.iterations.len() - IN_A_ROW);
        }
        changed
    }

    fn has_changed(&self) -> bool {
        let Some(before) = self.iterations.len().checked_sub(IN_A_ROW).filter(|&before| before >= IN_A_ROW) else {
            return false;
        };
        let mut earlier: Vec<f64> = self.iterations.iter().take(before).copied().collect();
        earlier.sort_unstable_by(f64::total_cmp);
        let (usual, tenth) = (earlier[before / 2], before.div_ceil(10));
        let (short, long) = (earlier[tenth - 1].min(usual / CHANGE), earlier[before - tenth].max(CHANGE * usual));
        let mut latest = self.iterations.iter().skip(before);
        latest.clone().all(|&seconds| seconds > long) || latest.all(|&seconds| seconds < short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Report, TaskId, Version, Work};

    fn report(model: &mut ClusterModel, samples: u32, compute: f64, transfer: f64) -> bool {
        let at = |seconds| Time::START + Span::from_seconds(seconds);
        let task = TaskId { worker: WorkerId(1), number: 0 };
        let report = Report { compute: Span::from_seconds(compute), ..Report::default() };
        let work = Work::Gradient;
        let update = Update { task, version: Version(0), work, samples, iterations: 1, started: at(1.0), report };
        model.on_reported(at(1.0 + compute + transfer), &update)
    }

    #[test]
    fn times_are_those_of_the_runs_batch_size() {
        let mut model = ClusterModel::new(8);
        for samples in [8, 4, 16] {
            assert!(!report(&mut model, samples, 0.25 * f64::from(samples), 0.5));
        }
        let tracks = model.tracks([WorkerId(0), WorkerId(1)].into_iter());
        assert_eq!(tracks[0], RecentTimes { worker: WorkerId(0), iterations: vec![], transfer: 0.0 });
        assert_eq!((tracks[1].iterations.as_slice(), tracks[1].transfer), (&[2.0; 3][..], 0.5));
        model.on_left(WorkerId(1));
        assert!(model.tracks([WorkerId(1)].into_iter())[0].iterations.is_empty());
    }

    #[test]
    fn a_lasting_change_is_found_and_what_came_before_is_forgotten() {
        let mut model = ClusterModel::new(8);
        for _ in 0..100 {
            assert!(!report(&mut model, 8, 1.0, 0.0));
        }
        // An outlier is no change.
        for seconds in [5.0, 1.0, 5.0, 1.0, 1.0] {
            assert!(!report(&mut model, 8, seconds, 0.0));
        }
        let found: Vec<bool> = (0..5).map(|_| report(&mut model, 8, 3.0, 0.0)).collect();
        assert_eq!(found, [false, false, true, false, false]);
        assert_eq!(model.tracks([WorkerId(1)].into_iter())[0].iterations, [3.0; 5]);
        for _ in 0..APART {
            assert!(!report(&mut model, 8, 3.0, 0.0));
        }
        let found: Vec<bool> = (0..5).map(|_| report(&mut model, 8, 1.0, 0.0)).collect();
        assert_eq!(found, [false, false, true, false, false]);
    }

    #[test]
    fn a_worker_that_changes_again_and_again_varies() {
        let mut model = ClusterModel::new(8);
        let mut found = 0;
        for step in 0..60 {
            let seconds = if step / 6 % 2 == 0 { 1.0 } else { 4.0 };
            found += u32::from(report(&mut model, 8, seconds, 0.0));
        }
        assert_eq!(found, 1);
        let times = &model.tracks([WorkerId(1)].into_iter())[0].iterations;
        assert!(times.contains(&1.0) && times.contains(&4.0), "{times:?}");
    }

    #[test]
    fn times_that_vary_are_no_change() {
        let mut model = ClusterModel::new(8);
        // A third of them is three times as long, four in a row now and then.
        for round in 0..20 {
            let long = if round % 4 == 0 { 4 } else { 2 };
            for step in 0..8 {
                let changed = report(&mut model, 8, if step < long { 3.0 } else { 1.0 }, 0.0);
                assert!(!changed || round == 0, "round {round}, step {step}");
            }
        }
    }

    #[test]
    fn a_task_is_overdue_after_twice_the_longest_time() {
        let at = |seconds| Time::START + Span::from_seconds(seconds);
        let mut model = ClusterModel::new(8);
        for seconds in [1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0] {
            report(&mut model, 8, seconds, 0.5);
            assert_eq!(model.overdue(WorkerId(1), 8, at(10.0)), None);
        }
        report(&mut model, 8, 1.0, 0.5);
        assert_eq!(model.overdue(WorkerId(1), 8, at(10.0)), Some(at(17.0)));
        assert_eq!(model.overdue(WorkerId(1), 4, at(10.0)), Some(at(14.0)));
        assert_eq!(model.overdue(WorkerId(7), 8, at(10.0)), None);
    }
}
