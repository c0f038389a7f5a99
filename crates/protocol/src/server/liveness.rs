//! Who is alive, who is late, who is stuck.

use paceline_core::{Event, Lateness, Span, Time};

use super::{Handled, ServerHost, ServerProtocol, SessionId, SessionState, Stage};
use crate::notice::Notice;
use crate::{HANDSHAKE_TIMEOUT, HEARTBEAT_INTERVAL};

/// A worker is gone when it has sent nothing for this long: two heartbeats and a half.
pub(super) const PATIENCE: Span = Span(HEARTBEAT_INTERVAL.0 * 5 / 2);

/// The longest patience with a worker that was gone and came back, as an overloaded machine makes it seem. After a while
/// without such a silence, the patience is the usual one again.
const MAX_PATIENCE: Span = Span(30_000_000_000);
const PATIENCE_PERIOD: Span = Span(60_000_000_000);

/// If the protocol is called later than it asked for by more than this, the server stood still. So that a short stall does
/// not go unnoticed, it asks to be called at least every [`TICK`].
const STALL_TOLERANCE: Span = Span(250_000_000);
pub(super) const TICK: Span = Span(500_000_000);

/// The shortest stall that the user is notified of: it would have cost workers if it were theirs.
const NOTICED_STALL: Span = PATIENCE;

impl SessionState {
    /// Something has arrived.
    pub(super) fn hear(&mut self, now: Time) {
        if now.since(self.heard) >= PATIENCE {
            self.silent = now;
        } else if now.since(self.silent) > PATIENCE_PERIOD {
            self.patience = PATIENCE;
        }
        self.heard = now;
    }
}

impl ServerProtocol {
    /// Moves the clock on. If the server stood still, nobody knows since when: the time since its last call counts for no
    /// worker.
    pub(super) fn advance<H: ServerHost>(&mut self, now: Time, host: &mut H) {
        let (last, due) = (self.now, self.next_check());
        self.move_clock(now);
        if due.is_none_or(|due| self.now <= due + STALL_TOLERANCE) {
            return;
        }
        let stall = self.now.since(last);
        for session in self.sessions.values_mut() {
            session.heard = session.heard + stall;
            session.progressed = session.progressed + stall;
            session.check_at = session.check_at + stall;
            if let Stage::Handshake(deadline) = &mut session.stage {
                *deadline = *deadline + stall;
            }
        }
        self.checks = self.checks.iter().map(|&(at, id)| (at + stall, id)).collect();
        self.lateness.delay(stall);
        if stall >= NOTICED_STALL {
            host.notice(Notice::Stalled { span: stall });
        }
    }

    /// Checks whether a peer is alive and makes progress, and plans the next check.
    pub(super) fn check<H: ServerHost>(&mut self, id: SessionId, host: &mut H) -> Handled<H> {
        let now = self.now;
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        if let Stage::Handshake(deadline) = session.stage {
            if deadline <= now {
                let reason = format!("no handshake within {:.0} s", HANDSHAKE_TIMEOUT.seconds());
                return self.dismiss(id, reason, false, host);
            }
            self.schedule(id, deadline);
            return Ok(());
        }
        let silence = now.since(session.heard);
        if silence >= session.patience {
            if let Some(worker) = session.stage.worker() {
                let patience = Span((2 * session.patience.0).min(MAX_PATIENCE.0));
                self.patience.insert(worker, patience);
            }
            let reason = format!("no sign of life for {:.1} s; it may rejoin", silence.seconds());
            return self.dismiss(id, reason, true, host);
        }
        let mut next = session.heard + session.patience;
        let mut late = None;
        if let Stage::Joined(worker) = session.stage
            && let Some((task, elapsed)) = self.lateness.running(worker, now)
        {
            let stuck_after = self.lateness.stuck_after(worker);
            let pause = now.since(session.progressed);
            if pause >= stuck_after {
                // Its time is known from below.
                self.lateness.on_progress(worker, pause);
                let reason = format!("stuck: alive, but without progress for {:.1} s; it may rejoin", pause.seconds());
                return self.dismiss(id, reason, true, host);
            }
            next = next.min(session.progressed + stuck_after);
            if let Some(late_after) = self.lateness.late_after(worker).filter(|_| session.noticed_late != Some(task)) {
                if elapsed >= late_after {
                    session.noticed_late = Some(task);
                    late = Some(task);
                    let expected = self.lateness.usual(worker).unwrap_or_default();
                    host.notice(Notice::Late { worker, elapsed, expected });
                } else {
                    next = next.min(now + (late_after - elapsed));
                }
            }
        }
        self.schedule(id, next);
        match late.filter(|_| self.ledger.watches_lateness()) {
            Some(task) => self.feed(Event::Late { task }, host),
            None => Ok(()),
        }
    }

    pub(super) fn schedule(&mut self, id: SessionId, at: Time) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        self.checks.remove(&(session.check_at, id));
        session.check_at = at.max(self.now + Span(1));
        self.checks.insert((session.check_at, id));
    }
}

/// The worker of a session made progress.
pub(super) fn progressed(session: &mut SessionState, now: Time, lateness: &mut Lateness) {
    if let Stage::Joined(worker) = session.stage {
        lateness.on_progress(worker, now.since(session.progressed));
    }
    session.progressed = now;
}
