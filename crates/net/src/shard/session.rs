//! One connection to a shard: of the coordinator, or of a worker.

use std::collections::BTreeMap;
use std::io;
use std::slice;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use paceline_core::TaskId;
use paceline_protocol::{
    FromShard, HANDSHAKE_TIMEOUT, PayloadFormat, PayloadRule, PushedUpdate, ShardGreeting, ShardSum, ToShard,
    WorkerToShard, token_matches,
};
use paceline_runtime::{PartStepper, StepPlan, StepThreads};
use paceline_store::{Optimizer, OptimizerRules, ShardNorms};

use super::Shared;
use super::held_part::HeldPart;
use super::saving::save;
use crate::blocking_link::BlockingLink;
use crate::frame;
use crate::frame_reader::{Received, invalid};
use crate::outbox::{Transfer, Values};
use crate::shared_memory::Region;

/// How long a worker waits for the coordinator to bring the part.
pub(super) const BEGIN_TIMEOUT: Duration = Duration::from_secs(60);

/// How long all values of a part may take to be received or sent.
pub(crate) const PART_TIMEOUT: Duration = Duration::from_secs(600);

/// The most values of a vector that measures the link.
const MAX_MEASURED: u32 = 1 << 20;

/// Serves a connection until it ends. If it breaks the protocol, it is closed; the other side finds out.
pub(super) fn serve(mut link: BlockingLink, shared: &Shared) {
    let outbox = link.outbox().clone();
    let _ = greet(&mut link, shared);
    outbox.disconnect();
}

fn greet(link: &mut BlockingLink, shared: &Shared) -> io::Result<()> {
    let greeting = loop {
        let deadline = Instant::now() + Duration::from_nanos(HANDSHAKE_TIMEOUT.0);
        let Received::Message(greeting) = link.receive::<ShardGreeting>(Some(deadline))? else {
            return Err(invalid("no greeting"));
        };
        let (ShardGreeting::Measure { token, .. }
        | ShardGreeting::Coordinate { token, .. }
        | ShardGreeting::Work { token, .. }
        | ShardGreeting::Save { token, .. }) = &greeting;
        if !token_matches(shared.token.as_ref(), token.as_ref()) {
            return Err(invalid("wrong token"));
        }
        let ShardGreeting::Measure { vectors, length, .. } = greeting else { break greeting };
        answer_measurement(link, vectors, length)?;
    };
    match greeting {
        ShardGreeting::Measure { .. } => Ok(()),
        ShardGreeting::Coordinate { run, length, rules, steps, version, keeps_models, payload, .. } => {
            let length = usize::try_from(length).map_err(io::Error::other)?;
            let (parameters, optimizer) = receive_part(link, length, rules, steps)?;
            let stepper = PartStepper::new(optimizer, StepThreads::automatic(length, usize::from(u8::MAX)));
            let part = HeldPart::new(run, stepper, version, parameters, keeps_models, payload)?;
            *shared.lock() = Some(part);
            shared.changed.notify_all();
            let served = coordinate(link, run, shared);
            shared.lock().take_if(|held| held.run == run);
            shared.changed.notify_all();
            served
        }
        ShardGreeting::Work { run, session, shards, .. } => {
            link.connection.socket().share_send_buffer(shards as usize)?;
            let deadline = Instant::now() + BEGIN_TIMEOUT;
            let mut held = shared.lock();
            while held.as_ref().is_none_or(|held| held.run != run) {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(invalid("another run"));
                }
                held = shared.changed.wait_timeout(held, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            held.iter_mut().for_each(|held| held.connect(session, link.outbox().clone()));
            drop(held);
            let served = receive_updates(link, run, session, shared);
            with(shared, run, |held| held.disconnect(session));
            shared.changed.notify_all();
            served
        }
        ShardGreeting::Save { save: part, .. } => {
            link.send(&FromShard::Saved(save(shared, &part)))?;
            link.flush(Instant::now() + PART_TIMEOUT)
        }
    }
}

/// Calls `act` with the part that is held for a run. `None` if there is none any more.
fn with<T>(shared: &Shared, run: u64, act: impl FnOnce(&mut HeldPart) -> T) -> Option<T> {
    shared.lock().as_mut().filter(|held| held.run == run).map(act)
}

/// The same, as an error.
fn held<T>(shared: &Shared, run: u64, act: impl FnOnce(&mut HeldPart) -> T) -> io::Result<T> {
    with(shared, run, act).ok_or_else(|| invalid("the shard serves another run"))
}

// --- the coordinator ---

fn answer_measurement(link: &mut BlockingLink, vectors: u8, length: u32) -> io::Result<()> {
    if length > MAX_MEASURED {
        return Err(invalid("too long a measurement"));
    }
    for _ in 0..vectors {
        receive_vector(link, length as usize)?;
        link.send(&FromShard::Measured)?;
    }
    Ok(())
}

/// Receives parameters, and the state of their optimizer.
fn receive_part(
    link: &mut BlockingLink,
    length: usize,
    rules: OptimizerRules,
    steps: u64,
) -> io::Result<(Region, Optimizer)> {
    let parameters = receive_vector(link, length)?;
    let state = (0..rules.state_vectors()).map(|_| Ok(receive_vector(link, rules.trainable())?.values().to_vec()));
    let state = state.collect::<io::Result<Vec<_>>>()?;
    Ok((parameters, Optimizer::restored(rules, steps, state)))
}

/// Receives one vector.
pub(crate) fn receive_vector(link: &mut BlockingLink, length: usize) -> io::Result<Region> {
    link.connection.reader().expect(Some(Region::private(length)?), length);
    match link.receive::<()>(Some(Instant::now() + PART_TIMEOUT))? {
        Received::Values(Some(values)) => Ok(values),
        _ => Err(invalid("a message in place of values")),
    }
}

/// Adds a vector of values to what is sent.
pub(crate) fn send_vector(link: &BlockingLink, frame: Vec<u8>, values: Values) {
    let (number, version, announcement, payload) = (0, None, Vec::new(), PayloadFormat::F32);
    link.outbox().transfer(Transfer { number, frame, version, announcement, values, payload }, 0);
}

fn coordinate(link: &mut BlockingLink, run: u64, shared: &Shared) -> io::Result<()> {
    loop {
        let message = match link.receive::<ToShard<StepPlan>>(None)? {
            Received::Message(message) => message,
            Received::End => return Ok(()),
            Received::Values(_) => return Err(invalid("values that nobody expects")),
        };
        match message {
            ToShard::Deliver { sessions } => {
                held(shared, run, |held| sessions.into_iter().for_each(|session| held.deliver(session)))?;
            }
            ToShard::Attempt { plan, sum } => send_norms(link, add_up(shared, run, Some(&plan), &sum)?)?,
            ToShard::Measure(sum) => send_norms(link, add_up(shared, run, None, &sum)?)?,
            ToShard::Accept { plan, tasks } => held(shared, run, |held| held.accept(&plan, &tasks))??,
            ToShard::Keep(tasks) => held(shared, run, |held| held.keep(&tasks))??,
            ToShard::Forecast(plan) => held(shared, run, |held| held.forecast(plan))?,
            ToShard::Discard(tasks) => held(shared, run, |held| held.discard(&tasks))?,
            ToShard::Forget { session } => held(shared, run, |held| held.forget(session))?,
            ToShard::Fetch => held(shared, run, |held| send_part(link, held))??,
            ToShard::Retain => {
                held(shared, run, HeldPart::retain)?;
                shared.changed.notify_all();
            }
        }
    }
}

/// Waits for the updates, then sums them.
fn add_up(shared: &Shared, run: u64, plan: Option<&StepPlan>, sum: &ShardSum) -> io::Result<ShardNorms> {
    let mut guard = shared.lock();
    loop {
        let Some(held) = guard.as_mut().filter(|held| held.run == run) else {
            return Err(invalid("the shard serves another run"));
        };
        if !sum.updates.iter().any(|update| held.is_awaited(update)) {
            return Ok(held.add_up(plan, sum));
        }
        guard = shared.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
}

fn send_norms(link: &mut BlockingLink, norms: ShardNorms) -> io::Result<()> {
    let broken = norms.broken().iter().map(|&index| index as u32).collect();
    let message = FromShard::Norms { sums: norms.sums().len() as u64, broken };
    // As bits: a sum has twice the size of a value.
    let sums: Vec<f32> = bytemuck::cast_slice(norms.sums()).to_vec();
    send_vector(link, frame::encode(&message)?, Arc::new(sums));
    link.flush(Instant::now() + PART_TIMEOUT)
}

fn send_part(link: &mut BlockingLink, held: &HeldPart) -> io::Result<()> {
    let optimizer = held.stepper.optimizer();
    let message = FromShard::Held { version: held.version, steps: optimizer.steps() };
    send_vector(link, frame::encode(&message)?, held.current.clone());
    for (_, vector) in optimizer.state() {
        send_vector(link, Vec::new(), Arc::new(vector.to_vec()));
    }
    link.flush(Instant::now() + PART_TIMEOUT)
}

// --- a worker ---

fn receive_updates(link: &mut BlockingLink, run: u64, session: u64, shared: &Shared) -> io::Result<()> {
    let mut arriving: Option<TaskId> = None;
    let mut vectors: BTreeMap<u8, Region> = BTreeMap::new();
    let vector = |number: u8| move || invalid(format!("unknown shared vector {number}"));
    loop {
        let message = match link.receive::<WorkerToShard>(None)? {
            Received::Message(message) => message,
            Received::Values(None) => {
                arriving = None;
                continue;
            }
            Received::Values(Some(piece)) => {
                let task = arriving.ok_or_else(|| invalid("values that nobody expects"))?;
                if held(shared, run, |held| held.arrive(task, piece))? {
                    arriving = None;
                    shared.changed.notify_all();
                }
                continue;
            }
            Received::End => return Ok(()),
        };
        match message {
            WorkerToShard::Push { update } if arriving.is_none() => {
                let (pieces, length) =
                    held(shared, run, |held| (held.expect(session, update), held.current.values().len()))?;
                link.connection.reader().expect(pieces?, length);
                arriving = Some(update.task);
            }
            WorkerToShard::Push { .. } => return Err(invalid("a second update before the first")),
            WorkerToShard::Confirm { task } => {
                held(shared, run, |held| held.confirm(task))?;
                shared.changed.notify_all();
            }
            WorkerToShard::Dropped { task } => {
                let rest = link.connection.reader().abandon();
                arriving = None;
                with(shared, run, |held| held.abandon(task, rest));
            }
            WorkerToShard::Share { vector, start, length } => {
                let part = held(shared, run, |held| held.current.values().len())?;
                let memory = Region::open(link.connection.stream().file()?, length as usize)?;
                let end = start.checked_add(part as u64).filter(|&end| end <= length);
                let end = end.ok_or_else(|| invalid("a shared vector that is too short"))?;
                vectors.extend(
                    memory.split(slice::from_ref(&(start as usize..end as usize))).pop().map(|part| (vector, part)),
                );
            }
            WorkerToShard::PushShared { update, vector: number } => {
                let values = vectors.get(&number).ok_or_else(vector(number))?.values();
                take(values, update, run, session, shared)?;
                link.send(&FromShard::Taken)?;
            }
            WorkerToShard::WriteModel { vector: number } => {
                let model = held(shared, run, |held| held.announced(session))?;
                let model = model.ok_or_else(|| invalid("no model was announced"))?;
                let values = vectors.get_mut(&number).ok_or_else(vector(number))?.values_mut();
                values.copy_from_slice(model.values());
                link.send(&FromShard::Written)?;
            }
            WorkerToShard::Payload { format } => {
                if held(shared, run, |held| held.payload)? != PayloadRule::Auto {
                    return Err(invalid("a format that this run does not use"));
                }
                link.outbox().use_payload(format);
            }
        }
    }
}

/// Takes an update of a worker on this host, piece by piece.
fn take(values: &[f32], update: PushedUpdate, run: u64, session: u64, shared: &Shared) -> io::Result<()> {
    let mut start = 0;
    for mut piece in held(shared, run, |held| held.expect(session, update))?? {
        let end = start + piece.values().len();
        piece.values_mut().copy_from_slice(&values[start..end]);
        start = end;
        held(shared, run, |held| held.arrive(update.task, piece))?;
    }
    shared.changed.notify_all();
    Ok(())
}
