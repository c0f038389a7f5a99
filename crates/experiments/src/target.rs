//! A training loss as a target.

use std::collections::VecDeque;

use paceline_runtime::Iteration;

/// A target for the mean training loss of the last updates. It counts updates, not iterations, so that the mean is over
/// equally many samples under every scheme.
pub struct LossTarget {
    loss: f64,
    updates: usize,
    latest: VecDeque<f64>,
}

impl LossTarget {
    /// A mean loss below `loss` over the last `updates` updates.
    pub fn new(loss: f64, updates: usize) -> Self {
        LossTarget { loss, updates, latest: VecDeque::new() }
    }

    /// Adds an iteration, and returns whether the target is met.
    pub fn is_met(&mut self, iteration: &Iteration) -> bool {
        self.latest.extend(iteration.loss.iter().flat_map(|&loss| std::iter::repeat_n(loss, iteration.waited_for)));
        let excess = self.latest.len().saturating_sub(self.updates);
        self.latest.drain(..excess);
        self.latest.len() == self.updates && self.latest.iter().sum::<f64>() < self.loss * self.updates as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::{Reason, Time};
    use paceline_runtime::Monitor;

    #[test]
    fn the_mean_is_over_updates_not_iterations() {
        let mut monitor = Monitor::default();
        let mut target = LossTarget::new(0.5, 4);
        let mut met =
            |updates, loss| target.is_met(&monitor.stepped(Time::START, updates, Some(loss), Reason::OnArrival));
        assert!(!met(1, 0.1), "a single update is not enough");
        assert!(!met(1, 0.9));
        assert!(met(2, 0.2));
        assert!(!met(1, 2.0));
        assert!(met(4, 0.4), "older updates no longer count");
    }
}
