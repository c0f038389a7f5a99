//! The bits of every optimizer, compared with PyTorch's where it is installed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use paceline_store::{Layout, NextState, Optimizer};
use serde_json::{Value, json};

/// Reads cases as JSON and their inputs as `f32`: the initial parameters and a gradient per step. Writes parameters and
/// state after the last step. With `exact` roots, every square root is rounded correctly, which MKL does not do.
const SCRIPT: &str = r#"
import array, json, sys, torch
folder, roots = sys.argv[1:]
if roots == "exact":
    root = torch.Tensor.sqrt
    torch.Tensor.sqrt = lambda tensor: root(tensor.double()).float()
values = torch.tensor(array.array("f", open(folder + "/inputs", "rb").read()))
outputs, used = [], 0
def take(count):
    global used
    used += count
    return values[used - count:used].clone()
for case in json.load(open(folder + "/cases.json")):
    p = torch.nn.Parameter(take(case["length"]))
    kind = getattr(torch.optim, case["class"])
    optimizer = kind([p], lr=case["rate"], foreach=False, **case["options"])
    for _ in range(case["steps"]):
        p.grad = take(case["length"])
        optimizer.step()
    outputs.append(p.detach())
    for name in ["momentum_buffer", "exp_avg", "exp_avg_sq"]:
        if optimizer.state[p].get(name) is not None:
            outputs.append(optimizer.state[p][name])
with open(folder + "/outputs", "wb") as file:
    array.array("f", torch.cat(outputs).tolist()).tofile(file)
"#;

/// An optimizer, its settings here and in PyTorch, and what it is tried on.
struct OptimizerCase {
    text: String,
    class: &'static str,
    options: Value,
    rate: f64,
    length: usize,
    steps: usize,
}

/// Numbers from a seed (SplitMix64).
struct SeededNumbers(u64);

impl SeededNumbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to below 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// A number between 1e-4 and 1, or, in a quarter of the draws, zero.
    fn setting(&mut self) -> f64 {
        if self.below(4) == 0 { 0.0 } else { 10_f64.powf(-4.0 * self.unit()) }
    }

    /// Values as a gradient may have them: of either sign, of very different sizes, some zero.
    fn values(&mut self, count: usize) -> Vec<f32> {
        let mut value = || {
            let size = 10_f64.powf(4.0 * self.unit() - 3.0) * (2.0 * self.unit() - 1.0);
            if self.below(50) == 0 { 0.0 } else { size as f32 }
        };
        (0..count).map(|_| value()).collect()
    }
}

/// The interpreter: `PYTHON`, or `python3`.
fn python() -> String {
    std::env::var("PYTHON").unwrap_or_else(|_| "python3".into())
}

/// Whether PyTorch is there and multiplies and adds in one operation.
fn is_comparable() -> bool {
    let script = "import sys, torch\nsys.exit(torch.backends.cpu.get_cpu_capability() not in ('AVX2', 'AVX512'))";
    let found = Command::new(python()).args(["-c", script]).stderr(Stdio::null()).status();
    let is_comparable = found.is_ok_and(|status| status.success());
    if !is_comparable {
        println!("skipped: {} has no torch that uses AVX2; set PYTHON to an interpreter that has it", python());
    }
    is_comparable
}

fn write(path: &Path, values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    fs::write(path, bytes).expect("written");
}

fn read(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).expect("the script writes it");
    bytes.as_chunks().0.iter().map(|chunk| f32::from_ne_bytes(*chunk)).collect()
}

/// Steps as the case says, in place and out of place in turn. What was put in is added to `inputs`.
fn step_here(case: &OptimizerCase, numbers: &mut SeededNumbers, inputs: &mut Vec<f32>) -> (Vec<f32>, Optimizer) {
    let layout = Layout::new([("weight", vec![case.length])], []);
    let mut optimizer = Optimizer::new(case.text.parse().expect(&case.text), &layout);
    let mut parameters = numbers.values(case.length);
    inputs.extend_from_slice(&parameters);
    for step in 0..case.steps {
        let gradient = numbers.values(case.length);
        inputs.extend_from_slice(&gradient);
        if step % 2 == 0 {
            optimizer.step(&mut parameters, &gradient, case.rate);
        } else {
            let (mut next, mut new) = (NextState::default(), vec![0.0; case.length]);
            optimizer.begin(case.rate, &mut next).apply(&parameters, &gradient, &mut new);
            optimizer.accept(&mut next);
            parameters = new;
        }
    }
    (parameters, optimizer)
}

/// Calls `compare` for every vector of every case with its name, its values here and those of PyTorch.
fn for_each_vector(
    cases: &[OptimizerCase],
    roots: &str,
    mut compare: impl FnMut(&OptimizerCase, &str, &[f32], &[f32]),
) {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut numbers, mut inputs) = (SeededNumbers(7), Vec::new());
    let found: Vec<_> = cases.iter().map(|case| step_here(case, &mut numbers, &mut inputs)).collect();
    write(&folder.path().join("inputs"), &inputs);
    let describe = |case: &OptimizerCase| {
        let OptimizerCase { class, options, rate, length, steps, .. } = case;
        json!({ "class": class, "options": options, "rate": rate, "length": length, "steps": steps })
    };
    let described: Value = cases.iter().map(describe).collect();
    fs::write(folder.path().join("cases.json"), described.to_string()).expect("written");
    let mut command = Command::new(python());
    let status = command.args(["-c", SCRIPT]).arg(folder.path()).arg(roots).status().expect("it runs");
    assert!(status.success(), "the script failed");
    let outputs = read(&folder.path().join("outputs"));
    let mut rest = &outputs[..];
    let mut expected = |case: &OptimizerCase| rest.split_off(..case.length).expect("one value per parameter");
    for (case, (parameters, optimizer)) in cases.iter().zip(&found) {
        compare(case, "parameters", parameters, expected(case));
        // PyTorch has no state without momentum.
        if case.options.get("momentum") != Some(&json!(0.0)) {
            optimizer.state().for_each(|(name, values)| compare(case, name, values, expected(case)));
        }
    }
    assert!(rest.is_empty(), "PyTorch has more state");
}

fn assert_same_bits(case: &OptimizerCase, name: &str, found: &[f32], expected: &[f32]) {
    let OptimizerCase { text, length, steps, rate, .. } = case;
    let difference = found.iter().zip(expected).position(|(found, expected)| found.to_bits() != expected.to_bits());
    if let Some(index) = difference {
        let (found, expected) = (found[index], expected[index]);
        panic!("{text}, {length} values, {steps} steps at {rate}: {name}[{index}] is {found:e}, not {expected:e}");
    }
}

/// Cases of each optimizer.
const CASES: usize = 60;

/// How many values and steps a case has. PyTorch spreads the first over threads; the others have every length around
/// the widths of registers and unrolled loops.
fn extent(case: usize, numbers: &mut SeededNumbers) -> (usize, usize) {
    if case == 0 { (70_001, 4) } else { (1 + numbers.below(140), 1 + numbers.below(40)) }
}

#[test]
fn sgd_gives_the_bits_of_pytorch() {
    if !is_comparable() {
        return;
    }
    let mut numbers = SeededNumbers(1);
    let mut cases = Vec::new();
    for index in 0..CASES {
        for kind in ["sgd", "momentum", "nesterov"] {
            let (rate, decay) = (10_f64.powf(-3.0 * numbers.unit()), numbers.setting());
            let (momentum, dampening) = (0.999 * numbers.setting(), 0.999 * numbers.setting());
            let (length, steps) = extent(index, &mut numbers);
            let (text, options) = match kind {
                "sgd" => (format!("sgd:decay={decay}"), json!({ "weight_decay": decay, "momentum": 0.0 })),
                "momentum" => (
                    format!("momentum:{momentum},dampening={dampening},decay={decay}"),
                    json!({ "momentum": momentum, "dampening": dampening, "weight_decay": decay }),
                ),
                _ => {
                    // PyTorch has no Nesterov's method without momentum.
                    let momentum = momentum.max(0.01);
                    let options = json!({ "momentum": momentum, "nesterov": true, "weight_decay": decay });
                    (format!("nesterov:{momentum},decay={decay}"), options)
                }
            };
            cases.push(OptimizerCase { text, class: "SGD", options, rate, length, steps });
        }
    }
    for_each_vector(&cases, "exact", assert_same_bits);
}

/// Cases of `adam` and `adamw`.
fn adam_cases() -> Vec<OptimizerCase> {
    let mut numbers = SeededNumbers(2);
    let mut cases = Vec::new();
    for index in 0..CASES {
        for (kind, class) in [("adam", "Adam"), ("adamw", "AdamW")] {
            let (rate, decay) = (10_f64.powf(-1.0 - 3.0 * numbers.unit()), numbers.setting());
            let random = (0.999 * numbers.unit(), 1.0 - 0.5 * numbers.setting().max(1e-4));
            let (beta1, beta2) = if index < 20 { (0.9, 0.999) } else { random };
            let epsilon = [1e-8, 1e-6, 1e-3][numbers.below(3)];
            let options = json!({ "weight_decay": decay, "betas": [beta1, beta2], "eps": epsilon });
            let text = format!("{kind}:decay={decay},beta1={beta1},beta2={beta2},epsilon={epsilon}");
            let (length, steps) = extent(index, &mut numbers);
            cases.push(OptimizerCase { text, class, options, rate, length, steps });
        }
    }
    cases
}

#[test]
fn adam_gives_the_bits_of_pytorch_with_exact_roots() {
    if is_comparable() {
        for_each_vector(&adam_cases(), "exact", assert_same_bits);
    }
}

#[test]
fn adam_is_near_pytorch_with_the_roots_of_its_build() {
    if !is_comparable() {
        return;
    }
    let mut cases = adam_cases();
    cases.retain_mut(|case| {
        case.steps = 100;
        case.length < 1000
    });
    let mut largest = 0.0_f32;
    for_each_vector(&cases, "of its build", |case, name, found, expected| {
        // The decay of `adam` takes differences of the parameters into the moments.
        if name != "parameters" && (case.class == "AdamW" || case.options["weight_decay"] == json!(0.0)) {
            return assert_same_bits(case, name, found, expected);
        }
        let differences = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs());
        let size = expected.iter().map(|value| value.abs()).fold(0.0, f32::max);
        let difference = differences.fold(0.0, f32::max) / size;
        assert!(difference < 1e-6, "{}: {name} differ by {difference:e} of the largest", case.text);
        largest = largest.max(difference);
    });
    println!("the largest difference after 100 steps is {largest:e} of the largest value");
}
