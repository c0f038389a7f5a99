//! Tables whose cells are coloured by their values.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::error::ReportError;
use crate::plot::{Drawing, FONT, LETTER, save_drawing};

/// Pixels of a cell, around the table, and above it for the title.
const CELL: (u32, u32) = (58, 24);
const MARGIN: u32 = 12;
const TITLE: u32 = 34;
/// Pixels between the last columns and the others.
const GAP: u32 = 10;
/// A name of a column is written upwards: pixels of a letter.
const UPWARD_LETTER: u32 = 7;

/// Values from here on have the darkest colour; 1 has the palest.
const DARKEST: f64 = 8.0;
const PALE: RGBColor = RGBColor(247, 251, 255);
const DARK: RGBColor = RGBColor(8, 48, 107);
const NO_VALUE: RGBColor = RGBColor(225, 225, 225);

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub struct HeatCell {
    /// What is written in it.
    pub text: String,
    /// The ratio that gives its colour; grey without one.
    pub value: Option<f64>,
}

/// A table of ratios. The larger a ratio, the darker its cell.
#[derive(Debug, Clone, PartialEq)]
pub struct HeatTable {
    /// The title above it.
    pub title: String,
    /// The names of the columns.
    pub columns: Vec<String>,
    /// How many of the last columns stand apart.
    pub separate: usize,
    /// The names of the rows, and their cells.
    pub rows: Vec<(String, Vec<HeatCell>)>,
}

impl HeatTable {
    /// Writes it into a file, whose extension is one of [`FORMATS`](crate::plot::FORMATS).
    ///
    /// # Errors
    /// If the name has another extension, or the file can't be written.
    pub fn save(&self, path: &Path) -> Result<(), ReportError> {
        save_drawing(path, self)
    }

    /// Where the cells begin: pixels from the left and from above.
    fn origin(&self) -> (u32, u32) {
        let longest =
            |names: &mut dyn Iterator<Item = &String>| names.map(|name| name.chars().count()).max().unwrap_or(0) as u32;
        let left = longest(&mut self.rows.iter().map(|(name, _)| name)) * LETTER + 8;
        let above = longest(&mut self.columns.iter()) * UPWARD_LETTER + 8;
        (MARGIN + left, MARGIN + TITLE + above)
    }

    /// Where a column begins.
    fn left_of(&self, column: usize) -> u32 {
        let gap = if column + self.separate >= self.columns.len() { GAP } else { 0 };
        self.origin().0 + CELL.0 * column as u32 + gap
    }
}

impl Drawing for HeatTable {
    fn size(&self) -> (u32, u32) {
        let (_, above) = self.origin();
        (self.left_of(self.columns.len()) + MARGIN, above + CELL.1 * self.rows.len() as u32 + MARGIN)
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: u32,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let (left, above) = self.origin();
        let at = |x: u32, y: u32| ((x * scale) as i32, (y * scale) as i32);
        let font = |size: u32| (FONT, size * scale).into_font();
        let style = |size: u32, horizontal: HPos| TextStyle::from(font(size)).pos(Pos::new(horizontal, VPos::Center));
        area.draw(&Text::new(self.title.clone(), at(MARGIN, MARGIN + 8), style(18, HPos::Left)))?;
        let upward =
            TextStyle::from(font(13).transform(FontTransform::Rotate270)).pos(Pos::new(HPos::Left, VPos::Center));
        for (column, name) in self.columns.iter().enumerate() {
            area.draw(&Text::new(name.clone(), at(self.left_of(column) + CELL.0 / 2, above - 6), upward.clone()))?;
        }
        for (row, (name, cells)) in self.rows.iter().enumerate() {
            let top = above + CELL.1 * row as u32;
            let middle = top + CELL.1 / 2;
            area.draw(&Text::new(name.clone(), at(left - 8, middle), style(13, HPos::Right)))?;
            for (column, HeatCell { text, value }) in cells.iter().enumerate() {
                let x = self.left_of(column);
                let colour = value.map_or(NO_VALUE, heat);
                let corners = [at(x + 1, top + 1), at(x + CELL.0 - 1, top + CELL.1 - 1)];
                area.draw(&Rectangle::new(corners, colour.filled()))?;
                let ink = if is_dark(colour) { WHITE } else { BLACK };
                let style = style(13, HPos::Center).color(&ink);
                area.draw(&Text::new(text.clone(), at(x + CELL.0 / 2, middle), style))?;
            }
        }
        Ok(())
    }
}

/// The colour of a ratio, by its logarithm.
fn heat(value: f64) -> RGBColor {
    let share = (value.max(1.0).ln() / DARKEST.ln()).min(1.0);
    let part = |pale: u8, dark: u8| (f64::from(pale) + share * (f64::from(dark) - f64::from(pale))) as u8;
    RGBColor(part(PALE.0, DARK.0), part(PALE.1, DARK.1), part(PALE.2, DARK.2))
}

fn is_dark(RGBColor(red, green, blue): RGBColor) -> bool {
    u32::from(red) * 3 + u32::from(green) * 6 + u32::from(blue) < 1280
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_the_darker_and_every_cell_is_written() {
        let sum = |RGBColor(red, green, blue)| u32::from(red) + u32::from(green) + u32::from(blue);
        let shades: Vec<u32> = [0.5, 1.0, 1.5, 3.0, 8.0, 100.0].map(heat).map(sum).into();
        assert!(shades.is_sorted_by(|a, b| a >= b) && shades[1] > shades[2] && shades[2] > shades[3], "{shades:?}");
        assert_eq!((heat(0.5), heat(100.0)), (PALE, DARK));
        let cell = |text: &str, value| HeatCell { text: text.into(), value };
        let table = HeatTable {
            title: "Times".into(),
            columns: vec!["alike".into(), "mean".into()],
            separate: 1,
            rows: vec![("bsp".into(), vec![cell("1.00", Some(1.0)), cell("2 miss", None)])],
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.svg");
        table.save(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        for word in ["Times", "alike", "mean", "bsp", "1.00", "2 miss"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
}
