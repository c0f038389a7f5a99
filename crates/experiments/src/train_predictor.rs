//! Training a run-time predictor, with a progress bar.

use paceline_predictor::{RunTimes, RunTimesError, TrainedPredictor, TrainingConfig, train};
use paceline_report::progress::{StepBar, bars};
use paceline_runtime::is_interrupted;

/// Trains a run-time predictor, with a progress bar, until it is done or the user interrupts it.
///
/// # Errors
/// If there are too few iterations.
pub fn train_predictor(times: &RunTimes, options: &TrainingConfig) -> Result<TrainedPredictor, RunTimesError> {
    let mut steps = StepBar::new(&bars(), "epoch", options.epochs);
    train(times, options, |epoch| {
        steps.step(format!("ELBO {:.4}, validation {:.4}, best {:.4}", epoch.training, epoch.validation, epoch.best));
        !is_interrupted()
    })
}
