//! What a worker tells the coordinator as a member of a group: from any thread, while another one computes or waits.

use std::io;
use std::sync::Arc;

use paceline_core::Version;
use paceline_protocol::{FromMember, PayloadFormat, ToServer};

use super::exchange::Exchange;
use super::task_queue::TaskQueue;
use crate::frame;
use crate::outbox::{Transfer, TransferEnd};

/// A worker's part in groups that sum updates, while its session lasts.
#[derive(Clone)]
pub struct GroupMembership {
    exchange: Arc<Exchange>,
    task_queue: Arc<TaskQueue>,
}

impl GroupMembership {
    pub(super) fn new(exchange: Arc<Exchange>, task_queue: Arc<TaskQueue>) -> Self {
        GroupMembership { exchange, task_queue }
    }

    /// Tells of a sum. If the session has ended, whoever waits for it finds out.
    pub fn tell(&self, message: FromMember) {
        let _ = self.exchange.outbox().send(&ToServer::Member(message));
    }

    /// Waits until the newest model is asked for; it is of this version, or will be. `None` if the session ends before.
    pub fn wait_for_request(&self) -> Option<Version> {
        self.task_queue.wait_for_request()
    }

    /// Sends the model that was asked for. Returns whether it is sent.
    ///
    /// # Errors
    /// If the message can't be encoded.
    pub fn send_model(&self, version: Version, values: Vec<f32>) -> io::Result<bool> {
        let frame = frame::encode(&ToServer::Member(FromMember::Model(version)))?;
        let (values, payload) = (Arc::new(values), PayloadFormat::default());
        let transfer = Transfer { number: u64::MAX, frame, version: None, announcement: Vec::new(), values, payload };
        self.exchange.outbox().transfer(transfer, usize::MAX);
        Ok(self.exchange.outbox().wait_for_transfer() == TransferEnd::Sent)
    }
}
