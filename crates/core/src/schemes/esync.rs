//! `esync`: fast workers iterate locally until the slowest is about to finish (Li, Zhou & Yu, 2020).

use serde::{Deserialize, Serialize};

use super::{
    GLOBAL_RATE, MOMENTUM, OUTER, SchemeEntry, SchemeError, Setting, SettingDefault, Settings, Setup, StepKind,
    averaging,
};
use crate::local_rounds::{LocalDecision, LocalPolicy, LocalRounds};
use crate::{
    LocalLength, LocalWork, QueryMode, Question, Reason, ReplicaStart, Scheme, Span, StateServer, Time, Update,
    WorkerId,
};

#[derive(Serialize, Deserialize)]
struct Esync {
    mode: QueryMode,
    state: StateServer,
}

impl LocalPolicy for Esync {
    fn fills_waiting(&self) -> bool {
        true
    }

    fn on_start(&mut self, now: Time, worker: WorkerId) {
        self.state.start(now, worker);
    }

    fn work(&mut self, now: Time, worker: WorkerId, reason: Reason) -> (LocalWork, Reason) {
        let (length, reason) = match self.mode {
            QueryMode::Blocking => (LocalLength::AskAndWait, reason),
            // The answer to a slow worker's first question is already known. Asking would only make the worker start an
            // iteration that it must drop.
            QueryMode::NonBlocking if self.state.predicts_ready(now, worker) => {
                (LocalLength::Iterations(1), Reason::AmongTheSlowest)
            }
            QueryMode::NonBlocking => (LocalLength::AskAndContinue, reason),
        };
        (LocalWork { start: ReplicaStart::Model, length }, reason)
    }

    fn on_asked(&mut self, now: Time, question: &Question) -> LocalDecision {
        let worker = question.task.worker;
        let answer = self.state.query(now, worker, question.iterations, question.report.compute);
        let Some((slowest, rest)) = answer.slowest else { return LocalDecision::Collect(Reason::AllReady) };
        let iteration = answer.iteration;
        if answer.ready {
            LocalDecision::Collect(Reason::NoTimeForMore { iteration, slowest, rest })
        } else {
            LocalDecision::Continue(Reason::TimeForMore { iteration, slowest, rest })
        }
    }

    fn on_reported(&mut self, now: Time, update: &Update) {
        if update.work.length() == Some(LocalLength::Iterations(1)) {
            self.state.finish(now, update.task.worker, update.report.compute);
        }
    }

    fn on_left(&mut self, worker: WorkerId) {
        self.state.leave(worker);
    }
}

pub(super) const ENTRY: SchemeEntry = SchemeEntry::new(
    "esync",
    "fast workers iterate locally until the slowest is about to finish, then replicas are averaged",
    [0, 118, 0],
    build,
)
.stepping_by(StepKind::Averaged)
.settings(&[
    Setting::choice("mode", "whether workers wait for the answer to continue", &["blocking", "non-blocking"]),
    Setting::number("margin", "seconds added to the predicted time of one more local iteration", 0.0, 3600.0)
        .default(SettingDefault::Number(0.001)),
    GLOBAL_RATE,
    OUTER,
    MOMENTUM,
])
.variants(&["mode=non-blocking,margin=0", "margin=10,rate=2", "outer=nesterov,momentum=0.5"]);

fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
    let mode = settings.choice("mode", [QueryMode::Blocking, QueryMode::NonBlocking])?;
    let margin = Span::from_seconds(settings.number("margin")?);
    let state = StateServer::new(mode, margin);
    Ok(Box::new(LocalRounds::new(Esync { mode, state }, averaging(settings)?, setup.batch)))
}
