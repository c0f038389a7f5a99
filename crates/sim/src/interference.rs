//! Hosts that are slow for some time, with all of their workers. Run-time predictors have to learn such patterns.

use std::fmt;

use paceline_spec::{Spec, SpecError};
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::times::count;

/// Which hosts are slow, and when. Time is counted in tasks of the worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pattern {
    /// The first host is slow at the start of the run, then none. With `episodes`, normal and slow periods follow in
    /// turn; each slow period is of the next host.
    Regimes {
        /// Slowdown of a slow host.
        factor: f64,
        /// Length of the first slow period, in tasks.
        first: u32,
        /// Mean lengths of the later normal and slow periods, in tasks; `None` if no period follows.
        episodes: Option<(f64, f64)>,
    },
    /// Other jobs start and end on each host, each with a random load.
    Bursts {
        /// The largest slowdown by a job.
        factor: f64,
        /// Probability that a job starts, per task.
        begin: f64,
        /// Probability that the job ends, per task.
        end: f64,
    },
    /// A periodic load that visits all hosts in turn.
    Periodic {
        /// Slowdown of a slow host.
        factor: f64,
        /// Tasks between two visits to a host.
        period: u32,
        /// Length of a visit, in tasks.
        length: u32,
    },
}

impl Pattern {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Pattern::Regimes { .. } => "regimes",
            Pattern::Bursts { .. } => "bursts",
            Pattern::Periodic { .. } => "periodic",
        }
    }

    /// Reads the pattern of a times spec.
    pub(crate) fn read(spec: &Spec) -> Result<Self, SpecError> {
        let factor = |minimum: f64, expected| {
            spec.required("factor", expected, |&factor: &f64| factor.is_finite() && factor >= minimum)
        };
        let probability = |key| spec.required(key, "0 to 1", |p: &f64| (0.0..=1.0).contains(p));
        let length = |key| spec.optional(key, "at least 1", |tasks: &f64| tasks.is_finite() && *tasks >= 1.0);
        match spec.name() {
            "regimes" => {
                let episodes = match (length("normal")?, length("slow")?) {
                    (Some(normal), Some(slow)) => Some((normal, slow)),
                    (None, None) => None,
                    (Some(_), None) => return Err(spec.missing("slow", "at least 1")),
                    (None, Some(_)) => return Err(spec.missing("normal", "at least 1")),
                };
                let first = count(spec, "first", 0)?;
                Ok(Pattern::Regimes { factor: factor(f64::MIN_POSITIVE, "above 0")?, first, episodes })
            }
            "bursts" => {
                let (begin, end) = (probability("p-begin")?, probability("p-end")?);
                Ok(Pattern::Bursts { factor: factor(1.0, "at least 1")?, begin, end })
            }
            _ => {
                let (period, length) = (count(spec, "period", 1)?, count(spec, "length", 0)?);
                if length > period {
                    return Err(spec.bad_value("length", &format!("0 to {period}")));
                }
                Ok(Pattern::Periodic { factor: factor(f64::MIN_POSITIVE, "above 0")?, period, length })
            }
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Regimes { factor, first, episodes: None } => write!(f, "{factor},{first}"),
            Pattern::Regimes { factor, first, episodes: Some((normal, slow)) } => {
                write!(f, "{factor},{first},{normal},{slow}")
            }
            Pattern::Bursts { factor, begin, end } => write!(f, "{factor},{begin},{end}"),
            Pattern::Periodic { factor, period, length } => write!(f, "{factor},{period},{length}"),
        }
    }
}

/// The slowdowns of one worker. All workers of a host are slowed down alike, task by task: each has a copy of the same
/// generator.
#[derive(Debug, Clone)]
pub(crate) struct Interference {
    pattern: Pattern,
    host: u32,
    hosts: u32,
    rng: Xoshiro256PlusPlus,
    tasks: u32,
    /// The slow host under [`Pattern::Regimes`], and the next one.
    slow: Option<u32>,
    next: u32,
    /// The current slowdown under [`Pattern::Bursts`].
    burst: f64,
}

impl Interference {
    /// The slowdowns of a worker on `host`, with random numbers from a stream of `generator`.
    pub(crate) fn new(
        pattern: Pattern,
        host: u32,
        hosts: u32,
        generator: impl FnOnce(u64) -> Xoshiro256PlusPlus,
    ) -> Self {
        // Regimes are shared by the cluster; bursts are independent per host.
        let stream = if matches!(pattern, Pattern::Bursts { .. }) { 1 + u64::from(host) } else { 0 };
        Interference {
            pattern,
            host,
            hosts,
            rng: generator(stream),
            tasks: 0,
            slow: Some(0),
            next: 1 % hosts,
            burst: 1.0,
        }
    }

    /// The slowdown of the next task.
    pub(crate) fn next(&mut self) -> f64 {
        let task = self.tasks;
        self.tasks = self.tasks.wrapping_add(1);
        match self.pattern {
            Pattern::Regimes { factor, first, episodes } => {
                if task == first {
                    self.slow = None;
                } else if let Some((normal, slow)) = episodes.filter(|_| task > first) {
                    // Episodes of mean length m end with probability 1/m after each task.
                    let mean = if self.slow.is_some() { slow } else { normal };
                    if self.rng.random::<f64>() * mean < 1.0 {
                        self.slow = if self.slow.is_some() { None } else { Some(self.next) };
                        self.next = (self.next + u32::from(self.slow.is_some())) % self.hosts;
                    }
                }
                if self.slow == Some(self.host) { factor } else { 1.0 }
            }
            Pattern::Bursts { factor, begin, end } => {
                let (change, weight) = (self.rng.random::<f64>(), self.rng.random::<f64>());
                if self.burst > 1.0 {
                    if change < end {
                        self.burst = 1.0;
                    }
                } else if change < begin {
                    self.burst = 1.0 + (factor - 1.0) * weight;
                }
                self.burst
            }
            Pattern::Periodic { factor, period, length } => {
                let shift = (u64::from(self.host) * u64::from(period) / u64::from(self.hosts)) as u32;
                let phase = (u64::from(task) + u64::from(period - shift)) % u64::from(period);
                if phase < u64::from(length) { factor } else { 1.0 }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_core::WorkerId;

    use crate::times::{Times, TimesSpec};

    /// The times of a worker's first tasks.
    fn times(text: &str, worker: u32, count: usize) -> Vec<f64> {
        let spec: TimesSpec = text.parse().unwrap();
        Times::load(&spec).unwrap().spans(7, WorkerId(worker)).take(count).map(|span| span.seconds()).collect()
    }

    #[test]
    fn one_host_is_slow_until_the_change() {
        for worker in 0..8 {
            let times = times("regimes:4,1,0,2.5,61", worker, 300);
            let slow = if worker % 4 == 0 { 61 } else { 0 };
            assert!(times[..slow].iter().all(|&time| time == 2.5));
            assert!(times[slow..].iter().all(|&time| time == 1.0));
        }
    }

    #[test]
    fn episodes_recur_with_one_slow_host_at_a_time() {
        let all: Vec<Vec<f64>> = (0..8).map(|worker| times("regimes:4,1,0,3,10,40,20", worker, 20_000)).collect();
        let time = |worker: usize, task: usize| all[worker][task];
        let mut slow = [0; 4];
        for task in 10..20_000 {
            let hosts: Vec<usize> = (0..4).filter(|&host| time(host, task) == 3.0).collect();
            assert!(hosts.len() <= 1);
            hosts.iter().for_each(|&host| slow[host] += 1);
            assert!((0..4).all(|host| time(host, task) == time(host + 4, task)));
        }
        // A third of the time, shared by four hosts.
        assert!(slow.iter().all(|&count| (1_000..2_400).contains(&count)), "{slow:?}");
    }

    #[test]
    fn bursts_vary_in_load_and_are_independent_per_host() {
        let of = |worker| times("bursts:4,1,0,3,0.05,0.1", worker, 30_000);
        let (one, same, other) = (of(1), of(5), of(2));
        assert_eq!(one, same);
        let slow = one.iter().filter(|&&time| time > 1.0).count();
        assert!((8_500..11_500).contains(&slow), "{slow}");
        assert!(one.iter().all(|&time| (1.0..=3.0).contains(&time)));
        let both = one.iter().zip(&other).filter(|&(one, other)| *one > 1.0 && *other > 1.0).count();
        assert!((2_500..4_200).contains(&both), "{both}");
    }

    #[test]
    fn periodic_load_visits_all_hosts_in_turn() {
        let slow = |worker| {
            let times = times("periodic:4,1,0,2,40,8", worker, 80);
            (0..80).filter(|&task| times[task] == 2.0).collect::<Vec<usize>>()
        };
        assert_eq!(slow(0), (0..8).chain(40..48).collect::<Vec<_>>());
        assert_eq!(slow(5), (10..18).chain(50..58).collect::<Vec<_>>());
    }
}
