//! A second opinion on who must leave.

use paceline_core::{Decision, Event, Time, WorkerId};
use paceline_protocol::ToServer;

/// A rule that dismisses workers, in addition to the protocol's own. With one, a campaign shows what the rule would do:
/// tests put known errors back, and see that the campaign finds them.
///
/// Times are those of the run.
pub trait TimeoutRule {
    /// An event led to these decisions.
    fn observe(&mut self, now: Time, event: &Event, decisions: &[Decision]);

    /// When a worker is overdue next.
    fn next(&self) -> Option<Time>;

    /// A worker that is overdue now, and whether it may rejoin.
    fn overdue(&mut self, now: Time) -> Option<(WorkerId, bool)>;

    /// Whether a message makes its sender leave, and if so, whether it may rejoin.
    fn refuses(&mut self, now: Time, worker: WorkerId, message: &ToServer) -> Option<bool>;
}
