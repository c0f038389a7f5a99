//! All workers' speeds.

use super::{PredictorKind, Resources, SpeedPredictor};
use crate::WorkerId;

/// One worker's predictor, and the range of what was observed.
struct WorkerSpeed {
    predictor: Box<dyn SpeedPredictor>,
    slowest: f64,
    fastest: f64,
}

/// Predicts the speeds of all workers. What it knows of a worker outlasts its leaving.
///
/// Speeds that can't be (zero, negative, not a number) are passed over, and predictions are kept within what the worker
/// has shown so far. A worker that comes when others have been learnt starts from the latest that was.
pub struct Speeds {
    kind: PredictorKind,
    warm_up: usize,
    workers: Vec<Option<WorkerSpeed>>,
    /// What the latest to finish its training learnt.
    latest: Option<Vec<f64>>,
    /// Whose turn it is to be trained.
    turn: usize,
}

impl Speeds {
    /// Speeds of workers that nothing is known of. Learning predictors are served for by a moving average for `warm_up`
    /// iterations; with the `weights` of an earlier run they start from those.
    pub fn new(kind: PredictorKind, warm_up: usize, weights: Option<Vec<f64>>) -> Self {
        Speeds { kind, warm_up, workers: Vec::new(), latest: weights, turn: 0 }
    }

    /// What predicts.
    pub fn kind(&self) -> PredictorKind {
        self.kind
    }

    /// What the latest to finish its training learnt, or what all started from; `None` if there is neither.
    pub fn weights(&self) -> Option<&[f64]> {
        self.latest.as_deref()
    }

    /// The worker was so fast in the iteration that ended, and has these resources now.
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

    /// How fast the worker will be in the next iteration; `None` if it was never observed.
    pub fn predict(&self, worker: WorkerId) -> Option<f64> {
        let state = self.workers.get(worker.index())?.as_ref()?;
        let predicted = state.predictor.predict().filter(|speed| speed.is_finite());
        Some(predicted.unwrap_or(state.slowest).clamp(state.slowest, state.fastest))
    }

    /// Trains one worker's predictor by one step: whoever's turn it is and has something to learn. Returns whether
    /// anyone had.
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
    fn nonsense_changes_nothing() {
        for (name, kind) in PredictorKind::NAMES {
            let mut speeds = Speeds::new(kind, 20, None);
            assert_eq!(speeds.predict(WORKER), None);
            for iteration in 0..200 {
                speeds.observe(WORKER, 100.0 + f64::from(iteration % 7), Resources::default());
                for nonsense in [0.0, -5.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                    speeds.observe(WORKER, nonsense, Resources { cpu: nonsense, memory: nonsense });
                }
                speeds.train_step();
                let predicted = speeds.predict(WORKER).unwrap();
                assert!((100.0..=106.0).contains(&predicted), "{name}: {predicted}");
            }
            // Nonsense about the resources alone does no harm either.
            speeds.observe(WORKER, 103.0, Resources { cpu: f64::NAN, memory: -9.0 });
            assert!((100.0..=106.0).contains(&speeds.predict(WORKER).unwrap()), "{name}");
        }
    }

    #[test]
    fn a_worker_known_only_by_nonsense_is_unknown() {
        let mut speeds = Speeds::new(PredictorKind::Narx, 20, None);
        speeds.observe(WORKER, f64::NAN, Resources::default());
        assert_eq!(speeds.predict(WORKER), None);
        assert!(!speeds.train_step());
    }

    #[test]
    fn everyone_is_trained_in_turn() {
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
