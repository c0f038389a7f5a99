//! Log lines about a run.

use paceline_core::{Decision, Event, Time};
use paceline_runtime::{Notice, Observer};

/// Logs who joins and leaves and which updates are broken, and every decision at level `debug`.
pub struct NoticeLogger;

impl Observer for NoticeLogger {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        if let Event::Broken { task } = event {
            tracing::warn!("the update of {task} does not count: it is not finite, or its worker is gone");
        }
        for Decision { action, reason } in decisions {
            tracing::debug!("{now}: {action:?} ({reason})");
        }
    }

    fn on_notice(&mut self, notice: &Notice) {
        match notice {
            Notice::Joined { .. }
            | Notice::Payload { .. }
            | Notice::Sharded { .. }
            | Notice::ShardJoined { .. }
            | Notice::ShardLeft { .. }
            | Notice::EvaluatorJoined { .. }
            | Notice::EvaluatingLast => tracing::info!("{notice}"),
            Notice::Left { .. }
            | Notice::EvaluatorLeft { .. }
            | Notice::Refused { .. }
            | Notice::Late { .. }
            | Notice::Stalled { .. } => tracing::warn!("{notice}"),
        }
    }
}
