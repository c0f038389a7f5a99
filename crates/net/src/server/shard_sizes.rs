//! How much of the model each host holds.
//!
//! Of `n` workers, `w` are on a host that holds the share `s` of the model. When all send their updates, its link carries
//! `w·(1 − s)` of them away from its workers, and `s·(n − w)` to its shard; when all get the model, the same in the other
//! directions.
//!
//! A scheme that waits for all workers waits for the longer of the two on the link that takes longest. No share is better for
//! that host than `w/n`, which makes them equal, and with `w/n` the other hosts take no longer: the speeds of the links do not
//! matter. Under other schemes, the others go on without the workers behind a slow link, but not without its shard: there every
//! shard is to take the same time for its `s·(n − w)`.

/// Faster links count as equal, in bytes per second. A short measurement can't tell them apart.
const MAX_SPEED: f64 = 312.5e6;

/// Links that are slower by at most this factor count as equal.
const TOLERANCE: f64 = 1.5;

/// A host that can hold a shard.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShardHost {
    /// The number of workers on it.
    pub(super) workers: usize,
    /// The speed of its link in bytes per second. `None` if it is not known: the fastest is assumed.
    pub(super) speed: Option<f64>,
}

/// The shares of hosts under a scheme that waits for all workers. They add up to 1.
pub(super) fn shares_by_workers(hosts: &[ShardHost]) -> Vec<f64> {
    normalized(hosts.iter().map(|host| host.workers as f64))
}

/// The shares of hosts under other schemes. They add up to 1.
pub(super) fn shares_by_speed(hosts: &[ShardHost]) -> Vec<f64> {
    let workers: usize = hosts.iter().map(|host| host.workers).sum();
    let fastest = hosts.iter().filter_map(|host| host.speed).fold(0.0, f64::max).min(MAX_SPEED);
    normalized(hosts.iter().map(|host| {
        let speed = host.speed.filter(|speed| speed * TOLERANCE < fastest).map_or(1.0, |speed| speed / fastest);
        speed / (workers - host.workers).max(1) as f64
    }))
}

fn normalized(weights: impl Iterator<Item = f64>) -> Vec<f64> {
    let weights: Vec<f64> = weights.collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASES: [[(usize, f64); 3]; 5] = [
        [(1, 1e8), (1, 0.5e8), (1, 1e8)],
        [(1, 1e8), (1, 0.6e8), (1, 0.3e8)],
        [(4, 1e8), (1, 0.6e8), (1, 1e8)],
        [(1, 1e8), (2, 0.6e8), (3, 0.5e8)],
        [(2, 0.5e8), (2, 1e8), (2, 0.1e8)],
    ];

    /// Compares shares with all others, by the longest time that a link takes: for its own workers and for its shard, or
    /// for its shard alone.
    fn assert_best(hosts: &[ShardHost], shares: &[f64], waits_for_all: bool) {
        let workers: usize = hosts.iter().map(|host| host.workers).sum();
        let longest = |shares: &[f64]| {
            let time = |(host, share): (&ShardHost, &f64)| {
                let (own, others) = (host.workers as f64 * (1.0 - share), share * (workers - host.workers) as f64);
                (if waits_for_all { own.max(others) } else { others }) / host.speed.unwrap()
            };
            hosts.iter().zip(shares).map(time).fold(0.0, f64::max)
        };
        const STEPS: usize = 120;
        for first in 0..=STEPS {
            for second in 0..=STEPS - first {
                let other = [first, second, STEPS - first - second].map(|part| part as f64 / STEPS as f64);
                assert!(longest(shares) <= longest(&other) * (1.0 + 1e-9), "{hosts:?}: {other:?} beat {shares:?}");
            }
        }
    }

    #[test]
    fn no_other_shares_are_faster() {
        for case in CASES {
            let hosts = case.map(|(workers, speed)| ShardHost { workers, speed: Some(speed) });
            assert_best(&hosts, &shares_by_speed(&hosts), false);
            assert_best(&hosts, &shares_by_workers(&hosts), true);
        }
    }

    #[test]
    fn links_that_seem_equal_hold_equal_shares() {
        let third = |speeds: [Option<f64>; 3]| {
            let shares = shares_by_speed(&speeds.map(|speed| ShardHost { workers: 1, speed }));
            assert!(shares.iter().all(|share| (share - 1.0 / 3.0).abs() < 1e-9), "{speeds:?}: {shares:?}");
        };
        third([Some(1e8), Some(0.8e8), Some(0.7e8)]);
        third([Some(1e6), None, Some(1e6)]);
        third([None, None, None]);
        third([Some(9e9), Some(0.4e9), Some(2e9)]);
        assert_eq!(shares_by_speed(&[ShardHost { workers: 3, speed: None }]), [1.0]);
    }
}
