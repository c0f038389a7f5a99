//! Reduces curves and timelines to what a page can show.

use paceline_core::Time;

use super::timeline::Segment;

/// Reduces a curve to at most `limit` points: the means of equally many neighbours.
pub fn bucketed(points: Vec<(f64, f64)>, limit: usize) -> Vec<(f64, f64)> {
    let size = points.len().div_ceil(limit.max(1)).max(1);
    let mean = |bucket: &[(f64, f64)]| {
        let sum = bucket.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        (rounded(sum.0 / bucket.len() as f64), rounded(sum.1 / bucket.len() as f64))
    };
    points.chunks(size).map(mean).collect()
}

/// Six significant digits.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// Merges segments: splits time into `parts` equal parts, and gives each part its longest segment.
pub fn coarse(segments: &[Segment], end: Time, parts: usize) -> Vec<Segment> {
    let part = (end.0 / parts.max(1) as u64).max(1);
    let mut merged: Vec<Segment> = Vec::new();
    let mut rest = segments.iter().peekable();
    let mut at = segments.first().map_or(end, |first| first.from);
    while at < end {
        let until = Time((at.0 + part).min(end.0));
        let mut longest: Option<(u64, &Segment)> = None;
        while let Some(segment) = rest.peek() {
            let inside = segment.to.min(until).0.saturating_sub(segment.from.max(at).0);
            if longest.is_none_or(|(length, _)| inside > length) {
                longest = Some((inside, segment));
            }
            if segment.to > until {
                break;
            }
            rest.next();
        }
        let Some((_, segment)) = longest else { break };
        match merged.last_mut().filter(|last| last.state == segment.state && last.reason == segment.reason) {
            Some(last) => last.to = until,
            None => merged.push(Segment { from: at, to: until, ..*segment }),
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
    fn neighbouring_points_are_averaged() {
        assert_eq!(bucketed(vec![(0.0, 1.0), (2.0, 3.0), (4.0, 8.0)], 2), [(1.0, 2.0), (4.0, 8.0)]);
        assert_eq!(bucketed(vec![(0.0, 1.0)], 5), [(0.0, 1.0)]);
    }

    #[test]
    fn every_part_keeps_its_longest_segment() {
        let segment = |from, to, state| Segment { from: Time(from), to: Time(to), state, reason: None };
        let segments = [
            segment(0, 3, Activity::Computing),
            segment(3, 4, Activity::Waiting),
            segment(4, 12, Activity::Computing),
            segment(12, 20, Activity::Waiting),
        ];
        let merged = coarse(&segments, Time(20), 4);
        assert_eq!(merged, [segment(0, 10, Activity::Computing), segment(10, 20, Activity::Waiting)]);
    }
}
