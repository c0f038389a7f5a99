//! Predicts the run-times of all workers' next tasks jointly (Cutoff SGD, section 3.1).
//!
//! A [`RunTimePredictor`] observes every worker's run-time after each iteration, and returns a [`Forecast`] of the
//! next: [`IndependentNormal`] by order statistics, [`Amortized`] by a [`DeepMarkov`] model of the cluster, [`Oracle`]
//! from the simulator's true run-times. Random numbers come from [`Draws`], a pure function of a seed.

mod deep_markov;
mod draws;
mod gaussian;
mod oracle;
mod order_statistics;

pub use deep_markov::{Amortized, DeepMarkov, Elbo, KIND, LEAST_DEVIATION, SAMPLES, Size, scale};
pub use draws::Draws;
pub use gaussian::Normal;
pub use oracle::{Foresight, Oracle};
pub use order_statistics::{IndependentNormal, elfving};

use serde::{Deserialize, Serialize};

use crate::{Restorable, WorkerId};

/// The predicted run-times of an iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Each worker's run-time, by rank. A worker with a higher rank counts as the one at its rank modulo their number.
    pub workers: Vec<Normal>,
    /// The order statistics (the paper's x̃) of the requested workers: the shortest run-time, the second shortest, ….
    pub ranks: Vec<Normal>,
}

impl Forecast {
    /// One worker's run-time.
    pub fn worker(&self, worker: WorkerId) -> Normal {
        self.workers[worker.index() % self.workers.len()]
    }

    /// The number of workers to wait for with the most gradients per time: argmax Ω(c), Ω(c) = c / x̃₍c₎ (section 3);
    /// the largest of equals.
    pub fn cutoff(&self) -> usize {
        let throughput = |index: usize| (index + 1) as f64 / self.ranks[index].mean;
        let best = (0..self.ranks.len()).max_by(|&one, &other| throughput(one).total_cmp(&throughput(other)));
        best.map_or(1, |index| index + 1)
    }
}

/// Predicts the run-time of every worker's next task.
pub trait RunTimePredictor: Send + Restorable {
    /// Adds the run-times of an iteration in seconds, by rank, all above 0.
    fn observe(&mut self, times: &[f64]);

    /// The run-times of the iteration that begins now with these workers, at least one, whose tasks take these multiples
    /// of the time of tasks like the observed ones; `None` until enough is observed.
    fn predict_multiples(&mut self, workers: &[WorkerId], multiples: &[f64]) -> Option<Forecast>;

    /// The run-times of the iteration that begins now with these workers, if their tasks are like the observed ones.
    fn predict(&mut self, workers: &[WorkerId]) -> Option<Forecast> {
        self.predict_multiples(workers, &vec![1.0; workers.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forecast(ranks: &[f64]) -> Forecast {
        let ranks: Vec<Normal> = ranks.iter().map(|&mean| Normal { mean, deviation: 0.0 }).collect();
        Forecast { workers: ranks.clone(), ranks }
    }

    #[test]
    fn the_cutoff_has_the_largest_throughput() {
        assert_eq!(forecast(&[1.0, 1.1, 1.2, 4.0]).cutoff(), 3);
        assert_eq!(forecast(&[1.0, 3.0, 5.0]).cutoff(), 1);
        assert_eq!(forecast(&[1.0, 2.0, 3.0]).cutoff(), 3);
        assert_eq!(forecast(&[0.5]).cutoff(), 1);
    }
}
