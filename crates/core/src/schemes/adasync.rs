//! `adasync`: k grows as the loss falls, in the way that is best for shifted-exponential run-times (Dutta, Wang and
//! Joshi, 2020).

use serde::{Deserialize, Serialize};

use super::{SchemeEntry, SchemeError, Setting, SettingDefault, Settings, Setup, UpperBound};
use crate::rounds::Quorum;
use crate::{Aggregate, Reason, Time};

/// For exponential run-times the error bound over a period of time is least where K²/(n − K) is proportional to 1/F.
/// The factor consists of constants that are not known in practice, so it is set by the first k and the first loss:
/// K²/(n − K) = K₀²/(n − K₀) × F₀/F.
#[derive(Serialize, Deserialize)]
struct LossLevelQuorum {
    /// K₀.
    first: usize,
    /// F₀: the first iteration's loss.
    first_loss: Option<f64>,
    /// F̂/F₀ after the last iteration.
    #[serde(with = "crate::number")]
    level: Option<f64>,
}

/// The solution of the quadratic equation, rounded. All workers if the loss is zero or negative.
fn solve(first: usize, level: f64, workers: usize) -> usize {
    if first >= workers || level <= 0.0 {
        return workers;
    }
    let (n, first) = (workers as f64, first as f64);
    // K² + cK − cn = 0, written so that a large c loses no digits.
    let c = first * first / (n - first) / level;
    let k = 2.0 * n / (1.0 + (1.0 + 4.0 * n / c).sqrt());
    (k.round() as usize).clamp(1, workers)
}

impl Quorum for LossLevelQuorum {
    fn choose(&mut self, _now: Time, live: usize) -> usize {
        self.level.map_or(self.first, |level| solve(self.first, level, live))
    }

    fn reason(&self, waited_for: usize, live: usize) -> Reason {
        let (waited_for, workers) = (waited_for as u32, live as u32);
        match self.level {
            Some(level) => Reason::LossLevel { waited_for, workers, level },
            None => Reason::Quorum { waited_for, workers },
        }
    }

    fn on_committed(&mut self, _now: Time, _updates: usize, aggregate: Option<&Aggregate>) {
        let Some(loss) = aggregate.map(|aggregate| aggregate.loss).filter(|loss| loss.is_finite()) else { return };
        let first = *self.first_loss.get_or_insert(loss);
        self.level = (first > 0.0).then(|| loss / first);
    }
}

pub(super) const ENTRY: SchemeEntry =
    SchemeEntry::quorum("adasync", "wait for the first k workers; k grows as the loss falls", [255, 75, 156], build)
        .settings(&[Setting::count("first", "gradients to wait for in the first iteration", 1, UpperBound::Workers)
            .default(SettingDefault::Count(1))]);

fn build(settings: &Settings<'_>, _setup: &Setup) -> Result<Box<dyn Quorum>, SchemeError> {
    let first = settings.count("first")?;
    Ok(Box::new(LossLevelQuorum { first, first_loss: None, level: None }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k_solves_the_equation() {
        assert_eq!(solve(1, 1.0, 16), 1);
        // At K = 8, K²/(16 − K) = 8: 120 times the 1/15 of K₀ = 1.
        assert_eq!(solve(1, 1.0 / 120.0, 16), 8);
        assert_eq!(solve(4, 1.0, 16), 4);
        assert_eq!(solve(1, 1e-300, 16), 16);
        for level in [0.0, -1.0] {
            assert_eq!(solve(1, level, 16), 16);
        }
        assert_eq!(solve(1, 1e300, 16), 1);
        assert_eq!((solve(3, 1.0, 2), solve(1, 1.0, 1)), (2, 1));
    }

    #[test]
    fn k_grows_as_the_loss_falls() {
        let mut quorum = LossLevelQuorum { first: 1, first_loss: None, level: None };
        let mut chosen = vec![quorum.choose(Time::START, 16)];
        for loss in [2.3, 1.0, 0.3, 0.1, 0.03] {
            let aggregate = Aggregate { loss, rate: 0.1, ..Aggregate::default() };
            quorum.on_committed(Time::START, 1, Some(&aggregate));
            chosen.push(quorum.choose(Time::START, 16));
        }
        assert_eq!(chosen, [1, 1, 1, 3, 4, 7]);
    }
}
