//! How long tasks take.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use paceline_core::speed::Resources;
use paceline_core::{Span, Time, WorkerId};
use paceline_spec::{Form, Spec, SpecError};
use paceline_trace::{Trace, TraceError};
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1, LogNormal, Pareto, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use crate::contention::{SharedCluster, SharedMachine};
use crate::devices;
use crate::interference::{Interference, Pattern};
use crate::subset::RankSet;

/// The distribution of a task's time, in seconds.
///
/// As text: `deterministic:1`, `uniform:0.5,1.5`, `shifted-exponential:0.3,0.7`, `pareto:1,2.5`, `lognormal:0,0.5`,
/// `normal:1,0.1`, `markov:1,5,0.02,0.1`, `correlated:4,0,0.5,0.8`, `regimes:4,1,0.1,2.5,61`,
/// `bursts:4,1,0.1,3,0.02,0.1`, `periodic:4,1,0.1,2,40,8`, `contention:l2,1`, `gpu:1`, `trace:FILE`.
///
/// The times are those of a task of the setup's batch size. The time of other tasks is proportional to their size,
/// except on GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TimesSpec {
    /// Always the same.
    Deterministic {
        /// The time of every task.
        seconds: f64,
    },
    /// Uniform between two bounds.
    Uniform {
        /// The lower bound.
        low: f64,
        /// The upper bound.
        high: f64,
    },
    /// A constant plus an exponential time.
    ShiftedExponential {
        /// The constant part, the shortest time.
        shift: f64,
        /// The mean of the exponential part.
        scale: f64,
    },
    /// Heavy-tailed.
    Pareto {
        /// The shortest time.
        scale: f64,
        /// A larger shape gives a lighter tail.
        shape: f64,
    },
    /// Log-normal.
    LogNormal {
        /// Mean of the logarithm.
        mu: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
    /// Each worker is in a normal or a slow state, and may switch between tasks.
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
    /// Log-normal, correlated between the workers of a host.
    Correlated {
        /// Number of hosts; workers are placed on them round-robin.
        hosts: u32,
        /// Mean of the logarithm.
        mu: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// Share of the logarithm's variance that the workers of a host have in common.
        share: f64,
    },
    /// Normal, with slow periods of whole hosts.
    Hosts {
        /// Number of hosts; workers are placed on them round-robin.
        hosts: u32,
        /// Mean time of a task on an undisturbed host.
        mean: f64,
        /// Standard deviation of that time.
        deviation: f64,
        /// Which hosts are slow, and when; `None` for none.
        pattern: Option<Pattern>,
    },
    /// Machines shared with competing tasks, which take CPU and memory from the workers.
    Contention {
        /// The machines and their competing tasks.
        cluster: SharedCluster,
        /// Time of a batch on an idle machine.
        seconds: f64,
    },
    /// GPUs of three types, assigned to the workers by rank.
    Gpu {
        /// Time of a batch on the slowest type.
        seconds: f64,
    },
    /// Recorded times: each worker repeats its column of a trace.
    Trace {
        /// The trace file.
        path: PathBuf,
    },
}

/// The distributions and their parameters. A trace is given as `trace:FILE`.
const FORMS: &[Form<'_>] = &[
    Form::new("deterministic", &["seconds"]),
    Form::new("uniform", &["low", "high"]),
    Form::new("shifted-exponential", &["shift", "scale"]),
    Form::new("pareto", &["scale", "shape"]),
    Form::new("lognormal", &["mu", "sigma"]),
    Form::new("normal", &["mean", "deviation"]),
    Form::new("markov", &["normal", "slow", "p-fall", "p-recover"]),
    Form::new("correlated", &["hosts", "mu", "sigma", "share"]),
    Form::new("regimes", &["hosts", "mean", "deviation", "factor", "first", "normal", "slow"]),
    Form::new("bursts", &["hosts", "mean", "deviation", "factor", "p-begin", "p-end"]),
    Form::new("periodic", &["hosts", "mean", "deviation", "factor", "period", "length"]),
    Form::new("contention", &["cluster", "seconds"]),
    Form::new("gpu", &["seconds"]),
    Form::new("trace", &["file"]),
];

impl FromStr for TimesSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        // A path may contain commas and equals signs.
        if let Some(path) = text.strip_prefix("trace:").filter(|path| !path.is_empty()) {
            return Ok(TimesSpec::Trace { path: path.into() });
        }
        let spec = Spec::parse("times", text, FORMS)?;
        let number = |key| spec.required(key, "a number", |number: &f64| number.is_finite());
        let count = |key| count(&spec, key, 1);
        let times = match spec.name() {
            "deterministic" => TimesSpec::Deterministic { seconds: number("seconds")? },
            "gpu" => TimesSpec::Gpu { seconds: number("seconds")? },
            "uniform" => TimesSpec::Uniform { low: number("low")?, high: number("high")? },
            "shifted-exponential" => TimesSpec::ShiftedExponential { shift: number("shift")?, scale: number("scale")? },
            "pareto" => TimesSpec::Pareto { scale: number("scale")?, shape: number("shape")? },
            "lognormal" => TimesSpec::LogNormal { mu: number("mu")?, sigma: number("sigma")? },
            "normal" => {
                let (mean, deviation) = (number("mean")?, number("deviation")?);
                TimesSpec::Hosts { hosts: 1, mean, deviation, pattern: None }
            }
            "markov" => TimesSpec::Markov {
                normal: number("normal")?,
                slow: number("slow")?,
                fall: number("p-fall")?,
                recover: number("p-recover")?,
            },
            "correlated" => TimesSpec::Correlated {
                hosts: count("hosts")?,
                mu: number("mu")?,
                sigma: number("sigma")?,
                share: number("share")?,
            },
            "regimes" | "bursts" | "periodic" => TimesSpec::Hosts {
                hosts: count("hosts")?,
                mean: number("mean")?,
                deviation: number("deviation")?,
                pattern: Some(Pattern::read(&spec)?),
            },
            "contention" => TimesSpec::Contention {
                cluster: spec
                    .choice("cluster", &SharedCluster::NAMES)?
                    .ok_or_else(|| spec.missing("cluster", "l1, l2, l3 or production"))?,
                seconds: spec.optional("seconds", "a number", |number: &f64| number.is_finite())?.unwrap_or(1.0),
            },
            _ => return Err(spec.missing("file", "trace:FILE")),
        };
        times.check().map_err(|expected| spec.unfit(expected))?;
        Ok(times)
    }
}

/// A required whole number of at least `minimum`.
pub(crate) fn count(spec: &Spec, key: &'static str, minimum: u32) -> Result<u32, SpecError> {
    let range = f64::from(minimum)..=f64::from(u32::MAX);
    let accept = |number: &f64| number.fract() == 0.0 && range.contains(number);
    Ok(spec.required(key, &format!("a whole number, at least {minimum}"), accept)? as u32)
}

impl TimesSpec {
    /// Checks that the parameters fit together; the error is what is expected.
    fn check(&self) -> Result<(), &'static str> {
        let probability = |p: f64| (0.0..=1.0).contains(&p);
        let (fits, expected) = match *self {
            TimesSpec::Deterministic { seconds }
            | TimesSpec::Gpu { seconds }
            | TimesSpec::Contention { seconds, .. } => (seconds > 0.0, "seconds above 0"),
            TimesSpec::Uniform { low, high } => {
                (0.0 <= low && low <= high && high > 0.0, "low from 0 to high, and high above 0")
            }
            TimesSpec::ShiftedExponential { shift, scale } => {
                (shift >= 0.0 && scale >= 0.0 && shift + scale > 0.0, "shift and scale of at least 0, and not both 0")
            }
            TimesSpec::Pareto { scale, shape } => (scale > 0.0 && shape > 0.0, "scale and shape above 0"),
            TimesSpec::LogNormal { sigma, .. } => (sigma >= 0.0, "sigma of at least 0"),
            TimesSpec::Markov { normal, slow, fall, recover } => (
                normal > 0.0 && slow > 0.0 && probability(fall) && probability(recover),
                "normal and slow above 0, p-fall and p-recover from 0 to 1",
            ),
            TimesSpec::Correlated { sigma, share, .. } => {
                (sigma >= 0.0 && probability(share), "sigma of at least 0, share from 0 to 1")
            }
            TimesSpec::Hosts { mean, deviation, .. } => {
                (mean > 0.0 && deviation >= 0.0, "mean above 0, deviation of at least 0")
            }
            TimesSpec::Trace { .. } => (true, ""),
        };
        if fits { Ok(()) } else { Err(expected) }
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
    type Error = SpecError;
    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<TimesSpec> for String {
    fn from(spec: TimesSpec) -> String {
        spec.to_string()
    }
}

/// Task times, ready to be drawn. A trace is loaded.
#[derive(Debug, Clone)]
pub struct Times {
    distribution: TimeDistribution,
    /// The workers whose times these are, if they are some of those that the distribution is for.
    subset: Option<Arc<RankSet>>,
}

#[derive(Debug, Clone)]
enum TimeDistribution {
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
    /// Loads the times of a spec.
    ///
    /// # Errors
    /// If a trace can't be read.
    pub fn load(spec: &TimesSpec) -> Result<Self, TraceError> {
        let checked = "the parameters are checked when a spec is parsed";
        let distribution = match *spec {
            TimesSpec::Deterministic { seconds } => TimeDistribution::Deterministic(seconds),
            TimesSpec::Uniform { low, high } => TimeDistribution::Uniform(low, high),
            TimesSpec::ShiftedExponential { shift, scale } => TimeDistribution::ShiftedExponential(shift, scale),
            TimesSpec::Pareto { scale, shape } => TimeDistribution::Pareto(Pareto::new(scale, shape).expect(checked)),
            TimesSpec::LogNormal { mu, sigma } => {
                TimeDistribution::LogNormal(LogNormal::new(mu, sigma).expect(checked))
            }
            TimesSpec::Markov { normal, slow, fall, recover } => {
                TimeDistribution::Markov { normal, slow, fall, recover }
            }
            TimesSpec::Correlated { hosts, mu, sigma, share } => TimeDistribution::Correlated {
                hosts,
                mu,
                own: sigma * (1.0 - share).sqrt(),
                common: sigma * share.sqrt(),
            },
            TimesSpec::Hosts { hosts, mean, deviation, pattern } => {
                TimeDistribution::Hosts { hosts, mean, deviation, pattern }
            }
            TimesSpec::Contention { cluster, seconds } => TimeDistribution::Contention(cluster, seconds),
            TimesSpec::Gpu { seconds } => TimeDistribution::Gpu(seconds),
            TimesSpec::Trace { ref path } => return Ok(Times::of_trace(Trace::read(path)?)),
        };
        Ok(Times { distribution, subset: None })
    }

    /// The times of a trace.
    pub fn of_trace(trace: Trace) -> Self {
        Times { distribution: TimeDistribution::Trace(Arc::new(trace)), subset: None }
    }

    /// The times of some of the workers, by their ranks among these.
    pub(crate) fn restricted_to(&self, subset: &RankSet) -> Self {
        Times { distribution: self.distribution.clone(), subset: Some(Arc::new(subset.clone())) }
    }

    /// The worker whose times a worker has.
    fn origin(&self, worker: WorkerId) -> WorkerId {
        let origin = self.subset.as_ref().and_then(|subset| subset.workers().get(worker.index()));
        origin.copied().unwrap_or(worker)
    }

    /// The number of workers in the trace; `None` if the times are not from a trace.
    pub fn traced_workers(&self) -> Option<usize> {
        if let TimeDistribution::Trace(trace) = &self.distribution { Some(trace.workers().len()) } else { None }
    }

    /// The endless sequence of a worker's task times.
    pub fn spans(&self, seed: u64, worker: WorkerId) -> impl Iterator<Item = Span> + Send + use<> {
        let (times, mut task_times) = (self.clone(), self.task_times(seed, worker));
        let mut now = Time::START;
        std::iter::repeat_with(move || {
            let (span, _) = task_times.next(&times, worker, now, 1.0);
            now = now + span;
            span
        })
    }

    /// The generator of a worker's times. It depends only on the seed and the worker.
    pub(crate) fn task_times(&self, seed: u64, worker: WorkerId) -> TaskTimes {
        let worker = self.origin(worker);
        let rng = generator(seed, u64::from(worker.0));
        let machine = match self.distribution {
            TimeDistribution::Contention(cluster, seconds) => {
                Some(SharedMachine::new(cluster, seconds, worker, generator(!seed, u64::from(worker.0))))
            }
            _ => None,
        };
        let common = match self.distribution {
            TimeDistribution::Correlated { hosts, .. } => Some(generator(!seed, u64::from(worker.0 % hosts))),
            _ => None,
        };
        let interference = match self.distribution {
            TimeDistribution::Hosts { hosts, pattern: Some(pattern), .. } => {
                Some(Interference::new(pattern, worker.0 % hosts, hosts, |stream| generator(!seed, stream)))
            }
            _ => None,
        };
        TaskTimes { rng, common, machine, interference, slow: false, tasks: 0 }
    }
}

fn generator(seed: u64, stream: u64) -> Xoshiro256PlusPlus {
    // An odd multiplier separates neighbouring streams; the seeding of the generator mixes the rest.
    Xoshiro256PlusPlus::seed_from_u64(seed ^ stream.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// Generates the task times of one worker.
#[derive(Debug, Clone)]
pub(crate) struct TaskTimes {
    rng: Xoshiro256PlusPlus,
    /// A copy of the host's generator. Every worker of the host draws the same numbers from it, task by task.
    common: Option<Xoshiro256PlusPlus>,
    /// The worker's machine, if it is shared with competing tasks.
    machine: Option<SharedMachine>,
    /// Slow periods of the worker's host.
    interference: Option<Interference>,
    slow: bool,
    tasks: usize,
}

impl TaskTimes {
    /// The run time of the worker's next task, which starts at `at` and has `size` batches, and the resources in use at
    /// its end, if they are simulated.
    #[inline]
    pub(crate) fn next(&mut self, times: &Times, worker: WorkerId, at: Time, size: f64) -> (Span, Option<Resources>) {
        let (seconds, resources) = match (&times.distribution, &mut self.machine) {
            (_, Some(machine)) => {
                let (seconds, resources) = machine.task(at, size, &mut self.rng);
                (seconds, Some(resources))
            }
            (TimeDistribution::Gpu(scale), None) => {
                let (seconds, resources) = devices::task(times.origin(worker), size);
                (seconds * scale, Some(resources))
            }
            (_, None) => (self.draw(times, worker) * size, None),
        };
        self.tasks += 1;
        // At least 1 ns, so that the clock advances.
        (Span(Span::from_seconds(seconds).0.max(1)), resources)
    }

    /// The time of the worker's next batch, in seconds.
    #[inline]
    fn draw(&mut self, times: &Times, worker: WorkerId) -> f64 {
        let rng = &mut self.rng;
        match &times.distribution {
            TimeDistribution::Deterministic(seconds)
            | TimeDistribution::Contention(_, seconds)
            | TimeDistribution::Gpu(seconds) => *seconds,
            TimeDistribution::Uniform(low, high) => low + (high - low) * rng.random::<f64>(),
            TimeDistribution::ShiftedExponential(shift, scale) => shift + scale * rng.sample::<f64, _>(Exp1),
            TimeDistribution::Pareto(pareto) => pareto.sample(rng),
            TimeDistribution::LogNormal(log_normal) => log_normal.sample(rng),
            TimeDistribution::Markov { normal, slow, fall, recover } => {
                let change = if self.slow { *recover } else { *fall };
                self.slow ^= rng.random::<f64>() < change;
                if self.slow { *slow } else { *normal }
            }
            TimeDistribution::Correlated { mu, own, common, .. } => {
                let shared: f64 = self.common.as_mut().map_or(0.0, |host| host.sample(StandardNormal));
                (mu + own * rng.sample::<f64, _>(StandardNormal) + common * shared).exp()
            }
            TimeDistribution::Hosts { mean, deviation, .. } => {
                let factor = self.interference.as_mut().map_or(1.0, Interference::next);
                // Negative times are drawn again; at least half of the draws are positive.
                let drawn = std::iter::repeat_with(|| mean + deviation * rng.sample::<f64, _>(StandardNormal));
                factor * drawn.into_iter().find(|&seconds| seconds > 0.0).unwrap_or(*mean)
            }
            TimeDistribution::Trace(trace) => {
                let column = &trace.workers()[times.origin(worker).index() % trace.workers().len()];
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
        let mut task_times = times.task_times(7, WorkerId(worker));
        (0..count).map(|_| task_times.next(&times, WorkerId(worker), Time::START, 1.0).0.seconds()).collect()
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    #[test]
    fn means_match_the_closed_forms() {
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
    fn times_correlate_within_a_host_only() {
        let logs =
            |worker| draw("correlated:4,0,1,0.8", worker, 50_000).iter().map(|time| time.ln()).collect::<Vec<_>>();
        let correlation = |a: &[f64], b: &[f64]| mean(&a.iter().zip(b).map(|(a, b)| a * b).collect::<Vec<_>>());
        assert!((correlation(&logs(1), &logs(5)) - 0.8).abs() < 0.03);
        assert!(correlation(&logs(1), &logs(2)).abs() < 0.03);
    }

    #[test]
    fn specs_round_trip_and_malformed_specs_are_refused() {
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
        for (text, expected) in [
            ("", "unknown times ''; expected deterministic, uniform,"),
            ("gamma:1,2", "unknown times 'gamma'; expected deterministic, uniform,"),
            ("uniform", "times 'uniform': low is missing; expected a number"),
            ("uniform:1", "times 'uniform': high is missing; expected a number"),
            ("uniform:2,1", "times 'uniform:low=2,high=1'; expected low from 0 to high"),
            ("uniform:1,2,3", "times 'uniform' has no setting '3'; expected low, high"),
            ("deterministic:0", "times 'deterministic:seconds=0'; expected seconds above 0"),
            ("deterministic:NaN", "times 'deterministic': seconds=NaN; expected a number"),
            ("trace:", "times 'trace': file is missing; expected trace:FILE"),
        ] {
            let error = text.parse::<TimesSpec>().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let by_key: TimesSpec = "normal:deviation=0.02,mean=0.3".parse().unwrap();
        assert_eq!(by_key, "normal:0.3,0.02".parse().unwrap());
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
