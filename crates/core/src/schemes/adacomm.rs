//! `adacomm`: `local-sgd` with fewer iterations per round as the loss falls (Wang & Joshi, 2019).

use serde::{Deserialize, Serialize};

use super::{
    GLOBAL_RATE, LocalPart, MOMENTUM, OUTER, SchemeEntry, SchemeError, Setting, SettingDefault, Settings, Setup,
    UpperBound, averaging,
};
use crate::local_rounds::LocalPolicy;
use crate::{Aggregate, LocalLength, LocalWork, Reason, ReplicaStart, Span, Time, WorkerId};

#[derive(Serialize, Deserialize)]
struct AdaptiveIterations {
    /// τ₀.
    first: u32,
    /// The present τ.
    iterations: u32,
    /// The time between changes of τ.
    interval: Span,
    /// When τ is changed next.
    next: Time,
    first_loss: Option<f64>,
}

impl LocalPolicy for AdaptiveIterations {
    fn work(&mut self, _now: Time, _worker: WorkerId, reason: Reason) -> (LocalWork, Reason) {
        (LocalWork { start: ReplicaStart::Model, length: LocalLength::Iterations(self.iterations) }, reason)
    }

    fn on_averaged(&mut self, now: Time, aggregate: Option<&Aggregate>) {
        let Some(loss) = aggregate.map(|aggregate| aggregate.loss).filter(|loss| loss.is_finite()) else { return };
        let first_loss = *self.first_loss.get_or_insert(loss);
        if now < self.next {
            return;
        }
        self.next = now + self.interval;
        // τₗ = ⌈√(F(wₗ)/F(w₀))·τ₀⌉ if that is below the last τ, else half of the last τ.
        let by_loss = ((loss / first_loss).sqrt() * f64::from(self.first)).ceil() as u32;
        let halved = self.iterations.div_ceil(2);
        self.iterations = if by_loss < self.iterations { by_loss.max(1) } else { halved };
    }
}

pub(super) const ENTRY: SchemeEntry = SchemeEntry::local(
    "adacomm",
    "like local-sgd, with fewer local iterations per round as the loss falls",
    [78, 108, 83],
    build,
)
.settings(&[
    Setting::count("tau", "local iterations per round at first", 1, UpperBound::Value(1_000_000))
        .default(SettingDefault::Count(20)),
    Setting::number("interval", "seconds between changes of that number", 0.001, 1e9)
        .default(SettingDefault::Number(60.0)),
    GLOBAL_RATE,
    OUTER,
    MOMENTUM,
])
.variants(&["tau=8,interval=0.001"]);

fn build(settings: &Settings<'_>, _setup: &Setup) -> Result<LocalPart, SchemeError> {
    let first = settings.count("tau")?;
    let interval = Span::from_seconds(settings.number("interval")?);
    let next = Time::START + interval;
    let policy = AdaptiveIterations { first, iterations: first, interval, next, first_loss: None };
    Ok(LocalPart::new(policy, averaging(settings)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_follow_the_loss_and_halve_if_it_does_not_fall() {
        let (first, interval) = (16, Span(10));
        let mut policy = AdaptiveIterations { first, iterations: first, interval, next: Time(10), first_loss: None };
        let mut after = |now, loss| {
            let aggregate = Aggregate { loss, rate: 1.0, ..Aggregate::default() };
            policy.on_averaged(Time(now), Some(&aggregate));
            policy.iterations
        };
        assert_eq!(after(3, f64::NAN), 16);
        assert_eq!(after(4, f64::INFINITY), 16);
        assert_eq!(after(5, 4.0), 16);
        assert_eq!(after(10, f64::NAN), 16, "no change without a loss");
        assert_eq!(after(10, 1.0), 8);
        assert_eq!(after(15, 0.01), 8, "the interval is not over");
        assert_eq!(after(20, 1.0), 4);
        assert_eq!(after(30, 0.0), 1);
        assert_eq!(after(40, 4.0), 1);
    }
}
