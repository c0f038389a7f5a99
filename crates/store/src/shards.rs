//! The parameter vector cut into shards for threads or hosts.

use std::ops::Range;

/// Values per block, the unit of sharding: 64 KiB of `f32`.
///
/// Sums of squares are kept per block, so that they are the same for every number of shards.
pub const BLOCK: usize = 16_384;

/// A vector of `len` values cut into `count` ranges of whole blocks, as even as blocks allow.
///
/// The last range ends with the vector. With fewer blocks than shards, some ranges are empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shards {
    len: usize,
    count: usize,
}

impl Shards {
    /// Cuts `len` values into `count` shards; zero shards count as one.
    pub fn new(len: usize, count: usize) -> Self {
        let count = count.max(1);
        Shards { len, count }
    }

    /// The ranges in order; together they cover `0..len`.
    pub fn ranges(self) -> impl Iterator<Item = Range<usize>> {
        let blocks = self.len.div_ceil(BLOCK);
        let edge = move |shard: usize| (shard * blocks / self.count * BLOCK).min(self.len);
        (0..self.count).map(move |shard| edge(shard)..edge(shard + 1))
    }

    /// The ranges of a vector of `len` values that is cut by these shares of it, which add up to 1.
    pub fn by_share(len: usize, shares: &[f64]) -> Vec<Range<usize>> {
        let blocks = len.div_ceil(BLOCK);
        let mut sum = 0.0;
        let edges = std::iter::once(0).chain(shares.iter().map(|share| {
            sum += share;
            ((sum * blocks as f64).round() as usize * BLOCK).min(len)
        }));
        let edges: Vec<usize> = edges.collect();
        edges.windows(2).map(|edge| edge[0]..edge[1]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unequal_ranges_are_aligned_and_cover_the_vector() {
        let len = 10 * BLOCK + 5;
        assert_eq!(Shards::by_share(len, &[0.5, 0.0, 0.5]), [0..6 * BLOCK, 6 * BLOCK..6 * BLOCK, 6 * BLOCK..len]);
        assert_eq!(Shards::by_share(len, &[0.1, 0.2, 0.3, 0.4]).last().unwrap().end, len);
        assert_eq!(Shards::by_share(7, &[0.3, 0.7]), [0..0, 0..7]);
    }

    #[test]
    fn ranges_are_even_aligned_and_cover_the_vector() {
        for (len, count) in [(0, 3), (1, 4), (10 * BLOCK, 4), (10 * BLOCK + 5, 3), (7, 0)] {
            let ranges: Vec<_> = Shards::new(len, count).ranges().collect();
            assert_eq!(ranges.len(), count.max(1));
            assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, len));
            for pair in ranges.windows(2) {
                assert_eq!(pair[0].end, pair[1].start);
                assert!(pair[0].end.is_multiple_of(BLOCK) || pair[0].end == len);
            }
            let sizes = || ranges.iter().map(|range| range.len().div_ceil(BLOCK));
            let spread = sizes().max().unwrap_or(0) - sizes().min().unwrap_or(0);
            assert!(spread <= 1, "{ranges:?}");
        }
    }
}
