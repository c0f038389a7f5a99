//! `dbw`: dynamic backup workers; in every iteration k is chosen for the largest decrease of the loss per unit of time
//! (Xu, Neglia and Sebastianelli, 2021).

use serde::{Deserialize, Serialize};

use super::{SchemeEntry, SchemeError, Setting, SettingDefault, Settings, Setup, UpperBound};
use crate::gain::{Gain, GainEstimator, Smoothness};
use crate::iteration_times::{IterationTimes, MAX_WORKERS};
use crate::loss_guard::LossGuard;
use crate::reason::{Estimate, QuorumChoice};
use crate::rounds::{Arrival, Quorum};
use crate::{Aggregate, Reason, Time, WorkerId};

/// Rates within this share of the best count as equal: estimates of equal times differ in their last bits.
const TIE: f64 = 1e-9;

/// The gain of an iteration with k gradients.
#[derive(Serialize, Deserialize)]
pub(super) enum GainModel {
    /// The expected decrease of the loss.
    Estimated(Box<GainEstimator>),
    /// k itself: blind DBW.
    Blind,
}

impl GainModel {
    /// The gain as a function of k in a run of `workers` workers; `None` until it can be estimated.
    fn gain(&self, workers: usize) -> Option<impl Fn(usize) -> f64> {
        let gain: Option<Gain> = match self {
            GainModel::Estimated(estimator) => Some(estimator.gain()?),
            GainModel::Blind => None,
        };
        Some(move |k: usize| gain.map_or(k as f64, |gain| gain.of(k, workers)))
    }
}

/// Chooses k by (18) and (19).
#[derive(Serialize, Deserialize)]
pub(super) struct DynamicQuorum {
    gain_model: GainModel,
    times: IterationTimes,
    guard: LossGuard,
    /// k of the last iteration; `None` before the first commit.
    waited_for: Option<usize>,
    choice: QuorumChoice,
    estimate: Option<Estimate>,
    /// The multiples of the batches' times that `times` was measured with, by rank; 1 beyond the end.
    #[serde(default)]
    multiples: Vec<f64>,
}

/// What was measured is dropped when batches take other times than they did then: when the logarithms of the ratios have
/// this root mean square. Sizes that are set once, by speeds that differ by a factor of two, exceed it; sizes that follow
/// a noise of one half do not.
const OTHER_TIMES: f64 = 0.3;

impl DynamicQuorum {
    fn new(gain_model: GainModel, times: IterationTimes, guard: LossGuard) -> Self {
        let (choice, multiples) = (QuorumChoice::NothingKnown, Vec::new());
        DynamicQuorum { gain_model, times, guard, waited_for: None, choice, estimate: None, multiples }
    }

    /// (18) and (19): k for `live` workers.
    fn decide(&mut self, live: usize) -> usize {
        self.estimate = None;
        let (Some(waited_for), Some(gain)) = (self.waited_for, self.gain_model.gain(live)) else {
            self.choice = QuorumChoice::NothingKnown;
            return usize::MAX;
        };
        let expected = self.times.expected();
        let (mut k, mut choice) = match best_rate(&gain, expected) {
            Some(k) => (k, QuorumChoice::BestRate),
            None => (expected.len(), QuorumChoice::NoGain),
        };
        // DBW (19)
        if self.guard.rose() && waited_for < live && k <= waited_for {
            (k, choice) = (waited_for + 1, QuorumChoice::LossRose);
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
        // A gain of 0 has a rate of 0, even where the expected time is 0.
        gains
            .filter(|(_, gain, _)| *gain >= 0.0)
            .map(|(k, gain, &seconds)| (k, if gain > 0.0 { gain / seconds } else { 0.0 }))
    };
    let best = rates().map(|(_, rate)| rate).fold(0.0, f64::max);
    rates().filter(|(_, rate)| *rate >= best * (1.0 - TIE)).map(|(k, _)| k).last()
}

impl Quorum for DynamicQuorum {
    fn begin(&mut self, workers: &mut dyn Iterator<Item = (WorkerId, f64)>) {
        let workers: Vec<(WorkerId, f64)> = workers.collect();
        let then = |worker: WorkerId| self.multiples.get(worker.index()).copied().unwrap_or(1.0);
        let change = |&(worker, now): &(WorkerId, f64)| libm::log(now / then(worker));
        let squares: f64 = workers.iter().map(change).map(|change| change * change).sum();
        if squares > OTHER_TIMES * OTHER_TIMES * workers.len() as f64 {
            self.times.forget();
            self.multiples.clear();
            self.multiples.resize(workers.last().map_or(0, |(last, _)| last.index() + 1), 1.0);
            workers.iter().for_each(|&(worker, now)| self.multiples[worker.index()] = now);
        }
    }

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
        self.times.on_arrival(arrival.version, arrival.timely, arrival.now);
    }

    fn on_committed(&mut self, _now: Time, updates: usize, aggregate: Option<&Aggregate>) {
        self.waited_for = Some(updates);
        let Some(aggregate) = aggregate else { return };
        self.guard.observe(aggregate.loss);
        if let GainModel::Estimated(estimator) = &mut self.gain_model {
            estimator.observe(updates, aggregate);
        }
    }
}

/// Whether estimates follow the paper as printed, or are robust against noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Formulas {
    Robust,
    Printed,
}

impl Formulas {
    fn of(settings: &Settings<'_>) -> Result<Self, SchemeError> {
        settings.choice("formulas", [Formulas::Robust, Formulas::Printed])
    }
}

/// The default of D.
const WINDOW: usize = 5;

pub(super) const ENTRY: SchemeEntry = SchemeEntry::quorum(
    "dbw",
    "wait for the first k workers; k is chosen in every iteration to lower the loss fastest",
    [0, 166, 129],
    build,
)
.settings(&[
    Setting::count("window", "iterations that estimates of the gradient and its noise are averaged over", 1, MILLION)
        .default(SettingDefault::Count(WINDOW as u64)),
    FORMULAS,
    BETA,
    MEMORY,
])
.variants(&["memory=window-3,formulas=printed"]);

const MILLION: UpperBound = UpperBound::Value(1_000_000);

// Settings of dbw and b-dbw.
pub(super) const FORMULAS: Setting =
    Setting::choice("formulas", "less sensitive to noise, or as in the paper", &["robust", "printed"]);
pub(super) const BETA: Setting =
    Setting::number("beta", "k rises when the loss has risen by more than this factor", 1.0, 1000.0)
        .default(SettingDefault::Number(1.01));
pub(super) const MEMORY: Setting = Setting::text(
    "memory",
    "which round trips are used",
    "all, window-N (iterations) or discount-FACTOR (per iteration)",
)
.default(SettingDefault::Text("all"));

fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Quorum>, SchemeError> {
    let window = settings.count("window")?;
    let smoothness = match Formulas::of(settings)? {
        Formulas::Robust => Smoothness::Rate,
        Formulas::Printed => Smoothness::Measured,
    };
    build_dynamic(
        GainModel::Estimated(Box::new(GainEstimator::new(window, smoothness, setup.rate_rule))),
        settings,
        setup,
    )
}

/// Builds DBW or blind DBW.
pub(super) fn build_dynamic(
    gain_model: GainModel,
    settings: &Settings<'_>,
    setup: &Setup,
) -> Result<Box<dyn Quorum>, SchemeError> {
    let beta = settings.number("beta")?;
    let guard = match Formulas::of(settings)? {
        Formulas::Robust => LossGuard::clear(beta, WINDOW),
        Formulas::Printed => LossGuard::printed(beta),
    };
    let memory = settings.parsed("memory")?;
    let times = (setup.workers <= MAX_WORKERS).then(|| IterationTimes::new(setup.workers, memory).ok()).flatten();
    let times = times.ok_or_else(|| settings.too_many_workers(MAX_WORKERS))?;
    Ok(Box::new(DynamicQuorum::new(gain_model, times, guard)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, Span, Version};
    use crate::{RateRule, TaskId, UpdateNorm};

    fn dynamic(gain_model: GainModel, workers: usize) -> DynamicQuorum {
        let times = IterationTimes::new(workers, Memory::All).unwrap();
        DynamicQuorum::new(gain_model, times, LossGuard::printed(1.01))
    }

    fn estimating(workers: usize) -> DynamicQuorum {
        dynamic(GainModel::Estimated(Box::new(GainEstimator::new(5, Smoothness::Measured, RateRule::FIXED))), workers)
    }

    /// Runs an iteration whose gradients arrive `arrivals` seconds after its start, and returns the next k.
    fn iterate(
        quorum: &mut DynamicQuorum,
        version: u64,
        arrivals: &[f64],
        updates: usize,
        aggregate: Option<&Aggregate>,
    ) -> usize {
        let began = Time(version * 1_000_000_000_000);
        for seconds in arrivals {
            let now = began + Span::from_seconds(*seconds);
            quorum.on_arrival(&Arrival {
                worker: WorkerId(0),
                version: Version(version),
                timely: true,
                compute: Span::ZERO,
                started: began,
                now,
            });
        }
        let end = Time((version + 1) * 1_000_000_000_000);
        quorum.on_committed(end, updates, aggregate);
        quorum.choose(end, arrivals.len())
    }

    /// Gradients whose true norm is `signal` and whose noise is `noise`, aggregated with a rate of 0.1.
    fn aggregate(loss: f64, k: usize, signal: f64, noise: f64) -> Aggregate {
        let k = k as f64;
        let (mean_square, square_of_mean) = (signal + noise, signal + noise / k);
        Aggregate { loss, rate: 0.1, scheduled_rate: 0.1, mean_square, square_of_mean, ..Aggregate::default() }
    }

    #[test]
    fn of_equal_rates_the_largest_k_is_chosen() {
        assert_eq!(best_rate(|k| k as f64, &[1.0, 2.0, 3.0]), Some(3));
        assert_eq!(best_rate(|_| 1.0, &[1.0, 1.0 + 1e-12, 5.0]), Some(2));
        assert_eq!(best_rate(|k| k as f64 - 2.5, &[1.0, 1.0, 1.0, 9.0]), Some(3));
        assert_eq!(best_rate(|_| 0.0, &[0.0, 1.0]), Some(2));
        assert_eq!(best_rate(|_| 1.0, &[0.0, 0.0, 1.0]), Some(2));
        assert_eq!(best_rate(|_| -1.0, &[1.0, 2.0]), None);
    }

    #[test]
    fn the_first_two_iterations_wait_for_all() {
        let mut quorum = estimating(4);
        assert_eq!(quorum.choose(Time::START, 1), usize::MAX);
        assert!(matches!(
            quorum.reason(4, 4),
            Reason::Chosen { choice: QuorumChoice::NothingKnown, estimate: None, .. }
        ));
        assert_eq!(iterate(&mut quorum, 0, &[1.0, 2.0, 3.0, 4.0], 4, Some(&aggregate(2.0, 4, 1.0, 0.1))), usize::MAX);
        // Little noise and a late last gradient: a smaller k is better.
        let k = iterate(&mut quorum, 1, &[1.0, 2.0, 3.0, 40.0], 4, Some(&aggregate(1.95, 4, 1.0, 0.1)));
        assert_eq!(k, 1);
        let Reason::Chosen { choice: QuorumChoice::BestRate, estimate: Some(estimate), .. } = quorum.reason(1, 4)
        else {
            panic!("{:?}", quorum.reason(1, 4));
        };
        assert_eq!(estimate.seconds, 1.0);
        assert!(estimate.gain > 0.0);
    }

    #[test]
    fn more_noise_gives_a_larger_k() {
        let after = |noise: f64, loss: f64| {
            let mut quorum = estimating(4);
            quorum.choose(Time::START, 4);
            iterate(&mut quorum, 0, &[1.0, 1.1, 1.2, 3.0], 4, Some(&aggregate(2.0, 4, 1.0, noise)));
            let k = iterate(&mut quorum, 1, &[1.0, 1.1, 1.2, 3.0], 4, Some(&aggregate(loss, 4, 1.0, noise)));
            (k, quorum.choice)
        };
        assert_eq!(after(0.01, 1.95), (1, QuorumChoice::BestRate));
        assert_eq!(after(1.0, 1.95), (3, QuorumChoice::BestRate));
        assert_eq!(after(1.0, 2.01), (4, QuorumChoice::NoGain));
    }

    /// The k that maximizes the gain per second, tried one by one with the formulas written out: the rate of k, the
    /// gradient and the noise of the last iteration, and L = 1/(2η).
    fn best_by_trying(rule: &str, signal: f64, noise: f64, arrivals: &[f64]) -> usize {
        let workers = arrivals.len() as f64;
        let ratio = |k: f64| (noise + signal) / (noise / k + signal);
        let rate = |k: f64| match rule {
            "proportional" => 0.1 * k / workers,
            "sqrt" => 0.1 * (k / workers).sqrt(),
            "adascale" => 0.1 * ratio(k) / ratio(workers),
            _ => 0.1,
        };
        let gain = |k: f64| rate(k) * signal - (0.5 / 0.1) * rate(k) * rate(k) / 2.0 * (signal + noise / k);
        let per_second = |k: &usize| gain(*k as f64) / arrivals[k - 1];
        let best = (1..=arrivals.len()).max_by(|a, b| per_second(a).total_cmp(&per_second(b))).unwrap();
        if per_second(&best) < 0.0 { arrivals.len() } else { best }
    }

    #[test]
    fn the_gain_uses_the_rate_that_k_would_get() {
        let arrivals = [1.0, 1.1, 1.4, 1.5, 2.0, 2.3, 4.0, 9.0];
        let mut chosen = Vec::new();
        for rule in ["fixed", "proportional", "sqrt", "adascale"] {
            for (signal, noise) in [(1.0, 0.01), (1.0, 1.0), (1.0, 5.0), (1.0, 20.0), (0.1, 10.0)] {
                let estimator = GainEstimator::new(5, Smoothness::Rate, rule.parse().unwrap());
                let mut quorum = dynamic(GainModel::Estimated(Box::new(estimator)), 8);
                quorum.choose(Time::START, 8);
                let norm = |worker| UpdateNorm { task: TaskId { worker: WorkerId(worker), number: 0 }, square: 1.0 };
                let aggregate = Aggregate { norms: (0..8).map(norm).collect(), ..aggregate(2.0, 8, signal, noise) };
                let k = iterate(&mut quorum, 0, &arrivals, 8, Some(&aggregate));
                assert_eq!(k, best_by_trying(rule, signal, noise, &arrivals), "{rule}, noise {noise}");
                chosen.push(k);
            }
        }
        assert!(chosen[..5] != chosen[5..10], "the rule makes a difference: {chosen:?}");
    }

    #[test]
    fn k_grows_when_the_loss_rises() {
        let mut quorum = dynamic(GainModel::Blind, 4);
        quorum.choose(Time::START, 4);
        let arrivals = [1.0, 10.0, 20.0, 30.0];
        assert_eq!(iterate(&mut quorum, 0, &arrivals, 4, Some(&aggregate(1.0, 4, 1.0, 1.0))), 1);
        assert_eq!(iterate(&mut quorum, 1, &arrivals, 1, Some(&aggregate(1.005, 4, 1.0, 1.0))), 1);
        assert_eq!(iterate(&mut quorum, 2, &arrivals, 1, Some(&aggregate(1.1, 4, 1.0, 1.0))), 2);
        assert_eq!(quorum.choice, QuorumChoice::LossRose);
        // k was already the number of workers.
        assert_eq!(iterate(&mut quorum, 3, &arrivals, 4, Some(&aggregate(1.2, 4, 1.0, 1.0))), 1);
    }

    #[test]
    fn times_of_other_batch_sizes_are_forgotten() {
        let workers = [0, 1, 2, 3].map(WorkerId);
        let next_k = |multiples: [f64; 4]| {
            let mut quorum = dynamic(GainModel::Blind, 4);
            quorum.begin(&mut workers.map(|worker| (worker, 1.0)).into_iter());
            quorum.choose(Time::START, 4);
            assert_eq!(iterate(&mut quorum, 0, &[1.0, 1.0, 1.0, 9.0], 4, None), 3);
            quorum.begin(&mut workers.into_iter().zip(multiples));
            quorum.choose(Time(1_000_000_000_000), 4)
        };
        assert_eq!(next_k([1.0; 4]), 3);
        assert_eq!(next_k([1.1, 0.9, 1.2, 1.0]), 3, "a small change");
        assert_eq!(next_k([1.3, 1.3, 1.3, 0.15]), 4, "the fourth is no longer late, and all are measured again");
    }

    #[test]
    fn without_a_model_only_blind_dbw_chooses_k() {
        let mut blind = dynamic(GainModel::Blind, 2);
        blind.choose(Time::START, 1);
        assert_eq!(iterate(&mut blind, 0, &[1.0, 3.0], 2, None), 1);
        let mut estimating = estimating(2);
        estimating.choose(Time::START, 1);
        assert_eq!(iterate(&mut estimating, 0, &[1.0, 3.0], 2, None), usize::MAX);
    }

    #[test]
    fn k_follows_workers_that_join_and_leave() {
        let mut quorum = dynamic(GainModel::Blind, 4);
        quorum.choose(Time::START, 4);
        assert_eq!(iterate(&mut quorum, 0, &[1.0; 4], 4, None), 4);
        // Two workers left. What was measured with four idle workers no longer counts.
        assert_eq!(iterate(&mut quorum, 1, &[1.0; 2], 2, None), 2);
        // A table without samples for the third worker makes its k attractive.
        assert_eq!(iterate(&mut quorum, 2, &[1.0; 3], 2, None), 3);
        assert_eq!(iterate(&mut quorum, 3, &[1.0; 3], 3, None), 3);
    }
}
