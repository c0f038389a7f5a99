//! All schemes, with the settings that change their behaviour.

use paceline_core::{CATALOGUE, Dispatch, SchemeEntry, SchemeSpec};

/// Non-default settings under which schemes take other code paths.
const VARIANTS: &[&str] = &[
    "ssp:staleness=0",
    "dssp:min=0,max=3",
    "dbw:memory=window-3,formulas=printed",
    "elastic-bsp:r=4,interval=median",
    "esync:mode=non-blocking",
    "lb-bsp:mode=gpu,least=2",
    "lb-bsp:predictor=ema,update=non-blocking,change=0",
];

/// Every scheme of the catalogue for `workers` workers, with every dispatch that the scheme supports, and some
/// variants.
pub fn schemes(workers: usize) -> Vec<SchemeSpec> {
    let texts = CATALOGUE.iter().flat_map(|entry| {
        let required: Vec<String> = entry.settings.iter().filter_map(|setting| required(setting, workers)).collect();
        let dispatches: Vec<String> = Dispatch::NAMES.iter().map(|(name, _)| format!("dispatch={name}")).collect();
        let variants: Vec<Vec<String>> = if entry.dispatches {
            dispatches.into_iter().map(|dispatch| required.iter().cloned().chain([dispatch]).collect()).collect()
        } else {
            vec![required]
        };
        variants.into_iter().map(|settings| spec_text(entry, &settings))
    });
    let all = texts.chain(VARIANTS.iter().map(|text| text.to_string()));
    all.map(|text| text.parse().expect("names and settings are from the catalogue")).collect()
}

fn required((key, meaning): &(&str, &str), workers: usize) -> Option<String> {
    // A quorum k is limited by the number of workers; 3 is valid for every other setting.
    let value = if *key == "k" { (workers * 2).div_ceil(3) } else { 3 };
    meaning.ends_with("required").then(|| format!("{key}={value}"))
}

fn spec_text(entry: &SchemeEntry, settings: &[String]) -> String {
    if settings.is_empty() { entry.name.into() } else { format!("{}:{}", entry.name, settings.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::Setup;

    #[test]
    fn every_scheme_is_listed_and_can_be_built() {
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
