//! How each worker's time was shared among its activities, in equal intervals over the whole run.
//!
//! There is a limited number of intervals. When the run outgrows them, every two are merged, so that the memory of a run is
//! bounded however long it lasts. Merging adds times up: no second is lost or counted twice.

use paceline_core::Time;

use super::timeline::{ACTIVITIES, Activity};

/// The length of the first intervals, in nanoseconds.
const SHORTEST: u64 = 1_000_000;

/// Digits of the encoded shares.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Seconds of each activity in one interval.
type Seconds = [f32; ACTIVITIES];

/// The shares of all workers.
#[derive(Debug, Clone)]
pub struct ActivityShares {
    /// The length of an interval, in nanoseconds.
    width: u64,
    limit: usize,
    /// By rank.
    workers: Vec<Vec<Seconds>>,
    /// The first interval that changed since [`ActivityShares::settle`].
    changed: usize,
}

impl ActivityShares {
    /// At most `limit` intervals.
    pub fn new(limit: usize) -> Self {
        ActivityShares { width: SHORTEST, limit: limit.next_multiple_of(2), workers: Vec::new(), changed: 0 }
    }

    /// A worker did this.
    pub fn add(&mut self, worker: usize, from: Time, to: Time, activity: Activity) {
        self.each(worker, from, to, |seconds, length| seconds[activity as usize] += length);
    }

    /// A worker's time turns out to be of another activity.
    pub fn change(&mut self, worker: usize, from: Time, to: Time, before: Activity, after: Activity) {
        self.each(worker, from, to, |seconds, length| {
            seconds[before as usize] -= length;
            seconds[after as usize] += length;
        });
    }

    /// Calls `change` for every interval that this time is a part of, with the seconds in it.
    fn each(&mut self, worker: usize, from: Time, to: Time, change: impl Fn(&mut Seconds, f32)) {
        while to.0 > self.width * self.limit as u64 {
            self.merge();
        }
        if worker >= self.workers.len() {
            self.workers.resize_with(worker + 1, Vec::new);
        }
        let (first, last) = ((from.0 / self.width) as usize, (to.0.saturating_sub(1) / self.width) as usize);
        self.changed = self.changed.min(first);
        let intervals = &mut self.workers[worker];
        if last >= intervals.len() {
            intervals.resize(last + 1, [0.0; ACTIVITIES]);
        }
        for (index, seconds) in intervals.iter_mut().enumerate().take(last + 1).skip(first) {
            let begin = Time(index as u64 * self.width).max(from);
            let end = Time((index as u64 + 1) * self.width).min(to);
            change(seconds, end.since(begin).seconds() as f32);
        }
    }

    /// Every two intervals become one.
    fn merge(&mut self) {
        self.width *= 2;
        self.changed = 0;
        for intervals in &mut self.workers {
            let merged = intervals.chunks(2).map(|pair| {
                let sum = |activity: usize| pair.iter().map(|seconds| seconds[activity]).sum();
                std::array::from_fn(sum)
            });
            *intervals = merged.collect();
        }
    }

    /// The length of an interval, in seconds.
    pub fn width(&self) -> f64 {
        self.width as f64 / 1e9
    }

    /// The first interval that changed.
    pub fn changed(&self) -> usize {
        self.changed
    }

    /// All changes so far are known.
    pub fn settle(&mut self) {
        // The last interval is not over yet.
        self.changed = self.workers.iter().map(Vec::len).max().unwrap_or(0).saturating_sub(1);
    }

    /// Every worker's intervals from this one on: a digit of 0 to 63 for the share of each activity.
    pub fn encoded(&self, from: usize) -> Vec<String> {
        let scale = 63.0 / self.width();
        let digit = |seconds: &f32| char::from(DIGITS[(f64::from(*seconds) * scale).round().clamp(0.0, 63.0) as usize]);
        let worker = |intervals: &Vec<Seconds>| intervals.iter().skip(from).flatten().map(digit).collect();
        self.workers.iter().map(worker).collect()
    }

    #[cfg(test)]
    pub fn totals(&self, worker: usize) -> [f64; ACTIVITIES] {
        std::array::from_fn(|activity| self.workers[worker].iter().map(|seconds| f64::from(seconds[activity])).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_loses_no_time_and_memory_is_bounded() {
        let mut shares = ActivityShares::new(8);
        let mut expected = [0.0; ACTIVITIES];
        // Segments of many lengths, for about an hour.
        let (mut at, mut length) = (0, 7_000_000);
        for index in 0..2000_u64 {
            length = length * 31 % 3_000_000_017 + 1;
            let activity = [Activity::Computing, Activity::Waiting, Activity::Communicating][(index % 3) as usize];
            shares.add(1, Time(at), Time(at + length), activity);
            expected[activity as usize] += length as f64 / 1e9;
            at += length;
            assert!(shares.workers[1].len() <= 8);
        }
        assert!(at > 1_000_000_000_000, "{at}");
        let found = shares.totals(1);
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-3 * expected.max(1.0), "{found} {expected}");
        }
        shares.change(1, Time(0), Time(at), Activity::Computing, Activity::Dropped);
        assert_eq!(shares.changed(), 0);
    }

    #[test]
    fn shares_are_digits() {
        let mut shares = ActivityShares::new(4);
        shares.add(0, Time(0), Time(1_500_000), Activity::Computing);
        shares.add(0, Time(1_500_000), Time(2_000_000), Activity::Waiting);
        // All of the first interval; half of the second, half of it waiting.
        assert_eq!(shares.encoded(0), ["/AAAAggAAA"]);
        shares.settle();
        assert_eq!((shares.changed(), shares.encoded(1)), (1, vec!["ggAAA".to_string()]));
    }
}
