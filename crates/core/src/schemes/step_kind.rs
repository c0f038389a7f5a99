//! What a scheme's steps are made of, and so what it demands of a model.

use serde::{Deserialize, Serialize};

use super::Part;

/// What a scheme's steps are made of. This is the one place that tells safe schemes from others: `auto` without `stale=yes` and the
/// safe answer of `whatif` stay with those whose steps [may not be stale](StepKind::is_safe).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepKind {
    /// Gradients of the newest model, so that every step is unbiased.
    Fresh,
    /// Replicas that did local iterations, and are averaged.
    Averaged,
    /// Perhaps gradients or differences of earlier models.
    Stale,
}

impl StepKind {
    /// Whether no gradient of an earlier model is used.
    pub fn is_safe(self) -> bool {
        self != StepKind::Stale
    }

    /// What the steps of a part are made of, unless its entry says otherwise: of a scheme of its own nothing is known.
    pub(super) const fn of(part: &Part) -> Self {
        match part {
            Part::Quorum(_) | Part::Sizing(_) => StepKind::Fresh,
            Part::LocalPolicy(_) => StepKind::Averaged,
            Part::Whole(_) | Part::Late(_) => StepKind::Stale,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SchemeSpec, catalogue};

    fn of(text: &str) -> StepKind {
        text.parse::<SchemeSpec>().unwrap().step_kind()
    }

    #[test]
    fn schemes_are_safe_unless_they_may_use_gradients_of_earlier_models() {
        let of_kind = |kind| {
            let names = catalogue().into_iter().filter(|entry| entry.step_kind == kind).map(|entry| entry.name);
            names.collect::<Vec<_>>()
        };
        assert_eq!(of_kind(StepKind::Fresh), ["bsp", "backup", "dbw", "b-dbw", "adasync", "cutoff", "lb-bsp"]);
        assert_eq!(of_kind(StepKind::Averaged), ["esync", "local-sgd", "adacomm", "easgd", "anytime", "auto"]);
        assert_eq!(of_kind(StepKind::Stale), ["asp", "ssp", "dssp", "elastic-bsp", "dc-asgd", "async-local-sgd"]);
    }

    #[test]
    fn a_combination_is_as_safe_as_the_least_safe_of_its_parts() {
        for (text, expected) in [
            ("lb-bsp+backup:k=3", StepKind::Fresh),
            ("local-sgd:tau=4+lb-bsp", StepKind::Averaged),
            ("backup:k=3+late", StepKind::Stale),
            ("auto", StepKind::Averaged),
            ("auto:stale=no", StepKind::Averaged),
            ("auto:stale=yes", StepKind::Stale),
            ("auto:yes", StepKind::Stale),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
    }
}
