//! A worker's process: does what it is told, as far as it hears it.

use paceline_core::{Assignment, LocalLength, Report, Span, TaskId, Time, WorkerId};

use crate::message::{ToServer, ToWorker};

/// How often a worker says something if nothing else happens.
pub(crate) const TICK: Span = Span(2_000_000_000);

/// What a process wants done.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Effect {
    Say(ToServer),
    /// Compute for so many iterations; the number tells when that is over whether it still matters.
    Compute {
        computation: u64,
        assignment: Assignment,
        iterations: u32,
    },
}

#[derive(Debug, Clone, Copy)]
struct Running {
    assignment: Assignment,
    /// Local iterations done.
    done: u32,
    /// It has asked and waits for the answer.
    waits: bool,
    since: Time,
}

/// One process.
#[derive(Debug)]
pub(crate) struct Process {
    worker: WorkerId,
    /// The number of its first conversation, which no other process has.
    pub(crate) started: u64,
    pub(crate) session: u64,
    welcomed: bool,
    running: Option<Running>,
    queued: Option<Assignment>,
    /// The newest task heard of: older ones are echoes.
    newest: Option<u64>,
    computations: u64,
    pub(crate) frozen_until: Time,
    pub(crate) lies_until: Time,
}

impl Process {
    pub(crate) fn new(worker: WorkerId, session: u64) -> Self {
        Process {
            worker,
            started: session,
            session,
            welcomed: false,
            running: None,
            queued: None,
            newest: None,
            computations: 0,
            frozen_until: Time::START,
            lies_until: Time::START,
        }
    }

    /// Begins a new conversation.
    fn start_over(&mut self, session: u64) {
        *self = Process {
            started: self.started,
            computations: self.computations + 1,
            frozen_until: self.frozen_until,
            lies_until: self.lies_until,
            ..Process::new(self.worker, session)
        };
    }

    /// It is time to say something, in case something was lost.
    pub(crate) fn tick(&self) -> Effect {
        match self.running {
            _ if !self.welcomed => Effect::Say(ToServer::Hello),
            Some(Running { assignment, done, waits: true, .. }) => {
                Effect::Say(ToServer::Ask(assignment.task, done, Report::default()))
            }
            _ => Effect::Say(ToServer::Ping),
        }
    }

    /// Hears the server. `fresh` is the number of the next conversation, should this one be over.
    pub(crate) fn hear(&mut self, now: Time, words: ToWorker, fresh: u64) -> Vec<Effect> {
        self.welcomed |= !matches!(words, ToWorker::Refuse | ToWorker::Later);
        match words {
            ToWorker::Welcome | ToWorker::Later => Vec::new(),
            ToWorker::Refuse => {
                self.start_over(fresh);
                vec![Effect::Say(ToServer::Hello)]
            }
            ToWorker::Assign(assignment, after) => self.assign(now, assignment, after),
            ToWorker::Continue(task, iterations) => match self.running.as_mut() {
                Some(running) if running.assignment.task == task && running.waits && running.done == iterations => {
                    running.waits = false;
                    self.compute(now)
                }
                _ => Vec::new(),
            },
            ToWorker::Collect(task) => match self.running {
                Some(running) if running.assignment.task == task && running.done > 0 => {
                    self.report(now, Report::default())
                }
                _ => Vec::new(),
            },
            ToWorker::Interrupt(task) => {
                if self.queued.is_some_and(|queued| queued.task == task) {
                    self.queued = None;
                }
                match self.running {
                    Some(running) if running.assignment.task == task => self.begin_queued(now),
                    _ => Vec::new(),
                }
            }
        }
    }

    fn assign(&mut self, now: Time, assignment: Assignment, after: Option<u64>) -> Vec<Effect> {
        if self.newest.is_some_and(|newest| newest >= assignment.task.number) {
            return Vec::new();
        }
        self.newest = Some(assignment.task.number);
        let finishes_first = self.running.is_some_and(|running| Some(running.assignment.task.number) == after);
        self.queued = Some(assignment);
        if finishes_first { Vec::new() } else { self.begin_queued(now) }
    }

    fn begin_queued(&mut self, now: Time) -> Vec<Effect> {
        let begin = |assignment| Running { assignment, done: 0, waits: false, since: now };
        self.running = self.queued.take().map(begin);
        self.compute(now)
    }

    /// Computes what comes next of the present task.
    fn compute(&mut self, now: Time) -> Vec<Effect> {
        self.computations += 1;
        let Some(running) = self.running.as_mut() else { return Vec::new() };
        running.since = now;
        let assignment = running.assignment;
        let iterations = if let Some(LocalLength::Iterations(count)) = assignment.work.length() { count } else { 1 };
        vec![Effect::Compute { computation: self.computations, assignment, iterations }]
    }

    /// A computation is over.
    pub(crate) fn computed(&mut self, now: Time, computation: u64) -> Vec<Effect> {
        let Some(running) = self.running.as_mut().filter(|_| computation == self.computations) else {
            return Vec::new();
        };
        let report = Report { compute: now.since(running.since), ..Report::default() };
        let task = running.assignment.task;
        match running.assignment.work.length() {
            None | Some(LocalLength::Iterations(_)) => self.report(now, report),
            Some(course) => {
                running.done += 1;
                let question = Effect::Say(ToServer::Ask(task, running.done, report));
                running.waits = course == LocalLength::AskAndWait;
                let mut effects = vec![question];
                if course == LocalLength::AskAndContinue {
                    effects.extend(self.compute(now));
                }
                effects
            }
        }
    }

    fn report(&mut self, now: Time, report: Report) -> Vec<Effect> {
        let task = self.running.map(|running| running.assignment.task);
        let mut effects: Vec<Effect> =
            task.map(|task| Effect::Say(ToServer::Report(task, report))).into_iter().collect();
        effects.extend(self.begin_queued(now));
        effects
    }

    /// What a liar makes of what it would say: `luck` chooses how.
    pub(crate) fn twisted(&self, words: ToServer, luck: u64) -> ToServer {
        let absurd = |report: Report| {
            let times = [Span::ZERO, Span(1), Span(u64::MAX), Span(3_600_000_000_000)];
            let load = [None, Some(f32::NAN), Some(-3.0), Some(f32::INFINITY)][luck as usize % 4];
            Report { compute: times[(luck / 4) as usize % 4], cpu: load, memory: load, ..report }
        };
        let number = |task: TaskId| TaskId { number: task.number + luck % 3, ..task };
        match words {
            ToServer::Report(task, report) => ToServer::Report(number(task), absurd(report)),
            ToServer::Ask(task, done, report) => {
                ToServer::Ask(number(task), done + (luck / 16) as u32 % 2, absurd(report))
            }
            other => other,
        }
    }
}
