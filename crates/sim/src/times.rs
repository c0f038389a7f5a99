//! How long tasks take.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use paceline_core::speed::Resources;
use paceline_core::{Span, Time, WorkerId};
use paceline_trace::{Trace, TraceError};
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1, LogNormal, Pareto, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::contention::{SharedCluster, SharedMachine};
use crate::devices;
use crate::interference::{Interference, Pattern};

/// The distribution of a task's time, in seconds.
///
/// As text: `deterministic:1`, `uniform:0.5,1.5`, `shifted-exponential:0.3,0.7`, `pareto:1,2.5`, `lognormal:0,0.5`,
/// `normal:1,0.1`, `markov:1,5,0.02,0.1`, `correlated:4,0,0.5,0.8`, `regimes:4,1,0.1,2.5,61`,
/// `bursts:4,1,0.1,3,0.02,0.1`, `periodic:4,1,0.1,2,40,8`, `contention:l2,1`, `gpu:1`, `trace:FILE`.
///
/// The times are those of the setup's batch size; smaller and larger tasks take in proportion, on GPUs by their own law.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TimesSpec {
    /// Always the same.
    Deterministic {
        /// How long.
        seconds: f64,
    },
    /// Anything between two bounds.
    Uniform {
        /// The least.
        low: f64,
        /// The most.
        high: f64,
    },
    /// At least `shift`, then exponential.
    ShiftedExponential {
        /// The least.
        shift: f64,
        /// The mean of what comes on top.
        scale: f64,
    },
    /// Heavy-tailed.
    Pareto {
        /// The least.
        scale: f64,
        /// The larger, the lighter the tail.
        shape: f64,
    },
    /// The logarithm is normal.
    LogNormal {
        /// Mean of the logarithm.
        mu: f64,
        /// Deviation of the logarithm.
        sigma: f64,
    },
    /// Each worker is normal or slow, and changes between tasks.
    Markov {
        /// Time of a task when normal.
        normal: f64,
        /// Time of a task when slow.
        slow: f64,
        /// Probability of becoming slow, per task.
        fall: f64,
        /// Probability of becoming normal again, per task.
        recover: f64,
    },
    /// Log-normal, and the workers of a host are slow together.
    Correlated {
        /// Workers are dealt to so many hosts in turn.
        hosts: u32,
        /// Mean of the logarithm.
        mu: f64,
        /// Deviation of the logarithm.
        sigma: f64,
        /// Share of the logarithm's variance that a host's workers have in common.
        share: f64,
    },
    /// Normal, and hosts are slowed down now and then, all of their workers alike.
    Hosts {
        /// Workers are dealt to so many hosts in turn.
        hosts: u32,
        /// Mean time of a task on a host that is left alone.
        mean: f64,
        /// Its deviation.
        deviation: f64,
        /// When which hosts are slowed down; `None` for never.
        pattern: Option<Pattern>,
    },
    /// Machines shared with other tasks, which take CPU and memory from the workers.
    Contention {
        /// Which machines, and what else they do.
        cluster: SharedCluster,
        /// A batch's time on a machine that does nothing else.
        seconds: f64,
    },
    /// GPUs of three types, dealt out in turn.
    Gpu {
        /// A batch's time on the slowest type.
        seconds: f64,
    },
    /// As recorded: each worker goes through its column, then begins again.
    Trace {
        /// The file.
        path: PathBuf,
    },
}

/// What is wrong with times as written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("times '{text}': {problem}")]
pub struct TimesError {
    /// What was written.
    pub text: String,
    /// What is wrong, and what is allowed.
    pub problem: String,
}

const FORMS: &str = "deterministic:SECONDS, uniform:LOW,HIGH, shifted-exponential:SHIFT,SCALE, pareto:SCALE,SHAPE, \
                     lognormal:MU,SIGMA, normal:MEAN,DEVIATION, markov:NORMAL,SLOW,P_FALL,P_RECOVER, \
                     correlated:HOSTS,MU,SIGMA,SHARE, \
                     regimes:HOSTS,MEAN,DEVIATION,FACTOR,FIRST[,NORMAL,SLOW], \
                     bursts:HOSTS,MEAN,DEVIATION,FACTOR,P_BEGIN,P_END, \
                     periodic:HOSTS,MEAN,DEVIATION,FACTOR,PERIOD,LENGTH, \
                     contention:l1|l2|l3|production[,SECONDS], gpu:SECONDS or trace:FILE";

impl FromStr for TimesSpec {
    type Err = TimesError;

    fn from_str(text: &str) -> Result<Self, TimesError> {
        let wrong = |problem: String| TimesError { text: text.into(), problem };
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        if name == "trace" {
            if rest.is_empty() {
                return Err(wrong("expected trace:FILE".into()));
            }
            return Ok(TimesSpec::Trace { path: rest.into() });
        }
        if name == "contention" {
            let (cluster, seconds) = rest.split_once(',').unwrap_or((rest, "1"));
            let cluster = cluster.parse().map_err(|allowed: &str| wrong(allowed.into()))?;
            let seconds = seconds.trim().parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds > 0.0);
            let seconds = seconds.ok_or_else(|| wrong("a task must take more than 0 seconds".into()))?;
            return Ok(TimesSpec::Contention { cluster, seconds });
        }
        let numbers: Vec<f64> = rest
            .split(',')
            .map(|number| number.trim().parse().ok().filter(|number: &f64| number.is_finite()))
            .collect::<Option<_>>()
            .ok_or_else(|| wrong(format!("expected {FORMS}")))?;
        let spec = match (name, numbers.as_slice()) {
            ("deterministic", &[seconds]) => TimesSpec::Deterministic { seconds },
            ("gpu", &[seconds]) => TimesSpec::Gpu { seconds },
            ("uniform", &[low, high]) => TimesSpec::Uniform { low, high },
            ("shifted-exponential", &[shift, scale]) => TimesSpec::ShiftedExponential { shift, scale },
            ("pareto", &[scale, shape]) => TimesSpec::Pareto { scale, shape },
            ("lognormal", &[mu, sigma]) => TimesSpec::LogNormal { mu, sigma },
            ("markov", &[normal, slow, fall, recover]) => TimesSpec::Markov { normal, slow, fall, recover },
            ("correlated", &[hosts, mu, sigma, share]) if is_count(hosts) => {
                TimesSpec::Correlated { hosts: hosts as u32, mu, sigma, share }
            }
            ("normal", &[mean, deviation]) => TimesSpec::Hosts { hosts: 1, mean, deviation, pattern: None },
            (name, &[hosts, mean, deviation, ref pattern @ ..])
                if is_count(hosts) && Pattern::NAMES.contains(&name) =>
            {
                let pattern = Pattern::of(name, pattern).map_err(|problem| wrong(problem.into()))?;
                TimesSpec::Hosts { hosts: hosts as u32, mean, deviation, pattern: Some(pattern) }
            }
            _ => return Err(wrong(format!("expected {FORMS}"))),
        };
        spec.problem().map_or(Ok(spec), |problem| Err(wrong(problem.into())))
    }
}

/// Whether a number counts something.
pub(crate) fn is_count(number: f64) -> bool {
    number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number)
}

impl TimesSpec {
    /// Why there are no such times.
    fn problem(&self) -> Option<&'static str> {
        let probability = |p: f64| (0.0..=1.0).contains(&p);
        let (sound, problem) = match *self {
            TimesSpec::Deterministic { seconds }
            | TimesSpec::Gpu { seconds }
            | TimesSpec::Contention { seconds, .. } => (seconds > 0.0, "a task must take more than 0 seconds"),
            TimesSpec::Uniform { low, high } => {
                (0.0 <= low && low <= high && high > 0.0, "expected 0 ≤ LOW ≤ HIGH, HIGH > 0")
            }
            TimesSpec::ShiftedExponential { shift, scale } => (
                shift >= 0.0 && scale >= 0.0 && shift + scale > 0.0,
                "SHIFT and SCALE must not be negative, nor both 0",
            ),
            TimesSpec::Pareto { scale, shape } => (scale > 0.0 && shape > 0.0, "SCALE and SHAPE must be above 0"),
            TimesSpec::LogNormal { sigma, .. } => (sigma >= 0.0, "SIGMA must not be negative"),
            TimesSpec::Markov { normal, slow, fall, recover } => (
                normal > 0.0 && slow > 0.0 && probability(fall) && probability(recover),
                "NORMAL and SLOW must be above 0, P_FALL and P_RECOVER from 0 to 1",
            ),
            TimesSpec::Correlated { hosts, sigma, share, .. } => (
                hosts > 0 && sigma >= 0.0 && probability(share),
                "HOSTS must be above 0, SIGMA must not be negative, SHARE from 0 to 1",
            ),
            TimesSpec::Hosts { mean, deviation, pattern: None, .. } => {
                (mean > 0.0 && deviation >= 0.0, "MEAN must be above 0, DEVIATION must not be negative")
            }
            TimesSpec::Hosts { hosts, mean, deviation, .. } => (
                hosts > 0 && mean > 0.0 && deviation >= 0.0,
                "HOSTS and MEAN must be above 0, DEVIATION must not be negative",
            ),
            TimesSpec::Trace { .. } => (true, ""),
        };
        (!sound).then_some(problem)
    }
}

impl fmt::Display for TimesSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TimesSpec::Deterministic { seconds } => write!(f, "deterministic:{seconds}"),
            TimesSpec::Uniform { low, high } => write!(f, "uniform:{low},{high}"),
            TimesSpec::ShiftedExponential { shift, scale } => write!(f, "shifted-exponential:{shift},{scale}"),
            TimesSpec::Pareto { scale, shape } => write!(f, "pareto:{scale},{shape}"),
            TimesSpec::LogNormal { mu, sigma } => write!(f, "lognormal:{mu},{sigma}"),
            TimesSpec::Markov { normal, slow, fall, recover } => write!(f, "markov:{normal},{slow},{fall},{recover}"),
            TimesSpec::Correlated { hosts, mu, sigma, share } => write!(f, "correlated:{hosts},{mu},{sigma},{share}"),
            TimesSpec::Hosts { mean, deviation, pattern: None, .. } => write!(f, "normal:{mean},{deviation}"),
            TimesSpec::Hosts { hosts, mean, deviation, pattern: Some(pattern) } => {
                write!(f, "{}:{hosts},{mean},{deviation},{pattern}", pattern.name())
            }
            TimesSpec::Contention { cluster, seconds } => write!(f, "contention:{cluster},{seconds}"),
            TimesSpec::Gpu { seconds } => write!(f, "gpu:{seconds}"),
            TimesSpec::Trace { path } => write!(f, "trace:{}", path.display()),
        }
    }
}

impl TryFrom<String> for TimesSpec {
    type Error = TimesError;
    fn try_from(text: String) -> Result<Self, TimesError> {
        text.parse()
    }
}

impl From<TimesSpec> for String {
    fn from(spec: TimesSpec) -> String {
        spec.to_string()
    }
}

/// Times ready to be drawn: a trace is read.
#[derive(Debug, Clone)]
pub struct Times {
    law: Law,
}

#[derive(Debug, Clone)]
enum Law {
    Deterministic(f64),
    Uniform(f64, f64),
    ShiftedExponential(f64, f64),
    Pareto(Pareto<f64>),
    LogNormal(LogNormal<f64>),
    Markov { normal: f64, slow: f64, fall: f64, recover: f64 },
    Correlated { hosts: u32, mu: f64, own: f64, common: f64 },
    Hosts { hosts: u32, mean: f64, deviation: f64, pattern: Option<Pattern> },
    Contention(SharedCluster, f64),
    Gpu(f64),
    Trace(Arc<Trace>),
}

impl Times {
    /// Makes times ready.
    ///
    /// # Errors
    /// If a trace can't be read.
    pub fn load(spec: &TimesSpec) -> Result<Self, TraceError> {
        let checked = "a spec's numbers were checked when it was read";
        let law = match *spec {
            TimesSpec::Deterministic { seconds } => Law::Deterministic(seconds),
            TimesSpec::Uniform { low, high } => Law::Uniform(low, high),
            TimesSpec::ShiftedExponential { shift, scale } => Law::ShiftedExponential(shift, scale),
            TimesSpec::Pareto { scale, shape } => Law::Pareto(Pareto::new(scale, shape).expect(checked)),
            TimesSpec::LogNormal { mu, sigma } => Law::LogNormal(LogNormal::new(mu, sigma).expect(checked)),
            TimesSpec::Markov { normal, slow, fall, recover } => Law::Markov { normal, slow, fall, recover },
            TimesSpec::Correlated { hosts, mu, sigma, share } => {
                Law::Correlated { hosts, mu, own: sigma * (1.0 - share).sqrt(), common: sigma * share.sqrt() }
            }
            TimesSpec::Hosts { hosts, mean, deviation, pattern } => Law::Hosts { hosts, mean, deviation, pattern },
            TimesSpec::Contention { cluster, seconds } => Law::Contention(cluster, seconds),
            TimesSpec::Gpu { seconds } => Law::Gpu(seconds),
            TimesSpec::Trace { ref path } => return Ok(Times::of_trace(Trace::read(path)?)),
        };
        Ok(Times { law })
    }

    /// The times of a trace that is at hand.
    pub fn of_trace(trace: Trace) -> Self {
        Times { law: Law::Trace(Arc::new(trace)) }
    }

    /// How many workers a trace is of.
    pub fn traced_workers(&self) -> Option<usize> {
        if let Law::Trace(trace) = &self.law { Some(trace.workers().len()) } else { None }
    }

    /// One worker's times, one task after another, without end.
    pub fn spans(&self, seed: u64, worker: WorkerId) -> impl Iterator<Item = Span> + Send + use<> {
        let (times, mut stream) = (self.clone(), self.stream(seed, worker));
        let mut now = Time::START;
        std::iter::repeat_with(move || {
            let (span, _) = stream.next(&times, worker, now, 1.0);
            now = now + span;
            span
        })
    }

    /// The stream of one worker's times; a function of seed and worker alone.
    pub(crate) fn stream(&self, seed: u64, worker: WorkerId) -> Stream {
        let rng = generator(seed, u64::from(worker.0));
        let machine = match self.law {
            Law::Contention(cluster, seconds) => {
                Some(SharedMachine::new(cluster, seconds, worker, generator(!seed, u64::from(worker.0))))
            }
            _ => None,
        };
        let common = match self.law {
            Law::Correlated { hosts, .. } => Some(generator(!seed, u64::from(worker.0 % hosts))),
            _ => None,
        };
        let interference = match self.law {
            Law::Hosts { hosts, pattern: Some(pattern), .. } => {
                Some(Interference::new(pattern, worker.0 % hosts, hosts, |stream| generator(!seed, stream)))
            }
            _ => None,
        };
        Stream { rng, common, machine, interference, slow: false, tasks: 0 }
    }
}

fn generator(seed: u64, stream: u64) -> Xoshiro256PlusPlus {
    // An odd multiplier spreads neighbouring streams; the generator's own seeding mixes the rest.
    Xoshiro256PlusPlus::seed_from_u64(seed ^ stream.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// One worker's endless stream of times.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    rng: Xoshiro256PlusPlus,
    /// A copy of the host's generator: every worker of the host draws the same from it, task by task.
    common: Option<Xoshiro256PlusPlus>,
    /// The worker's machine, where it is shared with others.
    machine: Option<SharedMachine>,
    /// What slows its host down now and then.
    interference: Option<Interference>,
    slow: bool,
    tasks: usize,
}

impl Stream {
    /// How long the worker's next task takes that begins at `at` and is of `size` batches, and what is in use of its
    /// machine when it is done, where that is known.
    pub(crate) fn next(&mut self, times: &Times, worker: WorkerId, at: Time, size: f64) -> (Span, Option<Resources>) {
        let (seconds, resources) = match (&times.law, &mut self.machine) {
            (_, Some(machine)) => {
                let (seconds, resources) = machine.task(at, size, &mut self.rng);
                (seconds, Some(resources))
            }
            (Law::Gpu(scale), None) => {
                let (seconds, resources) = devices::task(worker, size);
                (seconds * scale, Some(resources))
            }
            (law, None) => (self.draw(law, worker) * size, None),
        };
        self.tasks += 1;
        // Time must pass: a task of no length could go on for ever at one moment.
        (Span(Span::from_seconds(seconds).0.max(1)), resources)
    }

    /// How long the worker's next batch takes, in seconds.
    fn draw(&mut self, law: &Law, worker: WorkerId) -> f64 {
        let rng = &mut self.rng;
        match law {
            Law::Deterministic(seconds) | Law::Contention(_, seconds) | Law::Gpu(seconds) => *seconds,
            Law::Uniform(low, high) => low + (high - low) * rng.random::<f64>(),
            Law::ShiftedExponential(shift, scale) => shift + scale * rng.sample::<f64, _>(Exp1),
            Law::Pareto(law) => law.sample(rng),
            Law::LogNormal(law) => law.sample(rng),
            Law::Markov { normal, slow, fall, recover } => {
                let change = if self.slow { *recover } else { *fall };
                self.slow ^= rng.random::<f64>() < change;
                if self.slow { *slow } else { *normal }
            }
            Law::Correlated { mu, own, common, .. } => {
                let shared: f64 = self.common.as_mut().map_or(0.0, |host| host.sample(StandardNormal));
                (mu + own * rng.sample::<f64, _>(StandardNormal) + common * shared).exp()
            }
            Law::Hosts { mean, deviation, .. } => {
                let factor = self.interference.as_mut().map_or(1.0, Interference::next);
                // Below 0 there are no times; half of the draws or more are above.
                let drawn = std::iter::repeat_with(|| mean + deviation * rng.sample::<f64, _>(StandardNormal));
                factor * drawn.into_iter().find(|&seconds| seconds > 0.0).unwrap_or(*mean)
            }
            Law::Trace(trace) => {
                let column = &trace.workers()[worker.index() % trace.workers().len()];
                column[self.tasks % column.len()]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(text: &str, worker: u32, count: usize) -> Vec<f64> {
        let times = Times::load(&text.parse().unwrap()).unwrap();
        let mut stream = times.stream(7, WorkerId(worker));
        (0..count).map(|_| stream.next(&times, WorkerId(worker), Time::START, 1.0).0.seconds()).collect()
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    #[test]
    fn means_are_as_the_textbooks_say() {
        let expected = [
            ("deterministic:2", 2.0),
            ("uniform:1,3", 2.0),
            ("shifted-exponential:0.3,0.7", 1.0),
            ("pareto:1,3", 1.5),
            ("lognormal:0,0.5", (0.125_f64).exp()),
            // The chain is slow for 0.1 / (0.1 + 0.3) of the time.
            ("markov:1,5,0.1,0.3", 2.0),
            ("correlated:4,0,0.5,0.8", (0.125_f64).exp()),
            ("normal:2,0.5", 2.0),
            // The worker's host is slow in 3 of 10 tasks.
            ("periodic:4,1,0.1,3,10,3", 1.6),
        ];
        for (text, mean_expected) in expected {
            let found = mean(&draw(text, 3, 200_000));
            assert!((found / mean_expected - 1.0).abs() < 0.01, "{text}: {found}");
        }
    }

    #[test]
    fn workers_of_a_host_are_slow_together() {
        let logs =
            |worker| draw("correlated:4,0,1,0.8", worker, 50_000).iter().map(|time| time.ln()).collect::<Vec<_>>();
        let correlation = |a: &[f64], b: &[f64]| mean(&a.iter().zip(b).map(|(a, b)| a * b).collect::<Vec<_>>());
        assert!((correlation(&logs(1), &logs(5)) - 0.8).abs() < 0.03);
        assert!(correlation(&logs(1), &logs(2)).abs() < 0.03);
    }

    #[test]
    fn specs_read_back_and_nonsense_is_refused() {
        for text in [
            "deterministic:1",
            "uniform:0,2",
            "markov:1,5,0.02,0.1",
            "correlated:4,0,0.5,0.8",
            "normal:1,0.2",
            "regimes:4,1,0.1,2.5,61",
            "regimes:4,1,0.1,2.5,61,200,80",
            "bursts:4,1,0.1,3,0.02,0.1",
            "periodic:4,1,0.1,2,40,8",
            "contention:l2,0.5",
            "gpu:2",
            "trace:a.csv",
        ] {
            assert_eq!(text.parse::<TimesSpec>().unwrap().to_string(), text);
        }
        for text in ["", "uniform", "uniform:1", "uniform:2,1", "deterministic:0", "deterministic:NaN", "gamma:1,2"] {
            let error = text.parse::<TimesSpec>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("times '{text}': ")), "{error}");
        }
        for text in [
            "shifted-exponential:-1,2",
            "pareto:1,0",
            "lognormal:0,-1",
            "markov:1,5,2,0",
            "normal:0,1",
            "regimes:4,1,0.1,2.5",
            "regimes:0,1,0.1,2.5,61",
            "regimes:4,1,0.1,0,61",
            "regimes:4,1,0.1,2,61,0.5,9",
            "bursts:4,1,0.1,3,2,0.1",
            "periodic:4,1,0.1,2,8,9",
            "contention:l4",
            "contention:l2,0",
            "gpu:0",
            "trace:",
        ] {
            assert!(text.parse::<TimesSpec>().is_err(), "{text}");
        }
    }
}
