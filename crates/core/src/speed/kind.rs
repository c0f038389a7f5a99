//! The predictors by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::learner::Learner;
use super::networks::{Lstm, Narx, Recurrent};
use super::{Arima, Ema, Memoryless, SpeedPredictor};

const RNN: usize = 11;
const LSTM: usize = 14;
const NARX: usize = 17;

/// A kind of speed predictor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PredictorKind {
    /// The last speed.
    Memoryless,
    /// An exponential moving average (α = 0.2).
    Ema,
    /// ARIMA(2,2,1), fitted online.
    Arima,
    /// A plain recurrent network over the last two speeds.
    Rnn,
    /// A long short-term memory over the last two speeds.
    Lstm,
    /// A network over the last two speeds and the CPU and memory in use now and one iteration ago.
    Narx,
}

impl PredictorKind {
    /// Every kind with its name.
    pub const NAMES: [(&'static str, PredictorKind); 6] = [
        ("narx", PredictorKind::Narx),
        ("memoryless", PredictorKind::Memoryless),
        ("ema", PredictorKind::Ema),
        ("arima", PredictorKind::Arima),
        ("rnn", PredictorKind::Rnn),
        ("lstm", PredictorKind::Lstm),
    ];

    /// The number of trained weights; 0 for predictors that don't learn.
    pub fn weights(self) -> usize {
        match self {
            PredictorKind::Memoryless | PredictorKind::Ema | PredictorKind::Arima => 0,
            PredictorKind::Rnn => RNN,
            PredictorKind::Lstm => LSTM,
            PredictorKind::Narx => NARX,
        }
    }

    /// Builds a predictor. One that learns uses a moving average for the first `warm_up` iterations, or for at most 20
    /// with trained `weights`. Weights of the wrong length are ignored.
    pub fn build(self, warm_up: usize, weights: Option<&[f64]>) -> Box<dyn SpeedPredictor> {
        match self {
            PredictorKind::Memoryless => Box::new(Memoryless::default()),
            PredictorKind::Ema => Box::new(Ema::default()),
            PredictorKind::Arima => Box::new(Arima::default()),
            PredictorKind::Rnn => Box::new(Learner::<RNN, Recurrent>::new(warm_up, weights)),
            PredictorKind::Lstm => Box::new(Learner::<LSTM, Lstm>::new(warm_up, weights)),
            PredictorKind::Narx => Box::new(Learner::<NARX, Narx>::new(warm_up, weights)),
        }
    }
}

impl FromStr for PredictorKind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let found = PredictorKind::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|&(_, kind)| kind).ok_or("narx, memoryless, ema, arima, rnn or lstm")
    }
}

impl fmt::Display for PredictorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = PredictorKind::NAMES.iter().find(|(_, kind)| kind == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}
