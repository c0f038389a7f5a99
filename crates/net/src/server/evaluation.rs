//! Evaluating the model while the run goes on: by a thread of the server, or by a process that joined for it.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use paceline_core::{Time, Version};
use paceline_protocol::{Evaluation, SessionId};

use super::parameter_ring::ParameterBuffer;

/// Who evaluates the model.
#[derive(Debug, Default)]
pub(super) enum Evaluator {
    #[default]
    Nobody,
    /// A thread, which gets models with the times at which they were made. One is evaluated, one may be queued.
    Thread(SyncSender<(Time, Arc<ParameterBuffer>)>),
    /// A process, which gets one model at a time.
    Process(EvaluatorProcess),
}

/// A process that evaluates models.
#[derive(Debug)]
pub(super) struct EvaluatorProcess {
    pub(super) session: SessionId,
    /// The number of the next model that it gets.
    next: u64,
    /// The model that it evaluates at present.
    running: Option<RunningEvaluation>,
    /// The version that it evaluated last, and the result.
    last: Option<(Version, Evaluation)>,
}

/// A model that is being evaluated.
#[derive(Debug, Clone, Copy)]
struct RunningEvaluation {
    number: u64,
    version: Version,
    /// When the model was made.
    at: Time,
}

impl EvaluatorProcess {
    pub(super) fn new(session: SessionId) -> Self {
        EvaluatorProcess { session, next: 0, running: None, last: None }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    /// It gets a model next. Returns the number of its assignment.
    pub(super) fn begin(&mut self, version: Version, at: Time) -> u64 {
        let number = self.next;
        self.next += 1;
        self.running = Some(RunningEvaluation { number, version, at });
        number
    }

    /// It has evaluated a model. Returns when that was made; `None` if it has no such assignment.
    pub(super) fn complete(&mut self, number: u64, evaluation: Evaluation) -> Option<Time> {
        let running = self.running.take_if(|running| running.number == number)?;
        self.last = Some((running.version, evaluation));
        Some(running.at)
    }

    /// What it found for a version, if that was the last.
    pub(super) fn found(&self, version: Version) -> Option<Evaluation> {
        self.last.filter(|(last, _)| *last == version).map(|(_, evaluation)| evaluation)
    }
}
