//! Models by name.

use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};

use burn::tensor::{Device, Tensor};
use paceline_spec::{SpecError, one_of};
use paceline_workload::{Data, SoftmaxRegression, Splits, Workload};

use crate::error::ModelError;
use crate::network::Classifier;
use crate::networks::{CharacterModel, Cnn, Mlp, ResNet};
use crate::samples::{Images, Sampling, TextWindows};
use crate::workload::BurnWorkload;

/// A workload, or why it can't be built.
pub type BuiltWorkload = Result<Arc<dyn Workload>, Box<dyn Error + Send + Sync>>;

/// Builds a model as a workload.
#[derive(Debug, Clone, Copy)]
enum BuildModel {
    /// On the data that the user chooses.
    OnData(fn(&Data, &Sampling, &Device) -> BuiltWorkload),
    /// On data of its own.
    OnOwnData(fn(&Sampling, &Device) -> BuiltWorkload),
}

/// A model in the catalogue.
#[derive(Debug)]
pub struct ModelEntry {
    name: &'static str,
    build: BuildModel,
}

impl ModelEntry {
    /// A model that is trained on any data that fit it.
    pub const fn on_data(name: &'static str, build: fn(&Data, &Sampling, &Device) -> BuiltWorkload) -> Self {
        ModelEntry { name, build: BuildModel::OnData(build) }
    }

    /// A model with data of its own.
    pub const fn on_own_data(name: &'static str, build: fn(&Sampling, &Device) -> BuiltWorkload) -> Self {
        ModelEntry { name, build: BuildModel::OnOwnData(build) }
    }
}

/// The models that come with Paceline.
static OWN: [ModelEntry; 6] = [
    // Convex; always computed on the CPU.
    ModelEntry::on_data("softmax", |data, sampling, _| {
        let splits = images("softmax", data)?;
        let sampler = sampling.sampler(splits.train().labels())?;
        Ok(Arc::new(SoftmaxRegression::new(splits.clone(), sampler, 0.0)))
    }),
    ModelEntry::on_data("mlp", |data, sampling, device| {
        let splits = images("mlp", data)?;
        let (shape, classes) = (splits.train().shape(), splits.train().classes());
        network(splits, sampling, device, move |device| Mlp::new(shape, classes, device))
    }),
    ModelEntry::on_data("cnn", |data, sampling, device| {
        let splits = images("cnn", data)?;
        let (shape, classes) = (splits.train().shape(), splits.train().classes());
        let [_, height, width] = shape;
        if height.min(width) < Cnn::MIN_SIDE {
            return Err(ModelError::SmallImages { model: "cnn", min_side: Cnn::MIN_SIDE, height, width }.into());
        }
        network(splits, sampling, device, move |device| Cnn::new(shape, classes, device))
    }),
    ModelEntry::on_data("resnet8", |data, sampling, device| residual("resnet8", 1, data, sampling, device)),
    ModelEntry::on_data("resnet20", |data, sampling, device| residual("resnet20", 3, data, sampling, device)),
    ModelEntry::on_data("charlm", |data, sampling, device| {
        let Data::Text(text) = data else { return Err(wrong_data("charlm", "text", data)) };
        let vocabulary = text.vocabulary().len();
        let windows = TextWindows::new(text.clone(), CharacterModel::CONTEXT, sampling)?;
        let build = move |device: &Device| CharacterModel::new(vocabulary, device);
        Ok(Arc::new(BurnWorkload::new(build, windows, device)))
    }),
];

fn wrong_data(model: &'static str, reads: &'static str, found: &Data) -> Box<dyn Error + Send + Sync> {
    ModelError::Data { model, reads, found: found.kind() }.into()
}

fn images<'a>(model: &'static str, data: &'a Data) -> Result<&'a Splits, Box<dyn Error + Send + Sync>> {
    if let Data::Images(splits) = data { Ok(splits) } else { Err(wrong_data(model, "images", data)) }
}

fn residual(model: &'static str, blocks: usize, data: &Data, sampling: &Sampling, device: &Device) -> BuiltWorkload {
    let splits = images(model, data)?;
    let (shape, classes) = (splits.train().shape(), splits.train().classes());
    network(splits, sampling, device, move |device| ResNet::new(shape, classes, blocks, device))
}

fn network<N: Classifier<Input = Tensor<4>>>(
    splits: &Splits,
    sampling: &Sampling,
    device: &Device,
    build: impl Fn(&Device) -> N + Send + Sync + 'static,
) -> BuiltWorkload {
    let images = Images::new(splits.clone(), sampling)?;
    Ok(Arc::new(BurnWorkload::new(build, images, device)))
}

/// The models that were added.
static ADDED: RwLock<Vec<&'static ModelEntry>> = RwLock::new(Vec::new());

/// Adds a model from outside to those of this process. From then on it is chosen by its name like any other. Adding the
/// same entry again changes nothing.
///
/// # Errors
/// If another model has the name.
pub fn add_model(entry: &'static ModelEntry) -> Result<(), ModelError> {
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    match OWN.iter().chain(added.iter().copied()).find(|known| known.name == entry.name) {
        Some(known) if std::ptr::eq(known, entry) => Ok(()),
        Some(_) => Err(ModelError::NameTaken { name: entry.name }),
        None => {
            added.push(entry);
            Ok(())
        }
    }
}

/// A model of the catalogue. As text: its name.
#[derive(Debug, Clone, Copy)]
pub struct Model(&'static ModelEntry);

impl Model {
    /// All models: those of Paceline, then those that were [added](add_model).
    pub fn all() -> Vec<Model> {
        OWN.iter().map(Model).chain(Model::added()).collect()
    }

    /// The models that were [added](add_model).
    pub fn added() -> Vec<Model> {
        ADDED.read().unwrap_or_else(PoisonError::into_inner).iter().map(|entry| Model(entry)).collect()
    }

    /// The name.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Whether it has data of its own.
    pub fn has_own_data(self) -> bool {
        matches!(self.0.build, BuildModel::OnOwnData(_))
    }

    /// The model as a workload on `data`. The sizes of its input and output follow from the data.
    ///
    /// # Errors
    /// If the model does not read this kind of data, the data are too small, or they cannot be split among the workers.
    pub fn workload(self, data: &Data, sampling: &Sampling, device: &Device) -> BuiltWorkload {
        match (self.0.build, data) {
            (BuildModel::OnData(build), _) => build(data, sampling, device),
            (BuildModel::OnOwnData(build), Data::Own) => build(sampling, device),
            (BuildModel::OnOwnData(_), _) => Err(wrong_data(self.name(), "its own (--data own)", data)),
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Model {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let named: Vec<_> = Model::all().into_iter().map(|model| (model.name(), model)).collect();
        one_of("model", text, &named)
    }
}

#[cfg(test)]
mod tests {
    use paceline_workload::{Dataset, Normalization, Order, synthetic_digits};

    use super::*;

    #[test]
    fn names_round_trip_through_text() {
        for model in Model::all() {
            assert_eq!(model.to_string().parse::<Model>().unwrap().name(), model.name());
        }
        let error = "ResNet".parse::<Model>().unwrap_err().to_string();
        assert!(error.starts_with("unknown model 'ResNet'; expected softmax, mlp, cnn, resnet8, resnet20"), "{error}");
    }

    fn rejection(model: &str, data: &Data, workers: usize) -> String {
        let sampling = Sampling { workers, order: Order::Epochs, ..Sampling::default() };
        let model: Model = model.parse().unwrap();
        let workload = model.workload(data, &sampling, &Device::flex());
        workload.err().expect("model and data do not match").to_string()
    }

    #[test]
    fn impossible_pairs_are_rejected_by_name() {
        let digits = Data::Images(synthetic_digits(0, 20, 10).unwrap());
        assert_eq!(rejection("charlm", &digits, 1), "model 'charlm': the data are images; expected text");
        assert!(rejection("mlp", &digits, 21).contains("20 samples cannot be split among 21 workers"));
        assert_eq!(rejection("mlp", &Data::Own, 1), "model 'mlp': the data are its own; expected images");
        let small = || {
            let normalization = Normalization { mean: 0.0, deviation: 1.0 };
            Dataset::new(vec![0; 15 * 20], vec![0], [1, 15, 20], 2, vec![normalization]).unwrap()
        };
        let error = rejection("cnn", &Data::Images(Splits::new(small(), small()).unwrap()), 1);
        assert_eq!(error, "model 'cnn': images of 15 × 20 pixels; expected at least 16 × 16");
    }

    #[test]
    fn a_model_from_outside_is_found_by_its_name() {
        static FIRST: ModelEntry = ModelEntry::on_own_data("first", |_, _| Err("no workload".into()));
        static SECOND: ModelEntry = ModelEntry::on_own_data("first", |_, _| Err("another".into()));
        assert_eq!((add_model(&FIRST), add_model(&FIRST)), (Ok(()), Ok(())));
        assert_eq!(add_model(&SECOND).unwrap_err().to_string(), "there is a model 'first' already");
        assert!("first".parse::<Model>().unwrap().has_own_data());
        assert_eq!(rejection("first", &Data::Own, 1), "no workload");
        let digits = Data::Images(synthetic_digits(0, 20, 10).unwrap());
        assert_eq!(rejection("first", &digits, 1), "model 'first': the data are images; expected its own (--data own)");
    }
}
