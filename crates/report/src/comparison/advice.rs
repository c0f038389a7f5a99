//! What to use after a comparison: a safe answer, and a bold one.

use paceline_core::StepKind;

use super::paired::written;
use super::ranking::BASELINE;
use super::{ContestantRuns, Difference, FEWEST_SEEDS, PairedRatio, RankedContestant, Ranking, RunResult};
use crate::numbers::{counted, ratio};

/// A scheme that needed fewer samples than this share of the baseline's owes a part of its speed to that.
const FEWER_SAMPLES: f64 = 0.95;

/// A smaller gain is no reason to leave the baseline, nor unbiased steps for others.
const LEAST_GAIN: f64 = 1.05;

/// Why the safe answer is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SafeGrounds {
    /// It is faster than the baseline, beyond the noise of the seeds.
    Faster,
    /// It is the baseline. No other safe scheme is faster beyond the noise.
    NothingFaster,
    /// It is the baseline. There are too few seeds to tell who is faster.
    TooFewSeeds,
    /// It is the fastest safe scheme that reached the target in every run, which the baseline did not.
    BaselineMissed,
    /// It is the fastest safe scheme. The baseline was not compared.
    NoBaseline,
}

/// The scheme to use if nothing is known of how a model bears stale gradients.
#[derive(Debug, Clone, PartialEq)]
pub struct SafeAnswer {
    /// The scheme.
    pub place: RankedContestant,
    /// Why this one.
    pub grounds: SafeGrounds,
    /// How many times as fast as the baseline it is; `None` without a baseline to compare with.
    pub over_baseline: Option<PairedRatio>,
    /// It needed fewer samples than the baseline, which is a matter of the model and its learning rate. So samples per second
    /// are compared, instead of times to target.
    pub by_speed: bool,
}

/// A scheme that is faster than the safe answer, and rests on more.
#[derive(Debug, Clone, PartialEq)]
pub struct BoldAnswer {
    /// The scheme.
    pub place: RankedContestant,
    /// How many times as fast it is as the safe answer; `None` if there is none.
    pub over_safe: Option<PairedRatio>,
    /// How many samples it needed, as a share of the baseline's, if those were clearly fewer.
    pub fewer_samples: Option<f64>,
}

/// What to use after a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// The best of the [safe](StepKind::is_safe) schemes, or the baseline if none is faster beyond the noise. `None` if no
    /// safe scheme reached the target in every run.
    pub safe: Option<SafeAnswer>,
    /// The best of all, if it is faster than the safe answer beyond the noise, or there are too few seeds to tell.
    pub bold: Option<BoldAnswer>,
}

impl Advice {
    /// The answers that follow from these runs and their ranking.
    pub fn new(all_runs: &[ContestantRuns], ranking: &Ranking) -> Self {
        let compared = ComparedRuns { all_runs, ranking };
        let safe = compared.safe();
        let bold = compared.bold(safe.as_ref());
        Advice { safe, bold }
    }
}

/// All runs and their ranking.
struct ComparedRuns<'a> {
    all_runs: &'a [ContestantRuns],
    ranking: &'a Ranking,
}

impl<'a> ComparedRuns<'a> {
    fn runs_of(&self, name: &str) -> &'a [RunResult] {
        self.all_runs.iter().find(|contestant| contestant.name == name).map_or(&[], |found| &found.runs)
    }

    /// Those that reached the target in every run, the fastest first.
    fn finished(&self) -> impl Iterator<Item = &'a RankedContestant> + use<'a> {
        self.ranking.places.iter().filter(|place| place.finished())
    }

    fn baseline(&self) -> Option<&'a RankedContestant> {
        self.ranking.places.iter().find(|place| place.name == BASELINE)
    }

    fn safe(&self) -> Option<SafeAnswer> {
        let places = || self.finished().filter(|place| place.step_kind.is_safe());
        let first = places().next()?;
        let without = |place: &RankedContestant, grounds| {
            Some(SafeAnswer { place: place.clone(), grounds, over_baseline: None, by_speed: false })
        };
        let Some(baseline) = self.baseline() else { return without(first, SafeGrounds::NoBaseline) };
        if !baseline.finished() {
            return without(first, SafeGrounds::BaselineMissed);
        }
        let compare = |place: &'a RankedContestant| {
            let by_speed = place.samples_used < baseline.samples_used;
            let compare = if by_speed { PairedRatio::of_speeds } else { PairedRatio::new };
            let pair = compare(self.runs_of(&place.name), self.runs_of(BASELINE))?;
            let faster = pair.difference() == Difference::Faster && pair.ratio >= LEAST_GAIN;
            faster.then_some((place, pair, by_speed))
        };
        let faster: Vec<_> = places().filter_map(compare).collect();
        let best = faster.iter().map(|(_, pair, _)| pair.ratio).fold(0.0, f64::max);
        let level = faster.into_iter().filter(|(_, pair, _)| pair.ratio * LEAST_GAIN >= best);
        // Among those that are about as fast, the one that demands least of the model.
        let chosen = level
            .min_by(|(a, own, _), (b, other, _)| a.step_kind.cmp(&b.step_kind).then(other.ratio.total_cmp(&own.ratio)));
        if let Some((place, pair, by_speed)) = chosen {
            let grounds = SafeGrounds::Faster;
            return Some(SafeAnswer { place: place.clone(), grounds, over_baseline: Some(pair), by_speed });
        }
        let too_few = baseline.runs < FEWEST_SEEDS && first.name != BASELINE;
        without(baseline, if too_few { SafeGrounds::TooFewSeeds } else { SafeGrounds::NothingFaster })
    }

    fn bold(&self, safe: Option<&SafeAnswer>) -> Option<BoldAnswer> {
        let answer = |place: &RankedContestant, over_safe| {
            let share = self.baseline().map(|baseline| place.samples_used / baseline.samples_used);
            let fewer_samples = share.filter(|&share| share < FEWER_SAMPLES);
            BoldAnswer { place: place.clone(), over_safe, fewer_samples }
        };
        let Some(safe) = safe else { return self.finished().next().map(|place| answer(place, None)) };
        let bolder = |place: &RankedContestant| {
            let pair = PairedRatio::new(self.runs_of(&place.name), self.runs_of(&safe.place.name))?;
            let may_be = matches!(pair.difference(), Difference::Faster | Difference::Unknown);
            may_be.then(|| answer(place, Some(pair)))
        };
        self.finished().take_while(|place| place.place < safe.place.place).find_map(bolder)
    }
}

fn times_as_fast(pair: PairedRatio, other: &str, seeds: usize) -> String {
    let seeds = counted(seeds, "seed");
    let noise = pair.interval.map_or(format!("{seeds}, no interval"), |ends| format!("{}, {seeds}", written(ends)));
    format!("{} times as fast as {other} ({noise})", ratio(pair.ratio))
}

impl SafeAnswer {
    /// The scheme and why, in a few sentences.
    pub fn explanation(&self) -> String {
        let name = &self.place.name;
        let seeds = counted(self.place.runs, "seed");
        let made_of = match self.place.step_kind {
            StepKind::Averaged => "It averages replicas, and uses no gradient of an earlier model.",
            _ => "Its steps are made of gradients of the newest model.",
        };
        match self.grounds {
            SafeGrounds::Faster => {
                let pair = self.over_baseline.map(|pair| times_as_fast(pair, BASELINE, self.place.runs));
                let by_speed = if self.by_speed { " by samples per second" } else { "" };
                format!("{name}, {}{by_speed}. {made_of}", pair.unwrap_or_default())
            }
            SafeGrounds::NothingFaster => format!(
                "stay with {name}. Without stale gradients, and without needing fewer samples, no scheme is 5 % faster beyond \
                 the noise of {seeds}."
            ),
            SafeGrounds::TooFewSeeds => format!(
                "stay with {name}. {seeds} can't tell what is faster from noise: give at least {FEWEST_SEEDS} with --seeds."
            ),
            SafeGrounds::BaselineMissed => {
                format!("{name}. {BASELINE} did not reach the target in every run. {made_of}")
            }
            SafeGrounds::NoBaseline => {
                format!("{name}, the fastest without stale gradients. {BASELINE} was not compared. {made_of}")
            }
        }
    }
}

impl BoldAnswer {
    /// The scheme, and how it compares. What else it rests on is for the caller to say, who knows what was simulated.
    pub fn explanation(&self, safe: Option<&SafeAnswer>) -> String {
        let place = &self.place;
        let over_baseline = place.speedup.map(|ratio| {
            let pair = PairedRatio { ratio, interval: place.speedup_low.zip(place.speedup_high) };
            times_as_fast(pair, BASELINE, place.runs)
        });
        let other_than_baseline = safe.filter(|safe| safe.place.name != BASELINE).zip(self.over_safe);
        let over_safe = other_than_baseline.map(|(safe, pair)| times_as_fast(pair, &safe.place.name, place.runs));
        let parts = [Some(place.name.clone()), over_baseline, over_safe];
        let mut text = format!("{}.", parts.into_iter().flatten().collect::<Vec<_>>().join(", "));
        if let Some(share) = self.fewer_samples {
            let share = 100.0 * share;
            text +=
                &format!(" It needed {share:.0} % as many samples as {BASELINE}: a matter of the model and the rate.");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::result;

    const BSP: [f64; 4] = [100.0, 140.0, 80.0, 110.0];

    fn contestant(name: &str, step_kind: StepKind, times: &[Option<f64>]) -> ContestantRuns {
        let runs = (1..).zip(times).map(|(seed, time)| result(name, seed, *time)).collect();
        ContestantRuns { name: name.into(), step_kind, rate: 0.1, at_edge: None, runs }
    }

    /// A contestant that is this many times as fast as bsp, with a little noise.
    fn times_faster(name: &str, step_kind: StepKind, speedup: f64) -> ContestantRuns {
        let noise = [1.01, 0.98, 1.0, 1.02];
        let times: Vec<Option<f64>> = BSP.iter().zip(noise).map(|(time, noise)| Some(time * noise / speedup)).collect();
        contestant(name, step_kind, &times)
    }

    fn bsp() -> ContestantRuns {
        contestant("bsp", StepKind::Fresh, &BSP.map(Some))
    }

    fn advice(all_runs: &[ContestantRuns]) -> (Option<(String, SafeGrounds)>, Option<String>, Advice) {
        let ranking = Ranking::new(all_runs, &"accuracy>0.9,samples=1000".parse().unwrap());
        let advice = Advice::new(all_runs, &ranking);
        let safe = advice.safe.as_ref().map(|safe| (safe.place.name.clone(), safe.grounds));
        (safe, advice.bold.as_ref().map(|bold| bold.place.name.clone()), advice)
    }

    #[test]
    fn the_best_safe_scheme_and_the_best_of_all() {
        let (safe, bold, advice) = advice(&[
            bsp(),
            times_faster("asp", StepKind::Stale, 3.0),
            times_faster("lb-bsp", StepKind::Fresh, 2.0),
            times_faster("esync", StepKind::Averaged, 1.5),
        ]);
        assert_eq!(safe, Some(("lb-bsp".into(), SafeGrounds::Faster)));
        assert_eq!(bold.as_deref(), Some("asp"));
        let (safe, bold) = (advice.safe.unwrap(), advice.bold.unwrap());
        assert_eq!(
            safe.explanation(),
            "lb-bsp, 2.00 times as fast as bsp (1.94 to 2.05, 4 seeds). Its steps are made of gradients of the newest model."
        );
        assert_eq!(
            bold.explanation(Some(&safe)),
            "asp, 2.99 times as fast as bsp (2.91 to 3.08, 4 seeds), 1.50 times as fast as lb-bsp (1.50 to 1.50, 4 seeds)."
        );
    }

    #[test]
    fn a_stale_scheme_that_can_not_be_told_from_the_safe_one_is_no_answer() {
        let wobbly = contestant("asp", StepKind::Stale, &[45.0, 75.0, 35.0, 56.0].map(Some));
        let (safe, bold, _) = advice(&[bsp(), times_faster("lb-bsp", StepKind::Fresh, 2.0), wobbly]);
        assert_eq!((safe.unwrap().0.as_str(), bold), ("lb-bsp", None));
    }

    #[test]
    fn without_a_safe_gain_beyond_noise_it_is_bsp() {
        let wobbly = contestant("backup:k=3", StepKind::Fresh, &[90.0, 150.0, 75.0, 105.0].map(Some));
        let (safe, bold, advice) = advice(&[bsp(), wobbly, times_faster("asp", StepKind::Stale, 1.4)]);
        assert_eq!(safe, Some(("bsp".into(), SafeGrounds::NothingFaster)));
        assert_eq!(bold.as_deref(), Some("asp"));
        let explanation = advice.safe.as_ref().unwrap().explanation();
        let expected = "stay with bsp. Without stale gradients, and without needing fewer samples, no scheme is 5 % faster beyond \
                        the noise of 4 seeds.";
        assert_eq!(explanation, expected);
        let bold = advice.bold.unwrap().explanation(advice.safe.as_ref());
        assert!(bold.starts_with("asp, 1.40 times as fast as bsp (") && !bold.contains("), "), "{bold}");
    }

    #[test]
    fn a_safe_scheme_gets_no_credit_for_needing_fewer_samples() {
        let fewer = |name, speedup| {
            let mut contestant = times_faster(name, StepKind::Averaged, speedup);
            contestant.runs.iter_mut().for_each(|run| run.summary.samples_used /= 2);
            contestant
        };
        // Twice as fast by half the samples: a matter of the rate.
        let (safe, bold, advice_of_half) = advice(&[bsp(), fewer("anytime", 2.0)]);
        assert_eq!(safe, Some(("bsp".into(), SafeGrounds::NothingFaster)));
        assert_eq!(bold.as_deref(), Some("anytime"));
        let bold = advice_of_half.bold.unwrap().explanation(advice_of_half.safe.as_ref());
        assert!(bold.ends_with("It needed 50 % as many samples as bsp: a matter of the model and the rate."), "{bold}");
        // At equal samples 1.5 times as fast.
        let (safe, _, advice_of_more) =
            advice(&[bsp(), fewer("anytime", 3.0), times_faster("lb-bsp", StepKind::Fresh, 1.4)]);
        assert_eq!(safe, Some(("anytime".into(), SafeGrounds::Faster)));
        let safe = advice_of_more.safe.unwrap();
        let ratio = safe.over_baseline.unwrap().ratio;
        assert!((ratio - 1.5).abs() < 0.02, "{ratio}");
        assert!(safe.explanation().contains(", 4 seeds) by samples per second. It averages"), "{}", safe.explanation());
    }

    #[test]
    fn of_equally_fast_schemes_the_one_with_unbiased_steps_is_safer() {
        let averaging = |speedup| times_faster("anytime", StepKind::Averaged, speedup);
        let (safe, _, _) = advice(&[bsp(), averaging(2.05), times_faster("lb-bsp", StepKind::Fresh, 2.0)]);
        assert_eq!(safe.unwrap().0, "lb-bsp");
        let (safe, _, _) = advice(&[bsp(), averaging(2.2), times_faster("lb-bsp", StepKind::Fresh, 2.0)]);
        assert_eq!(safe.unwrap().0, "anytime");
        let (safe, _, _) = advice(&[bsp(), times_faster("lb-bsp", StepKind::Fresh, 1.04)]);
        assert_eq!(safe.unwrap(), ("bsp".into(), SafeGrounds::NothingFaster), "a gain of 4 % is too small");
    }

    #[test]
    fn one_seed_is_no_ground_to_leave_bsp() {
        let one = |name, kind, time| contestant(name, kind, &[Some(time)]);
        let all_runs = [one("bsp", StepKind::Fresh, 10.0), one("backup:k=3", StepKind::Fresh, 5.0)];
        let (safe, bold, advice) = advice(&all_runs);
        assert_eq!(safe, Some(("bsp".into(), SafeGrounds::TooFewSeeds)));
        assert_eq!(bold.as_deref(), Some("backup:k=3"));
        let bold = advice.bold.unwrap().explanation(advice.safe.as_ref());
        assert_eq!(bold, "backup:k=3, 2.00 times as fast as bsp (1 seed, no interval).");
    }

    #[test]
    fn bsp_may_be_missing_or_miss_the_target() {
        let asp = || times_faster("asp", StepKind::Stale, 3.0);
        let (safe, bold, _) = advice(&[times_faster("backup:k=3", StepKind::Fresh, 2.0), asp()]);
        assert_eq!(safe, Some(("backup:k=3".into(), SafeGrounds::NoBaseline)));
        assert_eq!(bold.as_deref(), Some("asp"));
        let missing = contestant("bsp", StepKind::Fresh, &[Some(9.0), None, Some(9.0), Some(9.0)]);
        let (safe, _, _) = advice(&[missing, times_faster("backup:k=3", StepKind::Fresh, 2.0)]);
        assert_eq!(safe, Some(("backup:k=3".into(), SafeGrounds::BaselineMissed)));
        let (safe, bold, _) = advice(&[asp()]);
        assert_eq!((safe, bold.as_deref()), (None, Some("asp")));
        let never = contestant("bsp", StepKind::Fresh, &[None; 4]);
        let (safe, bold, _) = advice(&[never]);
        assert_eq!((safe, bold), (None, None));
    }
}
