//! A shard: holds a part of the parameters for the coordinator of a run, beside a worker.
//!
//! Workers send their updates to the shards and get the model from them, each shard its part, so that no link carries more
//! than two models a step. The coordinator decides: it says which updates are summed, how the part is stepped, and whether
//! the step counts. A `held_part` is what there is for one run. A thread per connection, its `session`, moves the values,
//! or writes them to storage (`saving`).

mod early_step;
mod held_part;
mod saving;
mod session;

use std::io;
use std::net::{IpAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use rustls::{ServerConfig, ServerConnection};

use crate::blocking_link::BlockingLink;
use crate::connection::Side;
use crate::keys::Keys;
use crate::outbox::Outbox;
use crate::poller::{Interest, Lookout, Poller, Waker};
use crate::socket::{Socket, Traffic};
use crate::tls::Tls;
use held_part::HeldPart;
use paceline_protocol::Token;
use session::serve;
pub(crate) use session::{PART_TIMEOUT, receive_vector, send_vector};

/// The limit of open connections. Further ones are closed.
const MAX_CONNECTIONS: usize = 2_048;

/// What the threads of a shard share.
struct Shared {
    held: Mutex<Option<HeldPart>>,
    /// Signals that something has arrived, a connection has ended, or another part is held.
    changed: Condvar,
    token: Option<Token>,
    /// The open connections.
    open: Mutex<Vec<Weak<Outbox>>>,
    /// Whether no more connections are accepted.
    is_closed: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<HeldPart>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, Vec<Weak<Outbox>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A shard that listens. It ends when it is dropped.
pub(crate) struct Shard {
    port: u16,
    shared: Arc<Shared>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shard({})", self.port)
    }
}

impl Shard {
    /// Listens at a free port of this address. With keys, connections are encrypted, and peers need the token.
    /// `congestion` is TCP's congestion control; `None` keeps that of the system.
    pub(crate) fn start(host: IpAddr, keys: Option<&Keys>, congestion: Option<&str>) -> io::Result<Self> {
        let listener = TcpListener::bind((host, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let encryption = keys.map(Keys::server).transpose().map_err(io::Error::other)?;
        let (held, changed, token) = (Mutex::new(None), Condvar::new(), keys.map(Keys::token));
        let (open, is_closed) = (Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { held, changed, token, open, is_closed });
        let poller = Poller::new()?;
        let waker = poller.waker().clone();
        let (own, congestion) = (shared.clone(), congestion.map(str::to_string));
        let thread = thread::Builder::new().name("shard".into()).spawn(move || {
            // Without a listener the coordinator does not get through, and says so.
            let _ = accept(&listener, encryption.as_ref(), congestion.as_deref(), &poller, &own);
        })?;
        Ok(Shard { port, shared, waker, thread: Some(thread) })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.open().iter().filter_map(Weak::upgrade).for_each(|outbox| outbox.disconnect());
    }
}

/// Accepts connections while the shard exists.
fn accept(
    listener: &TcpListener,
    encryption: Option<&Arc<ServerConfig>>,
    congestion: Option<&str>,
    poller: &Poller,
    shared: &Arc<Shared>,
) -> io::Result<()> {
    poller.change(listener, 0, Interest::default(), Interest::READABLE)?;
    let mut lookout = Lookout::default();
    loop {
        poller.wait(&mut lookout, None, &mut Vec::new())?;
        if shared.is_closed.load(Ordering::Acquire) {
            return Ok(());
        }
        while let Ok((stream, _)) = listener.accept() {
            let tls =
                encryption.cloned().map(ServerConnection::new).transpose().map_err(io::Error::other)?.map(Tls::new);
            let link = Socket::tcp(stream, congestion)
                .and_then(|socket| BlockingLink::new(Side::Server, socket, tls, &Traffic::default()));
            let Ok(link) = link else { continue };
            let mut open = shared.open();
            open.retain(|outbox| outbox.strong_count() > 0);
            if open.len() >= MAX_CONNECTIONS {
                continue;
            }
            open.push(Arc::downgrade(link.outbox()));
            drop(open);
            let shared = shared.clone();
            // If the system has no thread to spare, the peer finds the connection ended.
            let _ = thread::Builder::new().name("shard session".into()).spawn(move || serve(link, &shared));
        }
    }
}
