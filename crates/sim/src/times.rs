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

/// The distributions and their parameters; a trace is `trace:FILE`.
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

/// A whole number that must be given, at least `least`.
pub(crate) fn count(spec: &Spec, key: &'static str, least: u32) -> Result<u32, SpecError> {
    let range = f64::from(least)..=f64::from(u32::MAX);
    let accept = |number: &f64| number.fract() == 0.0 && range.contains(number);
    Ok(spec.required(key, &format!("a whole number, at least {least}"), accept)? as u32)
}

impl TimesSpec {
    /// Whether the parameters fit together; if not, how they do.
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
