//! `paceline fit`: train without workers, as a baseline for schemes.

use std::time::Instant;

use clap::Args;
use paceline_config::{Failure, TrainingOptions};
use paceline_core::{Reason, SampleCounts, Time};
use paceline_models::Model;
use paceline_report::progress::{RunBar, bars};
use paceline_report::tables::table;
use paceline_runtime::{
    Goals, Monitor, Observer, RateSpec, RunInfo, Stepper, StopReason, Summary, Trainer, is_interrupted,
};
use paceline_workload::{Draw, Workload};

use crate::interrupt;
use crate::options::ConfigFile;
use crate::output::say;

/// Train a model in one process, without workers: a baseline for schemes
#[derive(Args)]
#[command(after_help = "Examples:
  paceline fit
  paceline fit --model cnn --data mnist:DIR --until 'accuracy>0.98'")]
pub struct FitArgs {
    /// Model to train: softmax, mlp, cnn, resnet8, resnet20 or charlm
    #[arg(long, value_name = "MODEL", default_value = "cnn", help_heading = "Training")]
    model: Model,

    #[command(flatten)]
    training: TrainingOptions,

    /// When to stop: at the first of loss<X, accuracy>X, iterations=N, time=SECONDS, samples=N; may be given several
    /// times
    #[arg(long, value_name = "GOAL,…", default_value = "accuracy>0.95,iterations=5000")]
    until: Vec<Goals>,

    /// Seed of all random numbers
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    config: ConfigFile,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

impl FitArgs {
    pub fn run(self) -> Result<(), Failure> {
        let data = self.training.load().map_err(Failure::Input)?;
        let workload = self.training.workload(self.model, &data, 1, self.seed).map_err(Failure::Input)?;
        interrupt::listen_for_result()?;
        let goals = Goals::any(&self.until);
        self.training.check_goals(&goals, self.model, workload.as_ref()).map_err(Failure::Input)?;
        let given = self.training.initial(workload.as_ref()).map_err(Failure::Input)?;
        let initial = given.map_or_else(|| workload.initial(self.seed), |given| given.to_vec());
        let summary = self.train(workload.as_ref(), initial);
        let ending = summary.ending;
        if self.json {
            say(serde_json::to_string(&summary).map_err(Failure::run)?);
        } else {
            say(table(&[summary]));
        }
        Failure::unless_reached(ending)
    }

    fn train(&self, workload: &dyn Workload, initial: Vec<f32>) -> Summary {
        let goals = Goals::any(&self.until);
        let TrainingOptions { optimizer, schedule, lr, clip_sum, .. } = self.training.clone();
        let rate = RateSpec { schedule, ..RateSpec::constant(lr.0) };
        let stepper = Stepper::new(workload.layout(), optimizer, rate).clipping(clip_sum);
        let mut trainer = Trainer::new(initial, stepper);
        let mut replica = workload.replica();
        let mut gradient = vec![0.0; workload.layout().len()];
        let mut monitor = Monitor::new(&self.training.setup(1, None));
        let mut progress = RunBar::new(&bars(), format!("fit {}", self.model), &goals);
        let start = Instant::now();
        let mut samples = SampleCounts::default();
        loop {
            let draw = Draw { worker: 0, offset: samples.used, samples: self.training.batch };
            let loss = replica.gradient(trainer.parameters(), draw, &mut gradient);
            let result = trainer.step(&gradient, loss);
            samples.used += u64::from(draw.samples);
            let now = Time(start.elapsed().as_nanos() as u64);
            let mut iteration = monitor.stepped(now, 1, Some(loss), Reason::OnArrival);
            monitor.complete(&mut iteration, &samples);
            if monitor.passed_multiple_of(self.training.evaluate_every) {
                monitor.evaluated(replica.evaluate(trainer.parameters()), now);
            }
            progress.on_iteration(&iteration, &monitor);
            let met = monitor.met(&goals, now, &samples);
            let diverged = result.aggregate.is_none().then_some(StopReason::Diverged);
            let stop = diverged.or(met.map(StopReason::Goal));
            if let Some(stop) = stop.or_else(|| is_interrupted().then_some(StopReason::Interrupted)) {
                let last = Some(replica.evaluate(trainer.parameters()));
                let run = RunInfo { scheme: "fit", seed: self.seed, workers: 1, goals: &goals };
                return monitor.summary(&run, now, &stop, &samples, 0, last);
            }
        }
    }
}
