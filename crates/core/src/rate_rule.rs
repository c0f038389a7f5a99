//! How the learning rate of a step depends on the number of gradients in it.

use std::fmt;
use std::str::FromStr;

use paceline_spec::{Form, Spec, SpecError};
use serde::{Deserialize, Serialize};

use crate::Aggregate;

/// How the learning rate of a step follows from the number k of its gradients.
///
/// The rate is meant for a step of `reference` gradients. A step of k has f(k) / f(reference) times as much, where f is
/// the rule's.
///
/// As text: `fixed`, `proportional`, `sqrt` or `adascale`, the last three with an optional `reference`: `adascale:1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RateRule {
    /// The rule.
    pub kind: RateRuleKind,
    /// The number of gradients that the rate is meant for; `None` for one of every worker.
    pub reference: Option<u32>,
}

/// What a [`RateRule`] makes of k.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RateRuleKind {
    /// f(k) = 1.
    #[default]
    Fixed,
    /// f(k) = k: every sample moves the model equally far.
    Proportional,
    /// f(k) = √k.
    Sqrt,
    /// f(k) = [`GradientNoise::gain`] (Johnson et al., 2020): 1 if all gradients are equal, k if they are pure noise.
    AdaScale,
}

impl RateRule {
    /// The rate does not depend on k.
    pub const FIXED: RateRule = RateRule { kind: RateRuleKind::Fixed, reference: None };

    /// The factor on the learning rate of a step of `k` gradients in a run of `workers` workers.
    pub fn factor(&self, k: usize, workers: usize, noise: &GradientNoise) -> f64 {
        let reference = self.reference.map_or(workers, |reference| reference as usize).max(1);
        let of = |k: usize| match self.kind {
            RateRuleKind::Fixed => 1.0,
            RateRuleKind::Proportional => k as f64,
            RateRuleKind::Sqrt => (k as f64).sqrt(),
            RateRuleKind::AdaScale => noise.gain(k),
        };
        of(k) / of(reference)
    }

    /// How far a step with this [factor](RateRule::factor) moves along the schedule. Under AdaScale a schedule counts
    /// steps of the reference size, and every step is worth its gain; else it counts steps.
    pub fn advance(&self, factor: f64) -> f64 {
        if self.kind == RateRuleKind::AdaScale { factor } else { 1.0 }
    }
}

const FORMS: &[Form<'_>] = &[
    Form::new("fixed", &[]),
    Form::new("proportional", &["reference"]),
    Form::new("sqrt", &["reference"]),
    Form::new("adascale", &["reference"]),
];

impl FromStr for RateRule {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let spec = Spec::parse("learning rate rule", text, FORMS)?;
        let kind = match spec.name() {
            "fixed" => RateRuleKind::Fixed,
            "proportional" => RateRuleKind::Proportional,
            "sqrt" => RateRuleKind::Sqrt,
            _ => RateRuleKind::AdaScale,
        };
        let reference = match kind {
            RateRuleKind::Fixed => None,
            _ => spec.optional("reference", "a whole number, at least 1", |&count: &u32| count > 0)?,
        };
        Ok(RateRule { kind, reference })
    }
}

impl TryFrom<String> for RateRule {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<RateRule> for String {
    fn from(rule: RateRule) -> Self {
        rule.to_string()
    }
}

impl fmt::Display for RateRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.kind {
            RateRuleKind::Fixed => "fixed",
            RateRuleKind::Proportional => "proportional",
            RateRuleKind::Sqrt => "sqrt",
            RateRuleKind::AdaScale => "adascale",
        };
        paceline_spec::write(f, name, [self.reference.map(|reference| reference.to_string())])
    }
}

/// How much of a gradient is noise: moving averages of its variance σ² and of the squared norm μ² of the true gradient,
/// over the commits so far (Johnson et al., AdaScale SGD, 2020, section 4 and appendix B).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct GradientNoise {
    variance: f64,
    square: f64,
    /// The share of the averages that comes from commits; the rest is their start, zero.
    weight: f64,
}

/// A commit of k gradients counts for k of this many.
const MEMORY: f64 = 1000.0;

impl GradientNoise {
    /// Takes in the statistics of a commit. One gradient alone shows no noise.
    pub fn observe(&mut self, aggregate: &Aggregate) {
        self.observe_replicas(aggregate, 1.0);
    }

    /// Takes in the statistics of a commit of replicas that have done this many iterations each, on average. The
    /// difference of a replica has less noise than a gradient: that of its iterations averages out.
    pub fn observe_replicas(&mut self, aggregate: &Aggregate, iterations: f64) {
        let k = aggregate.norms.len() as f64;
        if k < 2.0 {
            return;
        }
        // With weights by samples, the noise of the mean is that of one gradient of average size, divided by k.
        let variance = k * (aggregate.mean_square - aggregate.square_of_mean) / (k - 1.0);
        let square = aggregate.square_of_mean - variance / k;
        let variance = variance * iterations;
        if !(variance.is_finite() && square.is_finite()) {
            return;
        }
        let keep = (1.0 - k / MEMORY).max(0.0);
        self.variance = keep * self.variance + (1.0 - keep) * variance;
        self.square = keep * self.square + (1.0 - keep) * square;
        self.weight = keep * self.weight + (1.0 - keep);
    }

    /// The variance of a gradient over its squared norm; `None` as long as nothing is measured.
    pub fn ratio(&self) -> Option<f64> {
        let (variance, square) = (self.variance.max(0.0), self.square.max(0.0));
        (self.weight > 0.0 && variance + square > 0.0).then_some(variance / square)
    }

    /// AdaScale's gain ratio: how many steps of one gradient a step of `k` gradients is worth, from 1 to k. It is 1 as
    /// long as no noise is measured.
    pub fn gain(&self, k: usize) -> f64 {
        let (variance, square) = (self.variance.max(0.0), self.square.max(0.0));
        let all = variance + square;
        if self.weight > 0.0 && all > 0.0 { all / (variance / k.max(1) as f64 + square) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TaskId, UpdateNorm, WorkerId};

    /// The statistics of `k` gradients with the true squared norm `square` and this variance.
    fn aggregate(k: u32, square: f64, variance: f64) -> Aggregate {
        let norm =
            |worker| UpdateNorm { task: TaskId { worker: WorkerId(worker), number: 0 }, square: square + variance };
        Aggregate {
            mean_square: square + variance,
            square_of_mean: square + variance / f64::from(k),
            norms: (0..k).map(norm).collect(),
            ..Aggregate::default()
        }
    }

    fn noise(k: u32, square: f64, variance: f64) -> GradientNoise {
        let mut noise = GradientNoise::default();
        noise.observe(&aggregate(k, square, variance));
        noise
    }

    fn factors(rule: &str, noise: &GradientNoise) -> Vec<f64> {
        let rule: RateRule = rule.parse().unwrap();
        [1, 2, 4, 8].map(|k| rule.factor(k, 8, noise)).to_vec()
    }

    fn assert_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        let close = |(found, expected): (&f64, &f64)| (found - expected).abs() < 1e-12;
        assert!(found.iter().zip(expected).all(close), "{found:?}; expected {expected:?}");
    }

    #[test]
    fn each_rule_has_its_factors() {
        let unknown = GradientNoise::default();
        assert_eq!(factors("fixed", &unknown), [1.0; 4]);
        assert_eq!(factors("proportional", &unknown), [0.125, 0.25, 0.5, 1.0]);
        assert_eq!(factors("proportional:1", &unknown), [1.0, 2.0, 4.0, 8.0]);
        assert_eq!(factors("sqrt:4", &unknown), [0.5, 0.5_f64.sqrt(), 1.0, 2.0_f64.sqrt()]);
        assert_eq!(factors("adascale", &unknown), [1.0; 4], "nothing is measured yet");
        // σ² = 6, μ² = 2: r(k) = 8 / (6/k + 2) = 1, 8/5, 8/3.5, 8/2.75.
        assert_close(&factors("adascale:1", &noise(4, 2.0, 6.0)), &[1.0, 1.6, 8.0 / 3.5, 8.0 / 2.75]);
        assert_close(&factors("adascale", &noise(4, 2.0, 6.0)), &[2.75 / 8.0, 2.75 / 5.0, 2.75 / 3.5, 1.0]);
    }

    #[test]
    fn adascale_is_fixed_with_equal_gradients_and_proportional_with_pure_noise() {
        for rule in ["", ":1", ":4"] {
            let named = |name: &str| format!("{name}{rule}");
            assert_close(&factors(&named("adascale"), &noise(8, 3.0, 0.0)), &factors("fixed", &noise(8, 3.0, 0.0)));
            let pure = noise(8, 0.0, 5.0);
            assert_close(&factors(&named("adascale"), &pure), &factors(&named("proportional"), &pure));
        }
    }

    #[test]
    fn noise_is_averaged_over_commits_and_a_single_gradient_shows_none() {
        let mut noise = noise(2, 1.0, 4.0);
        let before = noise;
        noise.observe(&aggregate(1, 9.0, 0.0));
        assert_eq!(noise, before);
        noise.observe(&aggregate(4, 3.0, 8.0));
        // Weights 0.002·0.996 and 0.004.
        let mean = |first: f64, second: f64| (0.001992 * first + 0.004 * second) / 0.005992;
        let (variance, square) = (mean(4.0, 8.0), mean(1.0, 3.0));
        assert_close(&[noise.gain(5)], &[(variance + square) / (variance / 5.0 + square)]);
    }

    #[test]
    fn steps_count_by_their_gain_under_adascale_only() {
        let advance = |rule: &str| rule.parse::<RateRule>().unwrap().advance(0.5);
        assert_eq!(["fixed", "proportional", "sqrt", "adascale"].map(advance), [1.0, 1.0, 1.0, 0.5]);
    }

    #[test]
    fn rules_round_trip_through_text() {
        for text in ["fixed", "proportional", "sqrt:8", "adascale:1"] {
            assert_eq!(text.parse::<RateRule>().unwrap().to_string(), text);
        }
        for text in ["fixed:1", "proportional:0", "adascale:x", "linear"] {
            assert!(text.parse::<RateRule>().is_err(), "{text}");
        }
    }
}
