//! Conversion between the tensors of a module and one flat vector: trainable tensors first, then statistics, both in
//! module order.

use std::ops::Range;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor, TensorData};
use paceline_store::Layout;

/// The layout of a module's floating-point tensors, named by their paths in it (`conv1.weight`).
///
/// The module must be on a device with automatic differentiation, which marks the trainable tensors.
pub(crate) fn layout(module: &impl Module) -> Layout {
    let mut collector = NameCollector::default();
    module.visit(&mut collector);
    Layout::new(collector.trainable, collector.statistics)
}

/// Copies the tensors of the module into `values`.
pub(crate) fn read(module: &impl Module, layout: &Layout, values: &mut [f32]) {
    module.visit(&mut ValueReader { cursor: Cursor::new(layout), values });
}

/// Sets the tensors of the module to `values`.
pub(crate) fn write<M: Module>(module: M, layout: &Layout, values: &[f32]) -> M {
    module.map(&mut ValueWriter { cursor: Cursor::new(layout), values })
}

/// Copies the gradients of the trainable tensors, and the statistics as `old − new`, into `values`.
///
/// `old` holds the values before the forward pass that `gradients` belong to.
pub(crate) fn read_gradients(
    module: &impl Module,
    layout: &Layout,
    gradients: Gradients,
    old: &[f32],
    values: &mut [f32],
) {
    if layout.trainable() < layout.len() {
        // Burn stores the changes of running statistics separately, per thread, until it makes a copy for validation.
        // This call updates `module` itself.
        module.valid();
    }
    module.visit(&mut GradientReader { cursor: Cursor::new(layout), gradients, old, values });
}

/// The ranges of tensors in the flat vector, while a module is visited in its order.
struct Cursor {
    trainable: usize,
    statistics: usize,
}

impl Cursor {
    fn new(layout: &Layout) -> Self {
        Cursor { trainable: 0, statistics: layout.trainable() }
    }

    fn next<const D: usize>(&mut self, tensor: &Tensor<D>) -> Range<usize> {
        let start = if tensor.is_require_grad() { &mut self.trainable } else { &mut self.statistics };
        let range = *start..*start + tensor.shape().num_elements();
        *start = range.end;
        range
    }
}

/// Collects names and shapes of tensors.
#[derive(Default)]
struct NameCollector {
    path: Vec<String>,
    trainable: Vec<(String, Vec<usize>)>,
    statistics: Vec<(String, Vec<usize>)>,
}

impl ModuleVisitor for NameCollector {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let entry = (self.path.join("."), param.dims().to_vec());
        if param.is_require_grad() {
            self.trainable.push(entry);
        } else {
            self.statistics.push(entry);
        }
    }
}

struct ValueReader<'a> {
    cursor: Cursor,
    values: &'a mut [f32],
}

impl ModuleVisitor for ValueReader<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let range = self.cursor.next(param);
        copy(param.val(), &mut self.values[range]);
    }
}

struct ValueWriter<'a> {
    cursor: Cursor,
    values: &'a [f32],
}

impl ModuleMapper for ValueWriter<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let values = &self.values[self.cursor.next(&param)];
        param.map(|old| {
            let data = TensorData::new(values.to_vec(), old.shape());
            Tensor::from_data(data, &old.device()).set_require_grad(old.is_require_grad())
        })
    }
}

struct GradientReader<'a> {
    cursor: Cursor,
    gradients: Gradients,
    old: &'a [f32],
    values: &'a mut [f32],
}

impl ModuleVisitor for GradientReader<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let range = self.cursor.next(param);
        let (old, values) = (&self.old[range.clone()], &mut self.values[range]);
        if param.is_require_grad() {
            match param.grad_remove(&mut self.gradients) {
                Some(gradient) => copy(gradient, values),
                // The loss does not depend on this tensor.
                None => values.fill(0.0),
            }
        } else {
            copy(param.val(), values);
            for (value, old) in values.iter_mut().zip(old) {
                *value = old - *value;
            }
        }
    }
}

fn copy<const D: usize>(tensor: Tensor<D>, values: &mut [f32]) {
    let data = tensor.into_data_as::<f32>();
    values.copy_from_slice(data.as_slice().expect("the data was just converted to f32"));
}

#[cfg(test)]
mod tests {
    use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
    use burn::tensor::Device;

    use super::*;

    #[derive(Module, Debug)]
    struct Mixed {
        norm: BatchNorm,
        layers: Vec<Linear>,
    }

    fn mixed(device: &Device) -> Mixed {
        Mixed { norm: BatchNormConfig::new(2).init(device), layers: vec![LinearConfig::new(2, 3).init(device)] }
    }

    #[test]
    fn names_are_paths_and_statistics_come_last() {
        let layout = layout(&mixed(&Device::flex().autodiff()));
        let entries = layout.entries().iter();
        let names: Vec<_> = entries.map(|entry| (entry.name.as_str(), entry.shape.as_slice())).collect();
        let expected: [(&str, &[usize]); 6] = [
            ("norm.gamma", &[2]),
            ("norm.beta", &[2]),
            ("layers.0.weight", &[2, 3]),
            ("layers.0.bias", &[3]),
            ("norm.running_mean", &[2]),
            ("norm.running_var", &[2]),
        ];
        assert_eq!(names, expected);
        assert_eq!(layout.trainable(), 13);
    }

    #[test]
    fn values_round_trip_through_a_module() {
        let device = Device::flex().autodiff();
        let module = mixed(&device);
        let layout = layout(&module);
        let values: Vec<f32> = (0..layout.len()).map(|index| index as f32).collect();
        let module = write(module, &layout, &values);
        let mut found = vec![0.0; values.len()];
        read(&module, &layout, &mut found);
        assert_eq!(found, values);
        assert_eq!(super::layout(&module), layout, "trainable tensors stay trainable");
    }

    #[test]
    fn gradients_and_differences_of_statistics_are_read() {
        let device = Device::flex().autodiff();
        let layout = layout(&mixed(&device));
        let mut old = vec![1.0; layout.len()];
        old[layout.trainable()..].copy_from_slice(&[5.0, 6.0, 7.0, 8.0]);
        let module = write(mixed(&device), &layout, &old);
        // Means 2 and 20, variances 1 and 100. The loss does not depend on the dense layer.
        let input = Tensor::<2>::from_floats([[1.0, 10.0], [3.0, 30.0]], &device);
        let gradients = module.norm.forward(input).sum().backward();
        let mut found = vec![f32::NAN; layout.len()];
        read_gradients(&module, &layout, gradients, &old, &mut found);
        // Over the batch, the normalized input sums to 0, and 1 sums to 2. Statistics move by a tenth of the
        // difference.
        let momentum = 0.1;
        let expected = [0.0, 0.0, 2.0, 2.0]
            .into_iter()
            .chain([0.0; 9])
            .chain([(5.0, 2.0), (6.0, 20.0), (7.0, 1.0), (8.0, 100.0)].map(|(old, new)| momentum * (old - new)));
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!((found - expected).abs() < 1e-4, "at {index}: {found}; expected {expected}");
        }
    }
}
