//! The predictors by name.

use std::fmt;
use std::str::FromStr;

use super::learner::Learner;
use super::networks::{Lstm, Narx, Recurrent};
use super::{Arima, Ema, Memoryless, SpeedPredictor};

const RNN: usize = 11;
const LSTM: usize = 14;
const NARX: usize = 17;

/// A kind of predictor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PredictorKind {
    /// The last speed again.
    Memoryless,
    /// An exponential moving average (α = 0.2).
    Ema,
    /// ARIMA(2,2,1), fitted as it goes.
    Arima,
    /// A plain recurrent network over the last two speeds.
    Rnn,
    /// A long short-term memory over the last two speeds.
    Lstm,
    /// A network over the last two speeds and the CPU and memory in use now and before.
    Narx,
}

impl PredictorKind {
    /// All of them, with the names they are written by.
    pub const NAMES: [(&'static str, PredictorKind); 6] = [
        ("narx", PredictorKind::Narx),
        ("memoryless", PredictorKind::Memoryless),
        ("ema", PredictorKind::Ema),
        ("arima", PredictorKind::Arima),
        ("rnn", PredictorKind::Rnn),
        ("lstm", PredictorKind::Lstm),
    ];

    /// How many weights it learns; 0 if it doesn't learn.
    pub fn weights(self) -> usize {
        match self {
            PredictorKind::Memoryless | PredictorKind::Ema | PredictorKind::Arima => 0,
            PredictorKind::Rnn => RNN,
            PredictorKind::Lstm => LSTM,
            PredictorKind::Narx => NARX,
        }
    }

    /// A predictor. One that learns is served for by a moving average for `warm_up` iterations, or, with the `weights`
    /// of another, almost not at all. Weights that are not of its size are passed over.
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
