//! Schemes as users write them: `name:key=value,…`, or several parts with `+` between them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use paceline_spec::{Form, Spec, split_parts};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::backup::FixedQuorum;
use super::{
    OUTER_MOMENTUM, Part, SchemeEntry, Setting, SettingDefault, SettingKind, Setup, StepKind, UpperBound, part,
    parts_and_schemes,
};
use crate::local_rounds::LocalRounds;
use crate::rounds::{FixedBatch, Rounds};
use crate::run_times::Foresight;
use crate::{Dispatch, OuterOptimizer, Pretrained, Scheme};

/// Why a scheme can't be built.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SchemeError {
    /// It is not written as a scheme is.
    #[error(transparent)]
    Spec(#[from] paceline_spec::SpecError),
    /// A scheme from outside has the name of another.
    #[error("a scheme named '{name}' exists already; choose another name")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The scheme keeps more data about the workers than fits for this many.
    #[error("scheme '{scheme}' supports at most {limit} workers, not {workers}")]
    TooManyWorkers {
        /// The scheme.
        scheme: String,
        /// How many workers there are.
        workers: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A scheme from outside can't be built.
    #[error("scheme '{scheme}' can't be built: {why}")]
    Refused {
        /// The scheme.
        scheme: String,
        /// Why not.
        why: String,
    },
    /// The scheme does not wait for k of n workers.
    #[error("scheme '{scheme}' does not wait for k of n workers, so dispatch {dispatch} has no effect; leave it out")]
    NoDispatch {
        /// The scheme.
        scheme: String,
        /// What was chosen.
        dispatch: Dispatch,
    },
    /// Two schemes can't be parts of one.
    #[error("'{}' can't be combined with '{}': {by} {role}{expected}", schemes[0], schemes[1])]
    NotCombined {
        /// The two.
        schemes: [&'static str; 2],
        /// The one that explains it.
        by: &'static str,
        /// What that one does.
        role: &'static str,
        /// What to combine it with.
        expected: String,
    },
    /// A part is no scheme by itself.
    #[error("'{part}' is no scheme by itself: it {role}{expected}")]
    NotAlone {
        /// The part.
        part: &'static str,
        /// What it does.
        role: &'static str,
        /// What to combine it with.
        expected: String,
    },
    /// Tasks are interrupted, so that no gradient is late.
    #[error("with dispatch push-interrupt no gradient is late, so '{part}' has no effect; choose pull or push-wait")]
    NothingLate {
        /// The part that uses late gradients.
        part: &'static str,
    },
}

/// What a scheme is built with beside its settings. It goes with the spec, but is not part of its text.
#[derive(Clone, Default)]
pub struct BuildContext {
    /// The pretrained model, for a scheme that needs one.
    pub pretrained: Option<Arc<Pretrained>>,
    /// The durations of tasks under way, which only the simulator knows.
    pub foresight: Option<Arc<dyn Foresight>>,
}

impl fmt::Debug for BuildContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pretrained, foresight) = (self.pretrained.is_some(), self.foresight.is_some());
        f.debug_struct("BuildContext").field("pretrained", &pretrained).field("foresight", &foresight).finish()
    }
}

/// A scheme as a user writes it, e.g. `backup:k=8`, or several that are combined: `lb-bsp+backup:k=8`. Names and keys are
/// checked on reading, values on [building](SchemeSpec::build).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SchemeSpec {
    /// At least one, as they were written.
    parts: Vec<PartSpec>,
    name: String,
    /// What it is built with, beside the settings.
    pub context: BuildContext,
}

/// One part of a scheme, with its settings.
#[derive(Debug, Clone)]
struct PartSpec {
    spec: Spec,
    entry: &'static SchemeEntry,
}

/// Specs are equal if they are written alike.
impl PartialEq for SchemeSpec {
    fn eq(&self, other: &Self) -> bool {
        self.parts.iter().map(|part| &part.spec).eq(other.parts.iter().map(|part| &part.spec))
    }
}

impl Eq for SchemeSpec {}

impl SchemeSpec {
    /// The scheme's name without settings; with `+` between the names of its parts.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file of the pretrained model: the setting `model`.
    pub fn model(&self) -> Option<&str> {
        self.parts.iter().find_map(|part| part.spec.text("model"))
    }

    /// The outer optimizer in a run of this many workers, if the scheme has one: the settings `outer`, `momentum` and
    /// `delay`.
    pub fn outer_optimizer(&self, workers: usize) -> Option<OuterOptimizer> {
        self.parts.iter().find_map(|PartSpec { spec, .. }| {
            let momentum = spec.text("momentum").and_then(|text| text.parse().ok()).unwrap_or(OUTER_MOMENTUM);
            match spec.text("outer")? {
                "nesterov" => Some(OuterOptimizer::Nesterov { momentum }),
                "delayed-nesterov" => {
                    let delay = spec.text("delay").and_then(|text| text.parse().ok()).unwrap_or(workers as u64);
                    Some(OuterOptimizer::DelayedNesterov { momentum, delay })
                }
                _ => None,
            }
        })
    }

    /// What the scheme's steps are made of: the least safe of its parts counts.
    pub fn step_kind(&self) -> StepKind {
        let of = |PartSpec { spec, entry }: &PartSpec| {
            if spec.text("stale") == Some("yes") { StepKind::Stale } else { entry.step_kind }
        };
        self.parts.iter().map(of).max().unwrap_or(StepKind::Stale)
    }

    /// Reads a spec of one of these schemes.
    pub(super) fn parse_in(entries: &[&'static SchemeEntry], text: &str) -> Result<Self, SchemeError> {
        let keys: Vec<Vec<&str>> = entries.iter().map(|entry| entry.keys()).collect();
        let forms: Vec<Form<'_>> = entries.iter().zip(&keys).map(|(entry, keys)| Form::new(entry.name, keys)).collect();
        let parse = |text: &str| {
            let spec = Spec::parse("scheme", text, &forms)?;
            let entry = entries.iter().find(|entry| entry.name == spec.name()).expect("the name is that of an entry");
            Ok(PartSpec { spec, entry })
        };
        let texts = split_parts(text, |name| entries.iter().any(|entry| entry.name == name));
        let parts: Vec<PartSpec> = texts.into_iter().map(parse).collect::<Result<_, SchemeError>>()?;
        let entries: Vec<&SchemeEntry> = parts.iter().map(|part| part.entry).collect();
        part::check(&entries)?;
        let name = entries.iter().map(|entry| entry.name).collect::<Vec<_>>().join("+");
        Ok(SchemeSpec { parts, name, context: BuildContext::default() })
    }

    /// Builds the scheme.
    ///
    /// # Errors
    /// If a value is not allowed, or not for `setup`.
    pub fn build(&self, setup: &Setup) -> Result<Box<dyn Scheme>, SchemeError> {
        let dispatches =
            self.parts.iter().all(|part| part.entry.dispatches || matches!(part.entry.part, Part::Late(_)));
        let dispatch = self.dispatch()?.or(setup.dispatch);
        if let (false, Some(dispatch)) = (dispatches, dispatch) {
            return Err(SchemeError::NoDispatch { scheme: self.name().into(), dispatch });
        }
        let (mut quorum, mut sizing, mut local, mut late) = (None, None, None, None);
        for part in &self.parts {
            let settings = Settings { part, context: &self.context, setup };
            match part.entry.part {
                Part::Whole(build) => return build(&settings, setup),
                Part::Quorum(build) => quorum = Some(build(&settings, setup)?),
                Part::Sizing(build) => sizing = Some((build(&settings, setup)?, part)),
                Part::LocalPolicy(build) => local = Some(build(&settings, setup)?),
                Part::Late(build) => late = Some((build(&settings, setup)?, part)),
            }
        }
        if let (Some((built, part)), true) = (&sizing, quorum.is_some() || local.is_some())
            && built.waited_for.is_some()
        {
            return Err(part.spec.bad_value("k", "none, since another part says whom to wait for").into());
        }
        let learns = quorum.is_some() && sizing.is_some();
        let waited_for = sizing.as_ref().and_then(|(built, _)| built.waited_for);
        let sizes = sizing.map_or_else(|| Box::new(FixedBatch(setup.batch)) as _, |(built, _)| built.sizing);
        if let Some(local) = local {
            return Ok(Box::new(LocalRounds::sized(local.policy, local.step, sizes)));
        }
        let quorum = quorum.unwrap_or_else(|| Box::new(FixedQuorum(waited_for.unwrap_or(usize::MAX))));
        // Interrupted workers send no late gradients.
        let default = if late.is_some() { Dispatch::PushWait } else { quorum.dispatch() };
        let mut rounds = Rounds::sized(quorum, sizes, dispatch.unwrap_or(default));
        if learns {
            rounds = rounds.reporting_interrupts();
        }
        if let Some((rule, part)) = late {
            if dispatch == Some(Dispatch::PushInterrupt) {
                return Err(SchemeError::NothingLate { part: part.entry.name });
            }
            rounds = rounds.with_late(rule);
        }
        Ok(Box::new(rounds))
    }

    /// How work is dispatched, if a part says so.
    fn dispatch(&self) -> Result<Option<Dispatch>, SchemeError> {
        let mut given = None;
        for PartSpec { spec, .. } in &self.parts {
            let own = spec.choice("dispatch", &Dispatch::NAMES)?;
            if given.is_some() && own.is_some() {
                return Err(spec.bad_value("dispatch", "none, since another part says it").into());
            }
            given = given.or(own);
        }
        Ok(given)
    }
}

impl FromStr for SchemeSpec {
    type Err = SchemeError;

    fn from_str(text: &str) -> Result<Self, SchemeError> {
        SchemeSpec::parse_in(&parts_and_schemes(), text)
    }
}

impl fmt::Display for SchemeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.parts.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { "" } else { "+" }, part.spec)?;
        }
        Ok(())
    }
}

impl TryFrom<String> for SchemeSpec {
    type Error = SchemeError;
    fn try_from(text: String) -> Result<Self, SchemeError> {
        text.parse()
    }
}

impl From<SchemeSpec> for String {
    fn from(spec: SchemeSpec) -> String {
        spec.to_string()
    }
}

/// A scheme's settings, read by the scheme that they are for.
///
/// Keys are those that its entry declares; another key, or one of another kind, is a mistake in the scheme and panics.
pub struct Settings<'a> {
    part: &'a PartSpec,
    context: &'a BuildContext,
    setup: &'a Setup,
}

impl Settings<'_> {
    fn spec(&self) -> &Spec {
        &self.part.spec
    }

    fn declared(&self, key: &str) -> &'static Setting {
        let entry = self.part.entry;
        let found = entry.settings.iter().find(|setting| setting.key == key);
        found.unwrap_or_else(|| panic!("scheme '{}' declares no setting '{key}'", entry.name))
    }

    /// The value or the default.
    fn or_default<T>(&self, setting: &Setting, given: Option<T>, default: Option<T>) -> Result<T, SchemeError> {
        given.or(default).ok_or_else(|| self.missing(setting.key, &setting.allowed(self.setup)))
    }

    /// The scheme's name.
    pub fn scheme(&self) -> &str {
        self.part.entry.name
    }

    /// A whole number, or its default.
    ///
    /// # Errors
    /// If it is missing or not allowed.
    pub fn count<T: TryFrom<u64>>(&self, key: &'static str) -> Result<T, SchemeError> {
        let setting = self.declared(key);
        let default = if let SettingDefault::Count(count) = setting.default { T::try_from(count).ok() } else { None };
        self.or_default(setting, self.given_count(key)?, default)
    }

    /// A whole number, if it is given.
    ///
    /// # Errors
    /// If it is not allowed.
    pub fn given_count<T: TryFrom<u64>>(&self, key: &'static str) -> Result<Option<T>, SchemeError> {
        let setting = self.declared(key);
        let SettingKind::Count(from, to) = setting.kind else { panic!("setting '{key}' is not a whole number") };
        let to = match to {
            UpperBound::Value(to) => to,
            UpperBound::Workers => self.setup.workers as u64,
            UpperBound::Unbounded => u64::MAX,
        };
        let is_allowed = |value: &u64| (from..=to).contains(value) && T::try_from(*value).is_ok();
        let given = self.spec().optional(key, &setting.allowed(self.setup), is_allowed)?;
        Ok(given.and_then(|value: u64| T::try_from(value).ok()))
    }

    /// A number, or its default.
    ///
    /// # Errors
    /// If it is missing or not allowed.
    pub fn number(&self, key: &'static str) -> Result<f64, SchemeError> {
        let setting = self.declared(key);
        let SettingKind::Number(from, to) = setting.kind else { panic!("setting '{key}' is not a number") };
        let given = self.spec().optional(key, &setting.values(), |value| (from..=to).contains(value))?;
        let default = if let SettingDefault::Number(number) = setting.default { Some(number) } else { None };
        self.or_default(setting, given, default)
    }

    /// The value that belongs to the chosen name, or to the default. There is one value for each declared name.
    ///
    /// # Errors
    /// If the name is unknown.
    pub fn choice<T: Copy, const N: usize>(&self, key: &'static str, values: [T; N]) -> Result<T, SchemeError> {
        let setting = self.declared(key);
        let default = names(setting).iter().position(|name| setting.default == SettingDefault::Text(name));
        self.or_default(setting, self.given_choice(key, values)?, default.map(|index| values[index]))
    }

    /// The value that belongs to the chosen name, if one is given.
    ///
    /// # Errors
    /// If the name is unknown.
    pub fn given_choice<T: Copy, const N: usize>(
        &self,
        key: &'static str,
        values: [T; N],
    ) -> Result<Option<T>, SchemeError> {
        let names = names(self.declared(key));
        assert_eq!(names.len(), N, "setting '{key}' has one value for each name");
        let choices: Vec<(&str, T)> = names.iter().copied().zip(values).collect();
        Ok(self.spec().choice(key, &choices)?)
    }

    /// A text with a form of its own, or its default.
    ///
    /// # Errors
    /// If it is missing or can't be read.
    pub fn parsed<T: FromStr<Err = &'static str>>(&self, key: &'static str) -> Result<T, SchemeError> {
        let setting = self.declared(key);
        let default = if let SettingDefault::Text(text) = setting.default { text.parse().ok() } else { None };
        self.or_default(setting, self.given_parsed(key)?, default)
    }

    /// A text with a form of its own, if it is given.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn given_parsed<T: FromStr<Err = &'static str>>(&self, key: &'static str) -> Result<Option<T>, SchemeError> {
        let text = self.spec().text(self.declared(key).key);
        text.map(|text| text.parse().map_err(|allowed: &str| self.unfit(key, allowed.into()))).transpose()
    }

    /// The scheme supports at most `limit` workers.
    pub fn too_many_workers(&self, limit: usize) -> SchemeError {
        SchemeError::TooManyWorkers { scheme: self.scheme().into(), workers: self.setup.workers, limit }
    }

    /// The value of a setting is not allowed, or does not go with the others.
    pub fn unfit(&self, key: &'static str, allowed: String) -> SchemeError {
        self.spec().bad_value(key, &allowed).into()
    }

    /// A setting without a default is missing.
    pub fn missing(&self, key: &'static str, allowed: &str) -> SchemeError {
        self.spec().missing(key, allowed).into()
    }

    /// The pretrained model.
    pub(super) fn pretrained(&self) -> Option<&Pretrained> {
        self.context.pretrained.as_deref()
    }

    /// The durations of tasks under way, where they are known.
    pub(super) fn foresight(&self) -> Option<&Arc<dyn Foresight>> {
        self.context.foresight.as_ref()
    }

    /// How work is dispatched: the scheme's own setting, else the run's, else the default.
    ///
    /// # Errors
    /// If the scheme's own setting is unknown.
    pub fn dispatch(&self) -> Result<Dispatch, SchemeError> {
        let own = self.spec().choice("dispatch", &Dispatch::NAMES)?;
        Ok(own.or(self.setup.dispatch).unwrap_or_default())
    }
}

fn names(setting: &'static Setting) -> &'static [&'static str] {
    let SettingKind::Choice(names) = setting.kind else { panic!("setting '{}' is not a choice", setting.key) };
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETUP: Setup = Setup::new(16, 1);

    fn error(text: &str) -> String {
        match text.parse::<SchemeSpec>() {
            Err(error) => error.to_string(),
            Ok(spec) => spec.build(&SETUP).err().map_or("no error".into(), |error| error.to_string()),
        }
    }

    #[test]
    fn specs_read_back_as_written() {
        for text in [
            "bsp",
            "backup:k=8",
            "dssp:min=1,max=4",
            "backup:k=3,dispatch=pull",
            "lb-bsp+cutoff",
            "backup:k=3,dispatch=pull+lb-bsp:predictor=ema,least=2",
            "lb-bsp:dispatch=pull+dbw:beta=1e+1+late:weight=0.25,staleness=2",
            "local-sgd:tau=4+lb-bsp",
        ] {
            let spec: SchemeSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), text);
            assert!(spec.build(&SETUP).is_ok());
            let json = serde_json::to_string(&spec).unwrap();
            assert_eq!((json.as_str(), serde_json::from_str(&json).ok()), (format!("\"{text}\"").as_str(), Some(spec)));
        }
        assert_eq!("lb-bsp:least=2+backup:8".parse::<SchemeSpec>().unwrap().to_string(), "lb-bsp:least=2+backup:k=8");
        assert_eq!("lb-bsp:least=2+backup:8".parse::<SchemeSpec>().unwrap().name(), "lb-bsp+backup");
        assert_eq!("backup:8".parse::<SchemeSpec>().unwrap().to_string(), "backup:k=8");
    }

    #[test]
    fn errors_name_the_value_and_what_is_allowed() {
        assert!(error("bspp").starts_with("unknown scheme 'bspp'; expected bsp, "));
        assert_eq!(
            error("elastic-bsp:interval=mean"),
            "scheme 'elastic-bsp': interval=mean; expected last, ema or median"
        );
        assert_eq!(error("ssp:slack=3"), "scheme 'ssp' has no setting 'slack'; expected staleness");
        assert_eq!(error("asp:x=1"), "scheme 'asp' has no setting 'x'; it takes none");
        assert_eq!(error("backup"), "scheme 'backup': k is missing; expected 1 to 16");
        assert_eq!(error("backup:k=17"), "scheme 'backup': k=17; expected 1 to 16");
        assert_eq!(error("backup:k=x"), "scheme 'backup': k=x; expected 1 to 16");
        assert_eq!(error("backup:k=1,k=2"), "scheme 'backup': k is given twice");
        assert_eq!(
            error("dbw:memory=window-0"),
            "scheme 'dbw': memory=window-0; expected all, window-N (N iterations, at least 1) or discount-FACTOR (per \
             iteration, between 0 and 1)"
        );
        let dbw: SchemeSpec = "dbw".parse().unwrap();
        let refused = dbw.build(&Setup { workers: 100_000, ..SETUP }).err().unwrap();
        assert_eq!(refused.to_string(), "scheme 'dbw' supports at most 4096 workers, not 100000");
        assert_eq!(error("dssp:min=5,max=4"), "scheme 'dssp': max=4; expected 5 to 10005");
        assert_eq!(
            error("backup:k=1,dispatch=throw"),
            "scheme 'backup': dispatch=throw; expected pull, push-wait or push-interrupt"
        );
        let rounds = "bsp, backup, dbw, b-dbw, adasync, cutoff";
        let (sizing, quorum) = ("sets the batch sizes of rounds", "chooses how many gradients a round waits for");
        for (text, expected) in [
            (
                "asp+lb-bsp",
                format!(
                    "'asp' can't be combined with 'lb-bsp': lb-bsp {sizing}; combine it with {rounds}, local-sgd, \
                     adacomm, easgd or late"
                ),
            ),
            ("backup:k=3+dbw", format!("'backup' can't be combined with 'dbw': dbw {quorum}; combine it with lb-bsp or late")),
            ("asp+ssp:staleness=1", "'asp' can't be combined with 'ssp': ssp stands alone".into()),
            (
                "local-sgd:tau=2+lb-bsp+late",
                format!(
                    "'local-sgd' can't be combined with 'late': late uses the late gradients of rounds; combine it with \
                     {rounds} or lb-bsp"
                )
                ,
            ),
            (
                "late",
                format!("'late' is no scheme by itself: it uses the late gradients of rounds; combine it with {rounds} or lb-bsp"),
            ),
            ("bsp+slow", "unknown scheme 'slow'; expected bsp, ".into()),
            ("lb-bsp:k=3+bsp", "scheme 'lb-bsp': k=3; expected none, since another part says whom to wait for".into()),
            (
                "lb-bsp:dispatch=pull+bsp:dispatch=pull",
                "scheme 'bsp': dispatch=pull; expected none, since another part says it".into(),
            ),
            ("lb-bsp+backup:k=17", "scheme 'backup': k=17; expected 1 to 16".into()),
            (
                "cutoff:dispatch=push-interrupt+late",
                "with dispatch push-interrupt no gradient is late, so 'late' has no effect; choose pull or push-wait".into(),
            ),
            (
                "local-sgd:tau=2+lb-bsp:dispatch=pull",
                "scheme 'local-sgd+lb-bsp' does not wait for k of n workers, so dispatch pull has no effect; leave it out"
                    .into(),
            ),
        ] {
            assert!(error(text).starts_with(&expected), "{text}: {}", error(text));
        }
        let asp: SchemeSpec = "asp".parse().unwrap();
        let refused = asp.build(&Setup { dispatch: Some(Dispatch::Pull), ..SETUP }).err().unwrap();
        assert!(refused.to_string().contains("dispatch pull has no effect"));
    }
}
