//! ESync's experiments: six workers, two of them more than a hundred times slower.

mod learning;
mod times;

pub(super) use learning::{fig3, table1};
pub(super) use times::{fig4, fig5};

use paceline_config::{Failure, Scenario};

use crate::Conditions;

const CLUSTER: &str = include_str!("../../scenarios/esync/cluster.toml");
const LEARNING: &str = include_str!("../../scenarios/esync/learning.toml");

/// A scenario of `scenarios/esync/`, with the data of `--data`.
fn scenario(name: &str, text: &str, conditions: &Conditions) -> Result<Scenario, Failure> {
    let mut scenario = Scenario::from_toml(name, text).map_err(Failure::Input)?;
    if let Some(data) = &conditions.data {
        scenario.training.data = data.clone();
    }
    Ok(scenario)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
