//! The model and its guide: their tensors and what they compute.

use serde::{Deserialize, Serialize};

use super::layers::{Dense, map, multiply, relu, sigmoid, softplus, take};
use crate::pretrained::{Pretrained, PretrainedError, Tensors};

/// The value of the note `kind` in the file of a deep Markov model.
pub const KIND: &str = "deep-markov";

/// The most workers, units or iterations of a model, so that an invalid file can't exhaust the memory.
const MAX_SIZE: usize = 1 << 20;

/// The size of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// The number of workers (the paper's n).
    pub workers: usize,
    /// The length of the guide's window in iterations (ℓ).
    pub lag: usize,
    /// The dimension of the cluster's state.
    pub latent: usize,
    /// The number of units in a hidden layer.
    pub hidden: usize,
}

impl Size {
    /// The names and shapes of the model's tensors. The weights of a dense layer are inputs × outputs.
    pub fn shapes(&self) -> Vec<(String, Vec<usize>)> {
        let Size { workers, latent, hidden, .. } = *self;
        let dense = [
            ("gate1", latent, hidden),
            ("gate2", hidden, latent),
            ("proposal1", latent, hidden),
            ("proposal2", hidden, latent),
            ("carry", latent, latent),
            ("drift", latent, latent),
            ("mean1", latent, hidden),
            ("mean2", hidden, workers),
            ("noise1", workers, hidden),
            ("noise2", hidden, workers),
            ("left", workers, hidden),
            ("right", workers, hidden),
            ("past", latent, hidden),
            ("guess", hidden, latent),
            ("doubt", latent, latent),
        ];
        let layers = dense.into_iter().flat_map(|(name, inputs, outputs)| {
            [(format!("{name}.weight"), vec![inputs, outputs]), (format!("{name}.bias"), vec![outputs])]
        });
        let states = ["left", "right"].map(|name| (format!("{name}.state"), vec![hidden, hidden]));
        layers.chain(states).chain([("start".into(), vec![latent])]).collect()
    }

    /// The notes in the file of a model of this size with this [spread](DeepMarkov::spread).
    pub fn notes(&self, spread: f64) -> impl Iterator<Item = (String, String)> {
        let counts = [("workers", self.workers), ("lag", self.lag), ("latent", self.latent), ("hidden", self.hidden)];
        let counts = counts.map(|(note, count)| (note.into(), count.to_string()));
        let others = [("kind", KIND.into()), ("normalization", NORMALIZATION.into()), ("spread", spread.to_string())];
        counts.into_iter().chain(others.map(|(note, text)| (note.into(), text)))
    }
}

/// The normalization that makes run-times independent of network and batch size: see [`scale`].
const NORMALIZATION: &str = "2 x mean of the first lag";

/// The number that run-times are divided by: twice the mean of the first iterations, the length of the guide's window
/// (section 3.1.3). Iterations that are much slower than the median are ignored: the first one, when real workers warm
/// up, may take a hundred times as long as the others.
pub fn scale(window: &[Vec<f64>]) -> f64 {
    const OUTLIER_FACTOR: f64 = 3.0;
    let mean = |times: &Vec<f64>| times.iter().sum::<f64>() / times.len() as f64;
    let mut means: Vec<f64> = window.iter().map(mean).collect();
    means.sort_by(f64::total_cmp);
    let limit = means.get(means.len() / 2).map_or(0.0, |median| OUTLIER_FACTOR * median);
    let usual = window.iter().filter(|times| mean(times) <= limit);
    let (count, sum) = usual.flatten().fold((0, 0.0), |(count, sum), time| (count + 1, sum + time));
    2.0 * sum / f64::from(count.max(1))
}

/// Independent normal distributions, one per unit and lane.
#[derive(Debug, Clone)]
pub(super) struct Normals {
    pub(super) means: Vec<f32>,
    pub(super) deviations: Vec<f32>,
}

/// A deep Markov model of a cluster's run-times with the guide for it (Cutoff SGD, sections 3.1.2 and 3.1.3).
///
/// Where the paper is incomplete or misprinted: the emission's mean depends on zₜ, not zₜ₋₁; both directions of the
/// guide include xₜ, as in Krishnan et al. (2017), since otherwise z_T would not depend on the newest observation; H, J
/// and L are deviations; the state before a window is the same for all windows, and trained.
#[derive(Debug, Clone, PartialEq)]
pub struct DeepMarkov {
    size: Size,
    spread: f64,
    gate: [Dense; 2],
    proposal: [Dense; 2],
    carry: Dense,
    drift: Dense,
    mean: [Dense; 2],
    noise: [Dense; 2],
    left: Dense,
    left_state: Vec<f32>,
    right: Dense,
    right_state: Vec<f32>,
    past: Dense,
    guess: Dense,
    doubt: Dense,
    start: Vec<f32>,
}

/// An observation, encoded for the guide's two recurrent networks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct EncodedTimes {
    #[serde(with = "crate::number")]
    left: Vec<f32>,
    #[serde(with = "crate::number")]
    right: Vec<f32>,
}

impl DeepMarkov {
    /// The model in a file.
    ///
    /// # Errors
    /// If the file contains another kind of model, or is not complete.
    pub fn new(pretrained: &Pretrained) -> Result<Self, PretrainedError> {
        for (note, expected) in [("kind", KIND), ("normalization", NORMALIZATION)] {
            let found = pretrained.note(note)?;
            if found != expected {
                return Err(PretrainedError::BadNote { note, found: found.into(), allowed: expected.into() });
            }
        }
        let size = Size {
            workers: pretrained.count("workers", MAX_SIZE)?,
            lag: pretrained.count("lag", MAX_SIZE)?,
            latent: pretrained.count("latent", MAX_SIZE)?,
            hidden: pretrained.count("hidden", MAX_SIZE)?,
        };
        let text = pretrained.note("spread")?;
        let spread = text.parse().ok().filter(|spread: &f64| spread.is_finite() && *spread > 0.0);
        let allowed = || "a number above 0".into();
        let spread = spread.ok_or_else(|| PretrainedError::BadNote {
            note: "spread",
            found: text.into(),
            allowed: allowed(),
        })?;
        DeepMarkov::of(size, &pretrained.tensors, spread)
    }

    /// The model with these tensors and this [spread](DeepMarkov::spread).
    ///
    /// # Errors
    /// If a tensor is missing or unknown, has another shape, or is not finite.
    pub fn of(size: Size, tensors: &Tensors, spread: f64) -> Result<Self, PretrainedError> {
        let shapes = size.shapes();
        for (name, expected) in &shapes {
            let (found, values) =
                tensors.get(name).ok_or_else(|| PretrainedError::MissingTensor { name: name.clone() })?;
            if found != expected || values.len() != expected.iter().product::<usize>() {
                let (name, found, expected) = (name.clone(), found.clone(), expected.clone());
                return Err(PretrainedError::WrongShape { name, found, expected });
            }
            if !values.iter().all(|value| value.is_finite()) {
                return Err(PretrainedError::NotFinite { name: name.clone() });
            }
        }
        if let Some(name) = tensors.keys().find(|name| !shapes.iter().any(|(known, _)| known == *name)) {
            return Err(PretrainedError::UnknownTensor { name: name.clone() });
        }
        let dense = |name| Dense::take(tensors, name);
        Ok(DeepMarkov {
            size,
            spread,
            gate: [dense("gate1")?, dense("gate2")?],
            proposal: [dense("proposal1")?, dense("proposal2")?],
            carry: dense("carry")?,
            drift: dense("drift")?,
            mean: [dense("mean1")?, dense("mean2")?],
            noise: [dense("noise1")?, dense("noise2")?],
            left: dense("left")?,
            left_state: take(tensors, "left.state")?,
            right: dense("right")?,
            right_state: take(tensors, "right.state")?,
            past: dense("past")?,
            guess: dense("guess")?,
            doubt: dense("doubt")?,
            start: take(tensors, "start")?,
        })
    }

    /// The model, if it is for this number of workers.
    ///
    /// # Errors
    /// If it is for another number.
    pub fn for_workers(self, workers: usize) -> Result<Self, PretrainedError> {
        let found = self.size.workers;
        if found == workers { Ok(self) } else { Err(PretrainedError::OtherWorkers { found, expected: workers }) }
    }

    /// The size of the model.
    pub fn size(&self) -> Size {
        self.size
    }

    /// The factor by which order statistics deviate more from their forecasts than the model's draws from each other;
    /// measured on validation data.
    pub fn spread(&self) -> f64 {
        self.spread
    }

    /// The state before a window, in each lane.
    pub(super) fn start(&self, lanes: usize) -> Vec<f32> {
        self.start.iter().flat_map(|&value| std::iter::repeat_n(value, lanes)).collect()
    }

    /// p(zₜ | zₜ₋₁): the gated transition G, H.
    pub(super) fn transition(&self, state: &[f32], lanes: usize) -> Normals {
        let two = |[first, second]: &[Dense; 2]| second.forward(&relu(first.forward(state, lanes)), lanes);
        let gate = map(two(&self.gate), sigmoid);
        let proposal = two(&self.proposal);
        let mut means = self.carry.forward(state, lanes);
        for ((mean, gate), proposal) in means.iter_mut().zip(&gate).zip(&proposal) {
            *mean = (1.0 - gate) * *mean + gate * proposal;
        }
        let deviations = map(self.drift.forward(&relu(means.clone()), lanes), softplus);
        Normals { means, deviations }
    }

    /// p(xₜ | zₜ): the emission I, J.
    pub(super) fn emission(&self, state: &[f32], lanes: usize) -> Normals {
        let means = self.mean[1].forward(&self.mean[0].forward(state, lanes), lanes);
        let hidden = relu(self.noise[0].forward(&means, lanes));
        let deviations = map(self.noise[1].forward(&hidden, lanes), softplus);
        Normals { means, deviations }
    }

    /// Encodes a normalized observation for the guide.
    pub(super) fn encode(&self, times: &[f32]) -> EncodedTimes {
        EncodedTimes { left: self.left.forward(times, 1), right: self.right.forward(times, 1) }
    }

    /// h_left + h_right for each observation of a window.
    pub(super) fn context<'a>(
        &self,
        window: impl DoubleEndedIterator<Item = &'a EncodedTimes> + Clone,
    ) -> Vec<Vec<f32>> {
        let run = |weight: &[f32], inputs: &mut dyn Iterator<Item = &Vec<f32>>| {
            let mut state = vec![0.0; self.size.hidden];
            let step = |input: &Vec<f32>| {
                let mut next = input.clone();
                multiply(weight, &state, 1, &mut next);
                state = relu(next);
                state.clone()
            };
            inputs.map(step).collect::<Vec<_>>()
        };
        let left = run(&self.left_state, &mut window.clone().map(|times| &times.left));
        let right = run(&self.right_state, &mut window.rev().map(|times| &times.right));
        let sum =
            |(left, right): (Vec<f32>, Vec<f32>)| left.iter().zip(right).map(|(left, right)| left + right).collect();
        left.into_iter().zip(right.into_iter().rev()).map(sum).collect()
    }

    /// q(zₜ | zₜ₋₁, x): the guide K, L, given [`context`](DeepMarkov::context) of xₜ.
    pub(super) fn guide(&self, state: &[f32], context: &[f32], lanes: usize) -> Normals {
        let mut hidden = map(self.past.forward(state, lanes), libm::tanhf);
        for (hidden, context) in hidden.chunks_exact_mut(lanes).zip(context) {
            hidden.iter_mut().for_each(|value| *value = (*value + context) / 3.0);
        }
        let means = self.guess.forward(&hidden, lanes);
        let deviations = map(self.doubt.forward(&means, lanes), softplus);
        Normals { means, deviations }
    }
}

impl Normals {
    /// A draw of each, with standard normal noise.
    pub(super) fn draw(&self, mut noise: impl FnMut() -> f32) -> Vec<f32> {
        self.means.iter().zip(&self.deviations).map(|(mean, deviation)| mean + deviation * noise()).collect()
    }
}
