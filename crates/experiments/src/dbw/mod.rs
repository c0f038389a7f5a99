//! DBW's experiments: one [`Study`] each, defined in `scenarios/dbw/`.

mod present;
mod study;

use paceline_config::Failure;

use crate::{Conditions, Findings};
use study::Study;

/// A file of `scenarios/dbw/`, built into the program.
macro_rules! file {
    ($name:literal) => {
        ($name, include_str!(concat!("../../scenarios/dbw/", $name)))
    };
}

/// Fig. 4: k and the loss during training.
pub(super) fn fig4(conditions: &Conditions) -> Result<Findings, Failure> {
    run(file!("fig4.toml"), conditions)
}

/// Fig. 6: the time to a loss for round trips of increasing variance.
pub(super) fn fig6(conditions: &Conditions) -> Result<Findings, Failure> {
    run(file!("fig6.toml"), conditions)
}

/// Fig. 8: the time to a loss for several batch sizes.
pub(super) fn fig8(conditions: &Conditions) -> Result<Findings, Failure> {
    run(file!("fig8.toml"), conditions)
}

/// Fig. 9: half of the workers become slower.
pub(super) fn fig9(conditions: &Conditions) -> Result<Findings, Failure> {
    run(file!("fig9.toml"), conditions)
}

/// Fig. 10: compared with AdaSync.
pub(super) fn fig10(conditions: &Conditions) -> Result<Findings, Failure> {
    run(file!("fig10.toml"), conditions)
}

fn run((name, text): (&str, &str), conditions: &Conditions) -> Result<Findings, Failure> {
    let study = Study::parse(name, text).map_err(Failure::Input)?;
    let runs = study.run(conditions)?;
    Ok(present::findings(&study, &runs, conditions.full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_studies_are_valid_at_both_sizes() {
        for (name, text) in
            [file!("fig4.toml"), file!("fig6.toml"), file!("fig8.toml"), file!("fig9.toml"), file!("fig10.toml")]
        {
            let study = Study::parse(name, text).unwrap();
            for (full, cell) in [false, true].into_iter().flat_map(|full| study.cells().map(move |cell| (full, cell))) {
                let label = format!("{name}, {}, full: {full}", cell.label());
                let scenario = study.scenario(&cell, full).unwrap_or_else(|error| panic!("{label}: {error:#}"));
                assert!(study.script(16).is_ok(), "{label}");
                // The runs must stop at the loss that is reported.
                let until = scenario.until.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
                if let (Some(target), true) = (study.target(full), until.contains("loss<")) {
                    assert!(until.contains(&format!("loss<{target}")), "{label}: {until}, but the target is {target}");
                }
            }
        }
    }
}
