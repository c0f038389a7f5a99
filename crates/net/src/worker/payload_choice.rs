//! The format in which a worker exchanges values: that of the run, or one that suits its link.
//!
//! With `auto`, a worker starts with `f32` and measures a few rounds: how long models take to arrive, and how long a round
//! takes. It then keeps to the most exact format with which values are on the way for at most half of the time, both directions
//! together: an update takes about as long as a model.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use paceline_protocol::{PayloadFormat, PayloadRule};

/// The models that are measured, after a first one.
const MEASURED: usize = 3;

#[derive(Debug)]
pub(super) struct PayloadChoice(Mutex<State>);

#[derive(Debug)]
struct State {
    format: PayloadFormat,
    is_open: bool,
    /// When the model that is arriving began to.
    began: Option<Instant>,
    /// When the last one was complete.
    last: Option<Instant>,
    /// How long models took to arrive, and the time from one to the next.
    rounds: Vec<(Duration, Duration)>,
}

impl PayloadChoice {
    pub(super) fn new(rule: PayloadRule) -> Self {
        let (format, is_open) = (rule.first(), rule == PayloadRule::Auto);
        PayloadChoice(Mutex::new(State { format, is_open, began: None, last: None, rounds: Vec::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn format(&self) -> PayloadFormat {
        self.lock().format
    }

    /// A model begins to arrive, or goes on.
    pub(super) fn model_begins(&self, now: Instant) {
        self.lock().began.get_or_insert(now);
    }

    /// It is complete. Returns the format that is used from now on, if that is another one.
    pub(super) fn model_arrived(&self, now: Instant) -> Option<PayloadFormat> {
        let mut state = self.lock();
        let (began, last) = (state.began.take()?, state.last.replace(now));
        if let Some(last) = last.filter(|_| state.is_open) {
            state.rounds.push((now - began, now - last));
        }
        if !state.is_open || state.rounds.len() < MEASURED {
            return None;
        }
        state.is_open = false;
        state.format = best(&mut state.rounds);
        (state.format != PayloadFormat::F32).then_some(state.format)
    }
}

/// The format for rounds like these.
fn best(rounds: &mut [(Duration, Duration)]) -> PayloadFormat {
    rounds.sort_by_key(|(arrival, _)| *arrival);
    let (arrival, round) = rounds[rounds.len() / 2];
    // What takes other time than sending.
    let rest = round.saturating_sub(2 * arrival);
    let fits = |format: PayloadFormat| {
        let bytes = |format: PayloadFormat| format.bytes(1 << 20) as f64;
        2.0 * arrival.as_secs_f64() * bytes(format) / bytes(PayloadFormat::F32) <= rest.as_secs_f64()
    };
    let exact = [PayloadFormat::F32, PayloadFormat::Bf16].into_iter().find(|&format| fits(format));
    exact.unwrap_or(PayloadFormat::Int8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a worker chooses whose models take this long to arrive in rounds of this length, in milliseconds.
    fn chosen(rule: PayloadRule, arrival: u64, round: u64) -> (Option<PayloadFormat>, PayloadFormat) {
        let (choice, start) = (PayloadChoice::new(rule), Instant::now());
        let mut told = None;
        for number in 1..10 {
            let end = start + Duration::from_millis(number * round);
            choice.model_begins(end - Duration::from_millis(arrival));
            choice.model_begins(end);
            told = told.or(choice.model_arrived(end));
        }
        (told, choice.format())
    }

    #[test]
    fn the_most_exact_format_is_chosen_that_leaves_half_of_the_time() {
        use PayloadFormat::{Bf16, F16, F32, Int8};
        assert_eq!(chosen(PayloadRule::Auto, 0, 100), (None, F32));
        assert_eq!(chosen(PayloadRule::Auto, 25, 100), (None, F32));
        assert_eq!(chosen(PayloadRule::Auto, 26, 100), (Some(Bf16), Bf16));
        assert_eq!(chosen(PayloadRule::Auto, 33, 100), (Some(Bf16), Bf16));
        assert_eq!(chosen(PayloadRule::Auto, 34, 100), (Some(Int8), Int8));
        assert_eq!(chosen(PayloadRule::Auto, 100, 100), (Some(Int8), Int8));
        assert_eq!(chosen(PayloadRule::Always(F16), 50, 100), (None, F16));
    }
}
