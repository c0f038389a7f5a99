//! Less to draw, where more could not be seen.

use paceline_core::Time;

use super::timeline::Stretch;

/// At most so many points: the means of equally many neighbours each.
pub fn bucketed(points: Vec<(f64, f64)>, most: usize) -> Vec<(f64, f64)> {
    let size = points.len().div_ceil(most.max(1)).max(1);
    let mean = |bucket: &[(f64, f64)]| {
        let sum = bucket.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        (rounded(sum.0 / bucket.len() as f64), rounded(sum.1 / bucket.len() as f64))
    };
    points.chunks(size).map(mean).collect()
}

/// As many digits as can be seen.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// Stretches put together: time in `most` equal parts, each of which is the stretch that takes most of it.
pub fn coarse(stretches: &[Stretch], end: Time, most: usize) -> Vec<Stretch> {
    let part = (end.0 / most.max(1) as u64).max(1);
    let mut merged: Vec<Stretch> = Vec::new();
    let mut rest = stretches.iter().peekable();
    let mut at = stretches.first().map_or(end, |first| first.from);
    while at < end {
        let until = Time((at.0 + part).min(end.0));
        let mut longest: Option<(u64, &Stretch)> = None;
        while let Some(stretch) = rest.peek() {
            let inside = stretch.to.min(until).0.saturating_sub(stretch.from.max(at).0);
            if longest.is_none_or(|(length, _)| inside > length) {
                longest = Some((inside, stretch));
            }
            if stretch.to > until {
                break;
            }
            rest.next();
        }
        let Some((_, stretch)) = longest else { break };
        match merged.last_mut().filter(|last| last.state == stretch.state && last.reason == stretch.reason) {
            Some(last) => last.to = until,
            None => merged.push(Stretch { from: at, to: until, ..*stretch }),
        }
        at = until;
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::timeline::Activity;

    #[test]
    fn means_of_neighbours() {
        assert_eq!(bucketed(vec![(0.0, 1.0), (2.0, 3.0), (4.0, 8.0)], 2), [(1.0, 2.0), (4.0, 8.0)]);
        assert_eq!(bucketed(vec![(0.0, 1.0)], 5), [(0.0, 1.0)]);
    }

    #[test]
    fn the_longest_of_every_part_is_kept() {
        let stretch = |from, to, state| Stretch { from: Time(from), to: Time(to), state, reason: None };
        let stretches = [
            stretch(0, 3, Activity::Computing),
            stretch(3, 4, Activity::Waiting),
            stretch(4, 12, Activity::Computing),
            stretch(12, 20, Activity::Waiting),
        ];
        let merged = coarse(&stretches, Time(20), 4);
        assert_eq!(merged, [stretch(0, 10, Activity::Computing), stretch(10, 20, Activity::Waiting)]);
    }
}
