//! Emulated delays: a worker sleeps, so that its tasks really take longer.

use std::fmt;
use std::time::Duration;

/// Emulated delays of a worker. Its tasks take longer without more computation. Outputs that mention the worker say
/// that it is emulated.
pub struct Emulation {
    description: String,
    kind: DelayKind,
}

enum DelayKind {
    Factor(f64),
    Times(Box<dyn FnMut() -> Duration + Send>),
}

impl Emulation {
    /// Every task takes `factor` times its computing time; a factor below 1 counts as 1.
    pub fn factor(factor: f64) -> Self {
        Emulation { description: format!("{factor}× slower"), kind: DelayKind::Factor(factor.max(1.0)) }
    }

    /// Every task takes the time that `next` returns, or its computing time if that is longer. Outputs show
    /// `description`.
    pub fn times(description: impl Into<String>, next: impl FnMut() -> Duration + Send + 'static) -> Self {
        Emulation { description: description.into(), kind: DelayKind::Times(Box::new(next)) }
    }

    /// The time to sleep after a task that computed for `computed`.
    pub fn pause(&mut self, computed: Duration) -> Duration {
        match &mut self.kind {
            // The limit, 136 years, also replaces values that `Duration` can't hold.
            DelayKind::Factor(factor) => Duration::try_from_secs_f64(computed.as_secs_f64() * (*factor - 1.0))
                .unwrap_or(Duration::from_secs(u64::from(u32::MAX))),
            DelayKind::Times(next) => next().saturating_sub(computed),
        }
    }
}

impl fmt::Display for Emulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description)
    }
}

impl fmt::Debug for Emulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Emulation").field(&self.description).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_sleeps_for_the_rest_of_its_emulated_time() {
        let second = Duration::from_secs(1);
        assert_eq!(Emulation::factor(3.0).pause(second), 2 * second);
        assert_eq!(Emulation::factor(0.5).pause(second), Duration::ZERO);
        assert!(Emulation::factor(f64::INFINITY).pause(second) > 1_000_000 * second);
        let mut times = [5, 0].into_iter();
        let mut listed = Emulation::times("a list", move || Duration::from_secs(times.next().unwrap_or(0)));
        assert_eq!(listed.pause(second), 4 * second);
        assert_eq!(listed.pause(second), Duration::ZERO);
        assert_eq!(listed.to_string(), "a list");
    }
}
