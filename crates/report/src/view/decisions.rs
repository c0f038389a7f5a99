//! What the scheme decided, and why: each kind of decision with its latest reason, and how often it was taken.

use std::borrow::Cow;
use std::mem::{Discriminant, discriminant};

use paceline_core::{Action, Decision, Reason, Time};
use serde::{Deserialize, Serialize};

/// Decisions of one kind.
#[derive(Debug, Clone)]
struct DecisionKind {
    action: Discriminant<Action>,
    why: Discriminant<Reason>,
    name: &'static str,
    count: u64,
    at: Time,
    reason: Reason,
}

/// Decisions of one kind, as a page shows them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecisionRow {
    /// What was done.
    pub action: Cow<'static, str>,
    /// How often.
    pub count: u64,
    /// When it was done last, in seconds.
    pub at: f64,
    /// Why it was done then.
    pub reason: String,
}

/// All kinds of decisions so far.
#[derive(Debug, Clone, Default)]
pub struct DecisionKinds(Vec<DecisionKind>);

impl DecisionKinds {
    /// Takes in a decision.
    pub fn add(&mut self, now: Time, Decision { action, reason }: &Decision) {
        let (kind, why) = (discriminant(action), discriminant(reason));
        match self.0.iter_mut().find(|known| known.action == kind && known.why == why) {
            Some(known) => (known.count, known.at, known.reason) = (known.count + 1, now, *reason),
            None => {
                self.0.push(DecisionKind { action: kind, why, name: name(action), count: 1, at: now, reason: *reason })
            }
        }
    }

    /// The decisions, the most frequent first.
    pub fn rows(&self) -> Vec<DecisionRow> {
        let row = |kind: &DecisionKind| DecisionRow {
            action: kind.name.into(),
            count: kind.count,
            at: kind.at.seconds(),
            reason: kind.reason.to_string(),
        };
        let mut rows: Vec<DecisionRow> = self.0.iter().map(row).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.count));
        rows
    }
}

fn name(action: &Action) -> &'static str {
    match action {
        Action::Commit(_) => "step the model",
        Action::Discard { .. } => "discard an update",
        Action::Assign(_) => "assign work",
        Action::Continue { .. } => "one more local iteration",
        Action::Collect { .. } => "collect an update",
        Action::Interrupt { .. } => "interrupt a task",
        Action::Hold { .. } => "let a worker wait",
        Action::Wake { .. } => "set a timer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::{TaskId, WorkerId};

    #[test]
    fn decisions_are_counted_by_kind_with_their_latest_reason() {
        let task = TaskId { worker: WorkerId(1), number: 0 };
        let mut kinds = DecisionKinds::default();
        for (at, behind) in [(1, 1), (2, 4)] {
            kinds.add(
                Time(at * 1_000_000_000),
                &Decision { action: Action::Discard { task }, reason: Reason::Stale { behind } },
            );
        }
        kinds.add(Time(3), &Decision { action: Action::Interrupt { task }, reason: Reason::Superseded });
        let reason = "the update is stale: 4 versions behind".into();
        assert_eq!(kinds.rows()[0], DecisionRow { action: "discard an update".into(), count: 2, at: 2.0, reason });
        assert_eq!(kinds.rows().len(), 2);
    }
}
