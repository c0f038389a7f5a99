//! Predicts the speeds of all workers.

use serde::ser::Error;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use super::{PredictorKind, Resources, SpeedPredictor};
use crate::{RestoreError, WorkerId};

/// One worker's predictor and the range of its observed speeds.
struct WorkerSpeed {
    predictor: Box<dyn SpeedPredictor>,
    slowest: f64,
    fastest: f64,
}

/// Predicts the speeds of all workers. A worker that leaves and rejoins keeps its history.
///
/// Invalid speeds (zero, negative, not finite) are ignored, and predictions are clamped to the range of the worker's
/// observed speeds. The predictor of a new worker starts from the weights that were trained last.
#[derive(Deserialize)]
#[serde(try_from = "SavedSpeeds")]
pub struct Speeds {
    kind: PredictorKind,
    warm_up: usize,
    workers: Vec<Option<WorkerSpeed>>,
    /// The weights that were trained last.
    latest: Option<Vec<f64>>,
    /// The worker that was trained last.
    turn: usize,
}

/// The state of [`Speeds`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedSpeeds {
    kind: PredictorKind,
    warm_up: usize,
    workers: Vec<Option<SavedWorkerSpeed>>,
    #[serde(with = "crate::number")]
    latest: Option<Vec<f64>>,
    turn: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedWorkerSpeed {
    predictor: Box<RawValue>,
    slowest: f64,
    fastest: f64,
}

impl Serialize for Speeds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let save = |state: &WorkerSpeed| {
            let predictor = state.predictor.save().ok_or_else(|| S::Error::custom("a predictor can't be saved"))?;
            Ok(SavedWorkerSpeed { predictor, slowest: state.slowest, fastest: state.fastest })
        };
        let workers = self.workers.iter().map(|state| state.as_ref().map(save).transpose());
        let saved = SavedSpeeds {
            kind: self.kind,
            warm_up: self.warm_up,
            workers: workers.collect::<Result<_, S::Error>>()?,
            latest: self.latest.clone(),
            turn: self.turn,
        };
        saved.serialize(serializer)
    }
}

impl TryFrom<SavedSpeeds> for Speeds {
    type Error = RestoreError;

    fn try_from(saved: SavedSpeeds) -> Result<Self, RestoreError> {
        let SavedSpeeds { kind, warm_up, workers, latest, turn } = saved;
        let restore = |SavedWorkerSpeed { predictor: state, slowest, fastest }| {
            let mut predictor = kind.build(warm_up, None);
            predictor.restore(&state)?;
            Ok(WorkerSpeed { predictor, slowest, fastest })
        };
        let workers = workers.into_iter().map(|worker| worker.map(restore).transpose());
        Ok(Speeds { kind, warm_up, workers: workers.collect::<Result<_, RestoreError>>()?, latest, turn })
    }
}

impl Speeds {
    /// Speeds without any history. Predictors that learn use a moving average for the first `warm_up` iterations. With
    /// the `weights` of an earlier run they start from those.
    pub fn new(kind: PredictorKind, warm_up: usize, weights: Option<Vec<f64>>) -> Self {
        Speeds { kind, warm_up, workers: Vec::new(), latest: weights, turn: 0 }
    }

    /// The kind of predictor.
    pub fn kind(&self) -> PredictorKind {
        self.kind
    }

    /// The weights that were trained last, or that all predictors started from. `None` without either.
    pub fn weights(&self) -> Option<&[f64]> {
        self.latest.as_deref()
    }

    /// Adds a worker's speed in the last iteration, in samples per second, and its present resources.
    pub fn observe(&mut self, worker: WorkerId, speed: f64, resources: Resources) {
        if !speed.is_finite() || speed <= 0.0 {
            return;
        }
        if worker.index() >= self.workers.len() {
            self.workers.resize_with(worker.index() + 1, || None);
        }
        let (kind, warm_up, latest) = (self.kind, self.warm_up, self.latest.as_deref());
        let state = self.workers[worker.index()].get_or_insert_with(|| WorkerSpeed {
            predictor: kind.build(warm_up, latest),
            slowest: speed,
            fastest: speed,
        });
        state.slowest = state.slowest.min(speed);
        state.fastest = state.fastest.max(speed);
        let share = |share: f64| if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        let resources = Resources { cpu: share(resources.cpu), memory: share(resources.memory) };
        state.predictor.observe(speed, resources);
    }

    /// The worker's speed in the next iteration; `None` before the first observation.
    pub fn predict(&self, worker: WorkerId) -> Option<f64> {
        let state = self.workers.get(worker.index())?.as_ref()?;
        let predicted = state.predictor.predict().filter(|speed| speed.is_finite());
        Some(predicted.unwrap_or(state.slowest).clamp(state.slowest, state.fastest))
    }

    /// Trains one worker's predictor by one step, in turn. Returns whether any predictor needed training.
    pub fn train_step(&mut self) -> bool {
        for _ in 0..self.workers.len() {
            self.turn = (self.turn + 1) % self.workers.len();
            let Some(state) = &mut self.workers[self.turn] else { continue };
            if state.predictor.train_step() {
                self.latest = state.predictor.weights().map(<[f64]>::to_vec).or(self.latest.take());
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerId = WorkerId(3);

    #[test]
    fn invalid_speeds_are_ignored() {
        for (name, kind) in PredictorKind::NAMES {
            let mut speeds = Speeds::new(kind, 20, None);
            assert_eq!(speeds.predict(WORKER), None);
            for iteration in 0..200 {
                speeds.observe(WORKER, 100.0 + f64::from(iteration % 7), Resources::default());
                for invalid in [0.0, -5.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                    speeds.observe(WORKER, invalid, Resources { cpu: invalid, memory: invalid });
                }
                speeds.train_step();
                let predicted = speeds.predict(WORKER).unwrap();
                assert!((100.0..=106.0).contains(&predicted), "{name}: {predicted}");
            }
            // Invalid resources with a valid speed do no harm either.
            speeds.observe(WORKER, 103.0, Resources { cpu: f64::NAN, memory: -9.0 });
            assert!((100.0..=106.0).contains(&speeds.predict(WORKER).unwrap()), "{name}");
        }
    }

    #[test]
    fn a_worker_with_only_invalid_speeds_has_no_prediction() {
        let mut speeds = Speeds::new(PredictorKind::Narx, 20, None);
        speeds.observe(WORKER, f64::NAN, Resources::default());
        assert_eq!(speeds.predict(WORKER), None);
        assert!(!speeds.train_step());
    }

    #[test]
    fn workers_are_trained_in_turn() {
        let mut speeds = Speeds::new(PredictorKind::Narx, 20, None);
        for iteration in 0..40 {
            for worker in 0..3 {
                let speed = 100.0 + f64::from((iteration * (worker + 1)) % 5);
                speeds.observe(WorkerId(worker), speed, Resources::default());
            }
        }
        let turns: Vec<usize> = (0..6).filter_map(|_| speeds.train_step().then_some(speeds.turn)).collect();
        assert_eq!(turns, [1, 2, 0, 1, 2, 0]);
    }
}
