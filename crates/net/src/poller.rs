//! Waits for sockets and wake-ups: `epoll`, level-triggered.
//!
//! Written on `rustix` rather than `mio`, whose timeouts are whole milliseconds: schemes set timers in microseconds.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// Sockets reported per wait.
const MAX_EVENTS: usize = 256;

/// The token of the waker. Sockets have smaller ones.
const WAKER_TOKEN: u64 = u64::MAX;

/// What a socket is waited for. A socket that is waited for nothing is not in the poller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Interest {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

impl Interest {
    pub(crate) const READABLE: Interest = Interest { readable: true, writable: false };

    fn flags(self) -> EventFlags {
        let flag = |wanted: bool, flag| if wanted { flag } else { EventFlags::empty() };
        flag(self.readable, EventFlags::IN) | flag(self.writable, EventFlags::OUT)
    }
}

/// A socket that is ready. A broken one is ready for everything: the next call says what is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) token: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

#[derive(Debug)]
struct Wakeups {
    fd: OwnedFd,
    /// Whether the thread was woken and has not noticed yet: one system call wakes it, however many threads want to.
    is_pending: AtomicBool,
    /// Sockets that another thread wants to be written.
    to_write: Mutex<Vec<u64>>,
}

/// Wakes the thread that waits, from other threads.
#[derive(Debug, Clone)]
pub(crate) struct Waker(Arc<Wakeups>);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waker(Arc::new(Wakeups { fd, is_pending: AtomicBool::new(false), to_write: Mutex::default() })))
    }

    pub(crate) fn wake(&self) {
        if !self.0.is_pending.swap(true, Ordering::AcqRel) {
            // It fails only if the counter would exceed 2⁶⁴ − 2; the thread is awake then.
            let _ = rustix::io::write(&self.0.fd, &1_u64.to_ne_bytes());
        }
    }

    /// Wakes the thread, which then finds this socket ready to be written.
    pub(crate) fn wake_to_write(&self, token: u64) {
        self.to_write().push(token);
        self.wake();
    }

    fn to_write(&self) -> MutexGuard<'_, Vec<u64>> {
        self.0.to_write.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a wake-up. What it was for must be looked at afterwards.
    fn reset(&self) {
        // Only resets the counter.
        let _ = rustix::io::read(&self.0.fd, &mut [0; 8]);
        // Not a plain store: this thread could look for what there is before others see the store. A wake-up in between
        // would be taken for this one, and lost.
        self.0.is_pending.swap(false, Ordering::AcqRel);
    }
}

/// How long a thread looks for something at most before it sleeps.
const LONGEST_LOOK: Duration = Duration::from_micros(300);

/// A yield that takes longer than this has let another thread run.
const LONG_YIELD: Duration = Duration::from_micros(20);

/// How long a thread does not look after it has found its processor wanted by others.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Decides whether a thread that waits looks for a while before it sleeps. Waking up takes longer than many a wait in rounds
/// of small models does. A thread looks only if its last waits were that short, and if no other thread wants the processor.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    /// The mean of the last waits.
    usual: Duration,
    /// Not to look until then.
    paused: Option<Instant>,
}

impl Lookout {
    /// Waits until `wait`, called with a timeout, has found something, or until the deadline.
    fn wait(
        &mut self,
        deadline: Option<Instant>,
        mut wait: impl FnMut(Option<&Timespec>) -> io::Result<bool>,
    ) -> io::Result<()> {
        let began = Instant::now();
        let mut found = false;
        if self.usual < LONGEST_LOOK && self.paused.is_none_or(|until| until <= began) {
            let until = deadline.map_or(began + LONGEST_LOOK, |deadline| deadline.min(began + LONGEST_LOOK));
            let mut now = began;
            while !found && now < until {
                found = wait(Some(&timespec(Duration::ZERO)))?;
                thread::yield_now();
                let before = std::mem::replace(&mut now, Instant::now());
                if now - before > LONG_YIELD {
                    self.paused = Some(now + LOOK_PAUSE);
                    break;
                }
            }
        }
        if !found {
            let timeout = deadline.map(|until| timespec(until.saturating_duration_since(Instant::now())));
            wait(timeout.as_ref())?;
        }
        self.usual = (3 * self.usual + began.elapsed().min(4 * LONGEST_LOOK)) / 4;
        Ok(())
    }
}

/// The sockets that one thread waits for.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
    waker: Waker,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let (waker, epoll) = (Waker::new()?, epoll::create(CreateFlags::CLOEXEC)?);
        epoll::add(&epoll, &waker.0.fd, EventData::new_u64(WAKER_TOKEN), EventFlags::IN)?;
        Ok(Poller { epoll, waker })
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Changes what a socket is waited for.
    pub(crate) fn change(&self, socket: impl AsFd, token: u64, from: Interest, to: Interest) -> io::Result<()> {
        let data = EventData::new_u64(token);
        let nothing = Interest::default();
        match (from, to) {
            _ if from == to => {}
            (_, to) if to == nothing => epoll::delete(&self.epoll, socket)?,
            (from, to) if from == nothing => epoll::add(&self.epoll, socket, data, to.flags())?,
            (_, to) => epoll::modify(&self.epoll, socket, data, to.flags())?,
        }
        Ok(())
    }

    /// Waits until something is ready, a wake-up or the deadline, and appends what is ready.
    pub(crate) fn wait(
        &self,
        lookout: &mut Lookout,
        deadline: Option<Instant>,
        ready: &mut Vec<Ready>,
    ) -> io::Result<()> {
        let mut events = Vec::with_capacity(MAX_EVENTS);
        lookout.wait(deadline, |timeout| found(epoll::wait(&self.epoll, spare_capacity(&mut events), timeout)))?;
        for event in events {
            // Copied out: the structure is packed.
            let (data, flags) = (event.data, event.flags);
            if data.u64() == WAKER_TOKEN {
                self.waker.reset();
                continue;
            }
            let broken = flags.intersects(EventFlags::ERR | EventFlags::HUP);
            let [readable, writable] = [EventFlags::IN, EventFlags::OUT].map(|flag| broken || flags.intersects(flag));
            ready.push(Ready { token: data.u64(), readable, writable });
        }
        let to_write = std::mem::take(&mut *self.waker.to_write());
        ready.extend(to_write.into_iter().map(|token| Ready { token, readable: false, writable: true }));
        Ok(())
    }
}

/// Waits until there is something to read, or the deadline. A single socket needs no poller.
pub(crate) fn wait_for_reading(lookout: &mut Lookout, socket: impl AsFd, deadline: Option<Instant>) -> io::Result<()> {
    lookout.wait(deadline, |timeout| found(poll(&mut [PollFd::new(&socket, PollFlags::IN)], timeout)))
}

/// Whether a call has found something.
fn found(count: Result<usize, Errno>) -> io::Result<bool> {
    match count {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// How long a wake-up may take on the busiest machine.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn no_wake_up_is_lost() {
        const PAIRS: u32 = 20_000;
        let poller = Poller::new().unwrap();
        let waker = poller.waker().clone();
        let (send, receive) = channel();
        let (answer, answers) = channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                for pair in 0..PAIRS {
                    // The second comes at any moment while the other thread deals with the first. Nothing else wakes it.
                    for pause in [0, pair % 500] {
                        (0..pause).for_each(|_| std::hint::spin_loop());
                        send.send(()).unwrap();
                        waker.wake();
                    }
                    if answers.recv().and_then(|()| answers.recv()).is_err() {
                        return;
                    }
                }
            });
            let (mut taken, mut lookout) = (0, Lookout::default());
            while taken < 2 * PAIRS {
                let deadline = Instant::now() + LONG;
                poller.wait(&mut lookout, Some(deadline), &mut Vec::new()).unwrap();
                assert!(Instant::now() < deadline, "a wake-up was lost after {taken} items");
                for () in receive.try_iter() {
                    taken += 1;
                    answer.send(()).unwrap();
                }
            }
        });
    }
}
