//! `late`: gradients that arrive after the commit of their round join the next commit, with less weight.

use super::{SchemeEntry, SchemeError, Setting, SettingDefault, Settings, Setup, UpperBound};
use crate::rounds::LateRule;

pub(super) const ENTRY: SchemeEntry =
    SchemeEntry::late("late", "late gradients join the next step, with less weight", build).settings(&[
        Setting::number("weight", "of a late gradient, for each version that it is behind", 0.001, 1.0)
            .default(SettingDefault::Number(0.8)),
        Setting::count("staleness", "versions that a gradient may be behind", 1, UpperBound::Value(1000))
            .default(SettingDefault::Count(3)),
    ]);

fn build(settings: &Settings<'_>, _setup: &Setup) -> Result<LateRule, SchemeError> {
    Ok(LateRule { weight: settings.number("weight")?, staleness: settings.count("staleness")? })
}
