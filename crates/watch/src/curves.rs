//! Loss and accuracy as small charts beside each other.

use paceline_report::view::SeenRun;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::{Sparkline, Widget};

use crate::palette::Palette;
use crate::words::{digits, known};

/// Heights of bars are in so many steps.
const STEPS: f64 = 1000.0;

/// The charts of a run, with their present values: those that have points.
pub fn charts(run: &SeenRun) -> Vec<(&'static str, Option<f64>)> {
    let all = [("training loss", run.loss), ("held-out accuracy", run.accuracy)];
    all.into_iter().filter(|(chart, _)| run.curves(chart).any(|curve| curve.points.len() > 1)).collect()
}

/// Draws the charts. Each has a line of text above it.
pub fn draw_curves(run: &SeenRun, area: Rect, buffer: &mut Buffer, palette: Palette) {
    if area.height < 2 {
        return;
    }
    let charts = charts(run);
    let width = area.width / charts.len().max(1) as u16;
    for (index, (chart, value)) in (0..).zip(charts) {
        let area = Rect { x: area.x + index * width, width: width.saturating_sub(1), ..area };
        let points = run.curves(chart).flat_map(|curve| &curve.points);
        let columns = columns(points, run.time, area.width.into());
        let values = || columns.iter().flatten().copied();
        let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
        let title = format!("{chart} {} ({} to {})", known(value, 4), digits(low, 3), digits(high, 3));
        buffer.set_stringn(area.x, area.y, title, area.width.into(), palette.heading());
        // The lowest value has a bar too.
        let height = |value: f64| (STEPS * (0.1 + 0.9 * (value - low) / (high - low).max(f64::MIN_POSITIVE))) as u64;
        let bars: Vec<Option<u64>> = columns.iter().map(|value| value.map(height)).collect();
        let below = Rect { y: area.y + 1, height: area.height - 1, ..area };
        Sparkline::default().data(bars).max(STEPS as u64).style(palette.curve()).render(below, buffer);
    }
}

/// The mean of a curve in every column. A column without points has what was known before it.
fn columns<'a>(points: impl Iterator<Item = &'a (f64, f64)>, end: f64, width: usize) -> Vec<Option<f64>> {
    let mut sums = vec![(0.0, 0_u32); width];
    for (at, value) in points {
        let column = (at / end.max(f64::MIN_POSITIVE) * width as f64) as usize;
        if let Some(sum) = sums.get_mut(column.min(width.saturating_sub(1))) {
            *sum = (sum.0 + value, sum.1 + 1);
        }
    }
    let mut last = None;
    let mean = |(sum, count): (f64, u32)| {
        last = if count > 0 { Some(sum / f64::from(count)) } else { last };
        last
    };
    sums.into_iter().map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_has_the_mean_of_its_points() {
        let points = [(0.6, 4.0), (1.0, 2.0), (1.4, 4.0), (4.0, 1.0)];
        assert_eq!(columns(points.iter(), 4.0, 4), [Some(4.0), Some(3.0), Some(3.0), Some(1.0)]);
        assert_eq!(columns([].iter(), 0.0, 2), [None, None]);
    }
}
