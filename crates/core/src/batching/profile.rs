//! Fits a profile to a worker's measured points (LB-BSP, section 3.3).

use serde::{Deserialize, Serialize};

use super::Cost;

/// The share of its memory that a worker may fill. The rest is a reserve for what was not measured.
const MEMORY_LIMIT: f64 = 0.9;

/// The sizes to measure, as shares of the user's size. Smaller sizes are safe. Larger ones are tried only if they fit
/// according to the memory used so far.
const SIZES: [f64; 6] = [0.125, 0.25, 0.5, 1.0, 2.0, 4.0];

/// How often each size is measured. The median of three tolerates one wrong measurement.
const REPEATS: usize = 3;

/// One measured batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ProfilePoint {
    /// The number of samples.
    pub samples: u32,
    /// The compute time in seconds.
    pub seconds: f64,
    /// The share of the worker's memory in use, 0 to 1; `None` if unknown.
    pub memory: Option<f64>,
}

/// A worker's compute time by batch size: constant up to `least` samples, where the device is not fully used, then
/// `fixed + per_sample · samples` up to `most`, where its memory is full.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Seconds per sample (the paper's m).
    #[serde(with = "crate::number")]
    pub per_sample: f64,
    /// Further seconds per iteration (the paper's b). It is the intercept of a line, so it may be negative.
    #[serde(with = "crate::number")]
    pub fixed: f64,
    /// Where the line begins (the paper's xˢ): smaller batches are no faster.
    pub least: u32,
    /// The most samples that fit (the paper's xᵒ). If the memory is not known, the largest size that was measured.
    pub most: u32,
}

impl Profile {
    /// The size to measure next, given the points so far; `None` when they are complete. A size above `batch`, the
    /// user's size, is measured only if it fits according to the memory of smaller ones, so no worker runs out of
    /// memory.
    pub fn next_probe(points: &[ProfilePoint], batch: u32) -> Option<u32> {
        let share = SIZES.get(points.len() / REPEATS)?;
        let size = ((f64::from(batch) * share) as u32).max(1);
        (size <= batch || most_that_fit(points).is_some_and(|most| size <= most)).then_some(size)
    }

    /// Fits a profile. Medians and median slopes (Theil–Sen) make it robust against single wrong measurements. `None`
    /// if the points have fewer than two sizes or time does not grow with size.
    pub fn fit(points: &[ProfilePoint]) -> Option<Profile> {
        let times = medians(points.iter().map(|point| (point.samples, point.seconds)));
        let tried = times.last()?.0 as u32;
        let candidates = (0..times.len() - 1).filter_map(|split| Bend::fit(&times, split));
        let bend = candidates.min_by(|a, b| a.error(&times).total_cmp(&b.error(&times)))?;
        let least = bend.least().clamp(1.0, f64::from(tried)) as u32;
        let most = most_that_fit(points).unwrap_or(tried).max(least);
        Some(Profile { per_sample: bend.slope, fixed: bend.intercept, least, most })
    }

    /// A fallback if no line fits: time proportional to size, up to the user's size.
    pub(super) fn rough(points: &[ProfilePoint], batch: u32) -> Profile {
        let per_sample = median(points.iter().map(|point| point.seconds / f64::from(point.samples)).collect());
        Profile { per_sample, fixed: 0.0, least: 1, most: batch }
    }

    /// The cost of samples, without communication.
    pub fn cost(&self) -> Cost {
        let Profile { per_sample, fixed, least, most } = *self;
        Cost { per_sample, fixed, least, most }
    }
}

/// A constant, then a line.
struct Bend {
    /// The constant; `None` if there is only the line.
    level: Option<f64>,
    /// The first size on the line.
    first: f64,
    slope: f64,
    intercept: f64,
}

impl Bend {
    /// The bend whose first `split` points are on the constant.
    fn fit(times: &[(f64, f64)], split: usize) -> Option<Self> {
        let (flat, line) = times.split_at(split);
        let (slope, intercept) = theil_sen(line)?;
        let level = (!flat.is_empty()).then(|| median(flat.iter().map(|point| point.1).collect()));
        let bend = Bend { level, first: line[0].0, slope, intercept };
        (slope > 0.0 && bend.at(bend.least()) >= 0.0).then_some(bend)
    }

    fn at(&self, samples: f64) -> f64 {
        (self.intercept + self.slope * samples).max(self.level.unwrap_or(f64::NEG_INFINITY))
    }

    /// Where the line begins: where it meets the constant, or else the first size measured.
    fn least(&self) -> f64 {
        self.level.map_or(self.first, |level| ((level - self.intercept) / self.slope).ceil())
    }

    fn error(&self, times: &[(f64, f64)]) -> f64 {
        times.iter().map(|&(samples, seconds)| (self.at(samples) / seconds - 1.0).abs()).sum()
    }
}

/// The most samples that fit, extrapolated from the memory in use; `None` if that is not known.
fn most_that_fit(points: &[ProfilePoint]) -> Option<u32> {
    let taken = points.iter().filter_map(|point| point.memory.map(|memory| (point.samples, memory)));
    let (slope, intercept) = theil_sen(&medians(taken))?;
    (slope > 0.0).then(|| ((MEMORY_LIMIT - intercept) / slope) as u32)
}

/// The median of each size's measurements, by size.
fn medians(points: impl Iterator<Item = (u32, f64)>) -> Vec<(f64, f64)> {
    let mut points: Vec<(u32, f64)> = points.collect();
    points.sort_unstable_by_key(|&(samples, _)| samples);
    let of_one_size =
        |points: &[(u32, f64)]| (f64::from(points[0].0), median(points.iter().map(|&(_, value)| value).collect()));
    points.chunk_by(|a, b| a.0 == b.0).map(of_one_size).collect()
}

/// Slope and intercept of the line with the median slope through pairs of points; `None` for fewer than two.
fn theil_sen(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let pairs = points.iter().enumerate().flat_map(|(index, a)| points[index + 1..].iter().map(move |b| (a, b)));
    let slopes: Vec<f64> = pairs.map(|(a, b)| (b.1 - a.1) / (b.0 - a.0)).collect();
    if slopes.is_empty() {
        return None;
    }
    let slope = median(slopes);
    Some((slope, median(points.iter().map(|point| point.1 - slope * point.0).collect())))
}

/// The median of one value or more.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    /// Measures a device whose time is constant up to `least` and whose memory is full at `most`, with noise. One
    /// measurement in five is far off.
    fn probe(truth: Profile, batch: u32, noise: f64, seed: u64) -> Vec<ProfilePoint> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut points = Vec::new();
        while let Some(samples) = Profile::next_probe(&points, batch) {
            assert!(samples <= truth.most, "{samples} samples are out of memory at {}", truth.most);
            let clean = truth.fixed + truth.per_sample * f64::from(samples.max(truth.least));
            let factor = 1.0 + noise * (2.0 * random.random::<f64>() - 1.0);
            let wrong = if noise > 0.0 && points.len() % 5 == 2 { 3.0 } else { 1.0 };
            let memory = 0.1 + 0.9 * f64::from(samples) / f64::from(truth.most);
            points.push(ProfilePoint { samples, seconds: clean * factor * wrong, memory: Some(memory) });
        }
        points
    }

    const G2: Profile = Profile { per_sample: 0.001, fixed: 0.08, least: 60, most: 384 };

    #[test]
    fn a_profile_without_noise_is_fitted_exactly() {
        let found = Profile::fit(&probe(G2, 380, 0.0, 1)).unwrap();
        assert!((found.per_sample / G2.per_sample - 1.0).abs() < 1e-6, "{found:?}");
        assert!((found.fixed / G2.fixed - 1.0).abs() < 1e-6, "{found:?}");
        assert!(found.least.abs_diff(G2.least) <= 1, "{found:?}");
        // A tenth of the memory stays free.
        assert!(found.most < G2.most && found.most > G2.most * 8 / 10, "{found:?}");
    }

    #[test]
    fn the_fit_is_robust_against_noise_and_wrong_measurements() {
        for seed in 0..50 {
            let found = Profile::fit(&probe(G2, 380, 0.02, seed)).unwrap();
            let at = |samples: f64| found.fixed + found.per_sample * samples;
            for samples in [100.0, 235.0, 340.0] {
                let truth = G2.fixed + G2.per_sample * samples;
                assert!((at(samples) / truth - 1.0).abs() < 0.06, "seed {seed}: {found:?} at {samples}");
            }
            assert!(found.most <= G2.most);
        }
    }

    #[test]
    fn without_memory_no_size_above_the_users_is_measured() {
        let mut points = Vec::new();
        while let Some(samples) = Profile::next_probe(&points, 64) {
            assert!(samples <= 64);
            points.push(ProfilePoint { samples, seconds: f64::from(samples), memory: None });
        }
        assert_eq!(points.len(), 12);
        assert_eq!(Profile::fit(&points).unwrap().most, 64);
    }

    #[test]
    fn too_few_points_give_no_profile() {
        let point = |samples, seconds| ProfilePoint { samples, seconds, memory: None };
        assert_eq!(Profile::fit(&[]), None);
        assert_eq!(Profile::fit(&[point(8, 1.0), point(8, 1.1)]), None);
        assert_eq!(Profile::fit(&[point(8, 1.0), point(16, 0.5)]), None);
    }
}
