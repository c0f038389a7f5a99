//! The schemes, one file each, and the catalogue that finds them by name.

mod adacomm;
mod adasync;
mod anytime;
mod asp;
mod async_local_sgd;
mod auto;
mod b_dbw;
mod backup;
mod bsp;
mod cutoff;
mod dbw;
mod dc_asgd;
mod dssp;
mod easgd;
mod elastic_bsp;
mod esync;
mod late;
mod lb_bsp;
mod local_sgd;
mod part;
mod setting;
mod settings;
mod ssp;
mod step_kind;

use std::sync::{PoisonError, RwLock};

use crate::rounds::{LateRule, Quorum};
use crate::{CommitStep, Dispatch, RateRule, RateRuleKind, Scheme};

pub use part::{Build, LocalPart, Part, SizingPart, combinable, combination_examples};
pub use setting::{Setting, SettingDefault, SettingKind, UpperBound};
pub use settings::{BuildContext, SchemeError, SchemeSpec, Settings};
pub use step_kind::StepKind;

/// The run that a scheme is built for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setup {
    /// How many workers the run starts with.
    pub workers: usize,
    /// Samples per worker and iteration.
    pub batch: u32,
    /// How work is dispatched; `None` for the scheme's default.
    pub dispatch: Option<Dispatch>,
    /// How the learning rate of a step depends on its number of gradients.
    pub rate_rule: RateRule,
}

impl Setup {
    /// A run with the default dispatch and a fixed learning rate.
    pub const fn new(workers: usize, batch: u32) -> Self {
        Setup { workers, batch, dispatch: None, rate_rule: RateRule::FIXED }
    }

    /// The setup of a run with some of the workers. The learning rate remains meant for a step of all of them.
    pub fn restricted_to(mut self, workers: usize) -> Self {
        if self.rate_rule.kind != RateRuleKind::Fixed {
            self.rate_rule.reference.get_or_insert(self.workers as u32);
        }
        self.workers = workers;
        self
    }
}

/// A scheme, or a part of one, in the catalogue: everything about it but its behaviour.
#[derive(Debug, Clone, Copy)]
pub struct SchemeEntry {
    /// The name it is chosen by.
    pub name: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// Its colour in figures: red, green, blue.
    pub colour: [u8; 3],
    /// Its settings.
    pub settings: &'static [Setting],
    /// Whether it waits for k of n workers, so that it has a setting `dispatch`.
    pub dispatches: bool,
    /// Settings worth comparing with this number of workers, the most common first.
    pub compared: fn(workers: usize) -> Vec<String>,
    /// Settings under which it takes other code paths, for tests under faults.
    pub variants: &'static [&'static str],
    /// What it contributes to a combination.
    pub part: Part,
    /// What its steps are made of. With a setting `stale=yes` they may be stale whatever this says.
    pub step_kind: StepKind,
}

impl SchemeEntry {
    const fn of(name: &'static str, summary: &'static str, colour: [u8; 3], part: Part) -> Self {
        let compared = |_| vec![String::new()];
        let step_kind = StepKind::of(&part);
        SchemeEntry {
            name,
            summary,
            colour,
            settings: &[],
            dispatches: false,
            compared,
            variants: &[],
            part,
            step_kind,
        }
    }

    /// An entry without settings. It is compared as it is. Its steps count as [stale](StepKind::Stale) unless it
    /// [says otherwise](SchemeEntry::stepping_by).
    pub const fn new(
        name: &'static str,
        summary: &'static str,
        colour: [u8; 3],
        build: Build<Box<dyn Scheme>>,
    ) -> Self {
        SchemeEntry::of(name, summary, colour, Part::Whole(build))
    }

    /// The entry of a scheme of rounds, which chooses how many gradients to wait for.
    pub const fn quorum(
        name: &'static str,
        summary: &'static str,
        colour: [u8; 3],
        build: Build<Box<dyn Quorum>>,
    ) -> Self {
        SchemeEntry::of(name, summary, colour, Part::Quorum(build)).dispatches()
    }

    /// The entry of a scheme of rounds, which chooses batch sizes.
    pub const fn sizing(name: &'static str, summary: &'static str, colour: [u8; 3], build: Build<SizingPart>) -> Self {
        SchemeEntry::of(name, summary, colour, Part::Sizing(build)).dispatches()
    }

    /// The entry of a scheme with local iterations.
    pub const fn local(name: &'static str, summary: &'static str, colour: [u8; 3], build: Build<LocalPart>) -> Self {
        SchemeEntry::of(name, summary, colour, Part::LocalPolicy(build))
    }

    /// The entry of a part that uses late gradients. It is no scheme by itself.
    const fn late(name: &'static str, summary: &'static str, build: Build<LateRule>) -> Self {
        SchemeEntry::of(name, summary, [0; 3], Part::Late(build))
    }

    /// The same with these settings.
    pub const fn settings(self, settings: &'static [Setting]) -> Self {
        SchemeEntry { settings, ..self }
    }

    /// The same with the setting `dispatch`.
    pub const fn dispatches(self) -> Self {
        SchemeEntry { dispatches: true, ..self }
    }

    /// The same, compared with these settings.
    pub const fn compared(self, compared: fn(workers: usize) -> Vec<String>) -> Self {
        SchemeEntry { compared, ..self }
    }

    /// The same, tested with these settings as well.
    pub const fn variants(self, variants: &'static [&'static str]) -> Self {
        SchemeEntry { variants, ..self }
    }

    /// The same, with steps of this kind.
    pub const fn stepping_by(self, step_kind: StepKind) -> Self {
        SchemeEntry { step_kind, ..self }
    }

    /// The keys of its settings.
    pub(crate) fn keys(&self) -> Vec<&'static str> {
        let own = self.settings.iter().map(|setting| setting.key);
        own.chain(self.dispatches.then_some("dispatch")).collect()
    }

    /// The scheme with these settings, e.g. `k=8`; empty for the defaults. The entry need not be in the catalogue.
    ///
    /// # Errors
    /// If a setting is unknown.
    pub fn spec(&'static self, settings: &str) -> Result<SchemeSpec, SchemeError> {
        SchemeSpec::parse_in(&[self], &self.text(settings))
    }

    /// The scheme with these settings, as text.
    pub fn text(&self, settings: &str) -> String {
        if settings.is_empty() { self.name.into() } else { format!("{}:{settings}", self.name) }
    }

    /// The settings that choose each dispatch; one that chooses none, if it does not wait for k of n workers.
    pub fn dispatch_settings(&self) -> Vec<String> {
        if !self.dispatches {
            return vec![String::new()];
        }
        Dispatch::NAMES.iter().map(|(name, _)| format!("dispatch={name}")).collect()
    }

    /// The scheme with these settings, and with values for the required ones that fit this number of workers.
    pub fn example(&self, settings: &str, workers: usize) -> String {
        let given: Vec<&str> = settings.split(',').filter(|setting| !setting.is_empty()).collect();
        let is_given = |key: &str| given.iter().any(|setting| setting.split('=').next() == Some(key));
        let missing = self.settings.iter().filter(|setting| !is_given(setting.key)).filter_map(|setting| {
            let value = setting.required_value(workers)?;
            Some(format!("{}={value}", setting.key))
        });
        let all: Vec<String> = missing.chain(given.iter().map(|setting| setting.to_string())).collect();
        self.text(&all.join(","))
    }
}

/// The setting of schemes that average replicas.
const GLOBAL_RATE: Setting =
    Setting::number("rate", "global learning rate: how far the model moves towards the mean replica", 0.001, 1000.0)
        .default(SettingDefault::Number(1.0));

/// How the model follows the mean replica.
const OUTER: Setting =
    Setting::choice("outer", "how the model steps towards the mean replica", &["average", "nesterov"]);

/// The default of [`MOMENTUM`].
const OUTER_MOMENTUM: f64 = 0.9;

/// The momentum of the outer optimizer.
const MOMENTUM: Setting = Setting::number("momentum", "momentum of outer=nesterov", 0.0, 0.999)
    .default(SettingDefault::Number(OUTER_MOMENTUM));

/// The step at the end of a round of local iterations: the settings [`GLOBAL_RATE`], [`OUTER`] and [`MOMENTUM`].
fn averaging(settings: &Settings<'_>) -> Result<CommitStep, SchemeError> {
    let rate = settings.number("rate")? as f32;
    settings.number("momentum")?;
    settings.choice("outer", [CommitStep::Average { rate, share: 1.0 }, CommitStep::Outer { rate, share: 1.0 }])
}

/// The schemes of this crate.
static OWN: [SchemeEntry; 19] = [
    bsp::ENTRY,
    backup::ENTRY,
    dbw::ENTRY,
    b_dbw::ENTRY,
    adasync::ENTRY,
    cutoff::ENTRY,
    lb_bsp::ENTRY,
    asp::ENTRY,
    ssp::ENTRY,
    dssp::ENTRY,
    elastic_bsp::ENTRY,
    dc_asgd::ENTRY,
    async_local_sgd::ENTRY,
    esync::ENTRY,
    local_sgd::ENTRY,
    adacomm::ENTRY,
    easgd::ENTRY,
    anytime::ENTRY,
    auto::ENTRY,
];

/// The schemes that were added.
static ADDED: RwLock<Vec<&'static SchemeEntry>> = RwLock::new(Vec::new());

/// All schemes: those of this crate, then those that were [added](add_scheme).
pub fn catalogue() -> Vec<&'static SchemeEntry> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner);
    OWN.iter().chain(added.iter().copied()).collect()
}

/// What is no scheme by itself, but can be part of one.
static PARTS: [SchemeEntry; 1] = [late::ENTRY];

/// The parts that are no schemes by themselves.
pub fn parts() -> impl Iterator<Item = &'static SchemeEntry> {
    PARTS.iter()
}

/// All schemes and all parts.
fn parts_and_schemes() -> Vec<&'static SchemeEntry> {
    catalogue().into_iter().chain(parts()).collect()
}

/// Adds a scheme from outside to the catalogue of this process. From then on it is like any other: it is chosen by its
/// name, in specs and in event logs. Adding the same entry again changes nothing.
///
/// # Errors
/// If another scheme has the name.
pub fn add_scheme(entry: &'static SchemeEntry) -> Result<(), SchemeError> {
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    match OWN.iter().chain(&PARTS).chain(added.iter().copied()).find(|known| known.name == entry.name) {
        Some(known) if std::ptr::eq(known, entry) => Ok(()),
        Some(_) => Err(SchemeError::NameTaken { name: entry.name.into() }),
        None => {
            added.push(entry);
            Ok(())
        }
    }
}
