//! The worker's connection to its server before the session: the handshake, and the model if the server has none.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_protocol::{PayloadFormat, ToServer, ToWorker};
use paceline_runtime::OfferedModel;
use paceline_store::TensorEntry;

use crate::blocking_link::BlockingLink;
use crate::connection::Side;
use crate::frame;
use crate::frame_reader::{Received, invalid};
use crate::outbox::{Outbox, Transfer};
use crate::shared_memory::Region;
use crate::socket::{Socket, Traffic};
use crate::tls::Tls;

/// How long a model may take to be sent.
const OFFER_TIMEOUT: Duration = Duration::from_secs(600);

/// The connection to the server.
pub(super) struct WorkerLink(pub(super) BlockingLink);

impl WorkerLink {
    pub(super) fn new(socket: Socket, tls: Option<Tls>) -> io::Result<Self> {
        BlockingLink::new(Side::Worker, socket, tls, &Traffic::default()).map(WorkerLink)
    }

    fn outbox(&self) -> &Outbox {
        self.0.outbox()
    }

    pub(super) fn socket(&self) -> &Socket {
        self.0.connection.socket()
    }

    /// Whether the server is on this machine and shares memory.
    pub(super) fn is_shared(&self) -> bool {
        self.0.connection.socket().is_local()
    }

    /// Sends the first message and waits for the answer until `deadline`.
    pub(super) fn ask(&mut self, message: &ToServer, deadline: Instant) -> io::Result<ToWorker> {
        self.outbox().send(message)?;
        self.answer(deadline)
    }

    /// Sends what is in the outbox, and waits for a message until `deadline`.
    fn answer(&mut self, deadline: Instant) -> io::Result<ToWorker> {
        match self.0.receive(Some(deadline))? {
            Received::Message(answer) => Ok(answer),
            Received::Values(_) => Err(invalid("values before the welcome")),
            Received::End => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Sends a model to a server that asked for it. Returns the answer.
    pub(super) fn offer(mut self, model: &OfferedModel) -> io::Result<ToWorker> {
        let OfferedModel { layout, initial, training } = model;
        for TensorEntry { name, shape, range } in layout.entries() {
            let shape = shape.iter().map(|&side| side as u64).collect();
            let trainable = range.end <= layout.trainable();
            self.outbox().send(&ToServer::Tensor { name: name.clone(), shape, trainable })?;
        }
        let mut values = Region::private(initial.len())?;
        values.values_mut().copy_from_slice(initial);
        let offer = ToServer::Offer { values: initial.len() as u64, training: training.clone() };
        self.outbox().transfer(
            Transfer {
                number: 0,
                frame: frame::encode(&offer)?,
                version: None,
                announcement: Vec::new(),
                values: Arc::new(values),
                payload: PayloadFormat::F32,
            },
            usize::MAX,
        );
        self.answer(Instant::now() + OFFER_TIMEOUT)
    }
}
