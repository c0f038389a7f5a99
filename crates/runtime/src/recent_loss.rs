//! The training loss, smoothed over as many samples under every scheme.

use std::collections::VecDeque;

use paceline_core::Setup;
use serde::{Deserialize, Serialize};

/// The samples over which the loss is averaged: those of this many rounds of all workers.
const ROUNDS: u64 = 5;

/// Into how many blocks the window is divided at most, so that short iterations need little memory.
const BLOCKS: u64 = 64;

/// The losses of the last samples.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RecentLoss {
    /// The number of samples that are averaged.
    window: u64,
    /// For each block of samples, the oldest first: the sum of their losses, and how many they are.
    #[serde(with = "paceline_core::number")]
    sums: VecDeque<f64>,
    counts: VecDeque<u64>,
}

impl RecentLoss {
    /// Averages the samples of five rounds.
    pub(crate) fn new(setup: &Setup) -> Self {
        let window = ROUNDS * setup.workers as u64 * u64::from(setup.batch);
        RecentLoss { window, ..RecentLoss::default() }
    }

    /// Adds the mean loss of an iteration with this number of samples.
    pub(crate) fn add(&mut self, loss: f64, samples: u64) {
        let weighted = loss * samples as f64;
        match (self.sums.back_mut(), self.counts.back_mut()) {
            (Some(sum), Some(count)) if *count + samples <= self.window / BLOCKS => {
                *sum += weighted;
                *count += samples;
            }
            _ => {
                self.sums.push_back(weighted);
                self.counts.push_back(samples);
            }
        }
        while let Some(oldest) = self.counts.front()
            && self.counts.len() > 1
            && self.samples() - oldest >= self.window
        {
            self.sums.pop_front();
            self.counts.pop_front();
        }
    }

    fn samples(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Whether there were enough samples.
    pub(crate) fn is_full(&self) -> bool {
        self.samples() >= self.window && self.samples() > 0
    }

    /// Their mean loss.
    pub(crate) fn mean(&self) -> Option<f64> {
        let samples = self.samples();
        (samples > 0).then(|| self.sums.iter().sum::<f64>() / samples as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_is_judged_by_as_many_samples() {
        let setup = Setup::new(4, 10);
        let mut rounds = RecentLoss::new(&setup);
        for (index, loss) in [5.0, 4.0, 3.0, 2.0, 1.0, 0.0].into_iter().enumerate() {
            assert_eq!(rounds.is_full(), index >= 5);
            rounds.add(loss, 40);
        }
        assert_eq!(rounds.mean(), Some(2.0), "five of six rounds");
        let mut updates = RecentLoss::new(&setup);
        for index in 0..21 {
            assert_eq!(updates.is_full(), index >= 20, "{index}");
            updates.add(f64::from(index), 10);
        }
        assert_eq!(updates.mean(), Some(10.5), "twenty of 21 updates");
        let mut long = RecentLoss::new(&setup);
        long.add(1.0, 40);
        long.add(3.0, 1000);
        assert!(long.is_full());
        assert_eq!(long.mean(), Some(3.0), "one is enough");
    }

    #[test]
    fn many_short_iterations_take_little_memory() {
        let mut loss = RecentLoss::new(&Setup::new(1000, 1));
        (0..100_000).for_each(|index| loss.add(if index % 2 == 0 { 0.0 } else { 2.0 }, 1));
        assert!(loss.counts.len() as u64 <= BLOCKS + 2, "{}", loss.counts.len());
        assert!((loss.mean().unwrap() - 1.0).abs() < 1e-3);
        assert!((5000..5200).contains(&loss.samples()), "{}", loss.samples());
    }

    #[test]
    fn a_loss_that_is_not_finite_is_forgotten_and_saved() {
        let mut loss = RecentLoss::new(&Setup::new(1, 1));
        loss.add(f64::NAN, 1);
        let text = serde_json::to_string(&loss).unwrap();
        let mut read: RecentLoss = serde_json::from_str(&text).unwrap();
        assert!(read.mean().unwrap().is_nan());
        (0..5).for_each(|_| read.add(1.0, 1));
        assert_eq!(read.mean(), Some(1.0));
    }
}
