//! The observed speeds of a run's workers, and how well predictors would have predicted them.

use paceline_core::speed::{PredictorKind, Resources, Speeds};
use paceline_core::{Decision, Event, Time, WorkerActivities, WorkerId};
use paceline_runtime::Observer;

/// Iterations before a network is used, as in lb-bsp.
const WARM_UP: usize = 500;

/// Training steps per iteration, as in lb-bsp.
const TRAINING_STEPS: usize = 4;

/// The speed of every worker in each of its tasks, and the resources in use on its machine.
#[derive(Default)]
pub struct ObservedSpeeds {
    activities: WorkerActivities,
    /// Speed in samples per second and resources, by worker and task.
    pub workers: Vec<Vec<(f64, Resources)>>,
}

impl Observer for ObservedSpeeds {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        if let Event::Reported { task, report } = event {
            let worker = task.worker.index();
            if worker >= self.workers.len() {
                self.workers.resize(worker + 1, Vec::new());
            }
            let share = |share: Option<f32>| f64::from(share.unwrap_or(0.0));
            let resources = Resources { cpu: share(report.cpu), memory: share(report.memory) };
            let activity = self.activities.of(task.worker);
            let samples = activity.running().map_or(0, |running| running.assignment.samples);
            self.workers[worker].push((f64::from(samples) / report.compute.seconds(), resources));
        }
        self.activities.observe(now, event, decisions, |_| {});
    }
}

/// The predictions of a predictor.
pub struct PredictedSpeeds {
    /// The prediction before each task, by worker.
    pub workers: Vec<Vec<Option<f64>>>,
    /// The predictor after the last task.
    pub speeds: Speeds,
}

impl ObservedSpeeds {
    /// Predicts every task's speed before observing it. Networks are trained meanwhile, as under lb-bsp.
    pub fn predicted(&self, kind: PredictorKind) -> PredictedSpeeds {
        let mut speeds = Speeds::new(kind, WARM_UP, None);
        let mut workers = vec![Vec::new(); self.workers.len()];
        for iteration in 0..self.workers.iter().map(Vec::len).max().unwrap_or(0) {
            for (worker, observed) in self.workers.iter().enumerate() {
                if let Some(&(speed, resources)) = observed.get(iteration) {
                    let id = WorkerId(worker as u32);
                    workers[worker].push(speeds.predict(id));
                    speeds.observe(id, speed, resources);
                }
            }
            (0..TRAINING_STEPS).take_while(|_| speeds.train_step()).count();
        }
        PredictedSpeeds { workers, speeds }
    }

    /// Root mean square error of the predictions from task `first` on, in samples per second: the mean over the workers
    /// that have such tasks.
    pub fn error(&self, predicted: &PredictedSpeeds, first: usize) -> f64 {
        let of_one = |(predicted, observed): (&Vec<Option<f64>>, &Vec<(f64, Resources)>)| {
            let pairs = predicted.iter().zip(observed).skip(first);
            let squares = pairs.filter_map(|(predicted, (speed, _))| Some((predicted.as_ref()? - speed).powi(2)));
            let squares: Vec<f64> = squares.filter(|square| square.is_finite()).collect();
            (!squares.is_empty()).then(|| (squares.iter().sum::<f64>() / squares.len() as f64).sqrt())
        };
        let errors: Vec<f64> = predicted.workers.iter().zip(&self.workers).filter_map(of_one).collect();
        errors.iter().sum::<f64>() / errors.len() as f64
    }
}
