//! Optimizers with parameter groups, clipping, accumulation and tensor files, compared with PyTorch where it is installed.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use paceline_store::{Layout, NextState, Optimizer, OptimizerSpec, read_model};
use paceline_workload::{
    Draw, Order, Partition, Sampler, ShapedGradients, SoftmaxRegression, Workload, synthetic_digits,
};
use serde_json::Value;

/// The interpreter: `PYTHON`, or `python3`.
fn python() -> String {
    std::env::var("PYTHON").unwrap_or_else(|_| "python3".into())
}

/// Runs a script and reads the JSON that it prints; `None` if PyTorch is not installed.
fn run(script: &str) -> Option<Value> {
    let found = Command::new(python()).args(["-c", "import torch"]).stderr(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        println!("skipped: {} can't import torch; set PYTHON to an interpreter that can", python());
        return None;
    }
    let mut child =
        Command::new(python()).arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    child.stdin.take().expect("piped").write_all(script.as_bytes()).expect("the script is read");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "the script failed");
    Some(serde_json::from_slice(&output.stdout).expect("the script prints JSON"))
}

/// Three tensors, as in the script.
fn layout() -> Layout {
    Layout::new([("body.weight", vec![3]), ("body.bias", vec![2]), ("head.weight", vec![2])], [])
}

/// Their initial values, as in the script.
const INITIAL: [f32; 7] = [0.5, -0.5, 1.0, 0.25, -1.0, 2.0, -2.0];

/// The gradient of a step, as in the script.
fn gradient(step: usize) -> Vec<f32> {
    (0..7).map(|index| ((index * 3 + step * 5) % 7) as f32 * 0.3 - 0.8).collect()
}

const SCRIPT: &str = r#"
import json, torch
def parameters():
    return [torch.nn.Parameter(torch.tensor([0.5, -0.5, 1.0])), torch.nn.Parameter(torch.tensor([0.25, -1.0])),
            torch.nn.Parameter(torch.tensor([2.0, -2.0]))]
def gradient(step):
    return torch.tensor([((index * 3 + step * 5) % 7) * 0.3 - 0.8 for index in range(7)])
def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).tolist()
def set_gradients(tensors, values):
    for tensor, part in zip(tensors, values.split([3, 2, 2])):
        tensor.grad = part.clone()
"#;

fn assert_close(found: &[f32], expected: &Value, what: &str) {
    let expected: Vec<f64> = expected.as_array().expect(what).iter().map(|value| value.as_f64().expect(what)).collect();
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(&expected) {
        assert!((f64::from(*found) - expected).abs() < 2e-6, "{what}: {found}; PyTorch has {expected}");
    }
}

#[test]
fn groups_step_as_in_pytorch() {
    // No decay on biases, three times the rate for the head.
    let optimizers = [
        ("sgd:decay=0.1", "torch.optim.SGD(groups, lr=0.05)", 0.1),
        ("momentum:0.9,decay=0.1", "torch.optim.SGD(groups, lr=0.05, momentum=0.9)", 0.1),
        ("nesterov:0.9,decay=0.1", "torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)", 0.1),
        ("adam", "torch.optim.Adam(groups, lr=0.05)", 0.0),
        ("adamw:0.1", "torch.optim.AdamW(groups, lr=0.05)", 0.1),
    ];
    let mut script = format!("{SCRIPT}results = []\n");
    for (_, torch, decay) in optimizers {
        script += &format!(
            "p = parameters()\n\
             groups = [dict(params=[p[0]], weight_decay={decay}), dict(params=[p[1]], weight_decay=0.0),\n\
             \x20         dict(params=[p[2]], weight_decay={decay}, lr=0.15)]\n\
             optimizer = {torch}\n\
             for step in range(10):\n    set_gradients(p, gradient(step))\n    optimizer.step()\n\
             results.append(flat(p))\n"
        );
    }
    let Some(results) = run(&(script + "print(json.dumps(results))\n")) else { return };
    for (index, (text, ..)) in optimizers.into_iter().enumerate() {
        let decay = if text == "adam" { "" } else { ";*bias:decay=0" };
        let spec: OptimizerSpec = format!("{text}{decay};head.*:rate=3").parse().expect("valid");
        let mut optimizer = Optimizer::new(spec, &layout());
        let mut parameters = INITIAL;
        (0..10).for_each(|step| optimizer.step(&mut parameters, &gradient(step), 0.05));
        assert_close(&parameters, &results[index], text);
    }
}

#[test]
fn a_sum_is_clipped_and_a_file_is_read_as_pytorch_would() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("weights.safetensors");
    // The format of safetensors is the length of a JSON header, the header, the values.
    let script = format!("{SCRIPT}path = {:?}\n", path.display().to_string())
        + r#"
p = parameters()
set_gradients(p, gradient(1))
torch.nn.utils.clip_grad_norm_(p, 0.7)
tensors = dict(zip(["body.weight", "body.bias", "head.weight"], p))
header, values = {}, b""
for name in ["head.weight", "body.weight", "body.bias"]:
    data = tensors[name].detach().numpy().tobytes()
    offsets = [len(values), len(values) + len(data)]
    header[name] = dict(dtype="F32", shape=list(tensors[name].shape), data_offsets=offsets)
    values += data
header = json.dumps(header).encode()
with open(path, "wb") as file:
    file.write(len(header).to_bytes(8, "little") + header + values)
print(json.dumps(flat([tensor.grad for tensor in p])))
"#;
    let Some(clipped) = run(&script) else { return };
    assert_eq!(read_model(&path, &layout()).expect("a model"), INITIAL);
    // A step of plain SGD at rate 1 from zero shows the gradient.
    let norm = gradient(1).iter().map(|value| value * value).sum::<f32>().sqrt();
    let optimizer = Optimizer::new("sgd".parse().expect("valid"), &layout());
    let (mut next, mut new) = (NextState::default(), [0.0; 7]);
    optimizer.begin(1.0, &mut next).scaled(0.7 / norm).apply(&[0.0; 7], &gradient(1), &mut new);
    assert_close(&new.map(|value| -value), &clipped, "clipping");
}

#[test]
fn gradients_are_accumulated_and_clipped_as_in_pytorch() {
    let splits = synthetic_digits(3, 100, 10).unwrap();
    let train = splits.train().clone();
    let sampler = Sampler::new(train.labels(), Partition::Iid, Order::Epochs, 1, 1).unwrap();
    let draw = Draw { worker: 0, offset: 5, samples: 10 };
    let (mut indices, mut features, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    sampler.indices(draw, &mut indices);
    train.gather(&indices, &mut features, &mut labels);
    let workload: Arc<dyn Workload> = Arc::new(SoftmaxRegression::new(splits, sampler, 0.0));
    let parameters: Vec<f32> = (0..workload.layout().len()).map(|index| (index % 7) as f32 * 0.02 - 0.06).collect();
    let (samples, classes, width) = (draw.samples, train.classes(), train.features());
    // Portions of four samples: 4, 4 and 2, each weighted by its share, then clipped.
    let script = format!(
        "{SCRIPT}
x = torch.tensor({features:?}).view({samples}, {width})
y = torch.tensor({labels:?})
values = torch.tensor([(index % 7) * 0.02 - 0.06 for index in range({classes} * {width} + {classes})])
model = torch.nn.Linear({width}, {classes})
with torch.no_grad():
    model.weight.copy_(values[:{classes} * {width}].view({classes}, {width}))
    model.bias.copy_(values[{classes} * {width}:])
total = 0.0
for start in range(0, {samples}, 4):
    portion = slice(start, min(start + 4, {samples}))
    loss = torch.nn.functional.cross_entropy(model(x[portion]), y[portion]) * len(y[portion]) / {samples}
    loss.backward()
    total += loss.item()
accumulated = flat([model.weight.grad, model.bias.grad])
torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
print(json.dumps([total, accumulated, flat([model.weight.grad, model.bias.grad])]))
"
    );
    let Some(expected) = run(&script) else { return };
    for (limit, expected_gradient) in [(None, &expected[1]), (Some(0.5), &expected[2])] {
        let mut gradient = vec![0.0; parameters.len()];
        let shaped = ShapedGradients::new(workload.clone(), Some(4), limit);
        let loss = shaped.replica().gradient(&parameters, draw, &mut gradient);
        assert!((loss - expected[0].as_f64().unwrap()).abs() < 1e-5, "{loss}; PyTorch has {}", expected[0]);
        assert_close(&gradient, expected_gradient, "the gradient");
    }
}
