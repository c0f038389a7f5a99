//! One slice of the timeline, whose events are sorted only as far as needed.
//!
//! The search walks the possible starts of a window upwards. The shortest window from a start ends at the *reach*: the
//! latest of the workers' next times. When the search passes a worker's time, that worker's following time counts. A
//! window that starts in a bucket ends no earlier than the reach before the bucket. So one comparison rules out nearly
//! every bucket, and its events are neither read nor sorted.

use super::Window;

/// The expected number of events in a bucket. More buckets cost more to walk, fewer rule out less (measured; 2–8 are
/// close).
const EVENTS_PER_BUCKET: usize = 4;

/// The fewest and the most buckets. More would not fit into the L1 cache.
const BUCKETS: (usize, usize) = (16, 1024);

/// The end of a bucket's list.
const NONE: usize = usize::MAX;

/// The events of a time slice: [`open`](Self::open) it, [`push`](Self::push) events in any order, then
/// [`scan`](Self::scan).
#[derive(Debug, Default)]
pub(super) struct TimeSlice {
    start: u64,
    /// Buckets are `1 << shift` units of time wide.
    shift: u32,
    buckets: Vec<Bucket>,
    events: Vec<SliceEvent>,
    /// The events of the present bucket.
    sorted: Vec<(u64, u64)>,
}

#[derive(Debug, Clone)]
struct Bucket {
    /// The latest `after` of its events.
    reach: u64,
    /// The head of its list of events.
    newest: usize,
}

#[derive(Debug)]
struct SliceEvent {
    time: u64,
    /// The same worker's following time.
    after: u64,
    older: usize,
}

impl TimeSlice {
    /// Reserves memory for slices of up to `events` events, so that they do not allocate.
    pub fn reserve(&mut self, events: usize) {
        self.buckets.clear();
        self.buckets.reserve(BUCKETS.1);
        self.events.clear();
        self.events.reserve(events);
        self.sorted.clear();
        self.sorted.reserve(events);
    }

    /// Opens the slice from `start` to `last`, both included, for about `expected` events.
    pub fn open(&mut self, start: u64, last: u64, expected: usize) {
        let wanted = (expected / EVENTS_PER_BUCKET).next_power_of_two().clamp(BUCKETS.0, BUCKETS.1);
        let length = last - start;
        self.start = start;
        self.shift = (u64::BITS - length.leading_zeros()).saturating_sub(wanted.ilog2());
        self.buckets.clear();
        self.buckets.resize((length >> self.shift) as usize + 1, Bucket { reach: 0, newest: NONE });
        self.events.clear();
    }

    /// Adds a worker's `time`, which lies in the slice, and its following time `after`.
    pub fn push(&mut self, time: u64, after: u64) {
        let bucket = &mut self.buckets[((time - self.start) >> self.shift) as usize];
        bucket.reach = bucket.reach.max(after);
        self.events.push(SliceEvent { time, after, older: bucket.newest });
        bucket.newest = self.events.len() - 1;
    }

    /// Walks the starts upwards; `reach` is the reach at the first. Calls `offer` with the time and the reach of every
    /// event from which a window shorter than `best` may start. Returns the reach after the slice.
    pub fn scan(&mut self, mut reach: u64, best: &mut Window, mut offer: impl FnMut(&mut Window, u64, u64)) -> u64 {
        let mut latest_start = self.start.saturating_add((1 << self.shift) - 1);
        for bucket in &self.buckets {
            if best.improved_by(latest_start, reach) {
                self.sorted.clear();
                let mut index = bucket.newest;
                while let Some(event) = self.events.get(index) {
                    self.sorted.push((event.time, event.after));
                    index = event.older;
                }
                self.sorted.sort_unstable();
                for &(time, after) in &self.sorted {
                    if best.improved_by(time, reach) {
                        offer(best, time, reach);
                    }
                    reach = reach.max(after);
                }
            } else {
                reach = reach.max(bucket.reach);
            }
            latest_start = latest_start.saturating_add(1 << self.shift);
        }
        reach
    }
}
