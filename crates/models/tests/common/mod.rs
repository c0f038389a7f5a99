//! Small workloads for every model, and their gradients.

use std::sync::Arc;

use paceline_models::{Device, Model, Sampling};
use paceline_workload::{Data, DataSource, Draw, Replica, Workload, synthetic_digits};

/// A small workload of any model; the same at every call.
pub fn workload(model: &str) -> Arc<dyn Workload> {
    let data = match model {
        "charlm" => text(),
        _ => Data::Images(synthetic_digits(3, 500, 100).unwrap()),
    };
    let model: Model = model.parse().unwrap();
    model.workload(&data, &Sampling::default(), &Device::flex()).unwrap()
}

fn text() -> Data {
    let file = tempfile::NamedTempFile::new().unwrap();
    let line = "The line holds together because each rider sets the pace that the line can hold.\n";
    std::fs::write(file.path(), line.repeat(20)).unwrap();
    DataSource::Text(file.path().into()).load(0).unwrap()
}

/// `samples` of worker 0's stream, from `offset`.
pub fn draw(offset: u64, samples: u32) -> Draw {
    Draw { worker: 0, offset, samples }
}

/// Loss and gradient of one draw.
pub fn gradient(replica: &mut dyn Replica, parameters: &[f32], draw: Draw) -> (f64, Vec<f32>) {
    let mut gradient = vec![f32::NAN; parameters.len()];
    let loss = replica.gradient(parameters, draw, &mut gradient);
    (loss, gradient)
}
