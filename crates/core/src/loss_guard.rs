//! Detects a rising loss: the condition of DBW (19), under which k must grow.

use serde::{Deserialize, Serialize};

use crate::recent::RecentValues;

/// A rise must be larger than this multiple of the mean change. Noise alone exceeds it about once in twenty iterations;
/// without this condition, noise counts as a rise in every second iteration late in training.
const CLEAR: f64 = 2.0;

/// Watches the losses of iterations for a rise.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LossGuard {
    /// β: the factor by which the loss must rise.
    beta: f64,
    /// Sizes of the last changes, up or down; `None` if every rise by β counts, as printed.
    changes: Option<RecentValues>,
    #[serde(with = "crate::number")]
    loss: Option<f64>,
    rose: bool,
}

impl LossGuard {
    /// Every rise by more than `beta` counts: (19) as printed.
    pub(crate) fn printed(beta: f64) -> Self {
        LossGuard { beta, changes: None, loss: None, rose: false }
    }

    /// A rise by more than `beta` counts only if it is clearly larger than the last `window` changes.
    pub(crate) fn clear(beta: f64, window: usize) -> Self {
        LossGuard { changes: Some(RecentValues::new(window)), ..LossGuard::printed(beta) }
    }

    /// Adds an iteration's loss.
    pub(crate) fn observe(&mut self, loss: f64) {
        let change = self.loss.replace(loss).map(|before| (loss - before, loss > self.beta * before));
        let Some((change, by_beta)) = change else { return };
        let usual = self.changes.as_ref().and_then(RecentValues::mean).unwrap_or(0.0);
        self.rose = by_beta && change > CLEAR * usual;
        if let Some(changes) = &mut self.changes {
            changes.push(change.abs());
        }
    }

    /// Whether the loss rose in the last iteration.
    pub(crate) fn rose(&self) -> bool {
        self.rose
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rises(mut guard: LossGuard, losses: &[f64]) -> Vec<bool> {
        let rose = |&loss: &f64| {
            guard.observe(loss);
            guard.rose()
        };
        losses.iter().map(rose).collect()
    }

    #[test]
    fn smaller_rises_than_beta_do_not_count() {
        let losses = [1.0, 1.005, 1.02, 1.0, 1.5];
        let expected = [false, false, true, false, true];
        assert_eq!(rises(LossGuard::printed(1.01), &losses), expected);
        assert_eq!(rises(LossGuard::clear(1.01, 5), &losses), expected);
    }

    #[test]
    fn noise_is_not_a_rise_but_a_clear_rise_is() {
        let losses = [1.0, 0.9, 1.0, 0.9, 1.0, 0.9, 1.2, 1.6, 2.4];
        assert_eq!(
            rises(LossGuard::printed(1.01), &losses),
            [false, false, true, false, true, false, true, true, true]
        );
        assert_eq!(
            rises(LossGuard::clear(1.01, 5), &losses),
            [false, false, false, false, false, false, true, true, true]
        );
    }
}
