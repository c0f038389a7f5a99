//! Replicas give the same bits alone and next to others, and report the statistics of batch normalization separately.

mod common;

use std::thread;

use common::{draw, gradient, workload};

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn the_seed_decides_the_initial_parameters_on_any_thread() {
    for model in ["mlp", "resnet8", "charlm"] {
        let expected = bits(&workload(model).initial(1));
        assert_ne!(expected, bits(&workload(model).initial(2)), "{model}");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let workload = workload(model);
                    for _ in 0..3 {
                        assert_eq!(bits(&workload.initial(1)), expected, "{model}");
                    }
                });
            }
        });
    }
}

#[test]
fn concurrent_replicas_give_the_same_bits_as_one_alone() {
    let cases = [("cnn", 16), ("resnet8", 4), ("charlm", 2)];
    let workloads = cases.map(|(model, samples)| (workload(model), samples));
    let run = |case: usize| -> Vec<(u64, Vec<u32>)> {
        let (workload, samples) = &workloads[case];
        let mut replica = workload.replica();
        let parameters = workload.initial(4);
        let draws = (0..4).map(|step| draw(step * 100, *samples));
        let results = draws.map(|draw| gradient(replica.as_mut(), &parameters, draw));
        results.map(|(loss, gradient)| (loss.to_bits(), bits(&gradient))).collect()
    };
    let alone: Vec<_> = (0..cases.len()).map(run).collect();
    thread::scope(|scope| {
        for thread in 0..2 * cases.len() {
            let (run, alone) = (&run, &alone);
            scope.spawn(move || {
                let case = thread % cases.len();
                assert!(run(case) == alone[case], "{}", cases[case].0);
            });
        }
    });
}

#[test]
fn earlier_computations_do_not_change_a_gradient() {
    let workload = workload("resnet8");
    let (parameters, other) = (workload.initial(1), workload.initial(2));
    let (mut fresh, mut used) = (workload.replica(), workload.replica());
    gradient(used.as_mut(), &other, draw(50, 3));
    used.evaluate(&other);
    let expected = gradient(fresh.as_mut(), &parameters, draw(0, 4));
    assert_eq!(gradient(used.as_mut(), &parameters, draw(0, 4)), expected);
    assert_eq!(used.evaluate(&parameters), fresh.evaluate(&parameters));
}

#[test]
fn statistics_move_towards_the_batch_and_only_they_change_an_evaluation() {
    let workload = workload("resnet8");
    let layout = workload.layout();
    let mut replica = workload.replica();
    let start = workload.initial(3);
    let (statistics, weights) = (layout.trainable()..layout.len(), 0..layout.trainable());
    let names = layout.entries().iter().filter(|entry| entry.range.start >= layout.trainable());
    assert!(names.map(|entry| &entry.name).all(|name| name.contains(".norm.running_")));
    assert_eq!(statistics.len(), 2 * (16 + 16 + 16 + 32 + 32 + 32 + 64 + 64 + 64));

    // A training step normalizes by the batch: running statistics change neither its loss nor its gradient.
    let (loss, gradient_at_start) = gradient(replica.as_mut(), &start, draw(0, 32));
    let mut shifted = start.clone();
    shifted[statistics.clone()].iter_mut().for_each(|value| *value += 1.0);
    let (shifted_loss, gradient_shifted) = gradient(replica.as_mut(), &shifted, draw(0, 32));
    assert_eq!(loss, shifted_loss);
    assert_eq!(gradient_at_start[weights.clone()], gradient_shifted[weights]);

    // Applied with rate 1, as the optimizer does, the reported differences converge to the statistics of the batch.
    let mut parameters = start.clone();
    let mut last = f32::INFINITY;
    for _ in 0..3 {
        let (_, update) = gradient(replica.as_mut(), &parameters, draw(0, 32));
        let moved = update[statistics.clone()].iter().map(|value| value.abs()).sum::<f32>();
        assert!(moved > 0.0 && moved < last, "{moved} after {last}");
        last = moved;
        for index in statistics.clone() {
            parameters[index] -= update[index];
        }
    }
    assert_ne!(replica.evaluate(&parameters), replica.evaluate(&start));
}
