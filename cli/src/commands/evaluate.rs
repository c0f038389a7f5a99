//! `paceline evaluate`: a trained model on the held-out set.

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::Args;
use paceline_config::{DATA_SEED, Failure, file};
use paceline_models::{Model, Sampling, device};
use paceline_report::tables::aligned;
use paceline_runtime::{CONFIGURATION, TrainedModel};
use paceline_store::read_model;
use paceline_workload::DataSource;
use serde_json::json;

use crate::output::say;

/// Evaluate a trained model on the held-out set
#[derive(Args)]
#[command(after_help = "The model and the data are those of the run, unless they are given. A file needs --model.

Examples:
  paceline evaluate runs/1
  paceline evaluate runs/1 --data mnist
  paceline evaluate model.safetensors --model cnn --data fashion-mnist")]
pub struct EvaluateArgs {
    /// Run folder, or model file (.safetensors)
    #[arg(value_name = "RUN|FILE")]
    path: PathBuf,

    /// Model that the weights belong to: softmax, mlp, cnn, resnet8, resnet20 or charlm
    #[arg(id = "of_model", long = "model", value_name = "MODEL")]
    model: Option<Model>,

    /// Data whose held-out set is used: digits (synthetic), digits:TRAIN,HELDOUT, mnist[:DIR], fashion-mnist[:DIR],
    /// cifar10[:DIR] or text:FILE
    #[arg(id = "on_data", long = "data", value_name = "DATA")]
    data: Option<DataSource>,

    /// Device that computes: cpu, cuda[:N] or wgpu[:N]
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

impl EvaluateArgs {
    pub fn run(self) -> Result<(), Failure> {
        let (model, data) = self.model_and_data().map_err(Failure::Input)?;
        let loaded = data.load(DATA_SEED).with_context(|| format!("data {data}")).map_err(Failure::Input)?;
        let device = device(&self.device).map_err(Failure::input)?;
        let workload = model.workload(&loaded, &Sampling::default(), &device).map_err(anyhow::Error::from_boxed);
        let workload = workload.map_err(Failure::Input)?;
        let TrainedModel { parameters, source } = if self.path.is_dir() {
            TrainedModel::read(&self.path, workload.layout()).map_err(Failure::input)?
        } else {
            let parameters = read_model(&self.path, workload.layout()).map_err(Failure::input)?;
            TrainedModel { parameters, source: self.path }
        };
        let evaluation = workload.replica().evaluate(&parameters);
        let (model, data, source) = (model.to_string(), data.to_string(), source.display().to_string());
        let (loss, accuracy) = (evaluation.loss, evaluation.accuracy);
        if self.json {
            say(json!({ "weights": source, "model": model, "data": data, "loss": loss, "accuracy": accuracy }));
        } else {
            let head = ["weights", "model", "data", "loss", "accuracy"].map(String::from);
            say(aligned([
                head,
                [
                    source,
                    model,
                    data,
                    format!("{loss:.4}"),
                    accuracy.map_or("–".into(), |accuracy| format!("{accuracy:.4}")),
                ],
            ]));
        }
        Ok(())
    }

    /// The model and the data: as given, as in the run's configuration, or by default.
    fn model_and_data(&self) -> anyhow::Result<(Model, DataSource)> {
        let configured = |key: &str| match self.path.is_dir() {
            true => file::setting(&self.path.join(CONFIGURATION), key),
            false => Ok(None),
        };
        let model = match (self.model, configured("model")?) {
            (Some(model), _) => model,
            (None, Some(name)) => name.parse()?,
            (None, None) => Model::added().first().copied().ok_or_else(|| {
                anyhow!("{}: which model do the weights belong to? Name it with --model", self.path.display())
            })?,
        };
        let data = match (&self.data, configured("data")?) {
            (Some(data), _) => data.clone(),
            (None, Some(text)) => text.parse()?,
            (None, None) if model.has_own_data() => DataSource::Own,
            (None, None) => DataSource::default(),
        };
        Ok((model, data))
    }
}
