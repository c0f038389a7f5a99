//! Straggling on purpose: answers that are really late.

use std::fmt;
use std::time::Duration;

/// How a worker delays its answers. Its tasks take longer by the clock, without any computing; everything that shows
/// the worker says so.
pub struct Emulation {
    description: String,
    kind: Kind,
}

enum Kind {
    Factor(f64),
    Times(Box<dyn FnMut() -> Duration + Send>),
}

impl Emulation {
    /// Every task takes `factor` times as long as its computing; below 1 counts as 1.
    pub fn factor(factor: f64) -> Self {
        Emulation { description: format!("{factor}× slower"), kind: Kind::Factor(factor.max(1.0)) }
    }

    /// Tasks take as long as `next` says, one after another, or as their computing where that is longer. The
    /// `description` is what people are told.
    pub fn times(description: impl Into<String>, next: impl FnMut() -> Duration + Send + 'static) -> Self {
        Emulation { description: description.into(), kind: Kind::Times(Box::new(next)) }
    }

    /// How long to wait after a task that took `computed`.
    pub(super) fn pause(&mut self, computed: Duration) -> Duration {
        match &mut self.kind {
            // Forty years are as good as any longer time, and no float is too large for them.
            Kind::Factor(factor) => Duration::try_from_secs_f64(computed.as_secs_f64() * (*factor - 1.0))
                .unwrap_or(Duration::from_secs(u64::from(u32::MAX))),
            Kind::Times(next) => next().saturating_sub(computed),
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
    fn what_is_missing_to_the_wanted_time_is_waited() {
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
