//! Any [`Network`] and its [`Samples`] as a workload.

use std::sync::Arc;

use burn::tensor::Device;
use paceline_store::Layout;
use paceline_workload::{Draw, Evaluation, Progress, Replica, Workload};

use crate::flat;
use crate::initial;
use crate::network::Network;
use crate::samples::Samples;

/// Held-out samples per evaluation step. It limits memory and does not change the accuracy.
const EVALUATION_BATCH: usize = 250;

/// A network and its samples as a [`Workload`].
///
/// Replicas share only the samples. Each computes on its caller's thread.
pub struct BurnWorkload<N: Network> {
    build: Arc<dyn Fn(&Device) -> N + Send + Sync>,
    samples: Arc<dyn Samples<N::Input, N::Targets>>,
    device: Device,
    layout: Arc<Layout>,
}

impl<N: Network> BurnWorkload<N> {
    /// A workload of the network that `build` creates on a given device, trained on `samples`, on `device`.
    ///
    /// `build` creates one network per replica, always of the same structure. Its initial values matter only if they
    /// are equal in every network: see [`initial`](Workload::initial).
    pub fn new(
        build: impl Fn(&Device) -> N + Send + Sync + 'static,
        samples: impl Samples<N::Input, N::Targets> + 'static,
        device: &Device,
    ) -> Self {
        let device = device.clone().autodiff();
        let layout = flat::layout(&build(&device));
        BurnWorkload { build: Arc::new(build), samples: Arc::new(samples), device, layout: Arc::new(layout) }
    }
}

impl<N: Network> Workload for BurnWorkload<N> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Tensors that are equal in two networks of `build` are kept: constants, such as the ones of a normalization, and
    /// values that the author of the network set. The others are drawn from `seed`: weights uniformly within
    /// ±1/√(fan-in), biases 0.
    ///
    /// Burn's initializers are not used: they draw from one generator per process, which threads share.
    fn initial(&self, seed: u64) -> Vec<f32> {
        let cpu = Device::flex().autodiff();
        let values = || {
            let mut values = vec![0.0; self.layout.len()];
            flat::read(&(self.build)(&cpu), &self.layout, &mut values);
            values
        };
        initial::merge(&self.layout, values(), values(), seed)
    }

    fn has_accuracy(&self) -> bool {
        N::HAS_ACCURACY
    }

    fn replica(&self) -> Box<dyn Replica> {
        Box::new(BurnReplica {
            network: (self.build)(&self.device),
            samples: self.samples.clone(),
            device: self.device.clone(),
            layout: self.layout.clone(),
            progress: Progress::default(),
        })
    }
}

struct BurnReplica<N: Network> {
    network: N,
    samples: Arc<dyn Samples<N::Input, N::Targets>>,
    device: Device,
    layout: Arc<Layout>,
    progress: Progress,
}

impl<N: Network> BurnReplica<N> {
    fn with(&self, parameters: &[f32]) -> N {
        flat::write(self.network.clone(), &self.layout, parameters)
    }
}

impl<N: Network> Replica for BurnReplica<N> {
    fn gradient(&mut self, parameters: &[f32], draw: Draw, gradient: &mut [f32]) -> f64 {
        let network = self.with(parameters);
        let batch = self.samples.draw(draw, &self.device);
        self.progress.step();
        let loss = network.loss(batch);
        self.progress.step();
        let gradients = loss.backward();
        self.progress.step();
        flat::read_gradients(&network, &self.layout, gradients, parameters, gradient);
        f64::from(loss.into_scalar::<f32>())
    }

    fn track(&mut self, progress: Progress) {
        self.progress = progress;
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        let network = self.with(parameters).valid();
        let device = self.device.clone().inner();
        let held_out = self.samples.held_out_len();
        let (mut loss, mut correct, mut predictions) = (0.0, 0, 0);
        for start in (0..held_out).step_by(EVALUATION_BATCH) {
            let range = start..held_out.min(start + EVALUATION_BATCH);
            let samples = range.len() as f64;
            let score = network.score(self.samples.held_out(range, &device));
            loss += score.loss * samples;
            let (right, all) = score.correct.unwrap_or_default();
            (correct, predictions) = (correct + right, predictions + all);
        }
        let accuracy = (predictions > 0).then(|| correct as f64 / predictions as f64);
        Evaluation { loss: loss / held_out as f64, accuracy }
    }
}
