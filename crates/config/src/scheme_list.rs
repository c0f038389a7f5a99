//! The schemes of a comparison.

use std::str::FromStr;

use paceline_core::{SchemeSpec, Setup, catalogue};
use paceline_sim::Simulation;

use crate::scheme;

/// The schemes to compare, as text: `all`, or a list with commas.
#[derive(Debug, Clone, PartialEq)]
pub enum SchemeList {
    /// Every scheme of the catalogue.
    All,
    /// These.
    These(Vec<SchemeSpec>),
}

impl FromStr for SchemeList {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        if text == "all" {
            return Ok(SchemeList::All);
        }
        // A comma also separates the settings of one scheme: `dssp:min=2,max=9,asp` are two schemes.
        let mut specs: Vec<String> = Vec::new();
        for part in text.split(',') {
            let by_key = part.find('=').is_some_and(|equals| !part[..equals].contains(':'));
            let first = part.split('+').next().unwrap_or(part);
            let setting = by_key || first.parse::<f64>().is_ok();
            match specs.last_mut().filter(|_| setting) {
                Some(last) => *last += &format!(",{part}"),
                None => specs.push(part.into()),
            }
        }
        Ok(SchemeList::These(specs.iter().map(|spec| scheme(spec)).collect::<Result<_, _>>()?))
    }
}

impl SchemeList {
    /// The schemes for a setup. `all` gives each scheme with its most common settings, or with all worth trying.
    ///
    /// # Errors
    /// If a scheme does not fit the setup.
    pub fn specs(&self, setup: &Setup, all_settings: bool) -> anyhow::Result<Vec<SchemeSpec>> {
        let specs = match self {
            SchemeList::These(specs) => specs.clone(),
            SchemeList::All => {
                let limit = if all_settings { usize::MAX } else { 1 };
                let texts = catalogue().into_iter().flat_map(|entry| {
                    let compared = (entry.compared)(setup.workers);
                    compared.into_iter().take(limit).map(|settings| entry.text(&settings))
                });
                texts.map(|text| text.parse()).collect::<Result<_, _>>()?
            }
        };
        for spec in &specs {
            Simulation::check(spec, setup)?;
        }
        Ok(specs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_may_contain_settings() {
        let list = "dssp:min=2,max=9,asp,dssp:2,9,backup:k=3,lb-bsp:least=2,most=9+backup:k=3,dispatch=pull,adacomm:4,9+lb-bsp,bsp";
        let SchemeList::These(specs) = list.parse().unwrap() else { panic!() };
        let specs: Vec<String> = specs.iter().map(SchemeSpec::to_string).collect();
        assert_eq!(specs[..4], ["dssp:min=2,max=9", "asp", "dssp:min=2,max=9", "backup:k=3"]);
        let combined = ["lb-bsp:least=2,most=9+backup:k=3,dispatch=pull", "adacomm:tau=4,interval=9+lb-bsp", "bsp"];
        assert_eq!(specs[4..], combined);
        assert!("bsp,nonsense".parse::<SchemeList>().unwrap_err().to_string().contains("unknown scheme 'nonsense'"));
    }

    #[test]
    fn all_means_every_scheme_for_any_number_of_workers() {
        for workers in [1, 2, 8, 64] {
            let setup = Setup::new(workers, 64);
            assert_eq!(SchemeList::All.specs(&setup, false).unwrap().len(), catalogue().len());
            let more: Vec<String> =
                SchemeList::All.specs(&setup, true).unwrap().iter().map(SchemeSpec::to_string).collect();
            assert!(more.len() > catalogue().len());
            assert_eq!(more.iter().collect::<std::collections::BTreeSet<_>>().len(), more.len(), "{more:?}");
        }
    }
}
