//! The speeds that workers showed in a run, and how well they could have been predicted.

use paceline_core::speed::{PredictorKind, Resources, Speeds};
use paceline_core::{Action, Decision, Event, Time, WorkerId};
use paceline_runtime::Observer;

/// Iterations before networks serve, as in the scheme.
const SERVES_AFTER: usize = 500;

/// Training steps per iteration, as in the scheme.
const TRAINING_STEPS: usize = 4;

/// What every worker showed in each of its tasks: its speed, and what was in use of its machine then.
#[derive(Default)]
pub struct ObservedSpeeds {
    /// The size of each worker's present task.
    sizes: Vec<u32>,
    /// By worker and task.
    pub workers: Vec<Vec<(f64, Resources)>>,
}

impl Observer for ObservedSpeeds {
    fn on_turn(&mut self, _now: Time, event: &Event, decisions: &[Decision]) {
        if let Event::Reported { task, report } = event {
            let worker = task.worker.index();
            if worker >= self.workers.len() {
                self.workers.resize(worker + 1, Vec::new());
            }
            let share = |share: Option<f32>| f64::from(share.unwrap_or(0.0));
            let resources = Resources { cpu: share(report.cpu), memory: share(report.memory) };
            let samples = self.sizes.get(worker).copied().unwrap_or(0);
            self.workers[worker].push((f64::from(samples) / report.compute.seconds(), resources));
        }
        for decision in decisions {
            if let Action::Assign(assignment) = decision.action {
                let worker = assignment.task.worker.index();
                if worker >= self.sizes.len() {
                    self.sizes.resize(worker + 1, 0);
                }
                self.sizes[worker] = assignment.samples;
            }
        }
    }
}

/// What a predictor would have said.
pub struct Predicted {
    /// Before each task, by worker.
    pub workers: Vec<Vec<Option<f64>>>,
    /// The state after the last task.
    pub speeds: Speeds,
}

impl ObservedSpeeds {
    /// What a predictor would have said before each task. Its networks learn on the way, as under lb-bsp.
    pub fn predicted(&self, kind: PredictorKind) -> Predicted {
        let mut speeds = Speeds::new(kind, SERVES_AFTER, None);
        let mut workers = vec![Vec::new(); self.workers.len()];
        for iteration in 0..self.workers.iter().map(Vec::len).max().unwrap_or(0) {
            for (worker, shown) in self.workers.iter().enumerate() {
                if let Some(&(speed, resources)) = shown.get(iteration) {
                    let id = WorkerId(worker as u32);
                    workers[worker].push(speeds.predict(id));
                    speeds.observe(id, speed, resources);
                }
            }
            (0..TRAINING_STEPS).take_while(|_| speeds.train_step()).count();
        }
        Predicted { workers, speeds }
    }

    /// Root mean square error of what was predicted for the tasks from `first` on: the mean over the workers that did
    /// any, in samples per second.
    pub fn error(&self, predicted: &Predicted, first: usize) -> f64 {
        let of_one = |(predicted, shown): (&Vec<Option<f64>>, &Vec<(f64, Resources)>)| {
            let pairs = predicted.iter().zip(shown).skip(first);
            let squares = pairs.filter_map(|(predicted, (speed, _))| Some((predicted.as_ref()? - speed).powi(2)));
            let squares: Vec<f64> = squares.filter(|square| square.is_finite()).collect();
            (!squares.is_empty()).then(|| (squares.iter().sum::<f64>() / squares.len() as f64).sqrt())
        };
        let errors: Vec<f64> = predicted.workers.iter().zip(&self.workers).filter_map(of_one).collect();
        errors.iter().sum::<f64>() / errors.len() as f64
    }
}
