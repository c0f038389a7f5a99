//! `lb-bsp`: load-balanced BSP; each worker's batch is as large as it can do in the time of the others (Chen et al.,
//! 2018).

use std::str::FromStr;

use super::backup::Fixed;
use super::{Settings, Setup, SpecError};
use crate::batching::{Cost, Devices, Point, balance};
use crate::recent::Recent;
use crate::rounds::{Rounds, Sizing};
use crate::speed::{PredictorKind, Resources, Speeds};
use crate::{Reason, Scheme, Span, Time, Update, WorkerId};

/// How many training steps may be taken in an iteration, each of about a tenth of a millisecond …
const TRAINING_STEPS: u32 = 4;

/// … with such a rest before each that training takes a small share of the server's time only.
const REST: Span = Span(1_000_000);

/// What sizes are chosen by.
enum Knowledge {
    /// Speeds, which change: CPU workers.
    Speeds(Speeds),
    /// Profiles, which are measured once: GPU workers.
    Devices(Devices),
}

impl Knowledge {
    /// What samples cost the worker, communication apart; `None` if nothing is known of it.
    fn cost(&self, worker: WorkerId) -> Option<Cost> {
        match self {
            Knowledge::Speeds(speeds) => speeds.predict(worker).map(Cost::of_speed),
            Knowledge::Devices(devices) => devices.cost(worker),
        }
    }

    /// The size that the worker is to be measured with, if it is.
    fn probe(&self, worker: WorkerId) -> Option<u32> {
        match self {
            Knowledge::Speeds(_) => None,
            Knowledge::Devices(devices) => devices.probe(worker),
        }
    }
}

/// The sizes of an iteration.
#[derive(Debug, Clone, Default, PartialEq)]
struct Plan {
    /// Who is balanced against whom, with the sizes, by rank.
    sizes: Vec<(WorkerId, u32)>,
    /// When all are to be done.
    seconds: f64,
}

impl Plan {
    fn size(&self, worker: WorkerId) -> Option<u32> {
        let found = self.sizes.binary_search_by_key(&worker, |&(worker, _)| worker);
        found.ok().map(|index| self.sizes[index].1)
    }
}

/// Over how many iterations the median of communication times is taken: two delayed messages don't matter, and a link
/// that got slow is known after three.
const COMMUNICATIONS: usize = 5;

struct Balanced {
    /// The samples of an iteration (the paper's X).
    total: u64,
    /// Each worker's share of them at first.
    batch: u32,
    /// The fewest and the most samples that the user wants a worker to get.
    bounds: (u32, u32),
    /// A new plan must be faster by this share of the time to be worth a change.
    least_gain: f64,
    /// Whether plans wait for the newest reports, or are made beforehand.
    blocking: bool,
    knowledge: Knowledge,
    /// Each worker's latest communication times in seconds; the paper's tᵐ is their median.
    communication: Vec<Recent>,
    plan: Plan,
    /// The plan for the next iteration, where plans are made beforehand.
    next: Option<Plan>,
    /// Whether the iteration has just begun.
    fresh: bool,
    training_steps: u32,
}

impl Balanced {
    /// What samples cost the worker, communication included and within the user's bounds.
    fn bounded(&self, worker: WorkerId, cost: Cost) -> Cost {
        let communication = self.communication.get(worker.index()).and_then(Recent::median).unwrap_or(0.0);
        let (least, most) = self.bounds;
        let most = cost.most.min(most).max(1);
        Cost { fixed: cost.fixed + communication, least: cost.least.max(least).min(most), most, ..cost }
    }

    /// The best sizes for these workers by what is known, or the present ones if those are about as good.
    fn plan(&self, workers: &[WorkerId]) -> Plan {
        let probes: u64 = workers.iter().filter_map(|&worker| self.knowledge.probe(worker)).map(u64::from).sum();
        let balanced: Vec<WorkerId> =
            workers.iter().copied().filter(|&worker| self.knowledge.probe(worker).is_none()).collect();
        let known: Vec<Option<Cost>> = balanced.iter().map(|&worker| self.knowledge.cost(worker)).collect();
        // Who has no history is taken to be like the others on the average.
        let speeds: Vec<f64> = known.iter().flatten().map(|cost| 1.0 / cost.per_sample).collect();
        if speeds.is_empty() {
            return Plan::default();
        }
        let average = Cost::of_speed(speeds.iter().sum::<f64>() / speeds.len() as f64);
        let with_costs = balanced.iter().zip(&known);
        let costs: Vec<Cost> =
            with_costs.map(|(&worker, cost)| self.bounded(worker, cost.unwrap_or(average))).collect();
        // Where workers have left, the rest may not be able to take it all.
        let least = costs.iter().map(|cost| u64::from(cost.least)).sum();
        let most = costs.iter().map(|cost| u64::from(cost.most)).sum();
        let total = self.total.saturating_sub(probes).clamp(least, most);
        // Costs beyond what numbers can hold can't be balanced; then all get the same.
        let Ok(sizes) = balance(&costs, total) else { return Plan::default() };

        let longest = |sizes: &mut dyn Iterator<Item = u32>| {
            costs.iter().zip(sizes).map(|(cost, size)| cost.seconds(size)).fold(0.0, f64::max)
        };
        let seconds = longest(&mut sizes.iter().copied());
        if self.fits(&balanced, &costs, total) {
            let unchanged = longest(&mut self.plan.sizes.iter().map(|&(_, size)| size));
            if seconds > (1.0 - self.least_gain) * unchanged {
                return Plan { seconds: unchanged, ..self.plan.clone() };
            }
        }
        Plan { sizes: balanced.into_iter().zip(sizes).collect(), seconds }
    }

    /// Whether the present sizes are of these workers, within their bounds and of so many samples.
    fn fits(&self, workers: &[WorkerId], costs: &[Cost], total: u64) -> bool {
        let sizes = &self.plan.sizes;
        let within = |((planned, size), (worker, cost)): (&(WorkerId, u32), (&WorkerId, &Cost))| {
            planned == worker && (cost.least..=cost.most).contains(size)
        };
        sizes.len() == workers.len()
            && sizes.iter().zip(workers.iter().zip(costs)).all(within)
            && sizes.iter().map(|&(_, size)| u64::from(size)).sum::<u64>() == total
    }
}

impl Sizing for Balanced {
    fn begin(&mut self, workers: &[WorkerId]) {
        if self.blocking {
            self.plan = self.plan(workers);
        } else if let Some(next) = self.next.take() {
            self.plan = next;
        }
        self.fresh = true;
        self.training_steps = 0;
    }

    fn size(&self, worker: WorkerId) -> (u32, Option<Reason>) {
        if let Some(size) = self.plan.size(worker) {
            return (size, Some(Reason::Balanced { seconds: self.plan.seconds }));
        }
        match self.knowledge.probe(worker) {
            Some(size) => (size, Some(Reason::Profiling)),
            None => (self.batch, None),
        }
    }

    fn on_arrival(&mut self, update: &Update, now: Time) {
        let (worker, report) = (update.task.worker, &update.report);
        while worker.index() >= self.communication.len() {
            self.communication.push(Recent::new(COMMUNICATIONS));
        }
        let communication = now.since(update.started) - report.compute;
        self.communication[worker.index()].push(communication.seconds());
        let seconds = report.compute.seconds();
        match &mut self.knowledge {
            Knowledge::Speeds(speeds) => {
                let share = |share: Option<f32>| f64::from(share.unwrap_or(0.0));
                let resources = Resources { cpu: share(report.cpu), memory: share(report.memory) };
                speeds.observe(worker, f64::from(update.samples) / seconds, resources);
            }
            Knowledge::Devices(devices) => {
                let memory = report.memory.map(f64::from);
                devices.observe(worker, Point { samples: update.samples, seconds, memory });
            }
        }
    }

    fn in_background(&mut self, workers: &[WorkerId]) -> Option<(Span, Reason)> {
        if self.fresh {
            self.fresh = false;
            if !self.blocking {
                self.next = Some(self.plan(workers));
            }
        } else if let Knowledge::Speeds(speeds) = &mut self.knowledge {
            self.training_steps = if speeds.train_step() { self.training_steps + 1 } else { TRAINING_STEPS };
        }
        let learns = matches!(&self.knowledge, Knowledge::Speeds(speeds) if speeds.kind().weights() > 0);
        (learns && self.training_steps < TRAINING_STEPS).then_some((REST, Reason::Training))
    }
}

/// A network's weights as written: numbers with `/` between them.
struct Weights(Vec<f64>);

impl FromStr for Weights {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let number = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite());
        let numbers: Option<Vec<f64>> = text.split('/').map(number).collect();
        numbers.map(Weights).ok_or("numbers with / between them")
    }
}

pub(super) fn build(settings: &Settings<'_>, setup: &Setup) -> Result<Box<dyn Scheme>, SpecError> {
    let cpu = settings.choice("mode", &[("cpu", true), ("gpu", false)])?;
    let by_mode =
        if cpu { [("blocking", true), ("non-blocking", false)] } else { [("non-blocking", false), ("blocking", true)] };
    let blocking = settings.choice("update", &by_mode)?;
    let kind = settings.parsed("predictor", PredictorKind::Narx)?;
    let warm_up = settings.optional("warm-up", 500, 2..=1_000_000)?;
    let weights: Weights = settings.parsed("weights", Weights(Vec::new()))?;
    let weights = (!weights.0.is_empty()).then_some(weights.0);
    if weights.as_ref().is_some_and(|weights| weights.len() != kind.weights()) {
        return Err(settings.unfit("weights", format!("{} numbers for predictor {kind}", kind.weights())));
    }
    let least = settings.optional("least", 1, 1..=u32::MAX)?;
    let most = settings.optional("most", u32::MAX, least..=u32::MAX)?;
    let least_gain = settings.optional("change", 0.01, 0.0..=1.0)?;
    let waited_for = settings.optional("k", setup.workers, 1..=setup.workers)?;
    let knowledge = if cpu {
        Knowledge::Speeds(Speeds::new(kind, warm_up, weights))
    } else {
        Knowledge::Devices(Devices::new(setup.batch))
    };
    let sizing = Balanced {
        total: setup.workers as u64 * u64::from(setup.batch),
        batch: setup.batch,
        bounds: (least, most),
        least_gain,
        blocking,
        knowledge,
        communication: Vec::new(),
        plan: Plan::default(),
        next: None,
        fresh: false,
        training_steps: 0,
    };
    let quorum = if waited_for == setup.workers { Fixed(usize::MAX) } else { Fixed(waited_for) };
    Ok(Box::new(Rounds::sized(quorum, sizing, settings.dispatch(setup)?)))
}
