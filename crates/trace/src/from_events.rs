//! Traces from the event log of a run: the time of every worker's times_per_sample.

use std::collections::HashMap;
use std::io::Read;

use paceline_core::{Action, Assignment, Decision, Event, LocalLength, Report, TaskId, Time};
use paceline_runtime::{Observer, read_events};

use super::{Trace, TraceErrorKind};

/// Collects the time of each reported batch. Interrupted tasks are left out.
#[derive(Default)]
struct BatchTimes {
    assigned: HashMap<TaskId, Assignment>,
    /// Seconds per sample, by worker.
    workers: Vec<Vec<f64>>,
}

impl BatchTimes {
    fn reported(&mut self, task: TaskId, report: &Report, iterations: u32) {
        let Some(assignment) = self.assigned.get(&task) else { return };
        let samples = f64::from(assignment.samples) * f64::from(iterations);
        let seconds = report.compute.seconds();
        if seconds > 0.0 && samples > 0.0 {
            let worker = task.worker.index();
            if worker >= self.workers.len() {
                self.workers.resize(worker + 1, Vec::new());
            }
            self.workers[worker].push(seconds / samples);
        }
    }
}

impl Observer for BatchTimes {
    fn on_turn(&mut self, _now: Time, event: &Event, decisions: &[Decision]) {
        match event {
            Event::Asked { task, report, .. } => self.reported(*task, report, 1),
            Event::Reported { task, report } => {
                let length = self.assigned.get(task).and_then(|assignment| assignment.work.length());
                self.reported(*task, report, if let Some(LocalLength::Iterations(count)) = length { count } else { 1 });
                self.assigned.remove(task);
            }
            _ => {}
        }
        for decision in decisions {
            match &decision.action {
                Action::Assign(assignment) => drop(self.assigned.insert(assignment.task, *assignment)),
                Action::Interrupt { task } => drop(self.assigned.remove(task)),
                _ => {}
            }
        }
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
