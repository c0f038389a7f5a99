//! The weighted sum of several gradients in one pass, with the squared norms that schemes use.
//!
//! The code guarantees:
//!
//! - **The same bits for every number of shards and threads.** Every element is `0 + w₀·g₀ + w₁·g₁ + …`, strictly in
//!   the order of the sources, so adding eight at once equals adding them one by one. Squares are added in a fixed
//!   pattern: eight `f32` lanes within a tile, tiles in `f64` within a [`BLOCK`], blocks in `f64` over the vector. A
//!   shard is a whole number of blocks and returns its block sums, so the result does not depend on shards or threads.
//! - **Memory speed.** The sum of one tile stays in the first-level cache until every source is added, so each source
//!   is read from memory once and the result is written once, for any number of sources.

use std::array;
use std::collections::BTreeSet;

use bytemuck::{Pod, cast};
use wide::f32x8;

use crate::shards::BLOCK;

/// Sources added to a tile at a time. Their running squares fit the vector registers; those of eight do not.
const GROUP: usize = 4;

/// Running sums of squares per source: the width of a register.
const LANES: usize = 8;

/// Values whose squares are added in `f32` before they move to `f64`. 64 additions per lane keep the relative error of
/// a squared norm below 4e-6 in the worst case and near 1e-7 in practice.
const TILE: usize = 512;

const _: () = assert!(BLOCK.is_multiple_of(TILE) && TILE.is_multiple_of(LANES));

/// Squared Euclidean norms over the trainable part of an aggregation.
///
/// A component whose square overflows `f32` (above about 1.8e19) counts as infinite.
#[derive(Debug, Clone, PartialEq)]
pub struct Norms {
    /// ‖gⱼ‖² of each source, unweighted, in the order given.
    pub sources: Vec<f64>,
    /// ‖Σ wⱼ·gⱼ‖² of the result. If the weights add up to one, the result is the mean.
    pub mean: f64,
    /// Indices of the broken sources: a value, or the sum of squares, is not finite. If there are any, the result and
    /// the norms are of no use.
    pub broken: Vec<usize>,
}

/// The contribution of one shard to [`Norms`].
#[derive(Debug, Clone, PartialEq)]
pub struct ShardNorms {
    /// One row per block: the sum of squares of each source, then of the result.
    sums: Vec<f64>,
    columns: usize,
    broken: Vec<usize>,
}

impl ShardNorms {
    /// Joins those of neighbouring ranges into those of the range that they make up.
    ///
    /// # Panics
    /// If `shards` is empty, or if the shards have different numbers of sources.
    pub fn concat(shards: &[ShardNorms]) -> Self {
        let columns = shards[0].columns;
        assert!(shards.iter().all(|shard| shard.columns == columns), "the shards have different numbers of sources");
        let broken: BTreeSet<usize> = shards.iter().flat_map(|shard| &shard.broken).copied().collect();
        let sums = shards.iter().flat_map(|shard| &shard.sums).copied().collect();
        ShardNorms { sums, columns, broken: broken.into_iter().collect() }
    }

    /// Those of a sum that was made in two goes: of the sources in the first, and of those that `rest` added to it.
    ///
    /// # Panics
    /// If the two are not of the same blocks.
    pub fn continued(&self, rest: &ShardNorms) -> Self {
        assert_eq!(self.sums.len() * rest.columns, rest.sums.len() * self.columns, "norms of different blocks");
        let (first, columns) = (self.columns - 1, self.columns - 1 + rest.columns);
        let rows = self.sums.chunks_exact(self.columns).zip(rest.sums.chunks_exact(rest.columns));
        let sums = rows.flat_map(|(row, rest)| row[..first].iter().chain(rest)).copied().collect();
        let broken = self.broken.iter().copied().chain(rest.broken.iter().map(|index| first + index)).collect();
        ShardNorms { sums, columns, broken }
    }

    /// The norms whose [`sums`](ShardNorms::sums) were sent. `None` if they are not those of `sources` sources.
    pub fn received(sums: Vec<f64>, sources: usize, broken: Vec<usize>) -> Option<Self> {
        let columns = sources + 1;
        let fits = sums.len().is_multiple_of(columns) && broken.iter().all(|&index| index < sources);
        fits.then_some(ShardNorms { sums, columns, broken })
    }

    /// The sums of squares, block by block.
    pub fn sums(&self) -> &[f64] {
        &self.sums
    }

    /// Indices of the broken sources.
    pub fn broken(&self) -> &[usize] {
        &self.broken
    }
}

impl Norms {
    /// Joins the contributions of all shards, given in the order of their ranges.
    ///
    /// # Panics
    /// If `shards` is empty, or if the shards have different numbers of sources.
    pub fn join(shards: &[ShardNorms]) -> Self {
        let columns = shards[0].columns;
        let mut sources = vec![0.0; columns];
        let mut broken = BTreeSet::new();
        for shard in shards {
            assert_eq!(shard.columns, columns, "the shards have different numbers of sources");
            broken.extend(&shard.broken);
            for row in shard.sums.chunks_exact(columns) {
                for (sum, block) in sources.iter_mut().zip(row) {
                    *sum += block;
                }
            }
        }
        let mean = sources.pop().expect("the last column belongs to the result");
        Norms { sources, mean, broken: broken.into_iter().collect() }
    }
}

/// Writes Σ wⱼ·gⱼ over `sources`, pairs of a gradient and its weight, into `out`.
///
/// The norms cover the first `trainable` values only. Statistics (see [`Layout`](crate::Layout)) follow them and are
/// summed in the same way. Without sources the result is zero.
///
/// # Panics
/// If a source differs in length from `out`, or `trainable` exceeds that length.
pub fn aggregate(sources: &[(&[f32], f32)], trainable: usize, out: &mut [f32]) -> Norms {
    Norms::join(&[aggregate_shard(sources, trainable, out)])
}

/// [`aggregate`] for one shard: all slices cover the range of the shard, and `trainable` counts from its start.
///
/// # Panics
/// In the same cases as [`aggregate`].
pub fn aggregate_shard(sources: &[(&[f32], f32)], trainable: usize, out: &mut [f32]) -> ShardNorms {
    add_shard(sources, trainable, out, false)
}

/// The same, added to a sum that was begun in `out`. The squares of the result are those of the whole sum; see
/// [`ShardNorms::continued`].
///
/// # Panics
/// In the same cases as [`aggregate`].
pub fn continue_shard(sources: &[(&[f32], f32)], trainable: usize, out: &mut [f32]) -> ShardNorms {
    add_shard(sources, trainable, out, true)
}

fn add_shard(sources: &[(&[f32], f32)], trainable: usize, out: &mut [f32], is_begun: bool) -> ShardNorms {
    for (source, _) in sources {
        assert_eq!(source.len(), out.len(), "a gradient differs in length from the output");
    }
    let columns = sources.len() + 1;
    let blocks = trainable.div_ceil(BLOCK);
    // The last row is for the statistics, which no norm includes.
    let mut sums = vec![0.0; (blocks + 1) * columns];
    let (learned, statistics) = out.split_at_mut(trainable);
    for (tile, out) in learned.chunks_mut(TILE).enumerate() {
        let row = tile * TILE / BLOCK * columns;
        add_tile(sources, tile * TILE, out, is_begun, &mut sums[row..row + columns]);
    }
    for (tile, out) in statistics.chunks_mut(TILE).enumerate() {
        add_tile(sources, trainable + tile * TILE, out, is_begun, &mut sums[blocks * columns..]);
    }
    let is_finite = |&index: &usize| sums.iter().skip(index).step_by(columns).all(|sum| sum.is_finite());
    let broken = (0..sources.len()).filter(|index| !is_finite(index)).collect();
    sums.truncate(blocks * columns);
    ShardNorms { sums, columns, broken }
}

/// Sums one tile of all sources, from `start`, into `out`, and adds the squares to `sums`.
fn add_tile(sources: &[(&[f32], f32)], start: usize, out: &mut [f32], is_begun: bool, sums: &mut [f64]) {
    if !is_begun {
        out.fill(0.0);
    }
    let (chunks, rest) = out.as_chunks_mut();
    add_chunks(sources, start, chunks, sums);
    if !rest.is_empty() {
        // The last few values are padded with zeros to a full chunk. Zeros change no square.
        let start = start + chunks.len() * LANES;
        let pad = |(values, weight): &(&[f32], f32)| {
            let mut chunk = [0.0; LANES];
            chunk[..rest.len()].copy_from_slice(&values[start..start + rest.len()]);
            (chunk, *weight)
        };
        let padded: Vec<_> = sources.iter().map(pad).collect();
        let sources: Vec<_> = padded.iter().map(|(chunk, weight)| (&chunk[..], *weight)).collect();
        let mut chunk = [[0.0; LANES]];
        chunk[0][..rest.len()].copy_from_slice(rest);
        add_chunks(&sources, 0, &mut chunk, sums);
        rest.copy_from_slice(&chunk[0][..rest.len()]);
    }
}

fn add_chunks(sources: &[(&[f32], f32)], start: usize, out: &mut [[f32; LANES]], sums: &mut [f64]) {
    let mut result = 0.0;
    for (index, group) in sources.chunks(GROUP).enumerate() {
        let add = match group.len() {
            1 => add_group::<1>,
            2 => add_group::<2>,
            3 => add_group::<3>,
            _ => add_group::<GROUP>,
        };
        result = add(group, start, out, &mut sums[index * GROUP..]);
    }
    sums[sources.len()] += result;
}

/// `out += Σ wⱼ·gⱼ` for the `N` sources of `group`; adds their squares to `squares` and returns the squares of the
/// result.
fn add_group<const N: usize>(
    group: &[(&[f32], f32)],
    start: usize,
    out: &mut [[f32; LANES]],
    squares: &mut [f64],
) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the check above shows that the processor supports AVX2.
        return unsafe { add_group_avx2::<N>(group, start, out, squares) };
    }
    add_group_with::<f32x8, N>(group, start, out, squares, |a, b| a + b, |a, b| a * b)
}

/// [`add_group`] with AVX2 registers. The compiler targets processors without AVX2 by default, for which the squares of
/// cached gradients take nearly twice as long.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_group_avx2<const N: usize>(
    group: &[(&[f32], f32)],
    start: usize,
    out: &mut [[f32; LANES]],
    squares: &mut [f64],
) -> f64 {
    use std::arch::x86_64::{__m256, _mm256_add_ps, _mm256_mul_ps};
    let plus = |a, b| _mm256_add_ps(a, b);
    let times = |a, b| _mm256_mul_ps(a, b);
    add_group_with::<__m256, N>(group, start, out, squares, plus, times)
}

/// [`add_group`] on a vector type of eight lanes. Products and sums are separate: a fused multiply-add, where it
/// exists, would round differently.
#[inline(always)]
fn add_group_with<V: Pod, const N: usize>(
    group: &[(&[f32], f32)],
    start: usize,
    out: &mut [[f32; LANES]],
    squares: &mut [f64],
    plus: impl Fn(V, V) -> V,
    times: impl Fn(V, V) -> V,
) -> f64 {
    let weights: [V; N] = array::from_fn(|j| cast([group[j].1; LANES]));
    let inputs: [&[[f32; LANES]]; N] = array::from_fn(|j| {
        let (input, _) = group[j].0[start..].as_chunks();
        &input[..out.len()]
    });
    let mut lanes = [V::zeroed(); N];
    let mut result = V::zeroed();
    for (index, chunk) in out.iter_mut().enumerate() {
        let mut sum: V = cast(*chunk);
        for j in 0..N {
            let value: V = cast(inputs[j][index]);
            sum = plus(sum, times(weights[j], value));
            lanes[j] = plus(lanes[j], times(value, value));
        }
        result = plus(result, times(sum, sum));
        *chunk = cast(sum);
    }
    for (sum, lanes) in squares.iter_mut().zip(lanes) {
        *sum += fold(lanes);
    }
    fold(result)
}

fn fold<V: Pod>(lanes: V) -> f64 {
    let lanes: [f32; LANES] = cast(lanes);
    lanes.into_iter().map(f64::from).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shards;

    /// Pseudo-random values in [−1, 1), a function of the source.
    fn gradient(source: usize, len: usize) -> Vec<f32> {
        let mut state = source as u32 * 0x9E37_79B9 + 1;
        let step = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        std::iter::repeat_with(step).take(len).collect()
    }

    fn weighted(gradients: &[Vec<f32>]) -> Vec<(&[f32], f32)> {
        let weight = |source: usize| (source + 1) as f32 / 10.0;
        let pairs = gradients.iter().enumerate();
        pairs.map(|(j, values)| (&values[..], weight(j))).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn the_sum_equals_adding_one_by_one_and_norms_match_f64() {
        for (count, len) in [(1, 7), (3, 512), (4, 40_000), (5, 1_025), (8, 16_385), (19, 3_003)] {
            let gradients: Vec<_> = (0..count).map(|source| gradient(source, len)).collect();
            let sources = weighted(&gradients);
            let trainable = len - len / 3;

            let mut expected = vec![0.0; len];
            for (values, weight) in &sources {
                for (sum, value) in expected.iter_mut().zip(*values) {
                    *sum += weight * value;
                }
            }
            let squares = |values: &[f32]| -> f64 {
                let squares = values[..trainable].iter().map(|&value| f64::from(value).powi(2));
                squares.sum()
            };

            let mut out = vec![f32::NAN; len];
            let norms = aggregate(&sources, trainable, &mut out);
            assert_eq!(bits(&out), bits(&expected), "{count} sources of {len}");
            let close = |norm: f64, exact: f64| (norm - exact).abs() < 1e-6 * exact;
            assert!(close(norms.mean, squares(&expected)));
            assert_eq!(norms.sources.len(), count);
            for (norm, (values, _)) in norms.sources.iter().zip(&sources) {
                assert!(close(*norm, squares(values)), "{norm}");
            }
        }
    }

    #[test]
    fn shards_change_no_bit() {
        let len = 5 * BLOCK + 1_234;
        let trainable = 4 * BLOCK + 77;
        let gradients: Vec<_> = (0..6).map(|source| gradient(source, len)).collect();
        let sources = weighted(&gradients);
        let mut whole = vec![0.0; len];
        let norms = aggregate(&sources, trainable, &mut whole);

        for count in [1, 2, 3, 6, 9] {
            let mut out = vec![0.0; len];
            let parts: Vec<_> = Shards::new(len, count)
                .ranges()
                .map(|range| {
                    let sources: Vec<_> =
                        sources.iter().map(|(values, weight)| (&values[range.clone()], *weight)).collect();
                    let trainable = trainable.saturating_sub(range.start).min(range.len());
                    aggregate_shard(&sources, trainable, &mut out[range])
                })
                .collect();
            assert_eq!(bits(&out), bits(&whole));
            assert_eq!(Norms::join(&parts), norms, "{count} shards");
        }
    }

    #[test]
    fn every_processor_gives_the_same_bits() {
        let gradients: Vec<_> = (0..GROUP).map(|source| gradient(source, TILE)).collect();
        let group = weighted(&gradients);
        let (mut here, mut portable) = ([[0.0; LANES]; TILE / LANES], [[0.0; LANES]; TILE / LANES]);
        let (mut squares_here, mut squares_portable) = ([0.0; GROUP], [0.0; GROUP]);
        let result_here = add_group::<GROUP>(&group, 0, &mut here, &mut squares_here);
        let result_portable =
            add_group_with::<f32x8, GROUP>(&group, 0, &mut portable, &mut squares_portable, |a, b| a + b, |a, b| a * b);
        assert_eq!(bits(here.as_flattened()), bits(portable.as_flattened()));
        assert_eq!((squares_here, result_here), (squares_portable, result_portable));
    }

    #[test]
    fn a_source_that_is_not_finite_is_named() {
        let (trainable, len) = (3, 5);
        let good = [1.0; 5];
        let with = |index: usize, value: f32| {
            let mut gradient = good;
            gradient[index] = value;
            gradient
        };
        let mut out = [f32::NAN; 5];
        assert!(aggregate(&[(&good, 0.5), (&good, 0.5)], trainable, &mut out).broken.is_empty());
        for bad in [with(1, f32::NAN), with(0, f32::INFINITY), with(2, 1e20), with(len - 1, f32::NAN)] {
            let norms = aggregate(&[(&good, 0.25), (&bad, 0.25), (&good, 0.25), (&bad, 0.25)], trainable, &mut out);
            assert_eq!(norms.broken, [1, 3]);
        }
    }

    #[test]
    fn no_sources_sum_to_zero() {
        let mut out = [1.0; 3];
        let norms = aggregate(&[], 3, &mut out);
        assert_eq!(out, [0.0; 3]);
        assert_eq!((norms.sources, norms.mean), (vec![], 0.0));
    }

    #[test]
    #[should_panic(expected = "differs in length")]
    fn a_gradient_of_another_length_panics() {
        aggregate(&[(&[1.0; 4], 1.0)], 3, &mut [0.0; 3]);
    }
}
