//! `lb-bsp`: load-balanced BSP; batch sizes are chosen so that all workers finish together (Chen et al., 2018).

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{SchemeEntry, SchemeError, Setting, SettingDefault, Settings, Setup, SizingPart, UpperBound};
use crate::batching::{Cost, Devices, ProfilePoint, balance};
use crate::recent::RecentValues;
use crate::rounds::Sizing;
use crate::speed::{PredictorKind, Resources, Speeds};
use crate::{Reason, Span, Time, Update, WorkerId};

/// The most training steps in an iteration. Each takes about a tenth of a millisecond …
const TRAINING_STEPS: u32 = 4;

/// … and is preceded by this pause, so that training takes only a small share of the coordinator's time.
const REST: Span = Span(1_000_000);

/// How the cost of samples is predicted.
#[derive(Serialize, Deserialize)]
enum CostModel {
    /// By predicted speeds, which change: CPU workers.
    Speeds(Speeds),
    /// By profiles, which are measured once: GPU workers.
    Devices(Devices),
}

impl CostModel {
    /// The cost of the worker's samples without communication; `None` before the worker is measured.
    fn cost(&self, worker: WorkerId) -> Option<Cost> {
        match self {
            CostModel::Speeds(speeds) => speeds.predict(worker).map(Cost::of_speed),
            CostModel::Devices(devices) => devices.cost(worker),
        }
    }

    /// The size to measure the worker's device with; `None` if no measurement is needed.
    fn probe(&self, worker: WorkerId) -> Option<u32> {
        match self {
            CostModel::Speeds(_) => None,
            CostModel::Devices(devices) => devices.probe(worker),
        }
    }
}

/// The sizes of an iteration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct BatchPlan {
    /// The sizes of the balanced workers, by rank.
    sizes: Vec<(WorkerId, u32)>,
    /// When all of them are expected to finish, in seconds from the start of the iteration.
    #[serde(with = "crate::number")]
    seconds: f64,
}

impl BatchPlan {
    fn size(&self, worker: WorkerId) -> Option<u32> {
        let found = self.sizes.binary_search_by_key(&worker, |&(worker, _)| worker);
        found.ok().map(|index| self.sizes[index].1)
    }
}

/// How many iterations the median of communication times is taken over. Two delayed messages don't change it, and a
/// slow link is detected after three.
const COMMUNICATIONS: usize = 5;

/// A task that was interrupted after its expected time would have taken this multiple of what it had taken. Without that
/// a worker that became slow would be interrupted in every iteration and keep a batch that is too large for it.
const IMPUTED: f64 = 1.25;

#[derive(Serialize, Deserialize)]
struct BalancedSizing {
    /// The samples of an iteration (the paper's X).
    total: u64,
    /// The size for a worker without a plan or a probe.
    batch: u32,
    /// The user's bounds on the samples of a worker.
    bounds: (u32, u32),
    /// The share of the iteration's time that a new plan must save to be adopted.
    least_gain: f64,
    /// Whether a plan uses the newest reports, or is made one iteration ahead.
    blocking: bool,
    costs: CostModel,
    /// Each worker's latest communication times in seconds; the paper's tᵐ is their median.
    communication: Vec<RecentValues>,
    /// The resources that each worker reported last.
    #[serde(default)]
    resources: Vec<Resources>,
    plan: BatchPlan,
    /// The plan for the next iteration, if plans are made one iteration ahead.
    next: Option<BatchPlan>,
    /// Whether the iteration has just begun.
    fresh: bool,
    training_steps: u32,
}

impl BalancedSizing {
    /// The cost of the worker's samples with communication, within the user's bounds.
    fn bounded(&self, worker: WorkerId, cost: Cost) -> Cost {
        let communication = self.communication.get(worker.index()).and_then(RecentValues::median).unwrap_or(0.0);
        let (least, most) = self.bounds;
        let most = cost.most.min(most).max(1);
        Cost { fixed: cost.fixed + communication, least: cost.least.max(least).min(most), most, ..cost }
    }

    /// The best sizes for these workers, or the present ones if those are about as good.
    fn plan(&self, workers: &[WorkerId]) -> BatchPlan {
        let probes: u64 = workers.iter().filter_map(|&worker| self.costs.probe(worker)).map(u64::from).sum();
        let balanced: Vec<WorkerId> =
            workers.iter().copied().filter(|&worker| self.costs.probe(worker).is_none()).collect();
        let known: Vec<Option<Cost>> = balanced.iter().map(|&worker| self.costs.cost(worker)).collect();
        // A worker without history counts as an average worker.
        let speeds = known.iter().flatten().map(|cost| 1.0 / cost.per_sample);
        let Some(average) = mean(speeds).map(Cost::of_speed) else { return BatchPlan::default() };
        let with_costs = balanced.iter().zip(&known);
        let costs: Vec<Cost> =
            with_costs.map(|(&worker, cost)| self.bounded(worker, cost.unwrap_or(average))).collect();
        // If workers have left, the bounds of the others may not allow the full total.
        let least = costs.iter().map(|cost| u64::from(cost.least)).sum();
        let most = costs.iter().map(|cost| u64::from(cost.most)).sum();
        let total = self.total.saturating_sub(probes).clamp(least, most);
        // Costs that overflow can't be balanced. All workers then get the same size.
        let Ok(sizes) = balance(&costs, total) else { return BatchPlan::default() };

        let longest = |sizes: &mut dyn Iterator<Item = u32>| {
            costs.iter().zip(sizes).map(|(cost, size)| cost.seconds(size)).fold(0.0, f64::max)
        };
        let seconds = longest(&mut sizes.iter().copied());
        if self.fits(&balanced, &costs, total) {
            let unchanged = longest(&mut self.plan.sizes.iter().map(|&(_, size)| size));
            if seconds > (1.0 - self.least_gain) * unchanged {
                return BatchPlan { seconds: unchanged, ..self.plan.clone() };
            }
        }
        BatchPlan { sizes: balanced.into_iter().zip(sizes).collect(), seconds }
    }

    /// Whether the present sizes belong to these workers, are within their bounds and add up to `total`.
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

impl Sizing for BalancedSizing {
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
        match self.costs.probe(worker) {
            Some(size) => (size, Some(Reason::Profiling)),
            None => (self.batch, None),
        }
    }

    fn multiple(&self, worker: WorkerId) -> f64 {
        let (size, _) = self.size(worker);
        let cost = self.bounded(worker, self.costs.cost(worker).unwrap_or(Cost::of_speed(1.0)));
        let multiple = cost.seconds(size) / cost.seconds(self.batch);
        if multiple.is_finite() && multiple > 0.0 { multiple } else { 1.0 }
    }

    fn on_arrival(&mut self, update: &Update, now: Time) {
        let (worker, report) = (update.task.worker, &update.report);
        while worker.index() >= self.communication.len() {
            self.communication.push(RecentValues::new(COMMUNICATIONS));
        }
        // The costs are those of one iteration.
        let iterations = f64::from(update.iterations);
        let communication = now.since(update.started) - report.compute;
        self.communication[worker.index()].push(communication.seconds() / iterations);
        let seconds = report.compute.seconds() / iterations;
        match &mut self.costs {
            CostModel::Speeds(speeds) => {
                let share = |share: Option<f32>| f64::from(share.unwrap_or(0.0));
                let resources = Resources { cpu: share(report.cpu), memory: share(report.memory) };
                self.resources.resize(self.resources.len().max(worker.index() + 1), Resources::default());
                self.resources[worker.index()] = resources;
                speeds.observe(worker, f64::from(update.samples) / seconds, resources);
            }
            CostModel::Devices(devices) => {
                let memory = report.memory.map(f64::from);
                devices.observe(worker, ProfilePoint { samples: update.samples, seconds, memory });
            }
        }
    }

    fn on_interrupted(&mut self, worker: WorkerId, samples: u32, elapsed: Span) {
        let CostModel::Speeds(speeds) = &mut self.costs else { return };
        let known = (0..self.communication.len()).filter_map(|rank| speeds.predict(WorkerId(rank as u32)));
        // A worker without history counts as an average worker.
        let Some(expected) = speeds.predict(worker).or_else(|| mean(known)) else { return };
        let communication = self.communication.get(worker.index()).and_then(RecentValues::median).unwrap_or(0.0);
        let seconds = elapsed.seconds() - communication;
        let fastest = f64::from(samples) / seconds;
        // Interrupted before its time: that says nothing.
        if seconds > 0.0 && fastest < expected {
            let resources = self.resources.get(worker.index()).copied().unwrap_or_default();
            speeds.observe(worker, fastest / IMPUTED, resources);
        }
    }

    fn in_background(&mut self, workers: &mut dyn Iterator<Item = WorkerId>) -> Option<(Span, Reason)> {
        if self.fresh {
            self.fresh = false;
            if !self.blocking {
                let workers: Vec<WorkerId> = workers.collect();
                self.next = Some(self.plan(&workers));
            }
        } else if let CostModel::Speeds(speeds) = &mut self.costs {
            self.training_steps = if speeds.train_step() { self.training_steps + 1 } else { TRAINING_STEPS };
        }
        let learns = matches!(&self.costs, CostModel::Speeds(speeds) if speeds.kind().weights() > 0);
        (learns && self.training_steps < TRAINING_STEPS).then_some((REST, Reason::Training))
    }
}

/// The mean; `None` of nothing.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    (count > 0.0).then(|| sum / count)
}

/// A network's weights as given in a setting: numbers separated by `/`.
struct NetworkWeights(Vec<f64>);

impl FromStr for NetworkWeights {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let number = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite());
        let numbers: Option<Vec<f64>> = text.split('/').map(number).collect();
        numbers.map(NetworkWeights).ok_or("numbers with / between them")
    }
}

pub(super) const ENTRY: SchemeEntry = SchemeEntry::sizing(
    "lb-bsp",
    "wait for every worker, with batch sizes chosen so that all workers finish together",
    [186, 0, 176],
    build,
)
.settings(&[
    Setting::choice("mode", "predict speeds, or profile each device first", &["cpu", "gpu"]),
    Setting::text("predictor", "of speeds", "narx, memoryless, ema, arima, rnn or lstm")
        .default(SettingDefault::Text("narx")),
    Setting::count(
        "warm-up",
        "iterations in which ema is used while a network learns",
        2,
        UpperBound::Value(1_000_000),
    )
    .default(SettingDefault::Count(500)),
    Setting::text("weights", "initial weights of the network", "numbers separated by /")
        .default(SettingDefault::Derived("untrained")),
    Setting::choice("update", "sizes from the newest reports, or computed beforehand", &["blocking", "non-blocking"])
        .default(SettingDefault::Derived("blocking for cpu, non-blocking for gpu")),
    Setting::number("change", "share of the iteration's time that new sizes must save to be adopted", 0.0, 1.0)
        .default(SettingDefault::Number(0.01)),
    Setting::count("least", "smallest batch of a worker", 1, UpperBound::Unbounded).default(SettingDefault::Count(1)),
    Setting::count("most", "largest batch of a worker", 1, UpperBound::Unbounded)
        .default(SettingDefault::Derived("as many samples as fit")),
    Setting::count("k", "gradients to wait for", 1, UpperBound::Workers)
        .default(SettingDefault::Derived("the number of workers")),
])
.variants(&["warm-up=3", "mode=gpu,least=2", "predictor=ema,update=non-blocking,change=0"]);

fn build(settings: &Settings<'_>, setup: &Setup) -> Result<SizingPart, SchemeError> {
    let cpu = settings.choice("mode", [true, false])?;
    let blocking = settings.given_choice("update", [true, false])?.unwrap_or(cpu);
    let kind = settings.parsed::<PredictorKind>("predictor")?;
    let warm_up = settings.count("warm-up")?;
    let weights = settings.given_parsed::<NetworkWeights>("weights")?.map(|weights| weights.0);
    if weights.as_ref().is_some_and(|weights| weights.len() != kind.weights()) {
        return Err(settings.unfit("weights", format!("{} numbers for predictor {kind}", kind.weights())));
    }
    let least: u32 = settings.count("least")?;
    let most: u32 = settings.given_count("most")?.unwrap_or(u32::MAX);
    if most < least {
        return Err(settings.unfit("most", format!("{least} or more, as least is")));
    }
    let least_gain = settings.number("change")?;
    let waited_for = settings.given_count("k")?;
    let costs = if cpu {
        CostModel::Speeds(Speeds::new(kind, warm_up, weights))
    } else {
        CostModel::Devices(Devices::new(setup.batch))
    };
    let sizing = BalancedSizing {
        total: setup.workers as u64 * u64::from(setup.batch),
        batch: setup.batch,
        bounds: (least, most),
        least_gain,
        blocking,
        costs,
        communication: Vec::new(),
        resources: Vec::new(),
        plan: BatchPlan::default(),
        next: None,
        fresh: false,
        training_steps: 0,
    };
    // Of all workers at first means of all of them at any time.
    let waited_for = waited_for.map(|k: usize| if k == setup.workers { usize::MAX } else { k });
    Ok(SizingPart::new(sizing, waited_for))
}
