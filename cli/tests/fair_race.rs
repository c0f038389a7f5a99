//! Whether a race finds what is there, and nothing else: a hundred races of simulated runs, of five seeds each.

use paceline_config::{Scenario, parallel};
use paceline_core::StepKind;
use paceline_report::comparison::{ContestantRuns, Difference, Ranking, RunResult};

const RACES: u64 = 100;
const SEEDS: u64 = 5;

/// A quick scenario, with these times.
fn scenario(times: &str) -> Scenario {
    let text = format!(
        "model = 'softmax'\ndata = 'digits:600,200'\nworkers = 4\nbatch = 16\nlr = 0.01\nevaluate-every = 0\n\
         until = 'loss<1.5,samples=60000'\ntimes = '{times}'"
    );
    Scenario::from_toml("test", &text).unwrap()
}

/// The results of bsp with these seeds.
fn results(times: &str, seeds: &[u64]) -> Vec<RunResult> {
    let scenario = scenario(times);
    let prepared = scenario.prepare().unwrap();
    let mut results = Vec::new();
    let run = |&seed: &u64| {
        let simulation = prepared.simulation(&"bsp".parse()?, seed, 1)?;
        Ok(Some(RunResult { summary: simulation.run(&mut ())?.summary, curve: Vec::new() }))
    };
    parallel::run(seeds, parallel::threads(None), run, |result| results.push(result)).unwrap();
    results
}

/// The runs of one race under a name, as if they had had the seeds 0 to 4.
fn entry(name: &str, results: impl Iterator<Item = RunResult>) -> ContestantRuns {
    let renumbered = (0..).zip(results).map(|(seed, mut result)| {
        result.summary.seed = seed;
        result
    });
    let runs = renumbered.collect();
    ContestantRuns { name: name.into(), step_kind: StepKind::Fresh, rate: 0.01, at_edge: None, runs }
}

/// In how many races a contestant with these times differs as expected from `bsp`, with other seeds.
fn races_that_say(expected: Difference, times: &str) -> usize {
    let seeds: Vec<u64> = (1..=RACES * SEEDS).collect();
    let others: Vec<u64> = seeds.iter().map(|seed| seed + RACES * SEEDS).collect();
    let (mut own, mut other) = (results("uniform:0.5,1.5", &seeds).into_iter(), results(times, &others).into_iter());
    let goals = "loss<1.5".parse().unwrap();
    let says = |_: &u64| {
        let five = SEEDS as usize;
        let runs = [entry("bsp", own.by_ref().take(five)), entry("other", other.by_ref().take(five))];
        let ranking = Ranking::new(&runs, &goals);
        ranking.places.iter().any(|place| place.name == "other" && place.difference == expected)
    };
    (0..RACES).filter(says).count()
}

#[test]
fn a_scheme_does_not_differ_from_itself() {
    let found = races_that_say(Difference::None, "uniform:0.5,1.5");
    println!("no difference in {found} of {RACES} races");
    assert!(found >= 90, "{found} of {RACES}");
}

#[test]
fn a_scheme_that_takes_a_fifth_longer_is_found() {
    let found = races_that_say(Difference::Slower, "uniform:0.6,1.8");
    println!("slower in {found} of {RACES} races");
    assert!(found >= 80, "{found} of {RACES}");
}
