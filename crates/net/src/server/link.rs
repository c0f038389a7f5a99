//! One connection, seen from the coordinator: its outbox, and the buffers that the worker uses.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use paceline_core::Version;
use paceline_protocol::{PayloadFormat, SharedBuffer, SharedBuffers, ToWorker};

use super::parameter_ring::ParameterBuffer;
use crate::frame;
use crate::outbox::{Outbox, Transfer};
use crate::shared_memory::{Region, RegionWriter};

/// The longest model that the coordinator sends itself over TCP, in bytes. It fits the kernel's empty buffers.
const MAX_DIRECT_BYTES: usize = 64 * 1024;

/// The permit to send the model, by a worker that was asked for it.
pub(super) const MODEL_PERMIT: u64 = u64::MAX;

/// Which gradients the session of a connection may store, and whether it is to stop. Set by the coordinator.
#[derive(Debug, Default)]
pub(super) struct UploadPermits {
    granted: Mutex<BTreeSet<u64>>,
    refused: AtomicBool,
}

impl UploadPermits {
    /// Takes the permit to upload the gradient of a task. Each permit is valid once, so a worker can't fill the memory.
    pub(super) fn take(&self, number: u64) -> bool {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner).remove(&number)
    }

    fn grant(&self, number: u64) {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
    }

    /// Whether the worker was refused, so that nothing more is read from it.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }
}

/// The buffers of a task.
#[derive(Debug)]
pub(super) struct TaskBuffers {
    /// The model that the worker reads in shared memory, or that its gradient is compensated with. Holding it keeps it
    /// from being overwritten.
    /// `None` if the model is in shards.
    pub(super) parameters: Option<Arc<ParameterBuffer>>,
    /// The buffer in shared memory for its gradient.
    pub(super) gradient: Option<Arc<Region>>,
}

/// One connection, seen from the coordinator.
///
/// A dismissed worker may read and write its shared buffers until it notices. The link therefore lives until the
/// connection is closed by the worker, and with it every buffer that the worker was given.
#[derive(Debug)]
pub(super) struct Link {
    outbox: Arc<Outbox>,
    permits: Arc<UploadPermits>,
    payload: PayloadFormat,
    buffers: BTreeMap<u64, TaskBuffers>,
    gradients: Vec<Arc<Region>>,
    mapped: BTreeSet<u32>,
}

impl Link {
    pub(super) fn new(outbox: Arc<Outbox>, permits: Arc<UploadPermits>, payload: PayloadFormat) -> Self {
        Link { outbox, permits, payload, buffers: BTreeMap::new(), gradients: Vec::new(), mapped: BTreeSet::new() }
    }

    pub(super) fn send(&self, message: &ToWorker) {
        self.send_with(message, None);
    }

    /// Sends a message, with a file descriptor if one is given. If that is not possible, the session finds the
    /// connection ended.
    fn send_with(&self, message: &ToWorker, file: Option<OwnedFd>) {
        if self.outbox.send_with(message, file).is_err() {
            self.outbox.disconnect();
        }
    }

    /// Sends a last message, closes the sending direction and stops reading.
    pub(super) fn close(&self, last: &ToWorker) {
        self.permits.refused.store(true, Ordering::Relaxed);
        self.outbox.close(frame::encode(last).ok());
    }

    /// The same with the model at the end of the run, which `last` tells of: in shared memory or sent before.
    pub(super) fn close_with_model(&mut self, mut last: ToWorker, model: &Arc<ParameterBuffer>) {
        let ToWorker::Finished { version, buffer, .. } = &mut last else { return self.close(&last) };
        if self.outbox.is_local() {
            // If it can't be mapped, the worker has to do without.
            *buffer = self.map_parameters(model).is_ok().then_some(model.index);
            return self.close(&last);
        }
        let version = *version;
        let (Ok(announcement), Ok(last)) = (frame::encode(&ToWorker::Model { version }), frame::encode(&last)) else {
            return;
        };
        self.permits.refused.store(true, Ordering::Relaxed);
        // The second vector is known by then, so that only its message follows the first.
        for frame in [Vec::new(), last] {
            let (announcement, values) = (announcement.clone(), model.clone());
            let (number, version, payload) = (u64::MAX, Some(version), self.payload);
            let transfer = Transfer { number, frame, version, announcement, values, payload };
            self.outbox.transfer(transfer, MAX_DIRECT_BYTES);
        }
        self.outbox.close_after_transfers();
    }

    fn map_parameters(&mut self, parameters: &Arc<ParameterBuffer>) -> io::Result<()> {
        if self.mapped.insert(parameters.index) {
            self.map(SharedBuffer::Parameters(parameters.index), &parameters.region)?;
        }
        Ok(())
    }

    /// Keeps a model for a task that is sent now or later. Without one, the worker gets it from shards.
    pub(super) fn prepare(&mut self, number: u64, parameters: Option<Arc<ParameterBuffer>>) {
        self.buffers.insert(number, TaskBuffers { parameters, gradient: None });
    }

    /// Sends the assignment of a task. In shared memory it names the buffers; over TCP the parameters follow.
    pub(super) fn assign(&mut self, number: u64, version: Version, mut message: ToWorker) -> io::Result<()> {
        let Some(buffers) = self.buffers.get(&number) else { return Ok(()) };
        let Some(parameters) = buffers.parameters.clone() else {
            self.send(&message);
            return Ok(());
        };
        if !self.outbox.is_local() {
            self.permits.grant(number);
            let frame = frame::encode(&message)?;
            let announcement = frame::encode(&ToWorker::Model { version })?;
            let (version, payload) = (Some(version), self.payload);
            let transfer = Transfer { number, frame, version, announcement, values: parameters, payload };
            self.outbox.transfer(transfer, MAX_DIRECT_BYTES);
            return Ok(());
        }
        let (index, gradient) = self.free_gradient(parameters.region.values().len())?;
        self.map_parameters(&parameters)?;
        if let ToWorker::Assign { buffers, .. } = &mut message {
            *buffers = Some(SharedBuffers { parameters: parameters.index, gradient: index });
        }
        self.send(&message);
        self.buffers.insert(number, TaskBuffers { parameters: Some(parameters), gradient: Some(gradient) });
        Ok(())
    }

    /// The worker is about to be asked for the model.
    pub(super) fn expect_model(&self) {
        self.permits.grant(MODEL_PERMIT);
    }

    /// The result of a task is not needed any more. Returns whether the assignment was withdrawn before it was sent.
    pub(super) fn cancel(&mut self, number: u64) -> bool {
        self.permits.take(number);
        if let Some(buffers) = self.buffers.get_mut(&number) {
            // The worker runs one task at a time, so it never writes this buffer for two tasks at once.
            buffers.gradient = None;
        }
        self.outbox.withdraw(number)
    }

    /// Takes the buffers of a task that is over.
    pub(super) fn release(&mut self, number: u64) -> Option<TaskBuffers> {
        self.buffers.remove(&number)
    }

    /// Whether a worker on this machine has work.
    pub(super) fn uses_processor(&self) -> bool {
        self.outbox.is_local() && !self.buffers.is_empty()
    }

    /// A gradient buffer that no task and no commit uses.
    fn free_gradient(&mut self, length: usize) -> io::Result<(u32, Arc<Region>)> {
        let free = self.gradients.iter().position(|gradient| Arc::strong_count(gradient) == 1);
        let index = match free {
            Some(index) => index,
            None => {
                let mut region = Region::shared(length, RegionWriter::Peer)?;
                self.map(SharedBuffer::Gradient(self.gradients.len() as u32), &region)?;
                region.close_file();
                self.gradients.push(Arc::new(region));
                self.gradients.len() - 1
            }
        };
        Ok((index as u32, self.gradients[index].clone()))
    }

    fn map(&self, buffer: SharedBuffer, region: &Region) -> io::Result<()> {
        let file = region.file().map(|file| file.try_clone_to_owned()).transpose()?;
        self.send_with(&ToWorker::Map { buffer, length: region.values().len() as u64 }, file);
        Ok(())
    }
}

impl Drop for Link {
    /// What is pending is still sent.
    fn drop(&mut self) {
        self.outbox.close(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poller::Waker;
    use crate::scripted_peer::ScriptedPeer;
    use crate::server::parameter_ring::ParameterRing;
    use crate::socket::{Socket, Stream, Traffic};
    use paceline_core::{Assignment, TaskId, Work, WorkerId};
    use paceline_protocol::{Codec, RunPosition, TaskSettings};
    use std::os::unix::net::UnixStream;

    /// The link of a worker that shares memory, and the other end of its connection.
    fn link() -> (Link, ScriptedPeer<UnixStream>) {
        let (near, far) = UnixStream::pair().unwrap();
        let stream = Stream::new(Socket::local(near), None);
        let outbox = Outbox::new(&stream, Codec::of_models(), Traffic::default(), Waker::new().unwrap(), 0);
        (Link::new(Arc::new(outbox), Arc::default(), PayloadFormat::F32), ScriptedPeer::new(far))
    }

    fn assign(link: &mut Link, ring: &ParameterRing, number: u64) {
        let task = TaskId { worker: WorkerId(0), number };
        let version = Version(number);
        let assignment = Assignment { task, version, work: Work::Gradient, samples: 1, offset: 0, queued: false };
        let settings = TaskSettings { run: RunPosition::default(), committed: None };
        link.prepare(number, Some(ring.newest().clone()));
        link.assign(number, version, ToWorker::Assign { assignment, after: None, buffers: None, settings }).unwrap();
    }

    /// The gradient buffer of the next assignment.
    fn assigned_buffer(worker: &mut ScriptedPeer<UnixStream>) -> u32 {
        loop {
            if let ToWorker::Assign { buffers, .. } = worker.message() {
                return buffers.unwrap().gradient;
            }
        }
    }

    #[test]
    fn a_gradient_is_not_overwritten_before_its_commit() {
        let (mut link, mut worker) = link();
        let ring = ParameterRing::new(&[0.0; 8], true).unwrap();
        assign(&mut link, &ring, 0);
        assert_eq!(assigned_buffer(&mut worker), 0);
        let uncommitted = link.release(0).unwrap();
        assign(&mut link, &ring, 1);
        assert_eq!(assigned_buffer(&mut worker), 1);
        drop(uncommitted);
        link.release(1);
        assign(&mut link, &ring, 2);
        assert_eq!(assigned_buffer(&mut worker), 0);
    }

    #[test]
    fn the_buffer_of_a_cancelled_task_is_used_again_but_its_model_is_kept() {
        let (mut link, mut worker) = link();
        let mut ring = ParameterRing::new(&[1.0; 8], true).unwrap();
        assign(&mut link, &ring, 0);
        assert_eq!(assigned_buffer(&mut worker), 0);
        let model = Arc::downgrade(ring.newest());
        assert!(!link.cancel(0), "it was sent");
        assign(&mut link, &ring, 1);
        assert_eq!(assigned_buffer(&mut worker), 0);
        link.release(1);
        ring.advance(|_, values| values.fill(2.0)).unwrap();
        // The link is closed, but the worker may still read: its model stays as it is.
        link.close(&ToWorker::Interrupt { number: 0 });
        ring.advance(|_, values| values.fill(3.0)).unwrap();
        assert_eq!(model.upgrade().unwrap().region.values(), [1.0; 8]);
        drop(link);
        assert!(model.upgrade().is_some(), "the ring still has it");
    }
}
