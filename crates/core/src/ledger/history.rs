//! The latest turns of a ledger: what led to a broken law.

use crate::{Decision, Event, Time};

/// How many of the latest events and decisions are kept.
const LINES: usize = 256;

/// One event.
#[derive(Debug)]
struct TurnRecord {
    now: Time,
    event: Event,
    /// The index of the first decision that followed.
    first: usize,
}

/// Turns in a row: events and the decisions that followed. They are recorded where they are made, without a copy.
#[derive(Debug, Default)]
struct TurnRecords {
    turns: Vec<TurnRecord>,
    decisions: Vec<Decision>,
}

impl TurnRecords {
    fn lines(&self) -> usize {
        self.turns.len() + self.decisions.len()
    }

    /// Events and decisions as text, oldest first. Of a long turn, the event and the latest decisions are kept.
    fn text(&self) -> impl Iterator<Item = String> {
        let ends = self.turns.iter().skip(1).map(|next| next.first).chain([self.decisions.len()]);
        self.turns.iter().zip(ends).flat_map(|(&TurnRecord { now, ref event, first }, end)| {
            let kept = &self.decisions[first.max(end.saturating_sub(LINES - 1))..end];
            let decisions = kept.iter().map(|Decision { action, reason }| format!("  {action:?} ({reason})"));
            std::iter::once(format!("{now}: {event:?}")).chain(decisions)
        })
    }
}

/// The latest turns.
#[derive(Debug, Default)]
pub(super) struct History {
    latest: TurnRecords,
    /// Those before, which are forgotten all at once when the latest are enough.
    earlier: TurnRecords,
}

impl History {
    /// A turn begins. Returns its event, and where its decisions are to be appended.
    #[inline]
    pub(super) fn begin_turn(&mut self, now: Time, event: Event) -> (&Event, &mut Vec<Decision>) {
        if self.latest.lines() >= LINES {
            self.forget_earlier();
        }
        let TurnRecords { turns, decisions } = &mut self.latest;
        let turn = turns.push_mut(TurnRecord { now, event, first: decisions.len() });
        (&turn.event, decisions)
    }

    fn forget_earlier(&mut self) {
        std::mem::swap(&mut self.latest, &mut self.earlier);
        self.latest.turns.clear();
        self.latest.decisions.clear();
    }

    /// The turn at hand is void: its event was refused.
    pub(super) fn cancel_turn(&mut self) {
        self.latest.turns.pop();
    }

    /// The event and the decisions of the last turn.
    #[inline]
    pub(super) fn last(&self) -> (&Event, &[Decision]) {
        let TurnRecords { turns, decisions } = &self.latest;
        turns.last().map_or((&Event::Timer, &[]), |turn| (&turn.event, &decisions[turn.first..]))
    }

    /// The latest events and decisions as text, oldest first.
    pub(super) fn text(&self) -> Vec<String> {
        let mut text: Vec<String> = self.earlier.text().chain(self.latest.text()).collect();
        text.split_off(text.len().saturating_sub(LINES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Reason, WorkerId};

    fn decision(at: usize) -> Decision {
        Decision { action: Action::Wake { at: Time(at as u64) }, reason: Reason::Free }
    }

    #[test]
    fn the_latest_lines_are_kept_however_long_the_turns_are() {
        let lengths = [&[0; 600][..], &[3, 700, 0, 2], &[1; 400], &[100, 100, 54, 255, 0, 256, 1], &[2; 500]].concat();
        let mut history = History::default();
        let mut expected = Vec::new();
        for (number, &length) in lengths.iter().enumerate() {
            let at = Time(number as u64);
            let (_, decisions) = history.begin_turn(at, Event::Timer);
            decisions.extend((0..length).map(decision));
            assert_eq!(history.last().1.len(), length);
            if number % 3 == 0 {
                history.begin_turn(at, Event::Joined { worker: WorkerId(1) });
                history.cancel_turn();
            }
            expected.push(format!("{at}: Timer"));
            let kept = (length.saturating_sub(LINES - 1)..length).map(decision);
            expected.extend(kept.map(|Decision { action, reason }| format!("  {action:?} ({reason})")));
            assert_eq!(history.text(), expected[expected.len().saturating_sub(LINES)..], "after turn {number}");
            let lines = history.earlier.lines() + history.latest.lines();
            assert!(lines <= 2 * (LINES + 701), "{lines} lines after turn {number}");
        }
    }
}
