//! How long all workers' next tasks will take, jointly (Cutoff SGD, section 3.1).
//!
//! A [`RunTimePredictor`] is told every worker's run-time after each iteration, and gives a [`Forecast`] of the next:
//! [`IndependentNormal`] by order statistics, [`Amortized`] by a [`DeepMarkov`] model of the cluster, [`Oracle`] by knowing.
//! Random numbers come from [`Draws`], a pure function.

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

use crate::WorkerId;

/// The run-times of an iteration as predicted.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// Each worker's own, by rank. A worker whose rank is beyond them is taken to be like the one at its rank modulo
    /// their number.
    pub workers: Vec<Normal>,
    /// The shortest, the second shortest, … (the paper's x̃) of those asked about.
    pub ranks: Vec<Normal>,
}

impl Forecast {
    /// One worker's own.
    pub fn worker(&self, worker: WorkerId) -> Normal {
        self.workers[worker.index() % self.workers.len()]
    }

    /// How many to wait for so that the most gradients come in per time: argmax Ω(c), Ω(c) = c / x̃₍c₎ (section 3). All
    /// that are expected at the same moment.
    pub fn cutoff(&self) -> usize {
        let throughput = |index: usize| (index + 1) as f64 / self.ranks[index].mean;
        let best = (0..self.ranks.len()).max_by(|&one, &other| throughput(one).total_cmp(&throughput(other)));
        best.map_or(1, |index| index + 1)
    }
}

/// Predicts how long every worker's next task will take.
pub trait RunTimePredictor: Send {
    /// An iteration is over: its run-times in seconds, by rank, all above 0.
    fn observe(&mut self, times: &[f64]);

    /// The run-times of the iteration that begins now with these workers, who are one or more; `None` while too little is
    /// known.
    fn predict(&mut self, workers: &[WorkerId]) -> Option<Forecast>;
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
