//! Traces from the event log of a run: the time of every worker's times_per_sample.

use std::io::Read;

use paceline_core::{Assignment, Decision, Event, LocalLength, Report, Time, WorkerActivities};
use paceline_runtime::{Observer, read_events};

use super::{Trace, TraceErrorKind};

/// Collects the time of each reported batch. Interrupted tasks are left out.
#[derive(Default)]
struct BatchTimes {
    activities: WorkerActivities,
    /// Seconds per sample, by worker.
    workers: Vec<Vec<f64>>,
}

impl BatchTimes {
    fn reported(&mut self, assignment: &Assignment, report: &Report, iterations: u32) {
        let samples = f64::from(assignment.samples) * f64::from(iterations);
        let seconds = report.compute.seconds();
        if seconds > 0.0 && samples > 0.0 {
            let worker = assignment.task.worker.index();
            if worker >= self.workers.len() {
                self.workers.resize(worker + 1, Vec::new());
            }
            self.workers[worker].push(seconds / samples);
        }
    }
}

impl Observer for BatchTimes {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        if let Event::Asked { task, report, .. } | Event::Reported { task, report } = event
            && let Some(running) = self.activities.of(task.worker).running()
        {
            let length = running.assignment.work.length().filter(|_| matches!(event, Event::Reported { .. }));
            let iterations = if let Some(LocalLength::Iterations(count)) = length { count } else { 1 };
            self.reported(&running.assignment, report, iterations);
        }
        self.activities.observe(now, event, decisions, |_| {});
    }
}

/// Reads the times of the workers' batches, scaled to the batch size of the run.
pub(super) fn read(file: impl Read) -> Result<Trace, TraceErrorKind> {
    let mut batch_times = BatchTimes::default();
    let header = read_events(file, &mut batch_times).map_err(Box::new)?;
    let mut workers = batch_times.workers;
    workers.retain(|times| !times.is_empty());
    if workers.is_empty() {
        return Err(TraceErrorKind::Empty);
    }
    workers.iter_mut().flatten().for_each(|seconds| *seconds *= f64::from(header.batch));
    Ok(Trace::new(workers))
}
