//! The barrier planner against brute force, against the paper's algorithms and on the paper's published data.

use paceline_core::barrier::{Algorithm, Barrier, Planner, PredictedTimes, Progression, plan};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const EXACT: [Algorithm; 4] =
    [Algorithm::Zipline, Algorithm::ZiplineBasic, Algorithm::ZiplineOpt, Algorithm::ZiplineOptBs];

fn matrix<Row: AsRef<[u64]>>(rows: impl IntoIterator<Item = Row>) -> PredictedTimes {
    PredictedTimes::from_rows(rows).expect("the rows are sorted and of one length")
}

fn run(algorithm: Algorithm, times: &PredictedTimes) -> Barrier {
    plan(algorithm, times).expect("the instance is small enough for any algorithm")
}

/// Workers as in the paper's section 6.1: intervals of 1000–1500 ms, starts 10–50 ms apart, 20 iterations ago.
fn workers_in_step(count: usize, seed: u64) -> Vec<Progression> {
    let mut generator = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut worker = || {
        let interval = generator.random_range(1000..=1500);
        Progression { next: 1_643_595_472_000 + generator.random_range(10..=50) + 20 * interval, interval }
    };
    (0..count).map(|_| worker()).collect()
}

#[test]
fn every_exact_algorithm_finds_what_brute_force_finds() {
    let mut generator = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut planner = Planner::new();
    for case in 0..6000 {
        let (workers, horizon) = (generator.random_range(1..=4), generator.random_range(1..=5));
        // Few distinct times make ties, many make none. The large origins test that no digit is lost.
        let latest = [3, 10, 40, 1_000_000][case % 4];
        let origin = [0, 1_643_595_472_648_123_457, u64::MAX - latest][case % 3];
        let times = matrix((0..workers).map(|_| {
            let mut row: Vec<u64> = (0..horizon).map(|_| origin + generator.random_range(0..=latest)).collect();
            row.sort_unstable();
            row
        }));
        let expected = run(Algorithm::Naive, &times);
        for algorithm in EXACT {
            assert_eq!(run(algorithm, &times), expected, "{algorithm} on {times:?}");
        }
        assert_eq!(planner.plan(&times), &expected, "a used planner on {times:?}");
    }
}

#[test]
fn progressions_and_their_times_give_the_same_barrier() {
    let mut generator = Xoshiro256PlusPlus::seed_from_u64(2);
    let mut planner = Planner::new();
    for case in 0..20_000 {
        let (count, horizon) = (generator.random_range(1..=12), generator.random_range(1..=20));
        // From starts together to starts far apart, and from equal intervals to very unequal ones.
        let (spread, slowest) = ([0, 5, 300, 40_000][case % 4], [1, 4, 50, 700, 20_000][case % 5]);
        let origin = [0, 1_643_595_472_648_123_457, u64::MAX - 20 * 20_000 - 40_000][case % 3];
        let mut worker = || {
            let interval = generator.random_range(1..=slowest);
            Progression { next: origin + generator.random_range(0..=spread), interval }
        };
        let workers: Vec<Progression> = (0..count).map(|_| worker()).collect();
        let times = PredictedTimes::from_progressions(&workers, horizon).expect("the times fit");
        let expected = run(Algorithm::ZiplineBasic, &times);
        assert_eq!(planner.plan_progressions(&workers, horizon), Ok(&expected), "{horizon} times of {workers:?}");
    }
}

#[test]
fn a_barrier_is_made_of_its_workers_times() {
    let workers = workers_in_step(100, 3);
    let times = PredictedTimes::from_progressions(&workers, 150).expect("the times fit");
    let barrier = run(Algorithm::Zipline, &times);
    let chosen = || times.rows().zip(&barrier.iterations).map(|(row, &iteration)| row[iteration as usize - 1]);
    assert_eq!(chosen().max(), Some(barrier.at));
    assert_eq!(chosen().min(), Some(barrier.at - barrier.wait));
}

#[test]
fn exact_algorithms_agree_on_large_instances() {
    for (count, horizon) in [(10, 150), (300, 50), (1000, 150)] {
        let workers = workers_in_step(count, 4);
        let times = PredictedTimes::from_progressions(&workers, horizon).expect("the times fit");
        let expected = run(Algorithm::Zipline, &times);
        for algorithm in EXACT {
            assert_eq!(run(algorithm, &times), expected, "{algorithm} for {count} workers");
        }
        assert_eq!(Planner::new().plan_progressions(&workers, horizon), Ok(&expected), "{count} workers");
    }
}

#[test]
fn nearly_equal_workers_are_planned_exactly() {
    // Evenly spaced phases: all windows are equally good, and none may count as better.
    let even: Vec<_> = (0..500).map(|phase| Progression { next: 1000 + 2 * phase, interval: 1000 }).collect();
    // Intervals that hardly differ: the best window shrinks a little at a time.
    let drifting: Vec<_> = (0..60).map(|i| Progression { next: 5000 + 17 * i, interval: 1000 + i % 3 }).collect();
    // One straggler among fast workers.
    let straggler: Vec<_> =
        (0..50).map(|i| Progression { next: 100 + i, interval: if i == 7 { 9000 } else { 20 + i } }).collect();
    for workers in [even, drifting, straggler] {
        let times = PredictedTimes::from_progressions(&workers, 300).expect("the times fit");
        let expected = run(Algorithm::ZiplineOpt, &times);
        assert_eq!(Planner::new().plan_progressions(&workers, 300), Ok(&expected));
        assert_eq!(run(Algorithm::Zipline, &times), expected);
    }
}

#[test]
fn the_earliest_of_equal_barriers_is_chosen() {
    let times = matrix([[10, 20, 30], [13, 23, 33]]);
    for algorithm in Algorithm::ALL {
        assert_eq!(run(algorithm, &times), Barrier { wait: 3, at: 13, iterations: vec![1, 1] }, "{algorithm}");
    }
}

#[test]
fn of_equal_times_the_latest_iteration_counts() {
    let times = matrix([[1, 5, 5], [5, 5, 9]]);
    for algorithm in EXACT {
        assert_eq!(run(algorithm, &times), Barrier { wait: 0, at: 5, iterations: vec![3, 2] }, "{algorithm}");
    }
}

#[test]
fn sets_that_lack_a_worker_are_not_scored() {
    // Algorithm 2 as printed reports a wait of 0 here: it scores worker 2 alone.
    let times = matrix([[1, 10], [5, 6]]);
    for algorithm in EXACT {
        assert_eq!(run(algorithm, &times), Barrier { wait: 4, at: 5, iterations: vec![1, 1] }, "{algorithm}");
    }
}

#[test]
fn full_grid_scan_misses_an_optimum() {
    let times = matrix([[5, 10], [6, 7], [7, 12], [10, 13]]);
    assert_eq!(run(Algorithm::FullGridScan, &times).wait, 5);
    assert_eq!(run(Algorithm::Naive, &times).wait, 3);
    assert_eq!(run(Algorithm::Zipline, &times), Barrier { wait: 3, at: 10, iterations: vec![2, 2, 1, 1] });
}

#[test]
fn algorithms_are_parsed_by_name() {
    for algorithm in Algorithm::ALL {
        assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
    }
    assert_eq!(
        "zip-line".parse::<Algorithm>().unwrap_err().to_string(),
        "unknown barrier algorithm 'zip-line'; expected zipline, zipline-basic, zipline-opt, zipline-opt-bs, \
         full-grid-scan, grid-scan or naive"
    );
}

#[test]
fn naive_search_refuses_large_instances() {
    let times = PredictedTimes::from_progressions(&workers_in_step(10, 5), 15).expect("the times fit");
    assert_eq!(
        plan(Algorithm::Naive, &times).unwrap_err().to_string(),
        "naive search would try 15^10 sets: expected at most 1000000000. Use 'zipline' instead."
    );
}

#[test]
fn published_histories_give_the_papers_table_3() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/zipline/history_n1000.txt");
    let Ok(text) = std::fs::read_to_string(file) else {
        println!("skipped: {file} is absent");
        return;
    };
    // `worker:t1,t2,…,` — the prediction continues from the last time with the last interval.
    let workers: Vec<Progression> = text
        .lines()
        .map(|line| {
            let (_, history) = line.split_once(':').expect("a line names its worker");
            let history: PredictedTimes = history.parse().expect("a history is a row of times");
            let row = history.rows().next().expect("a line is a row");
            let [.., before, next] = row else { panic!("a history has two times") };
            Progression { next: *next, interval: next - before }
        })
        .collect();
    assert_eq!(workers.len(), 1000);
    for (horizon, wait) in [(15, 1403), (150, 1382)] {
        let times = PredictedTimes::from_progressions(&workers, horizon).expect("the times fit");
        let expected = run(Algorithm::ZiplineOpt, &times);
        assert_eq!(expected.wait, wait);
        assert_eq!(run(Algorithm::Zipline, &times), expected);
        assert_eq!(Planner::new().plan_progressions(&workers, horizon), Ok(&expected));
    }
}
