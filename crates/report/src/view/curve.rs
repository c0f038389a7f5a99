//! A curve with a limited number of points: neighbours are merged into their mean.

/// Points in the order of time.
#[derive(Debug, Clone)]
pub struct MergedCurve {
    points: Vec<(f64, f64)>,
    /// How many values a point is the mean of; the last point may be of fewer.
    per_point: u32,
    in_last: u32,
    limit: usize,
    /// The first point that changed since [`MergedCurve::settle`].
    changed: usize,
}

impl MergedCurve {
    /// At most `limit` points.
    pub fn new(limit: usize) -> Self {
        MergedCurve {
            points: Vec::new(),
            per_point: 1,
            in_last: 0,
            limit: limit.next_multiple_of(2).max(2),
            changed: 0,
        }
    }

    /// Adds a value. One that is not finite is left out.
    pub fn add(&mut self, at: f64, value: f64) {
        if !value.is_finite() {
            return;
        }
        if let Some(last) = self.points.last_mut().filter(|_| self.in_last < self.per_point) {
            self.in_last += 1;
            let share = 1.0 / f64::from(self.in_last);
            *last = (last.0 + (at - last.0) * share, last.1 + (value - last.1) * share);
            self.changed = self.changed.min(self.points.len() - 1);
            return;
        }
        if self.points.len() == self.limit {
            self.points = self.points.chunks(2).map(mean).collect();
            self.per_point *= 2;
            self.changed = 0;
        }
        self.points.push((at, value));
        self.in_last = 1;
    }

    /// The number of the first point that changed.
    pub fn changed(&self) -> usize {
        self.changed
    }

    /// All changes so far are known.
    pub fn settle(&mut self) {
        self.changed = self.points.len();
    }

    /// Nothing of it is known any more.
    pub fn unsettle(&mut self) {
        self.changed = 0;
    }

    /// The points from this one on, with six significant digits.
    pub fn since(&self, from: usize) -> Vec<(f64, f64)> {
        self.points.iter().skip(from).map(|&(at, value)| (rounded(at), rounded(value))).collect()
    }
}

/// At most `limit` points of a curve.
pub fn merged(points: &[(f64, f64)], limit: usize) -> Vec<(f64, f64)> {
    let mut curve = MergedCurve::new(limit);
    points.iter().for_each(|&(at, value)| curve.add(at, value));
    curve.since(0)
}

fn mean(points: &[(f64, f64)]) -> (f64, f64) {
    let sum = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
    (sum.0 / points.len() as f64, sum.1 / points.len() as f64)
}

/// Six significant digits.
pub fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_merged_into_their_mean() {
        let mut curve = MergedCurve::new(4);
        (0..4).for_each(|at| curve.add(f64::from(at), f64::from(at)));
        assert_eq!(curve.since(0), [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]);
        curve.settle();
        curve.add(4.0, 4.0);
        assert_eq!((curve.changed(), curve.since(0)), (0, vec![(0.5, 0.5), (2.5, 2.5), (4.0, 4.0)]));
        curve.settle();
        curve.add(5.0, 6.0);
        curve.add(6.0, f64::NAN);
        assert_eq!((curve.changed(), curve.since(2)), (2, vec![(4.5, 5.0)]));
        (7..100_000).for_each(|at| curve.add(f64::from(at), 1.0));
        assert!(curve.since(0).len() <= 4);
    }
}
