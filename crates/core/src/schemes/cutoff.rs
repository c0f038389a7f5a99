//! `cutoff`: wait for the first k workers and interrupt the others; k is predicted to give the most gradients per time
//! (Teng and Wood, 2018).

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{SchemeEntry, SchemeError, Setting, SettingDefault, Settings, Setup, UpperBound};
use crate::rounds::{Arrival, Quorum};
use crate::run_times::{Amortized, DeepMarkov, Draws, Forecast, IndependentNormal, Oracle, RunTimePredictor, SAMPLES};
use crate::{Aggregate, Dispatch, Estimate, QuorumChoice, Reason, Restorable, RestoreError, Span, Time, WorkerId};

/// The shortest run-time: run-times are above 0.
const MIN_RUN_TIME: Span = Span(1);

/// Chooses the k with the largest predicted throughput.
struct Cutoff {
    predictor: Box<dyn RunTimePredictor>,
    /// The seed of imputed run-times.
    seed: u64,
    round: CutoffRound,
}

/// The present iteration.
#[derive(Serialize, Deserialize)]
struct CutoffRound {
    iteration: u64,
    /// When it started.
    started: Time,
    /// The workers at that time, by rank.
    workers: Vec<WorkerId>,
    forecast: Option<Forecast>,
    /// The run-times measured so far, in seconds by rank.
    seen: Vec<Option<f64>>,
    /// Each worker's run-time as a multiple of that of the run's batch size, by rank; 1 beyond the end.
    #[serde(default)]
    multiples: Vec<f64>,
}

/// The state of a [`Cutoff`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedCutoff {
    predictor: Box<RawValue>,
    round: Box<RawValue>,
}

/// The predictor is kept, with its model, and its state is restored.
impl Restorable for Cutoff {
    fn save(&self) -> Option<Box<RawValue>> {
        SavedCutoff { predictor: self.predictor.save()?, round: self.round.save()? }.save()
    }

    fn restore(&mut self, saved: &RawValue) -> Result<(), RestoreError> {
        let SavedCutoff { predictor, round } = serde_json::from_str(saved.get())?;
        self.predictor.restore(&predictor)?;
        self.round.restore(&round)
    }
}

impl Cutoff {
    /// A quorum for a run that starts with `workers` workers.
    fn new(predictor: Box<dyn RunTimePredictor>, workers: usize, seed: u64) -> Self {
        let (seen, started) = (vec![None; workers], Time::START);
        let round =
            CutoffRound { iteration: 0, started, workers: Vec::new(), forecast: None, seen, multiples: Vec::new() };
        Cutoff { predictor, seed, round }
    }

    /// All run-times of the iteration that ends `now`, as they would be with the run's batch size. Run-times that were cut off are drawn from their predicted
    /// distribution, truncated below at the time already taken (section 4.2). For a worker that joined during the
    /// iteration the distribution is not truncated.
    fn complete(&self, now: Time) -> Vec<f64> {
        let cut = now.since(self.round.started).seconds();
        let known = self.round.seen.iter().flatten();
        let mean = known.clone().sum::<f64>() / known.count().max(1) as f64;
        let time = |(rank, seen): (usize, &Option<f64>)| {
            let worker = WorkerId(rank as u32);
            let bound = if self.round.workers.binary_search(&worker).is_ok() { cut } else { 0.0 };
            let imputed = || match &self.round.forecast {
                Some(forecast) => {
                    let mut draws = Draws::at(&[self.seed, self.round.iteration, rank as u64]);
                    forecast.worker(worker).draw_above(bound, &mut draws)
                }
                None => mean.max(bound),
            };
            let multiple = self.round.multiples.get(rank).copied().unwrap_or(1.0);
            (seen.unwrap_or_else(imputed) / multiple).max(MIN_RUN_TIME.seconds())
        };
        self.round.seen.iter().enumerate().map(time).collect()
    }
}

impl Quorum for Cutoff {
    fn dispatch(&self) -> Dispatch {
        Dispatch::PushInterrupt
    }

    fn begin(&mut self, workers: &mut dyn Iterator<Item = (WorkerId, f64)>) {
        let (workers, multiples): (Vec<WorkerId>, Vec<f64>) = workers.unzip();
        let slots = workers.last().map_or(0, |last| last.index() + 1);
        self.round.seen.resize(self.round.seen.len().max(slots), None);
        self.round.multiples.clear();
        self.round.multiples.resize(slots, 1.0);
        for (worker, &multiple) in workers.iter().zip(&multiples) {
            self.round.multiples[worker.index()] = multiple;
        }
        self.round.forecast = self.predictor.predict_multiples(&workers, &multiples);
        self.round.workers = workers;
    }

    fn choose(&mut self, now: Time, _live: usize) -> usize {
        self.round.started = now;
        self.round.forecast.as_ref().map_or(usize::MAX, Forecast::cutoff)
    }

    fn reason(&self, waited_for: usize, live: usize) -> Reason {
        let ranks = self.round.forecast.as_ref().map(|forecast| &forecast.ranks);
        let expected = ranks.and_then(|ranks| ranks.get(waited_for - 1));
        let estimate = expected.map(|time| Estimate { gain: waited_for as f64, seconds: time.mean });
        let choice = if self.round.forecast.is_some() { QuorumChoice::BestRate } else { QuorumChoice::NothingKnown };
        Reason::Chosen { waited_for: waited_for as u32, workers: live as u32, choice, estimate }
    }

    fn on_arrival(&mut self, arrival: &Arrival) {
        // The run-time of a late gradient was imputed when its iteration ended.
        if arrival.timely {
            let index = arrival.worker.index();
            self.round.seen.resize(self.round.seen.len().max(index + 1), None);
            self.round.seen[index] = Some(arrival.now.since(arrival.started).seconds());
        }
    }

    fn on_committed(&mut self, now: Time, _updates: usize, _aggregate: Option<&Aggregate>) {
        let times = self.complete(now);
        self.predictor.observe(&times);
        self.round.seen.fill(None);
        self.round.iteration += 1;
    }
}

/// The values of the setting `predictor`.
#[derive(Clone, Copy)]
enum PredictorChoice {
    Normal,
    DeepMarkov,
    Oracle,
}

pub(super) const ENTRY: SchemeEntry = SchemeEntry::quorum(
    "cutoff",
    "wait for the first k workers, interrupt the others; k is predicted for the most gradients per second",
    [122, 65, 218],
    build,
)
.settings(&[
    Setting::choice(
        "predictor",
        "of run times: independent and the same for all workers, a model pretrained on this cluster, or the simulator",
        &["normal", "dmm", "oracle"],
    ),
    Setting::text("model", "the pretrained model for dmm", "FILE, as made by paceline predictor train")
        .default(SettingDefault::Derived("none")),
    Setting::count("samples", "draws that dmm predicts from", 2, UpperBound::Value(100_000))
        .default(SettingDefault::Count(SAMPLES as u64)),
    Setting::count("lag", "iterations that normal uses", 1, UpperBound::Value(100_000))
        .default(SettingDefault::Count(20)),
    Setting::count("seed", "of dmm's draws, and of imputed run times", 0, UpperBound::Unbounded)
        .default(SettingDefault::Count(1)),
])
.variants(&["lag=2"]);

fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Quorum>, SchemeError> {
    let kinds = [PredictorChoice::Normal, PredictorChoice::DeepMarkov, PredictorChoice::Oracle];
    let kind = settings.choice("predictor", kinds)?;
    let seed = settings.count("seed")?;
    let predictor: Box<dyn RunTimePredictor> = match kind {
        PredictorChoice::Normal => Box::new(IndependentNormal::new(settings.count("lag")?)),
        PredictorChoice::DeepMarkov => {
            let pretrained = settings
                .pretrained()
                .ok_or_else(|| settings.missing("model", "FILE, as made by paceline predictor train"))?;
            let model = DeepMarkov::new(pretrained).and_then(|model| model.for_workers(setup.workers));
            let model = model.map_err(|error| settings.unfit("model", format!("a model of this cluster; {error}")))?;
            Box::new(Amortized::new(Arc::new(model), settings.count("samples")?, seed))
        }
        PredictorChoice::Oracle => {
            let foresight = settings.foresight().cloned();
            Box::new(Oracle(foresight.ok_or_else(|| {
                settings.unfit("predictor", "normal or dmm here, since only the simulator knows the future".into())
            })?))
        }
    };
    Ok(Box::new(Cutoff::new(predictor, setup.workers, seed)))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::Version;
    use crate::run_times::Normal;

    /// Always predicts the same, and records what it observes.
    struct FixedForecast(Forecast, Arc<Mutex<Vec<Vec<f64>>>>);

    impl Restorable for FixedForecast {
        fn save(&self) -> Option<Box<RawValue>> {
            None
        }

        fn restore(&mut self, _saved: &RawValue) -> Result<(), RestoreError> {
            Ok(())
        }
    }

    impl RunTimePredictor for FixedForecast {
        fn observe(&mut self, times: &[f64]) {
            self.1.lock().unwrap().push(times.to_vec());
        }

        fn predict_multiples(&mut self, _workers: &[WorkerId], _multiples: &[f64]) -> Option<Forecast> {
            Some(self.0.clone())
        }
    }

    fn arrive(cutoff: &mut Cutoff, worker: u32, seconds: f64) {
        let now = cutoff.round.started + Span::from_seconds(seconds);
        cutoff.on_arrival(&Arrival {
            worker: WorkerId(worker),
            version: Version(0),
            timely: true,
            compute: Span::ZERO,
            started: cutoff.round.started,
            now,
        });
    }

    /// An iteration of this many workers begins.
    fn begin(cutoff: &mut Cutoff, workers: u32) {
        cutoff.begin(&mut (0..workers).map(|worker| (WorkerId(worker), 1.0)));
    }

    #[test]
    fn run_times_that_were_cut_off_are_imputed_above_the_cut() {
        let slow = Normal { mean: 3.0, deviation: 0.2 };
        let fast = Normal { mean: 1.0, deviation: 0.1 };
        let forecast = Forecast { workers: vec![fast, fast, slow, slow], ranks: vec![fast, fast, slow, slow] };
        let observed = Arc::default();
        let mut cutoff = Cutoff::new(Box::new(FixedForecast(forecast, Arc::clone(&observed))), 4, 1);
        for iteration in 0..1000 {
            // Worker 3 has not joined when the iteration starts, so its run-time is not cut off.
            begin(&mut cutoff, 3);
            assert_eq!(cutoff.choose(Time(iteration * 10_000_000_000), 3), 2);
            arrive(&mut cutoff, 0, 1.0);
            arrive(&mut cutoff, 1, 2.9);
            cutoff.on_committed(cutoff.round.started + Span::from_seconds(2.9), 2, None);
        }
        let observed = observed.lock().unwrap();
        assert!(observed.iter().all(|times| times[..2] == [1.0, 2.9]));
        let mean = |rank: usize| observed.iter().map(|times| times[rank]).sum::<f64>() / observed.len() as f64;
        assert!(observed.iter().all(|times| times[2] >= 2.9));
        // The mean of a normal variable above half a deviation below its mean: μ + σ φ(½)/Φ(½).
        assert!((mean(2) - (3.0 + 0.2 * 0.3521 / 0.6915)).abs() < 0.02, "{}", mean(2));
        assert!((mean(3) - 3.0).abs() < 0.02 && observed.iter().any(|times| times[3] < 2.8), "{}", mean(3));
    }

    #[test]
    fn persistent_stragglers_are_cut_off() {
        let mut cutoff = Cutoff::new(Box::new(IndependentNormal::new(20)), 8, 1);
        begin(&mut cutoff, 1);
        assert_eq!(cutoff.choose(Time::START, 1), usize::MAX);
        assert!(matches!(
            cutoff.reason(8, 8),
            Reason::Chosen { choice: QuorumChoice::NothingKnown, estimate: None, .. }
        ));
        for worker in 0..8 {
            arrive(&mut cutoff, worker, if worker == 3 { 20.0 } else { 1.0 + 0.01 * f64::from(worker) });
        }
        cutoff.on_committed(Time(20_000_000_000), 8, None);
        begin(&mut cutoff, 8);
        let k = cutoff.choose(Time(20_000_000_000), 8);
        assert!((1..8).contains(&k), "{k}");
        let Reason::Chosen { choice: QuorumChoice::BestRate, estimate: Some(estimate), .. } = cutoff.reason(k, 8)
        else {
            panic!("{:?}", cutoff.reason(k, 8));
        };
        assert_eq!(estimate.gain, k as f64);
    }
}
