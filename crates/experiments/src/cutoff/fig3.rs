//! Fig. 3: predicted and observed order statistics.

use std::sync::Arc;

use paceline_config::Failure;
use paceline_core::run_times::{Amortized, DeepMarkov, IndependentNormal, RunTimePredictor, SAMPLES};
use paceline_predictor::{Assessment, assess};
use paceline_report::tables::aligned;
use serde_json::json;

use super::{file, mean, percent, pretrained, recorded, scenario};
use crate::forecast_figure::forecast_figure;
use crate::{Conditions, Findings};

/// The iterations to draw, counted from 1: before and after the change.
const DRAWN: [usize; 3] = [40, 64, 150];

pub(crate) fn run(conditions: &Conditions) -> Result<Findings, Failure> {
    let scenario = scenario(file!("fig2.toml"), conditions)?;
    let pretrained = pretrained(conditions)?;
    let model = Arc::new(DeepMarkov::new(&pretrained).map_err(Failure::run)?);
    let mut found: Vec<(&str, u64, Assessment)> = Vec::new();
    let mut panels = Vec::new();
    for &seed in &conditions.seeds.0 {
        let times = match recorded(&scenario, seed) {
            Err(Failure::Ended(_)) => break,
            recorded => recorded?,
        };
        let lag = model.size().lag;
        let predictors: [(&str, Box<dyn RunTimePredictor>); 2] = [
            ("dmm", Box::new(Amortized::new(model.clone(), SAMPLES, seed))),
            ("normal", Box::new(IndependentNormal::new(lag))),
        ];
        for (name, mut predictor) in predictors {
            let (all, assessment) = assess(predictor.as_mut(), times.rows(), lag..times.rows().len());
            found.extend(assessment.map(|assessment| (name, seed, assessment)));
            if panels.is_empty() {
                let drawn = all.iter().filter(|predicted| DRAWN.contains(&(predicted.iteration + 1)));
                panels = drawn.map(forecast_figure).collect();
            }
        }
    }
    let mut rows = vec![["predictor", "error", "covered", "throughput"].map(String::from)];
    for name in ["dmm", "normal"] {
        let over = |value: fn(&Assessment) -> f64| {
            percent(mean(found.iter().filter(|(known, ..)| *known == name).map(|(.., assessment)| value(assessment))))
        };
        rows.push([
            name.into(),
            over(|assessment| assessment.error),
            over(|assessment| assessment.covered),
            over(|assessment| assessment.throughput),
        ]);
    }
    let text = format!(
        "Cutoff SGD, fig. 3: predicted run-times of 158 workers, on held-out runs. Error: that of order statistics, as \
         a share of the mean run-time. Covered: order statistics within ±2 s.d. of the prediction. Throughput: at the \
         predicted cutoff, as a share of the largest possible.\n\n{}",
        aligned(rows)
    );
    let record = |(name, seed, assessment): &(&str, u64, Assessment)| {
        let Assessment { iterations, error, covered, throughput, .. } = assessment;
        json!({
            "predictor": name, "seed": seed, "iterations": iterations,
            "error": error, "covered": covered, "throughput": throughput,
        })
    };
    Ok(Findings { text, records: found.iter().map(record).collect(), panels })
}
