//! The published data sets, read from their files. Skipped if the files are missing.

use std::path::PathBuf;

use paceline_workload::{
    Data, DataSource, Dataset, Draw, Order, Partition, PublishedSet, Sampler, SoftmaxRegression, Splits, Workload,
};

fn splits(set: PublishedSet, folder: &str) -> Option<Splits> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/datasets")).join(folder);
    if !folder.exists() {
        println!("skipped: {set} is not in {}", folder.display());
        return None;
    }
    match (DataSource::Published { set, folder: Some(folder) }).load(0).unwrap() {
        Data::Images(splits) => Some(splits),
        Data::Text(_) | Data::Own => panic!("{set} holds images"),
    }
}

/// Mean and standard deviation of normalized features.
fn moments(dataset: &Dataset) -> (f64, f64) {
    let (mut features, mut labels) = (Vec::new(), Vec::new());
    dataset.gather(&Vec::from_iter(0..dataset.len()), &mut features, &mut labels);
    let count = features.len() as f64;
    let mean = features.iter().map(|&feature| f64::from(feature)).sum::<f64>() / count;
    let square = features.iter().map(|&feature| f64::from(feature).powi(2)).sum::<f64>() / count;
    (mean, (square - mean * mean).sqrt())
}

#[test]
fn sets_are_complete_and_normalized() {
    for (set, folder, shape, train, held_out) in [
        (PublishedSet::Mnist, "mnist", [1, 28, 28], 60_000, 10_000),
        (PublishedSet::FashionMnist, "fashion-mnist", [1, 28, 28], 60_000, 10_000),
        (PublishedSet::Cifar10, "cifar10-6k", [3, 32, 32], 5_000, 1_000),
    ] {
        let Some(splits) = splits(set, folder) else { continue };
        assert_eq!((splits.train().len(), splits.held_out().len()), (train, held_out));
        assert_eq!(splits.train().shape(), shape);
        let (mean, deviation) = moments(splits.train());
        assert!(mean.abs() < 0.02 && (deviation - 1.0).abs() < 0.02, "{set}: {mean} ± {deviation}");
    }
}

#[test]
fn a_linear_model_learns_mnist() {
    let Some(splits) = splits(PublishedSet::Mnist, "mnist") else { return };
    let sampler = Sampler::new(splits.train().labels(), Partition::Iid, Order::Epochs, 1, 1).unwrap();
    let workload = SoftmaxRegression::new(splits, sampler, 0.0);
    let mut replica = workload.replica();
    let mut parameters = workload.initial(0);
    let mut gradient = vec![0.0; parameters.len()];
    for step in 0..900 {
        replica.gradient(&parameters, Draw { worker: 0, offset: step * 64, samples: 64 }, &mut gradient);
        for (parameter, gradient) in parameters.iter_mut().zip(&gradient) {
            *parameter -= 0.02 * gradient;
        }
    }
    let trained = replica.evaluate(&parameters);
    assert!(trained.accuracy > Some(0.89), "{trained:?}");
}
