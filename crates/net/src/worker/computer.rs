//! The computing thread: gradients of the model, or local iterations on a replica of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use paceline_core::{Assignment, LocalWork, ReplicaStart, Span, Work};
use paceline_protocol::{AfterIteration, RunPosition, SessionEnd, TaskSettings, after_iteration};
use paceline_runtime::{LocalReplica, is_interrupted, local_optimizer, pulled_replica, replica_at};
use paceline_store::{Layout, Optimizer, OptimizerSpec};
use paceline_workload::{Draw, Replica};

use super::emulation::Emulation;
use super::session::{TakenTask, TaskReport, TimeSpent, WorkerSession};

/// After this time, a worker that waits notices that its process was interrupted.
const INTERRUPT_DELAY: Duration = Duration::from_millis(250);

/// Runs the tasks of one session.
pub(super) struct Computer<'a> {
    pub(super) session: WorkerSession,
    pub(super) replica: Box<dyn Replica>,
    pub(super) layout: &'a Layout,
    /// The optimizer of local iterations.
    pub(super) optimizer: OptimizerSpec,
    pub(super) emulation: Option<&'a mut Emulation>,
    /// What later local iterations may continue from, by task.
    pub(super) kept: BTreeMap<u64, KeptReplica>,
}

/// What local iterations leave for those that follow.
pub(super) struct KeptReplica {
    /// The parameters, if the next iterations start from them.
    parameters: Option<Vec<f32>>,
    optimizer: Optimizer,
}

/// Whether the session goes on.
type WhileOpen<T> = Result<T, SessionEnd>;

impl Computer<'_> {
    /// Runs one task after another until the session ends, or the process is interrupted. Returns also how many are done.
    pub(super) fn compute(mut self) -> (u64, SessionEnd) {
        let end = loop {
            if is_interrupted() {
                self.session.leave("its process was interrupted".into(), false);
                break SessionEnd::Finished("interrupted".into());
            }
            let next = self.session.next_task(Some(Instant::now() + INTERRUPT_DELAY));
            if let Err(end) = next.and_then(|task| task.map_or(Ok(()), |task| self.run_task(task))) {
                break end;
            }
        };
        (self.session.tasks(), end)
    }

    fn run_task(&mut self, mut task: TakenTask) -> WhileOpen<()> {
        let (loss, times) = match task.assignment().work {
            Work::Gradient => self.gradient(&mut task),
            Work::Local(local) => self.iterate(&mut task, local)?,
        };
        self.session.report(task, TaskReport { loss, times, ..TaskReport::default() })
    }

    fn gradient(&mut self, task: &mut TakenTask) -> (f64, TimeSpent) {
        let (started, draw) = (Instant::now(), draw(task.assignment(), 0));
        let loss = task.with_values(|model, gradient| self.replica.gradient(model, draw, gradient));
        self.emulate_delay(started);
        (loss, TimeSpent { compute: elapsed(started), ..TimeSpent::default() })
    }

    /// Runs local iterations on a replica until they are complete, and writes the model difference to `result`.
    fn iterate(&mut self, task: &mut TakenTask, local: LocalWork) -> WhileOpen<(f64, TimeSpent)> {
        let (assignment, settings) = (*task.assignment(), task.settings());
        let mut replica = task.with_values(|model, _| self.start(local.start, settings, model));
        let mut times = TimeSpent::default();
        while !self.session.is_cancelled() {
            let started = Instant::now();
            let loss = replica.begin(self.replica.as_mut(), draw(&assignment, replica.iterations()));
            if !self.emulate_delay(started) {
                times.querying += elapsed(started);
                break;
            }
            replica.complete(loss);
            self.session.progress().step();
            times.compute += elapsed(started);
            let wait = match after_iteration(local.length, replica.iterations()) {
                AfterIteration::Continue => continue,
                AfterIteration::Finish => break,
                AfterIteration::Ask { wait } => wait,
            };
            let asked = Instant::now();
            self.session.ask(task, replica.iterations(), std::mem::take(&mut times))?;
            let continues = match wait {
                true => self.session.wait_for_answer(None).unwrap_or_default(),
                false => !self.session.is_collected(),
            };
            times.querying += elapsed(asked);
            if !continues {
                break;
            }
        }
        let (loss, optimizer) = task.with_values(|model, difference| replica.finish(model, difference));
        let continues = matches!(local.start, ReplicaStart::Replica { .. });
        let parameters = continues.then(|| task.with_values(|model, difference| replica_at(model, difference)));
        self.kept.insert(assignment.task.number, KeptReplica { parameters, optimizer });
        Ok((loss, times))
    }

    /// The replica for the next local iterations. It continues from the last committed update; what no task can continue
    /// from any more is forgotten.
    fn start(&mut self, start: ReplicaStart, settings: TaskSettings, model: &[f32]) -> LocalReplica {
        let TaskSettings { run: RunPosition { rate, .. }, committed } = settings;
        if let Some(committed) = committed {
            self.kept = self.kept.split_off(&committed);
        }
        let last = committed.and_then(|number| self.kept.get(&number));
        let parameters = match (start, last.and_then(|last| last.parameters.as_ref())) {
            (ReplicaStart::Replica { pull }, Some(own)) => pulled_replica(model, own, pull),
            _ => model.to_vec(),
        };
        let last = last.map(|last| &last.optimizer);
        LocalReplica::new(parameters, local_optimizer(last, &self.optimizer, self.layout), rate)
    }

    /// Sleeps for the emulated delay, if there is one. Returns `false` if the task was cancelled or collected
    /// meanwhile.
    fn emulate_delay(&mut self, started: Instant) -> bool {
        let Some(emulation) = &mut self.emulation else { return true };
        let pause = emulation.pause(started.elapsed());
        self.session.sleep(pause)
    }
}

fn elapsed(since: Instant) -> Span {
    Span(since.elapsed().as_nanos() as u64)
}

/// The samples of a gradient, or of the local iteration after `iterations` others.
fn draw(assignment: &Assignment, iterations: u32) -> Draw {
    let Assignment { task, offset, samples, .. } = *assignment;
    Draw { worker: task.worker.0, offset: offset + u64::from(iterations) * u64::from(samples), samples }
}
