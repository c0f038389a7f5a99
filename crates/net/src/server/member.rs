//! One worker as the server sees it: what it was given and has not answered yet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use paceline_core::Assignment;
use thiserror::Error;

use super::outbox::Outbox;
use super::ring::Parameters;
use super::session::printable;
use crate::message::{Buffer, Buffers, Terms, ToWorker};
use crate::region::{Region, Writer};

/// Assignments that a worker may have without having answered them: what it runs, what it has queued, and one that it
/// has not heard is called off. Further ones wait here, and only the newest of them matter.
const UNANSWERED: usize = 3;

/// What the coordinator tells the reader of a connection.
#[derive(Debug, Default)]
pub(super) struct Desk {
    wanted: Mutex<BTreeSet<u64>>,
    refused: AtomicBool,
}

impl Desk {
    /// Whether the gradient of this task is wanted; only once, so that no worker can fill the memory.
    pub(super) fn admit(&self, number: u64) -> bool {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).remove(&number)
    }

    fn expect(&self, number: u64) {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
    }

    /// Whether nothing more is to be heard from this connection.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }
}

/// An answer that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum Nonsense {
    #[error("an answer to task {0}, which was never assigned or is answered already")]
    UnknownTask(u64),
    #[error("task {0} was dropped, but nobody had called it off")]
    NotCalledOff(u64),
    #[error("task {0} was reported, but another comes first")]
    OutOfTurn(u64),
}

/// A task that the worker has been told of.
#[derive(Debug)]
struct Unanswered {
    called_off: bool,
    assignment: Assignment,
    /// What the worker reads in shared memory, or what its gradient will be corrected by: kept from being overwritten.
    parameters: Option<Arc<Parameters>>,
    /// Where its gradient goes, in shared memory.
    gradient: Option<Arc<Region>>,
}

/// What a worker's report means.
#[derive(Debug)]
pub(super) enum Answer {
    /// It is what was asked for.
    Wanted(Wanted),
    /// It was called off while the report was under way.
    CalledOff,
}

/// An update that has arrived.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) assignment: Assignment,
    /// The model it was computed from, if that was kept.
    pub(super) parameters: Option<Arc<Parameters>>,
    /// Where it is, if that is in shared memory.
    pub(super) gradient: Option<Arc<Region>>,
}

/// Work that a worker is to be told of.
#[derive(Debug)]
struct Order {
    assignment: Assignment,
    parameters: Arc<Parameters>,
    rate: f32,
}

/// One worker.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) session: u64,
    pub(super) peer: String,
    pub(super) emulated: Option<String>,
    /// Whether it can be given work.
    pub(super) ready: bool,
    /// Whether the models that it was given must be kept until its gradients are committed.
    keeps_models: bool,
    outbox: Outbox,
    desk: Arc<Desk>,
    unanswered: BTreeMap<u64, Unanswered>,
    /// What the worker is to be told when it has answered something.
    waiting: VecDeque<Order>,
    /// The last task whose update was committed.
    committed: Option<u64>,
    gradients: Vec<Arc<Region>>,
    mapped: BTreeSet<u32>,
}

impl Member {
    pub(super) fn new(session: u64, peer: String, emulated: Option<String>, outbox: Outbox, desk: Arc<Desk>) -> Self {
        Member {
            session,
            peer,
            emulated: emulated.as_deref().map(printable),
            ready: false,
            keeps_models: false,
            outbox,
            desk,
            unanswered: BTreeMap::new(),
            waiting: VecDeque::new(),
            committed: None,
            gradients: Vec::new(),
            mapped: BTreeSet::new(),
        }
    }

    /// The same, if `kept`, with the models that it is given kept until its gradients are committed.
    pub(super) fn keeping_models(self, kept: bool) -> Self {
        Member { keeps_models: kept, ..self }
    }

    pub(super) fn send(&self, message: &ToWorker) {
        self.outbox.send(message);
    }

    /// Says why the worker has to go, and whether it may come again, and hears no more from it.
    pub(super) fn refuse(&self, reason: String, again: bool) {
        self.desk.refused.store(true, Ordering::Relaxed);
        self.outbox.close(&ToWorker::Refuse { reason, again });
    }

    /// Says that the run is over; the worker will hang up.
    pub(super) fn say_goodbye(&self, reason: String) {
        self.outbox.close(&ToWorker::Bye { reason });
    }

    /// Gives work; local iterations are at the learning rate `rate`. What was queued before, and is replaced by it, is
    /// called off.
    pub(super) fn assign(&mut self, assignment: Assignment, parameters: &Arc<Parameters>, rate: f32) -> io::Result<()> {
        let running = if assignment.queued { self.running() } else { None };
        let replaced: Vec<u64> = self.wanted().filter(|&number| Some(number) != running).collect();
        for number in replaced {
            self.call_off(number);
        }
        self.waiting.push_back(Order { assignment, parameters: parameters.clone(), rate });
        self.send_waiting()
    }

    /// Tasks that are not called off, oldest first.
    fn wanted(&self) -> impl Iterator<Item = u64> + '_ {
        let told = self.unanswered.iter().filter(|(_, task)| !task.called_off).map(|(&number, _)| number);
        told.chain(self.waiting.iter().map(|order| order.assignment.task.number))
    }

    fn running(&self) -> Option<u64> {
        self.wanted().next()
    }

    /// Whether it has something to do that is not called off.
    pub(super) fn is_at_work(&self) -> bool {
        self.running().is_some()
    }

    /// Calls a task off; the worker hears of it with its next assignment at the latest.
    fn call_off(&mut self, number: u64) {
        self.waiting.retain(|order| order.assignment.task.number != number);
        if self.outbox.recall(number) {
            self.unanswered.remove(&number);
        }
        if let Some(task) = self.unanswered.get_mut(&number) {
            task.called_off = true;
            // The worker does one thing after the other, so it will not write here for two tasks at once.
            task.gradient = None;
        }
        self.desk.admit(number);
    }

    /// Has the worker drop a task.
    pub(super) fn interrupt(&mut self, number: u64) {
        self.call_off(number);
        if self.unanswered.contains_key(&number) {
            self.send(&ToWorker::Interrupt { number });
        }
    }

    fn send_waiting(&mut self) -> io::Result<()> {
        while self.unanswered.len() < UNANSWERED
            && let Some(Order { assignment, parameters, rate }) = self.waiting.pop_front()
        {
            let number = assignment.task.number;
            let terms = Terms { rate, committed: self.committed };
            let after = self.running().filter(|&running| running < number);
            let gradient = if self.outbox.is_shared() {
                let (index, gradient) = self.free_gradient(parameters.region.values().len())?;
                if self.mapped.insert(parameters.index) {
                    self.map(Buffer::Parameters(parameters.index), &parameters.region);
                }
                let buffers = Some(Buffers { parameters: parameters.index, gradient: index });
                self.send(&ToWorker::Assign { assignment, after, buffers, terms });
                Some(gradient)
            } else {
                self.desk.expect(number);
                let message = ToWorker::Assign { assignment, after, buffers: None, terms };
                self.outbox.assign(number, &message, assignment.version, &parameters);
                None
            };
            let parameters = (self.keeps_models || self.outbox.is_shared()).then_some(parameters);
            self.unanswered.insert(number, Unanswered { called_off: false, assignment, parameters, gradient });
        }
        Ok(())
    }

    /// A gradient buffer that no task and no commit needs.
    fn free_gradient(&mut self, length: usize) -> io::Result<(u32, Arc<Region>)> {
        let free = self.gradients.iter().position(|gradient| Arc::strong_count(gradient) == 1);
        let index = match free {
            Some(index) => index,
            None => {
                let mut region = Region::shared(length, Writer::Guest)?;
                self.map(Buffer::Gradient(self.gradients.len() as u32), &region);
                region.close_file();
                self.gradients.push(Arc::new(region));
                self.gradients.len() - 1
            }
        };
        Ok((index as u32, self.gradients[index].clone()))
    }

    fn map(&self, buffer: Buffer, region: &Region) {
        self.outbox.send_buffer(&ToWorker::Map { buffer, length: region.values().len() as u64 }, region);
    }

    /// The worker says that a task is done.
    pub(super) fn reported(&mut self, number: u64) -> Result<Answer, Nonsense> {
        let running = self.running();
        let task = self.unanswered.remove(&number).ok_or(Nonsense::UnknownTask(number))?;
        match task {
            Unanswered { called_off: true, .. } => Ok(Answer::CalledOff),
            Unanswered { assignment, parameters, gradient, .. } if running == Some(number) => {
                Ok(Answer::Wanted(Wanted { assignment, parameters, gradient }))
            }
            Unanswered { .. } => Err(Nonsense::OutOfTurn(number)),
        }
    }

    /// The worker asks about a task. Says whether that is still of interest.
    pub(super) fn asked(&self, number: u64) -> Result<bool, Nonsense> {
        let task = self.unanswered.get(&number).ok_or(Nonsense::UnknownTask(number))?;
        Ok(!task.called_off)
    }

    /// A task's update is committed.
    pub(super) fn committed(&mut self, number: u64) {
        self.committed = Some(number);
    }

    /// The worker says that it dropped a task.
    pub(super) fn dropped(&mut self, number: u64) -> Result<(), Nonsense> {
        let task = self.unanswered.get(&number).ok_or(Nonsense::UnknownTask(number))?;
        if !task.called_off {
            return Err(Nonsense::NotCalledOff(number));
        }
        self.unanswered.remove(&number);
        Ok(())
    }

    /// After an answer: what waited for it can go.
    pub(super) fn go_on(&mut self) -> io::Result<()> {
        self.send_waiting()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Receiver, Socket, Traffic};
    use crate::server::ring::Ring;
    use paceline_core::{TaskId, Version, WorkerId};
    use std::os::unix::net::UnixStream;

    /// A member that shares memory, and its worker's ear.
    fn member() -> (Member, Receiver) {
        let (near, far) = UnixStream::pair().unwrap();
        let outbox = Outbox::local(Socket::local(near));
        let member = Member::new(0, "a test".into(), None, outbox, Arc::default());
        (member, Receiver::new(Socket::local(far), Traffic::default()))
    }

    fn task(number: u64, queued: bool) -> Assignment {
        let task = TaskId { worker: WorkerId(0), number };
        let work = paceline_core::Work::Gradient;
        Assignment { task, version: Version(number), work, samples: 1, offset: 0, queued }
    }

    /// The next assignment: its number, what it comes after and where its gradient goes.
    fn assigned(worker: &mut Receiver) -> (u64, Option<u64>, u32) {
        loop {
            if let ToWorker::Assign { assignment, after, buffers, .. } = worker.message().unwrap() {
                return (assignment.task.number, after, buffers.unwrap().gradient);
            }
        }
    }

    #[test]
    fn newer_work_replaces_what_was_queued_and_only_so_much_goes_unanswered() {
        let (mut member, mut worker) = member();
        let ring = Ring::new(&[0.0; 8], true).unwrap();
        member.assign(task(0, false), ring.newest(), 0.1).unwrap();
        for number in 1..5 {
            member.assign(task(number, true), ring.newest(), 0.1).unwrap();
        }
        assert_eq!(assigned(&mut worker), (0, None, 0));
        assert_eq!(assigned(&mut worker), (1, Some(0), 1));
        assert_eq!(assigned(&mut worker), (2, Some(0), 1), "its buffer is free again");
        assert_eq!(member.waiting.len(), 1, "the third waits to be heard of, the fourth took its place");
        member.dropped(1).unwrap();
        member.go_on().unwrap();
        assert_eq!(assigned(&mut worker), (4, Some(0), 1));
        assert!(matches!(member.reported(0), Ok(Answer::Wanted(_))));
    }

    #[test]
    fn gradients_that_wait_for_a_commit_are_not_overwritten() {
        let (mut member, mut worker) = member();
        let ring = Ring::new(&[0.0; 8], true).unwrap();
        member.assign(task(0, false), ring.newest(), 0.1).unwrap();
        assert_eq!(assigned(&mut worker).2, 0);
        let Ok(Answer::Wanted(waits)) = member.reported(0) else { panic!("task 0 is wanted") };
        member.assign(task(1, false), ring.newest(), 0.1).unwrap();
        assert_eq!(assigned(&mut worker).2, 1);
        drop(waits);
        assert!(matches!(member.reported(1), Ok(Answer::Wanted(_))));
        member.assign(task(2, false), ring.newest(), 0.1).unwrap();
        assert_eq!(assigned(&mut worker).2, 0);
    }

    #[test]
    fn answers_that_make_no_sense_are_told_apart() {
        let (mut member, _worker) = member();
        let ring = Ring::new(&[0.0; 8], true).unwrap();
        member.assign(task(0, false), ring.newest(), 0.1).unwrap();
        member.assign(task(1, true), ring.newest(), 0.1).unwrap();
        assert_eq!(member.reported(7).unwrap_err(), Nonsense::UnknownTask(7));
        assert_eq!(member.dropped(0).unwrap_err(), Nonsense::NotCalledOff(0));
        member.interrupt(0);
        assert!(matches!(member.reported(0), Ok(Answer::CalledOff)), "the interruption was under way");
        assert_eq!(member.reported(0).unwrap_err(), Nonsense::UnknownTask(0));
        member.assign(task(2, true), ring.newest(), 0.1).unwrap();
        assert_eq!(member.reported(2).unwrap_err(), Nonsense::OutOfTurn(2));
    }
}
