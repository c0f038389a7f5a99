//! `adacomm`: `local-sgd` with ever fewer iterations per round as the loss falls (Wang & Joshi, 2019).

use super::{Settings, Setup, SpecError};
use crate::local_rounds::{LocalRounds, Pace};
use crate::{Aggregate, LocalLength, LocalWork, Reason, ReplicaStart, Scheme, Span, Time, WorkerId};

struct Adaptive {
    /// τ₀.
    first: u32,
    /// τ of the rounds that begin now.
    iterations: u32,
    /// How often τ is reconsidered.
    interval: Span,
    next: Time,
    first_loss: Option<f64>,
}

impl Pace for Adaptive {
    fn work(&mut self, _now: Time, _worker: WorkerId, reason: Reason) -> (LocalWork, Reason) {
        (LocalWork { start: ReplicaStart::Model, length: LocalLength::Iterations(self.iterations) }, reason)
    }

    fn on_averaged(&mut self, now: Time, aggregate: Option<&Aggregate>) {
        let Some(loss) = aggregate.map(|aggregate| aggregate.loss) else { return };
        let first_loss = *self.first_loss.get_or_insert(loss);
        if now < self.next {
            return;
        }
        self.next = now + self.interval;
        // τₗ = ⌈√(F(wₗ)/F(w₀))·τ₀⌉, and where that is no fewer than before, half as many as before.
        let by_loss = ((loss / first_loss).sqrt() * f64::from(self.first)).ceil() as u32;
        let halved = self.iterations.div_ceil(2);
        self.iterations = if by_loss < self.iterations { by_loss.max(1) } else { halved };
    }
}

pub(super) fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SpecError> {
    let first = settings.optional("tau", 20, 1..=1_000_000)?;
    let interval = Span::from_seconds(settings.optional("interval", 60.0, 0.001..=1e9)?);
    let next = Time::START + interval;
    let pace = Adaptive { first, iterations: first, interval, next, first_loss: None };
    Ok(Box::new(LocalRounds::new(pace, settings.global_rate()?, setup.batch)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_follow_the_loss_and_halve_where_it_stays() {
        let (first, interval) = (16, Span(10));
        let mut pace = Adaptive { first, iterations: first, interval, next: Time(10), first_loss: None };
        let mut after = |now, loss| {
            let aggregate = Aggregate { loss, rate: 1.0, sum_of_squares: 1.0, square_of_sum: 1.0 };
            pace.on_averaged(Time(now), Some(&aggregate));
            pace.iterations
        };
        assert_eq!(after(5, 4.0), 16);
        assert_eq!(after(10, 1.0), 8);
        assert_eq!(after(15, 0.01), 8, "not reconsidered yet");
        assert_eq!(after(20, 1.0), 4);
        assert_eq!(after(30, 0.0), 1);
        assert_eq!(after(40, 4.0), 1);
    }
}
