//! Figures, as PNG and SVG.
//!
//! A [`Figure`] holds the data. This module decides how all figures look: a built-in font, colours that are safe for
//! colour-blind readers, and one colour per scheme everywhere.

use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Once;

use paceline_core::catalogue;
use paceline_store::write_file;
use plotters::coord::Shift;
use plotters::prelude::*;
pub use plotters::style::RGBColor;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::error::{ReportError, at};

/// Pixels of a panel in an SVG; a PNG has [`PNG_SCALE`] times as many.
const PANEL: (u32, u32) = (760, 480);
#[cfg(feature = "png")]
const PNG_SCALE: u32 = 2;
/// Thickness of a bar; rows are 1 apart.
const BAR: f64 = 0.7;
/// A legend with more names than this gets its own space beside the data.
const LONG_LEGEND: usize = 8;
/// Width of a letter beside a row.
pub(crate) const LETTER: u32 = 7;
pub(crate) const FONT: &str = "sans-serif";

const UNKNOWN: RGBColor = RGBColor(90, 90, 90);

/// The colour of a scheme with any settings on any workers, or of the first part of a combination; dark grey for an
/// unknown scheme.
pub fn colour_of(scheme: &str) -> RGBColor {
    let name = scheme.split([':', '+', ' ']).next().unwrap_or(scheme);
    let found = catalogue().into_iter().find(|entry| entry.name == name);
    found.map_or(UNKNOWN, |entry| {
        let [red, green, blue] = entry.colour;
        RGBColor(red, green, blue)
    })
}

/// A colour for each of several schemes. If a scheme occurs several times, the later ones are paler.
pub fn colours_of<'a>(schemes: impl IntoIterator<Item = &'a str>) -> Vec<RGBColor> {
    let mut used: Vec<RGBColor> = Vec::new();
    let paler = |part: u8, times: i32| (255.0 - (255.0 - f64::from(part)) * 0.6_f64.powi(times)) as u8;
    let mut colours = Vec::new();
    for scheme in schemes {
        let colour @ RGBColor(red, green, blue) = colour_of(scheme);
        let before = used.iter().filter(|&&earlier| earlier == colour).count() as i32;
        used.push(colour);
        colours.push(RGBColor(paler(red, before), paler(green, before), paler(blue, before)));
    }
    colours
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Points joined by a line.
    Line,
    /// Points joined by a dashed line.
    Dashes,
    /// A dot for each point.
    Dots,
    /// A larger square for each point.
    Squares,
    /// The area that the points enclose, filled.
    Area,
    /// A horizontal bar between every two points, at the height of the first.
    Bars,
    /// For every three points a horizontal line from the first to the last, with a dot at the second. The series has a row
    /// of its own, in the order of the series from below, with its name beside it.
    Intervals,
}

/// A set of points.
#[derive(Debug, Clone)]
pub struct Series {
    /// Its name in the legend; not in the legend if empty.
    pub name: String,
    /// How it is drawn.
    pub mark: Mark,
    /// Its colour.
    pub colour: RGBColor,
    /// The points.
    pub points: Vec<(f64, f64)>,
}

/// One panel of a picture.
#[derive(Debug, Clone, Default)]
pub struct Figure {
    /// The title above it.
    pub title: String,
    /// Label of the horizontal axis, with unit.
    pub x: String,
    /// Label of the vertical axis, with unit.
    pub y: String,
    /// A shaded interval of the horizontal axis.
    pub shaded: Option<(f64, f64)>,
    /// The data; later series are drawn on top.
    pub series: Vec<Series>,
}

/// The formats of figures in this build, as file extensions.
pub const FORMATS: &[&str] = if cfg!(feature = "png") { &["png", "svg"] } else { &["svg"] };

/// Checks that this build can draw a file of this name.
///
/// # Errors
/// If it can't.
pub fn check_format(path: &Path) -> Result<(), ReportError> {
    let problem = match path.extension().and_then(|extension| extension.to_str()) {
        Some(extension) if FORMATS.contains(&extension) => return Ok(()),
        Some("png") => "this build does not draw PNG; use .svg, or build with --features png",
        _ => "expected a name that ends in .svg or .png",
    };
    Err(ReportError::Figure { path: path.into(), problem: problem.into() })
}

/// What can be drawn into a file.
pub(crate) trait Drawing {
    /// Width and height in pixels of an SVG.
    fn size(&self) -> (u32, u32);

    /// Draws it on a white area. All sizes in pixels are multiplied by `scale`.
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: u32,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>>;
}

/// Panels side by side.
impl Drawing for &[Figure] {
    fn size(&self) -> (u32, u32) {
        (PANEL.0 * self.len() as u32, PANEL.1)
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: u32,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let parts = area.split_evenly((1, self.len()));
        self.iter().zip(parts).try_for_each(|(panel, part)| panel.draw(&part, scale))
    }
}

/// Writes panels side by side into one file, whose extension is one of [`FORMATS`].
///
/// # Errors
/// If the name has another extension, or the file can't be written.
pub fn save(path: &Path, panels: &[Figure]) -> Result<(), ReportError> {
    save_drawing(path, &panels)
}

/// Writes a drawing into a file, whose extension is one of [`FORMATS`].
pub(crate) fn save_drawing(path: &Path, drawing: &impl Drawing) -> Result<(), ReportError> {
    static FONTS: Once = Once::new();
    FONTS.call_once(|| {
        // The built-in font is valid; without it, drawing text would fail with an error.
        let _ = register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT);
    });
    check_format(path)?;
    let is_svg = path.extension().is_some_and(|extension| extension == "svg");
    let drawn = if is_svg { svg(drawing) } else { png(drawing) };
    let bytes = drawn.map_err(|problem| ReportError::Figure { path: path.into(), problem })?;
    write_file(path, |file| file.write_all(&bytes)).map_err(at(path))
}

fn svg(drawing: &impl Drawing) -> Result<Vec<u8>, String> {
    let mut text = String::new();
    draw(&SVGBackend::with_string(&mut text, drawing.size()).into_drawing_area(), drawing, 1)?;
    Ok(text.into_bytes())
}

#[cfg(feature = "png")]
fn png(drawing: &impl Drawing) -> Result<Vec<u8>, String> {
    let (width, height) = drawing.size();
    let (width, height) = (width * PNG_SCALE, height * PNG_SCALE);
    let mut pixels = vec![255; (width * height * 3) as usize];
    let backend = BitMapBackend::with_buffer(&mut pixels, (width, height));
    draw(&backend.into_drawing_area(), drawing, PNG_SCALE)?;
    let write = || {
        let mut bytes = Vec::new();
        let mut encoder = ::png::Encoder::new(&mut bytes, width, height);
        encoder.set_color(::png::ColorType::Rgb);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&pixels)?;
        writer.finish()?;
        Ok(bytes)
    };
    write().map_err(|error: ::png::EncodingError| error.to_string())
}

#[cfg(not(feature = "png"))]
fn png(_drawing: &impl Drawing) -> Result<Vec<u8>, String> {
    Err("this build does not draw PNG".into())
}

fn draw<B: DrawingBackend>(area: &DrawingArea<B, Shift>, drawing: &impl Drawing, scale: u32) -> Result<(), String> {
    area.fill(&WHITE).map_err(|error| error.to_string())?;
    drawing.draw(area, scale).map_err(|error| error.to_string())?;
    area.present().map_err(|error| error.to_string())
}

impl Figure {
    fn with_mark(&self, mark: Mark) -> impl Iterator<Item = &Series> {
        self.series.iter().filter(move |series| series.mark == mark)
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: u32,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let rows: Vec<&str> = self.with_mark(Mark::Intervals).map(|series| series.name.as_str()).collect();
        let points = || self.series.iter().flat_map(|series| &series.points);
        let (mut x, mut y) = (range(points().map(|point| point.0)), range(points().map(|point| point.1)));
        if !rows.is_empty() {
            y = -0.5..rows.len() as f64 - 0.5;
        }
        let in_bars = self.with_mark(Mark::Bars).flat_map(|series| &series.points);
        let top = in_bars.map(|point| point.1).reduce(f64::max);
        let bars = top.is_some();
        if bars {
            y.start -= BAR / 2.0;
        }
        let in_legend =
            || self.series.iter().filter(|series| !series.name.is_empty() && series.mark != Mark::Intervals);
        if bars || in_legend().count() > LONG_LEGEND {
            // Leaves space for the legend, which would hide the data.
            x.end += 0.3 * (x.end - x.start);
        }
        // With bars, only whole numbers up to the last row are labelled.
        let is_row = |value: f64| top.is_none_or(|top| value.fract() == 0.0 && value <= top);
        let on_rows = |value: &f64| if is_row(*value) { plain(value) } else { String::new() };
        let text = |size: u32| (FONT, size * scale);
        let longest = rows.iter().map(|name| name.chars().count()).max().unwrap_or(0) as u32;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, text(18))
            .margin(12 * scale)
            .x_label_area_size(40 * scale)
            .y_label_area_size(56.max(16 + LETTER * longest) * scale)
            .build_cartesian_2d(x.clone(), y.clone())?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_label_formatter(&plain)
            .y_label_formatter(&on_rows)
            .label_style(text(13))
            .y_labels(if rows.is_empty() { 10 } else { 0 })
            .draw()?;
        let beside = TextStyle::from(text(13).into_font()).pos(Pos::new(HPos::Right, VPos::Center));
        let name = |(row, name): (usize, &&str)| {
            EmptyElement::at((x.start, row as f64))
                + Text::new(name.to_string(), (-8 * scale as i32, 0), beside.clone())
        };
        chart.draw_series(rows.iter().enumerate().map(name))?;
        if let Some((from, to)) = self.shaded {
            let colour = colour_of("elastic-bsp").mix(0.15).filled();
            chart.draw_series([Rectangle::new([(from, y.start), (to, y.end)], colour)])?;
        }
        for Series { name, mark, colour, points } in &self.series {
            let (points, size, colour) = (points.iter().copied(), scale as i32, *colour);
            let drawn = match mark {
                Mark::Line => chart.draw_series(LineSeries::new(points, colour.stroke_width(2 * scale)))?,
                Mark::Dashes => {
                    let style = colour.stroke_width(2 * scale);
                    chart.draw_series(DashedLineSeries::new(points, 8 * scale, 4 * scale, style))?
                }
                Mark::Dots => chart.draw_series(points.map(|point| Circle::new(point, 3 * size, colour.filled())))?,
                Mark::Area => {
                    chart.draw_series([Polygon::new(points.collect::<Vec<_>>(), colour.mix(0.25).filled())])?
                }
                Mark::Squares => chart.draw_series(points.map(|point| {
                    EmptyElement::at(point)
                        + Rectangle::new([(-4 * size, -4 * size), (4 * size, 4 * size)], colour.filled())
                }))?,
                Mark::Bars => {
                    let points: Vec<(f64, f64)> = points.collect();
                    let bar = |ends: &[(f64, f64)]| {
                        let ((from, height), (to, _)) = (ends[0], ends[1]);
                        Rectangle::new([(from, height - BAR / 2.0), (to, height + BAR / 2.0)], colour.filled())
                    };
                    chart.draw_series(points.chunks_exact(2).map(bar).collect::<Vec<_>>())?
                }
                Mark::Intervals => {
                    let points: Vec<(f64, f64)> = points.collect();
                    let line =
                        |ends: &[(f64, f64)]| PathElement::new([ends[0], ends[2]], colour.stroke_width(2 * scale));
                    chart.draw_series(points.chunks_exact(3).map(line).collect::<Vec<_>>())?;
                    let dot = |ends: &[(f64, f64)]| Circle::new(ends[1], 4 * size, colour.filled());
                    chart.draw_series(points.chunks_exact(3).map(dot).collect::<Vec<_>>())?
                }
            };
            if !name.is_empty() && *mark != Mark::Intervals {
                let key = move |(x, y)| Rectangle::new([(x, y - size), (x + 16 * size, y + size)], colour.filled());
                drawn.label(name).legend(key);
            }
        }
        if in_legend().next().is_some() {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::LowerRight)
                .legend_area_size(22 * scale)
                .background_style(WHITE.mix(0.85))
                .border_style(BLACK.mix(0.3))
                .label_font(text(13))
                .draw()?;
        }
        Ok(())
    }
}

/// A number on an axis, without rounding noise and trailing zeros.
fn plain(value: &f64) -> String {
    ((value * 1e9).round() / 1e9).to_string()
}

/// The range of the values, with a small margin on both sides.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let finite = values.filter(|value| value.is_finite());
    let (low, high) =
        finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    if low > high {
        return 0.0..1.0;
    }
    let margin = ((high - low) * 0.04).max(f64::MIN_POSITIVE).max(high.abs() * 1e-9);
    low - margin..high + margin
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure() -> Figure {
        let points = vec![(0.0, 1.0), (1.0, 0.5), (2.0, 0.25)];
        let series =
            |name: &str, mark| Series { name: name.into(), mark, colour: colour_of(name), points: points.clone() };
        Figure {
            title: "All marks".into(),
            x: "time (s)".into(),
            y: "loss".into(),
            shaded: Some((0.5, 1.0)),
            series: vec![
                series("", Mark::Area),
                series("bsp", Mark::Line),
                series("", Mark::Dashes),
                series("asp", Mark::Dots),
                series("", Mark::Squares),
                series("dbw", Mark::Bars),
            ],
        }
    }

    #[test]
    fn the_format_follows_from_the_name() {
        let folder = tempfile::tempdir().unwrap();
        let svg = folder.path().join("a.svg");
        save(&svg, &[figure()]).unwrap();
        let text = std::fs::read_to_string(&svg).unwrap();
        assert!(text.contains("All marks") && text.contains("bsp") && text.ends_with("</svg>\n"), "{text}");
        assert!(save(&folder.path().join("a.gif"), &[figure()]).is_err());
    }

    #[cfg(feature = "png")]
    #[test]
    fn png_has_twice_the_pixels() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        save(&path, &[figure(), figure()]).unwrap();
        let decoder = png::Decoder::new(std::io::BufReader::new(std::fs::File::open(&path).unwrap()));
        assert_eq!(decoder.read_info().unwrap().info().size(), (2 * 2 * 760, 2 * 480));
    }

    #[cfg(not(feature = "png"))]
    #[test]
    fn a_build_without_png_says_so() {
        let error = save(Path::new("a.png"), &[figure()]).unwrap_err().to_string();
        assert_eq!(error, "a.png: this build does not draw PNG; use .svg, or build with --features png");
    }

    #[test]
    fn rows_have_their_names_beside_them_and_no_legend() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.svg");
        let row = |name: &str, points: &[f64], row: f64| Series {
            name: name.into(),
            mark: Mark::Intervals,
            colour: colour_of(name),
            points: points.iter().map(|&x| (x, row)).collect(),
        };
        let series = vec![row("asp", &[1.0, 2.0, 3.0], 0.0), row("bsp on workers 1-7", &[], 1.0)];
        save(&path, &[Figure { series, ..Figure::default() }]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!((text.matches("bsp on workers 1-7").count(), text.matches("<circle").count()), (1, 1), "{text}");
    }

    #[test]
    fn an_empty_figure_is_written() {
        let folder = tempfile::tempdir().unwrap();
        save(&folder.path().join("empty.svg"), &[Figure::default()]).unwrap();
    }

    #[test]
    fn every_scheme_has_its_own_colour() {
        let colours: Vec<RGBColor> = catalogue().iter().map(|entry| colour_of(entry.name)).collect();
        for (index, colour) in colours.iter().enumerate() {
            assert!(*colour != UNKNOWN && !colours[..index].contains(colour), "{}", catalogue()[index].name);
        }
    }

    #[test]
    fn every_colour_is_seen_on_white_and_on_dark_paper() {
        let linear = |part: u8| {
            let part = f64::from(part) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        let light = |RGBColor(red, green, blue): RGBColor| {
            0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue) + 0.05
        };
        let (white, dark) = (light(RGBColor(255, 255, 255)), light(RGBColor(19, 22, 26)));
        for entry in catalogue() {
            let colour = light(colour_of(entry.name));
            assert!(white / colour >= 3.0 && colour / dark >= 3.0, "{}", entry.name);
        }
    }

    #[test]
    fn settings_do_not_change_a_schemes_colour() {
        assert_eq!(colour_of("backup:k=3"), colour_of("backup"));
        assert_eq!(colour_of("bsp on workers 1-7"), colour_of("bsp"));
        assert_eq!(colour_of("lb-bsp+cutoff"), colour_of("lb-bsp"));
        let colours = colours_of(["backup:k=3", "dbw", "backup:k=4"]);
        assert_eq!(colours[0], colour_of("backup"));
        assert_ne!(colours[2], colours[0]);
    }
}
