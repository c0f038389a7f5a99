//! `dbw`: dynamic backup workers; k is chosen anew in every iteration for the largest fall of the loss per unit of time
//! (Xu, Neglia and Sebastianelli, 2021).

use super::{Settings, Setup, SpecError};
use crate::gain::{Gain, GainEstimator, Smoothness};
use crate::iteration_times::{IterationTimes, MOST_WORKERS};
use crate::loss_guard::LossGuard;
use crate::reason::{Choice, Estimate};
use crate::rounds::{Arrival, Quorum, Rounds};
use crate::{Aggregate, Reason, Scheme, Time};

/// Rates within this share of the best are as good: estimates of equal times differ in their last bits.
const TIE: f64 = 1e-9;

/// What waiting for k gradients is worth.
pub(super) enum Worth {
    /// The expected fall of the loss.
    Estimated(GainEstimator),
    /// k, whatever training has come to: blind DBW.
    Blind,
}

impl Worth {
    /// The gain as a function of k, once there is something to tell it from.
    fn gain(&self) -> Option<impl Fn(usize) -> f64> {
        let gain: Option<Gain> = match self {
            Worth::Estimated(estimator) => Some(estimator.gain()?),
            Worth::Blind => None,
        };
        Some(move |k: usize| gain.map_or(k as f64, |gain| gain.of(k)))
    }
}

/// Chooses k by (18) and (19).
pub(super) struct Dynamic {
    worth: Worth,
    times: IterationTimes,
    guard: LossGuard,
    /// What the last iteration waited for; `None` before its end.
    waited_for: Option<usize>,
    choice: Choice,
    estimate: Option<Estimate>,
}

impl Dynamic {
    fn new(worth: Worth, times: IterationTimes, guard: LossGuard) -> Self {
        Dynamic { worth, times, guard, waited_for: None, choice: Choice::NothingKnown, estimate: None }
    }

    /// (18) and (19): what to wait for, of `live`.
    fn decide(&mut self, live: usize) -> usize {
        self.estimate = None;
        let (Some(waited_for), Some(gain)) = (self.waited_for, self.worth.gain()) else {
            self.choice = Choice::NothingKnown;
            return usize::MAX;
        };
        let expected = self.times.expected();
        let (mut k, mut choice) = match best_rate(&gain, expected) {
            Some(k) => (k, Choice::BestRate),
            None => (expected.len(), Choice::NoGain),
        };
        // DBW (19)
        if self.guard.rose() && waited_for < live && k <= waited_for {
            (k, choice) = (waited_for + 1, Choice::LossRose);
        }
        self.choice = choice;
        self.estimate = expected.get(k - 1).map(|&seconds| Estimate { gain: gain(k), seconds });
        k
    }
}

/// DBW (18): the k whose gain per time is largest, the largest of equals; `None` if every gain is negative.
fn best_rate(gain: impl Fn(usize) -> f64, expected: &[f64]) -> Option<usize> {
    let rates = || {
        let gains = (1..).zip(expected).map(|(k, seconds)| (k, gain(k), seconds));
        // No gain takes no time: a rate of 0, not an undefined one.
        gains
            .filter(|(_, gain, _)| *gain >= 0.0)
            .map(|(k, gain, &seconds)| (k, if gain > 0.0 { gain / seconds } else { 0.0 }))
    };
    let best = rates().map(|(_, rate)| rate).fold(0.0, f64::max);
    rates().filter(|(_, rate)| *rate >= best * (1.0 - TIE)).map(|(k, _)| k).last()
}

impl Quorum for Dynamic {
    fn choose(&mut self, now: Time, live: usize) -> usize {
        match self.waited_for {
            None => self.times.start(now),
            Some(waited_for) => self.times.advance(now, waited_for, live),
        }
        self.decide(live)
    }

    fn reason(&self, waited_for: usize, live: usize) -> Reason {
        Reason::Chosen {
            waited_for: waited_for as u32,
            workers: live as u32,
            choice: self.choice,
            estimate: self.estimate,
        }
    }

    fn on_arrival(&mut self, arrival: &Arrival) {
        self.times.on_arrival(arrival.version, arrival.now);
    }

    fn on_committed(&mut self, _now: Time, updates: usize, aggregate: Option<&Aggregate>) {
        self.waited_for = Some(updates);
        let Some(aggregate) = aggregate else { return };
        self.guard.observe(aggregate.loss);
        if let Worth::Estimated(estimator) = &mut self.worth {
            estimator.observe(updates, aggregate);
        }
    }
}

/// Whether estimates are as printed, or hold out against noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Formulas {
    Robust,
    Printed,
}

impl Formulas {
    fn of(settings: &Settings<'_>) -> Result<Self, SpecError> {
        settings.choice("formulas", &[("robust", Formulas::Robust), ("printed", Formulas::Printed)])
    }
}

/// D if not given.
const WINDOW: usize = 5;

pub(super) fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SpecError> {
    let window = settings.optional("window", WINDOW, 1..=1_000_000)?;
    let smoothness = match Formulas::of(settings)? {
        Formulas::Robust => Smoothness::Rate,
        Formulas::Printed => Smoothness::Measured,
    };
    build_dynamic(Worth::Estimated(GainEstimator::new(window, smoothness)), settings, setup)
}

/// What DBW and blind DBW have in common.
pub(super) fn build_dynamic(
    worth: Worth,
    settings: &Settings<'_>,
    setup: &Setup,
) -> Result<Box<dyn Scheme>, SpecError> {
    let beta = settings.optional("beta", 1.01, 1.0..=1000.0)?;
    let guard = match Formulas::of(settings)? {
        Formulas::Robust => LossGuard::clear(beta, WINDOW),
        Formulas::Printed => LossGuard::printed(beta),
    };
    let memory = settings.parsed("memory", Default::default())?;
    let times = (setup.workers <= MOST_WORKERS).then(|| IterationTimes::new(setup.workers, memory).ok()).flatten();
    let times = times.ok_or_else(|| settings.too_many_workers(setup.workers, MOST_WORKERS))?;
    Ok(Box::new(Rounds::new(Dynamic::new(worth, times, guard), settings.dispatch(setup)?, setup.batch)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, Span, Version, WorkerId};

    fn dynamic(worth: Worth, workers: usize) -> Dynamic {
        let times = IterationTimes::new(workers, Memory::All).unwrap();
        Dynamic::new(worth, times, LossGuard::printed(1.01))
    }

    fn estimating(workers: usize) -> Dynamic {
        dynamic(Worth::Estimated(GainEstimator::new(5, Smoothness::Measured)), workers)
    }

    /// Runs an iteration whose gradients arrive at `arrivals` seconds after its begin, and gives the next k.
    fn iterate(rule: &mut Dynamic, version: u64, arrivals: &[f64], updates: usize, shown: Option<&Aggregate>) -> usize {
        let began = Time(version * 1_000_000_000_000);
        for seconds in arrivals {
            let now = began + Span::from_seconds(*seconds);
            rule.on_arrival(&Arrival {
                worker: WorkerId(0),
                version: Version(version),
                timely: true,
                compute: Span::ZERO,
                started: began,
                now,
            });
        }
        let end = Time((version + 1) * 1_000_000_000_000);
        rule.on_committed(end, updates, shown);
        rule.choose(end, arrivals.len())
    }

    /// Gradients whose true norm is `signal` and whose noise is `noise`, aggregated with a rate of 0.1.
    fn shown(loss: f64, k: usize, signal: f64, noise: f64) -> Aggregate {
        let k = k as f64;
        Aggregate { loss, rate: 0.1, sum_of_squares: k * (signal + noise), square_of_sum: signal + noise / k }
    }

    #[test]
    fn the_best_rate_is_that_of_the_largest_of_equals() {
        assert_eq!(best_rate(|k| k as f64, &[1.0, 2.0, 3.0]), Some(3));
        assert_eq!(best_rate(|_| 1.0, &[1.0, 1.0 + 1e-12, 5.0]), Some(2));
        assert_eq!(best_rate(|k| k as f64 - 2.5, &[1.0, 1.0, 1.0, 9.0]), Some(3));
        assert_eq!(best_rate(|_| 0.0, &[0.0, 1.0]), Some(2));
        assert_eq!(best_rate(|_| 1.0, &[0.0, 0.0, 1.0]), Some(2));
        assert_eq!(best_rate(|_| -1.0, &[1.0, 2.0]), None);
    }

    #[test]
    fn the_first_two_iterations_wait_for_all() {
        let mut rule = estimating(4);
        assert_eq!(rule.choose(Time::START, 1), usize::MAX);
        assert!(matches!(rule.reason(4, 4), Reason::Chosen { choice: Choice::NothingKnown, estimate: None, .. }));
        assert_eq!(iterate(&mut rule, 0, &[1.0, 2.0, 3.0, 4.0], 4, Some(&shown(2.0, 4, 1.0, 0.1))), usize::MAX);
        // Little noise and a late last gradient: fewer will do.
        let k = iterate(&mut rule, 1, &[1.0, 2.0, 3.0, 40.0], 4, Some(&shown(1.95, 4, 1.0, 0.1)));
        assert_eq!(k, 1);
        let Reason::Chosen { choice: Choice::BestRate, estimate: Some(estimate), .. } = rule.reason(1, 4) else {
            panic!("{:?}", rule.reason(1, 4));
        };
        assert_eq!(estimate.seconds, 1.0);
        assert!(estimate.gain > 0.0);
    }

    #[test]
    fn noise_asks_for_more_gradients_and_too_much_for_all() {
        let after = |noise: f64, loss: f64| {
            let mut rule = estimating(4);
            rule.choose(Time::START, 4);
            iterate(&mut rule, 0, &[1.0, 1.1, 1.2, 3.0], 4, Some(&shown(2.0, 4, 1.0, noise)));
            let k = iterate(&mut rule, 1, &[1.0, 1.1, 1.2, 3.0], 4, Some(&shown(loss, 4, 1.0, noise)));
            (k, rule.choice)
        };
        assert_eq!(after(0.01, 1.95), (1, Choice::BestRate));
        assert_eq!(after(1.0, 1.95), (3, Choice::BestRate));
        assert_eq!(after(1.0, 2.01), (4, Choice::NoGain));
    }

    #[test]
    fn k_rises_with_the_loss() {
        let mut rule = dynamic(Worth::Blind, 4);
        rule.choose(Time::START, 4);
        let arrivals = [1.0, 10.0, 20.0, 30.0];
        assert_eq!(iterate(&mut rule, 0, &arrivals, 4, Some(&shown(1.0, 4, 1.0, 1.0))), 1);
        assert_eq!(iterate(&mut rule, 1, &arrivals, 1, Some(&shown(1.005, 4, 1.0, 1.0))), 1);
        assert_eq!(iterate(&mut rule, 2, &arrivals, 1, Some(&shown(1.1, 4, 1.0, 1.0))), 2);
        assert_eq!(rule.choice, Choice::LossRose);
        // Not beyond all.
        assert_eq!(iterate(&mut rule, 3, &arrivals, 4, Some(&shown(1.2, 4, 1.0, 1.0))), 1);
    }

    #[test]
    fn without_a_model_the_blind_choose_and_the_others_wait_for_all() {
        let mut blind = dynamic(Worth::Blind, 2);
        blind.choose(Time::START, 1);
        assert_eq!(iterate(&mut blind, 0, &[1.0, 3.0], 2, None), 1);
        let mut estimating = estimating(2);
        estimating.choose(Time::START, 1);
        assert_eq!(iterate(&mut estimating, 0, &[1.0, 3.0], 2, None), usize::MAX);
    }

    #[test]
    fn k_follows_workers_that_come_and_go() {
        let mut rule = dynamic(Worth::Blind, 4);
        rule.choose(Time::START, 4);
        assert_eq!(iterate(&mut rule, 0, &[1.0; 4], 4, None), 4);
        // Two are gone, and what was measured with four idle workers with them.
        assert_eq!(iterate(&mut rule, 1, &[1.0; 2], 2, None), 2);
        // A table that knows nothing of the third lets it be tried.
        assert_eq!(iterate(&mut rule, 2, &[1.0; 3], 2, None), 3);
        assert_eq!(iterate(&mut rule, 3, &[1.0; 3], 3, None), 3);
    }
}
