//! Emulated stragglers, as `--emulate` takes them.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use paceline_core::WorkerId;
use paceline_net::Emulation;
use paceline_sim::{Ranks, Times, TimesSpec};

/// How a worker is slowed down: by a factor, or to times such as `shifted-exponential:0.3,0.7` or `trace:FILE`.
#[derive(Debug, Clone, PartialEq)]
pub enum DelaySpec {
    /// Every task takes this many times as long.
    Factor(f64),
    /// Every task takes at least a time drawn from these.
    Times(TimesSpec),
}

impl FromStr for DelaySpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        match text.parse::<f64>() {
            Ok(factor) if factor.is_finite() && factor >= 1.0 => Ok(DelaySpec::Factor(factor)),
            Ok(_) => Err(anyhow!("expected a factor of at least 1, or times such as lognormal:-2,0.5")),
            Err(_) => {
                text.parse().map(DelaySpec::Times).map_err(|error| anyhow!("expected a factor or times: {error}"))
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
    /// The file that is read, if there is one.
    pub fn file(&self) -> Option<&Path> {
        if let DelaySpec::Times(TimesSpec::Trace { path }) = self { Some(path) } else { None }
    }

    /// Prepares the emulation of one worker. A trace is read; the worker uses its own column.
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

/// Which workers are slowed down, and how: `3=3.0`, `0-1=lognormal:-2,0.5`.
#[derive(Debug, Clone)]
pub struct StragglerSpec {
    /// The workers.
    pub ranks: Ranks,
    /// Their delay.
    pub delay: DelaySpec,
}

impl StragglerSpec {
    /// Checks that these are ranks of a run with this many workers.
    pub fn check(&self, workers: usize) -> anyhow::Result<()> {
        let last = self.ranks.last();
        if last.index() >= workers {
            bail!("--emulate {self}: {last} does not exist; expected ranks 0 to {}", workers - 1);
        }
        Ok(())
    }
}

impl FromStr for StragglerSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (ranks, delay) =
            text.split_once('=').ok_or_else(|| anyhow!("expected RANKS=FACTOR or RANKS=TIMES, such as 3=3.0"))?;
        Ok(StragglerSpec { ranks: ranks.parse()?, delay: delay.parse()? })
    }
}

impl std::fmt::Display for StragglerSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.ranks, self.delay)
    }
}
