//! All schemes, with the settings that change how they move.

use paceline_core::{CATALOGUE, Dispatch, SchemeEntry, SchemeSpec};

/// Settings beside the defaults under which schemes take other paths.
const VARIANTS: &[&str] = &[
    "ssp:staleness=0",
    "dssp:min=0,max=3",
    "dbw:memory=window-3,formulas=printed",
    "elastic-bsp:r=4,interval=median",
    "esync:mode=non-blocking",
    "lb-bsp:mode=gpu,least=2",
    "lb-bsp:predictor=ema,update=non-blocking,change=0",
];

/// Every scheme of the catalogue for `workers` workers, with every way to hand out work where there are several, and
/// with some more settings.
pub fn schemes(workers: usize) -> Vec<SchemeSpec> {
    let texts = CATALOGUE.iter().flat_map(|entry| {
        let required: Vec<String> = entry.settings.iter().filter_map(|setting| required(setting, workers)).collect();
        let handouts: Vec<String> = Dispatch::NAMES.iter().map(|(name, _)| format!("dispatch={name}")).collect();
        let ways: Vec<Vec<String>> = if entry.dispatches {
            handouts.into_iter().map(|dispatch| required.iter().cloned().chain([dispatch]).collect()).collect()
        } else {
            vec![required]
        };
        ways.into_iter().map(|settings| written(entry, &settings))
    });
    let all = texts.chain(VARIANTS.iter().map(|text| text.to_string()));
    all.map(|text| text.parse().expect("the catalogue's own names and settings")).collect()
}

fn required((key, meaning): &(&str, &str), workers: usize) -> Option<String> {
    let most = (workers * 2).div_ceil(3);
    // Counts of gradients are bounded by the workers; a few will do for anything else.
    let value = if *key == "k" { most } else { 3 };
    meaning.ends_with("required").then(|| format!("{key}={value}"))
}

fn written(entry: &SchemeEntry, settings: &[String]) -> String {
    if settings.is_empty() { entry.name.into() } else { format!("{}:{}", entry.name, settings.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::Setup;

    #[test]
    fn every_scheme_is_there_and_can_be_built() {
        for workers in 1..8 {
            let specs = schemes(workers);
            for entry in CATALOGUE {
                assert!(specs.iter().any(|spec| spec.name() == entry.name), "{}", entry.name);
            }
            let setup = Setup { workers, batch: 4, dispatch: None };
            specs.iter().for_each(|spec| assert!(spec.build(&setup).is_ok(), "{spec}"));
        }
    }
}
