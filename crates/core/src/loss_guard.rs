//! Has the loss risen? The condition of DBW (19), under which k must grow.

use crate::recent::Recent;

/// How many times the usual change a rise must be. Noise alone rises so far once in twenty iterations; without this, in
/// every second one late in training.
const CLEAR: f64 = 2.0;

/// Watches the losses of iterations for a rise.
#[derive(Debug)]
pub(crate) struct LossGuard {
    /// β: by which factor the loss must have risen.
    beta: f64,
    /// Sizes of the last changes, up or down; `None` where any rise by β counts, as printed.
    changes: Option<Recent>,
    loss: Option<f64>,
    rose: bool,
}

impl LossGuard {
    /// Every rise by more than `beta` counts: (19) as printed.
    pub(crate) fn printed(beta: f64) -> Self {
        LossGuard { beta, changes: None, loss: None, rose: false }
    }

    /// A rise by more than `beta` counts if it stands out of the last `window` changes.
    pub(crate) fn clear(beta: f64, window: usize) -> Self {
        LossGuard { changes: Some(Recent::new(window)), ..LossGuard::printed(beta) }
    }

    /// Takes in an iteration's loss.
    pub(crate) fn observe(&mut self, loss: f64) {
        let change = self.loss.replace(loss).map(|before| (loss - before, loss > self.beta * before));
        let Some((change, by_beta)) = change else { return };
        let usual = self.changes.as_ref().and_then(Recent::mean).unwrap_or(0.0);
        self.rose = by_beta && change > CLEAR * usual;
        if let Some(changes) = &mut self.changes {
            changes.push(change.abs());
        }
    }

    /// Whether the last iteration's loss was a rise.
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
    fn beta_is_the_least_rise() {
        let losses = [1.0, 1.005, 1.02, 1.0, 1.5];
        let expected = [false, false, true, false, true];
        assert_eq!(rises(LossGuard::printed(1.01), &losses), expected);
        assert_eq!(rises(LossGuard::clear(1.01, 5), &losses), expected);
    }

    #[test]
    fn zigzag_is_no_rise_but_what_stands_out_is() {
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
