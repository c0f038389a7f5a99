//! All schemes, with the settings that change their behaviour.

use paceline_core::{SchemeSpec, catalogue, combination_examples};

/// Every scheme of the catalogue for `workers` workers, with every dispatch that the scheme supports, and its variants;
/// and every combination.
pub fn schemes(workers: usize) -> Vec<SchemeSpec> {
    let texts = catalogue().into_iter().flat_map(|entry| {
        let mut settings = entry.dispatch_settings();
        settings.extend(entry.variants.iter().map(|variant| variant.to_string()));
        settings.into_iter().map(move |settings| entry.example(&settings, workers))
    });
    texts
        .chain(combination_examples(workers))
        .map(|text| text.parse().expect("names and settings are from the catalogue"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::Setup;

    #[test]
    fn every_scheme_is_listed_and_can_be_built() {
        for workers in 1..8 {
            let specs = schemes(workers);
            for entry in catalogue() {
                assert!(specs.iter().any(|spec| spec.name() == entry.name), "{}", entry.name);
            }
            assert!(specs.iter().any(|spec| spec.name() == "cutoff+lb-bsp+late"));
            let setup = Setup::new(workers, 4);
            specs.iter().for_each(|spec| assert!(spec.build(&setup).is_ok(), "{spec}"));
        }
    }
}
