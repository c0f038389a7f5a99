//! A shard: holds a part of the parameters for the coordinator of a run, beside a worker.
//!
//! Workers send their updates to the shards and get the model from them, each shard its part, so that no link carries more
//! than two models a step. The coordinator decides: it says which updates are summed, how the part is stepped, and whether
//! the step counts. A `held_part` is what there is for one run. A thread per connection, its `session`, moves the values,
//! or writes them to storage (`saving`). Workers on the same host share their memory with it.

mod early_step;
mod held_part;
mod saving;
mod session;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::address::Address;
use crate::blocking_link::BlockingLink;
use crate::connect::shared_place;
use crate::connection::Side;
use crate::keys::Keys;
use crate::listener::{Accepted, Listener, TcpOptions};
use crate::outbox::Outbox;
use crate::poller::{Interest, Lookout, Poller, Waker};
use crate::socket::Traffic;
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
        let (listener, address) = Listener::bind(&Address::Tcp { host: host.to_string(), port: 0 })?;
        let Address::Tcp { port, .. } = address else { return Err(io::ErrorKind::Unsupported.into()) };
        // Without it, workers on the same host use TCP too.
        let local = Listener::bind(&shared_place(SocketAddr::new(host, port)));
        let listeners: Vec<Listener> = [listener].into_iter().chain(local.ok().map(|(listener, _)| listener)).collect();
        let encryption = keys.map(Keys::server).transpose().map_err(io::Error::other)?;
        let options = TcpOptions { congestion: congestion.map(str::to_string), encryption };
        let (held, changed, token) = (Mutex::new(None), Condvar::new(), keys.map(Keys::token));
        let (open, is_closed) = (Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { held, changed, token, open, is_closed });
        let poller = Poller::new()?;
        let (waker, own) = (poller.waker().clone(), shared.clone());
        let thread = thread::Builder::new().name("shard".into()).spawn(move || {
            // Without a listener the coordinator does not get through, and says so.
            let _ = accept(&listeners, &options, &poller, &own);
        })?;
        Ok(Shard { port, shared, waker, thread: Some(thread) })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Waits until no part is held, up to the deadline. Returns whether that is so.
    pub(crate) fn wait_until_free(&self, deadline: Instant) -> bool {
        let mut held = self.shared.lock();
        while held.is_some() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            held = self.shared.changed.wait_timeout(held, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
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
fn accept(listeners: &[Listener], options: &TcpOptions, poller: &Poller, shared: &Arc<Shared>) -> io::Result<()> {
    for (token, listener) in (0..).zip(listeners) {
        listener.set_nonblocking()?;
        poller.change(listener, token, Interest::default(), Interest::READABLE)?;
    }
    let mut lookout = Lookout::default();
    loop {
        poller.wait(&mut lookout, None, &mut Vec::new())?;
        if shared.is_closed.load(Ordering::Acquire) {
            return Ok(());
        }
        for listener in listeners {
            while let Ok(accepted) = listener.accept(options) {
                // If the system can't spare what it takes, the peer finds the connection ended.
                let _ = begin_session(accepted, shared);
            }
        }
    }
}

/// Serves a connection in a thread of its own.
fn begin_session(Accepted { socket, tls, .. }: Accepted, shared: &Arc<Shared>) -> io::Result<()> {
    let link = BlockingLink::new(Side::Server, socket, tls, &Traffic::default())?;
    let mut open = shared.open();
    open.retain(|outbox| outbox.strong_count() > 0);
    if open.len() >= MAX_CONNECTIONS {
        return Ok(());
    }
    open.push(Arc::downgrade(link.outbox()));
    drop(open);
    let shared = shared.clone();
    thread::Builder::new().name("shard session".into()).spawn(move || serve(link, &shared)).map(|_| ())
}
