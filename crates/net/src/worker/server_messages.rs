//! What the messages of the server do: tasks go to the queue, models and shared buffers into memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use paceline_core::Version;
use paceline_protocol::{Reaction, SessionEnd, SharedBuffer, SharedBuffers, ToServer, ToWorker};
use paceline_workload::Progress;

use super::lost;
use super::payload_choice::PayloadChoice;
use super::shard_links::{ShardAccess, ShardLinks, ShardMap};
use super::task_queue::{TaskModel, TaskQueue};
use crate::connection::Connection;
use crate::frame_reader::invalid;
use crate::outbox::Outbox;
use crate::shared_memory::{ModelMapping, Region};

/// Handles the messages of the server.
pub(super) struct ServerMessages {
    task_queue: Arc<TaskQueue>,
    progress: Progress,
    /// The length of the parameter vector, once the workload is built.
    length: Arc<OnceLock<usize>>,
    mapping: ModelMapping,
    payload: Arc<PayloadChoice>,
    shard_access: ShardAccess,
    /// The connections to the shards, once the server has named them.
    shard_links: Arc<OnceLock<ShardLinks>>,
    /// Parameter buffers shared by the server.
    parameters: BTreeMap<u32, Arc<Region>>,
    /// Gradient buffers shared by the server.
    gradients: BTreeMap<u32, Arc<Mutex<Region>>>,
    /// Own buffers for received models; a buffer is reused when no task reads it.
    models: Vec<Arc<Region>>,
    /// The version of the model that is arriving.
    arriving: Option<Version>,
    /// The bytes that had arrived at the last look.
    bytes: u64,
}

impl ServerMessages {
    pub(super) fn new(
        task_queue: Arc<TaskQueue>,
        progress: Progress,
        length: Arc<OnceLock<usize>>,
        mapping: ModelMapping,
        payload: Arc<PayloadChoice>,
        shard_access: ShardAccess,
    ) -> Self {
        ServerMessages {
            task_queue,
            progress,
            length,
            mapping,
            payload,
            shard_access,
            shard_links: Arc::default(),
            parameters: BTreeMap::new(),
            gradients: BTreeMap::new(),
            models: Vec::new(),
            arriving: None,
            bytes: 0,
        }
    }

    /// The connections to the shards, if there are any.
    pub(super) fn shard_links(&self) -> &Arc<OnceLock<ShardLinks>> {
        &self.shard_links
    }

    /// Ends the session; only the first reason counts.
    pub(super) fn end(&self, end: SessionEnd) {
        self.task_queue.end(end);
    }

    /// Notes how many bytes have arrived in all. A part of a model is progress.
    pub(super) fn on_bytes(&mut self, bytes: u64) {
        if std::mem::replace(&mut self.bytes, bytes) != bytes && self.arriving.is_some() {
            self.progress.step();
        }
    }

    /// Tells the server that this process is alive, and how far it is.
    pub(super) fn send_heartbeat(&self, outbox: &Outbox) {
        // If the last one is still pending, another says nothing more.
        if !outbox.has_messages() {
            // If it fails, reading finds the connection ended.
            let _ = outbox.send(&ToServer::Heartbeat { progress: self.progress.steps() });
        }
    }

    /// A model is complete.
    pub(super) fn on_values(&mut self, region: Option<Region>, outbox: &Outbox) {
        if let (Some(region), Some(version)) = (region, self.arriving.take()) {
            if let Some(format) = self.payload.model_arrived(Instant::now()) {
                // If it fails, reading finds the connection ended.
                let _ = outbox.send(&ToServer::Payload { format });
            }
            let model = Arc::new(region);
            self.task_queue.add_model(version, Some(model.clone()));
            self.models.push(model);
        }
    }

    /// Carries out a message. An error is the end of the session.
    pub(super) fn on_message(&mut self, message: ToWorker, connection: &mut Connection) -> Result<(), SessionEnd> {
        let model = match &message {
            ToWorker::Assign { .. } | ToWorker::Model { .. } if self.arriving.is_some() => {
                return Err(SessionEnd::Lost("message in the middle of a model".into()));
            }
            ToWorker::Assign { buffers: Some(buffers), .. } => Some(self.shared(*buffers)?),
            ToWorker::Finished { buffer: Some(index), .. } => {
                let parameters = self.parameters.get(index).cloned();
                parameters.map(|parameters| TaskModel { parameters: Some(parameters), gradient: None })
            }
            ToWorker::Map { buffer, length } => {
                self.map(*buffer, *length, connection)?;
                None
            }
            ToWorker::Model { version } => return self.expect_model(*version, connection),
            ToWorker::Shards { places, run, session } => {
                let map =
                    ShardMap { places: places.clone(), run: *run, session: *session, payload: self.payload.clone() };
                return self.reach_shards(map, connection);
            }
            _ => None,
        };
        let reaction = self.task_queue.on_message(message, model);
        if let Some(number) = self.task_queue.cancelled_task() {
            connection.outbox().stop_transfer(number);
            self.shard_links.get().into_iter().for_each(|links| links.stop(number));
        }
        match reaction {
            Reaction::None => Ok(()),
            Reaction::Drop(messages) => {
                let sent = messages.iter().try_for_each(|message| connection.outbox().send(message));
                sent.map_err(|error| lost(&error))
            }
            Reaction::Join(_) | Reaction::SendModel => Err(SessionEnd::Lost("second welcome".into())),
            Reaction::End(end) => Err(end),
        }
    }

    fn shared(&self, SharedBuffers { parameters, gradient }: SharedBuffers) -> Result<TaskModel, SessionEnd> {
        match (self.parameters.get(&parameters), self.gradients.get(&gradient)) {
            (Some(parameters), Some(gradient)) => {
                Ok(TaskModel { parameters: Some(parameters.clone()), gradient: Some(gradient.clone()) })
            }
            _ => Err(lost(&invalid(format!("unknown shared buffer: parameters {parameters} or gradient {gradient}")))),
        }
    }

    /// The length of the parameter vector.
    fn length(&self) -> Result<usize, SessionEnd> {
        self.length.get().copied().ok_or_else(|| SessionEnd::Lost("values before this worker was ready".into()))
    }

    fn map(&mut self, buffer: SharedBuffer, length: u64, connection: &mut Connection) -> Result<(), SessionEnd> {
        let expected = self.length()?;
        if length != expected as u64 {
            return Err(SessionEnd::Lost(format!("shared buffer of {length} values: expected {expected}")));
        }
        let file = connection.stream().file().map_err(|error| lost(&error))?;
        match buffer {
            SharedBuffer::Parameters(index) => {
                let region = Region::open_model(file, expected, self.mapping).map_err(|error| lost(&error))?;
                self.parameters.insert(index, Arc::new(region));
            }
            SharedBuffer::Gradient(index) => {
                let region = Region::open(file, expected).map_err(|error| lost(&error))?;
                self.gradients.insert(index, Arc::new(Mutex::new(region)));
            }
        }
        Ok(())
    }

    /// Models come from shards, and updates go to them.
    fn reach_shards(&mut self, map: ShardMap, connection: &Connection) -> Result<(), SessionEnd> {
        let (access, length) = (self.shard_access.clone(), self.length()?);
        let (task_queue, progress) = (self.task_queue.clone(), self.progress.clone());
        let links = ShardLinks::start(map, access, length, task_queue, progress, connection.outbox().clone());
        self.shard_links
            .set(links.map_err(|error| lost(&error))?)
            .map_err(|_| SessionEnd::Lost("the server has named its shards twice".into()))
    }

    /// A model follows; messages may arrive between its chunks.
    fn expect_model(&mut self, version: Version, connection: &mut Connection) -> Result<(), SessionEnd> {
        let length = self.length()?;
        let free = self.models.iter_mut().position(|model| Arc::get_mut(model).is_some());
        let free = free.and_then(|free| Arc::into_inner(self.models.swap_remove(free)));
        let region = free.map_or_else(|| Region::private(length), Ok).map_err(|error| lost(&error))?;
        self.arriving = Some(version);
        self.payload.model_begins(Instant::now());
        connection.reader().expect(Some(region), length);
        Ok(())
    }
}
