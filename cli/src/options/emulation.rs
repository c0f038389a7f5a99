//! Straggling on purpose, as written: a factor, or times.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use paceline_core::WorkerId;
use paceline_net::Emulation;
use paceline_sim::{Ranks, Times, TimesSpec};

/// How a worker is late: so many times slower, or by times such as `shifted-exponential:0.3,0.7` or `trace:FILE`.
#[derive(Debug, Clone, PartialEq)]
pub enum DelaySpec {
    /// So many times slower than it is.
    Factor(f64),
    /// Its tasks take so long, or as long as they take where that is longer.
    Times(TimesSpec),
}

impl FromStr for DelaySpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        match text.parse::<f64>() {
            Ok(factor) if factor.is_finite() && factor >= 1.0 => Ok(DelaySpec::Factor(factor)),
            Ok(_) => Err(anyhow!("expected a factor of at least 1, or times such as lognormal:-2,0.5")),
            Err(_) => {
                text.parse().map(DelaySpec::Times).map_err(|error| anyhow!("expected a factor, or times: {error}"))
            }
        }
    }
}

impl std::fmt::Display for DelaySpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DelaySpec::Factor(factor) => write!(f, "{factor}"),
            DelaySpec::Times(times) => write!(f, "{times}"),
        }
    }
}

impl DelaySpec {
    /// Makes it ready for one worker; a trace is read, and the worker's own column of it is used.
    pub fn load(&self, worker: WorkerId, seed: u64) -> anyhow::Result<Emulation> {
        match self {
            DelaySpec::Factor(factor) => Ok(Emulation::factor(*factor)),
            DelaySpec::Times(spec) => {
                let times = Times::load(spec).with_context(|| format!("--emulate {spec}"))?;
                let mut spans = times.spans(seed, worker);
                let next = move || spans.next().map_or(Duration::ZERO, |span| Duration::from_nanos(span.0));
                Ok(Emulation::times(format!("tasks take {spec}"), next))
            }
        }
    }
}

/// Which workers are late, and how: `3=3.0`, `0-1=lognormal:-2,0.5`.
#[derive(Debug, Clone)]
pub struct StragglerSpec {
    /// Who.
    pub ranks: Ranks,
    /// How.
    pub lateness: DelaySpec,
}

impl FromStr for StragglerSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (ranks, lateness) =
            text.split_once('=').ok_or_else(|| anyhow!("expected RANKS=FACTOR or RANKS=TIMES (3=3.0)"))?;
        Ok(StragglerSpec { ranks: ranks.parse()?, lateness: lateness.parse()? })
    }
}

impl std::fmt::Display for StragglerSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.ranks, self.lateness)
    }
}
