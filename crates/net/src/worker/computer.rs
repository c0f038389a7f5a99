//! The thread that computes: gradients at the model, or local iterations on a replica of it.

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use paceline_core::{Assignment, LocalLength, LocalWork, ReplicaStart, Span, Work};
use paceline_runtime::{LocalReplica, pulled_replica, replica_at};
use paceline_store::{Layout, OptimizerSpec};
use paceline_workload::{Draw, Replica};

use super::emulation::Emulation;
use super::load::Load;
use super::lock;
use super::mailbox::{End, Mailbox, Task, Use};
use crate::frame;
use crate::link::{Sender, invalid};
use crate::message::{Gradient, Terms, ToServer, Words};
use crate::payload::PayloadFormat;
use crate::region::Region;

/// What computes.
pub(super) struct Computer<'a> {
    pub(super) replica: Box<dyn Replica>,
    pub(super) layout: &'a Layout,
    /// What steps a replica in local iterations.
    pub(super) optimizer: OptimizerSpec,
    pub(super) mailbox: &'a Mailbox,
    pub(super) sender: &'a Mutex<Sender>,
    pub(super) payload: PayloadFormat,
    /// Where gradients lie before they are sent, if they are.
    pub(super) gradient: Option<Arc<Mutex<Region>>>,
    pub(super) emulation: Option<&'a mut Emulation>,
    pub(super) load: Load,
    pub(super) tasks: u64,
    /// Where replicas stood that a later task may go on from, by task.
    pub(super) replicas: BTreeMap<u64, Vec<f32>>,
}

/// What came of a task.
struct Done {
    loss: f64,
    /// How long it was computed since the server was last told.
    compute: Span,
    querying: Span,
}

impl Computer<'_> {
    /// Does one task after another until the end.
    pub(super) fn compute(&mut self) -> End {
        loop {
            let (task, parameters) = match self.mailbox.begin() {
                Ok(begun) => begun,
                Err(end) => return end,
            };
            if let Err(error) = self.carry_out(task, &parameters) {
                // If the server said why it hung up, the reader will still find it.
                lock(self.sender).socket().shutdown(Shutdown::Both);
                return match self.mailbox.wait_for_end() {
                    End::Lost(_) => End::Lost(error.to_string()),
                    told => told,
                };
            }
            drop(parameters);
            self.mailbox.finish();
        }
    }

    fn carry_out(&mut self, Task { assignment, terms, gradient, .. }: Task, parameters: &Region) -> io::Result<()> {
        let shared = gradient.is_some();
        let Some(gradient) = gradient.or_else(|| self.gradient.clone()) else {
            return Err(invalid("an assignment without its shared buffers"));
        };
        let done = match assignment.work {
            Work::Gradient => self.gradient(&assignment, parameters.values(), &gradient),
            Work::Local(local) => self.iterate(&assignment, local, terms, parameters.values(), &gradient)?,
        };
        self.deliver(assignment.task.number, done, &gradient, shared)
    }

    fn gradient(&mut self, assignment: &Assignment, model: &[f32], gradient: &Mutex<Region>) -> Done {
        let began = Instant::now();
        let mut gradient = gradient.lock().unwrap_or_else(PoisonError::into_inner);
        let loss = self.replica.gradient(model, draw(assignment, 0), gradient.values_mut());
        self.straggle(began);
        Done { loss, compute: elapsed(began), querying: Span::ZERO }
    }

    /// Iterates on a replica for as long as it is told to, and leaves the difference in `difference`.
    fn iterate(
        &mut self,
        assignment: &Assignment,
        local: LocalWork,
        terms: Terms,
        model: &[f32],
        difference: &Mutex<Region>,
    ) -> io::Result<Done> {
        let start = self.start(local.start, terms.committed, model);
        let mut replica = LocalReplica::new(self.layout, start, self.optimizer, terms.rate);
        let (mut compute, mut querying) = (Span::ZERO, Span::ZERO);
        while self.mailbox.usefulness() != Use::None {
            let began = Instant::now();
            let loss = replica.begin(self.replica.as_mut(), draw(assignment, replica.iterations()));
            if !self.straggle(began) {
                querying += elapsed(began);
                break;
            }
            replica.complete(loss);
            compute += elapsed(began);
            if let LocalLength::Iterations(count) = local.length {
                if replica.iterations() == count {
                    break;
                }
                continue;
            }
            let words = self.words(std::mem::take(&mut compute), std::mem::take(&mut querying));
            self.say(&ToServer::Asked { number: assignment.task.number, iterations: replica.iterations(), words })?;
            let asked = Instant::now();
            // What is computed already when it is to be sent is sent with the rest.
            let goes_on = match local.length {
                LocalLength::AskAndWait => self.mailbox.wait_for_answer(),
                _ => !self.mailbox.is_collected(),
            };
            querying += elapsed(asked);
            if !goes_on {
                break;
            }
        }
        let mut difference = difference.lock().unwrap_or_else(PoisonError::into_inner);
        let loss = replica.finish(model, difference.values_mut());
        if let ReplicaStart::Replica { .. } = local.start {
            self.replicas.insert(assignment.task.number, replica_at(model, difference.values()));
        }
        Ok(Done { loss, compute, querying })
    }

    /// Where a replica starts. What no task can go on from any more is forgotten.
    fn start(&mut self, start: ReplicaStart, committed: Option<u64>, model: &[f32]) -> Vec<f32> {
        if let (ReplicaStart::Replica { pull }, Some(committed)) = (start, committed) {
            self.replicas = self.replicas.split_off(&committed);
            if let Some(own) = self.replicas.get(&committed) {
                return pulled_replica(model, own, pull);
            }
        }
        model.to_vec()
    }

    /// Is late on purpose, if it is to be. Says whether it could take its time: nobody called for what there is.
    fn straggle(&mut self, began: Instant) -> bool {
        let Some(emulation) = &mut self.emulation else { return true };
        let pause = emulation.pause(began.elapsed());
        self.mailbox.sleep(pause)
    }

    fn words(&mut self, compute: Span, querying: Span) -> Words {
        let (cpu, memory) = self.load.shares();
        Words { compute, querying, cpu, memory }
    }

    fn say(&self, message: &ToServer) -> io::Result<()> {
        lock(self.sender).message(message)
    }

    /// Tells the server that a task is done, as far as it still wants to know.
    fn deliver(&mut self, number: u64, done: Done, gradient: &Mutex<Region>, shared: bool) -> io::Result<()> {
        let Done { loss, compute, querying } = done;
        let words = self.words(compute, querying);
        let report = |gradient| ToServer::Report { number, words, loss, gradient };
        match self.mailbox.usefulness() {
            Use::None => return self.say(&ToServer::Dropped { number }),
            _ if shared => self.say(&report(Gradient::InPlace))?,
            Use::Late => self.say(&report(Gradient::Withheld))?,
            Use::Wanted => {
                lock(self.sender).announce(&frame::encode(&report(Gradient::Follows))?);
                let gradient = gradient.lock().unwrap_or_else(PoisonError::into_inner);
                for part in gradient.values().chunks(self.payload.values_per_chunk()) {
                    if self.mailbox.usefulness() == Use::None {
                        return self.say(&ToServer::Dropped { number });
                    }
                    lock(self.sender).chunk(part, self.payload)?;
                }
            }
        }
        self.tasks += 1;
        Ok(())
    }
}

fn elapsed(since: Instant) -> Span {
    Span(since.elapsed().as_nanos() as u64)
}

/// The samples of a gradient, or of the local iteration after so many.
fn draw(assignment: &Assignment, iterations: u32) -> Draw {
    let Assignment { task, offset, samples, .. } = *assignment;
    Draw { worker: task.worker.0, offset: offset + u64::from(iterations) * u64::from(samples), samples }
}
