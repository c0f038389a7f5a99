//! Server-sent events: whoever follows a run gets all of it once, then what changes.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::Notify;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::sleep;

/// How many messages may wait for a client. One that does not read them is disconnected: it gets all of the run when it
/// connects again.
const MAX_WAITING: usize = 8;

/// How many clients may follow a run. A further one takes the place of the first.
const MAX_CLIENTS: usize = 32;

/// An answer: whole, or one that goes on.
pub(crate) enum HttpAnswer {
    Whole(Full<Bytes>),
    Stream(Receiver<Bytes>),
}

impl Body for HttpAnswer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            HttpAnswer::Whole(body) => Pin::new(body).poll_frame(context),
            HttpAnswer::Stream(messages) => {
                messages.poll_recv(context).map(|next| next.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            HttpAnswer::Whole(body) => body.size_hint(),
            HttpAnswer::Stream(_) => SizeHint::default(),
        }
    }
}

/// How long a connection may last.
#[derive(Debug, Default)]
pub(crate) struct Lifetime {
    is_stream: AtomicBool,
    stopped: Notify,
}

impl Lifetime {
    /// Returns when the connection must end: after this time, or when a client of a stream has stopped reading.
    pub(crate) async fn over(&self, time: Duration) {
        sleep(time).await;
        if self.is_stream.load(Ordering::Relaxed) {
            self.stopped.notified().await;
        }
    }
}

/// The clients that follow a run.
#[derive(Debug, Default)]
pub(crate) struct Clients(Vec<(Sender<Bytes>, Arc<Lifetime>)>);

impl Clients {
    /// A new client, whose first message is this.
    pub(crate) fn add(&mut self, first: Bytes, lifetime: &Arc<Lifetime>) -> HttpAnswer {
        if self.0.len() == MAX_CLIENTS {
            self.0.remove(0).1.stopped.notify_one();
        }
        let (sender, messages) = channel(MAX_WAITING);
        // The channel is new, so there is room.
        let _ = sender.try_send(first);
        lifetime.is_stream.store(true, Ordering::Relaxed);
        self.0.push((sender, lifetime.clone()));
        HttpAnswer::Stream(messages)
    }

    /// Sends a message to all, and disconnects those that do not read.
    pub(crate) fn send(&mut self, message: &Bytes) {
        self.0.retain(|(client, lifetime)| {
            let sent = client.try_send(message.clone());
            if let Err(TrySendError::Full(_)) = sent {
                lifetime.stopped.notify_one();
            }
            sent.is_ok()
        });
    }

    /// Whether anybody looks.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends all streams, after what was sent.
    pub(crate) fn close(&mut self) {
        self.0.clear();
    }
}

/// A server-sent event.
pub(crate) fn message(event: &str, data: &str) -> Bytes {
    format!("event: {event}\ndata: {data}\n\n").into()
}
