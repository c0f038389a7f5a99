//! A run, drawn into cells: for the screen, and as plain text.

use paceline_report::view::SeenRun;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Clear, Paragraph, Widget};

use crate::curves::{charts, draw_curves};
use crate::keys::{ScreenPart, WatchChoice};
use crate::palette::Palette;
use crate::words::{count, duration, known, percent, wrapped};
use crate::worker_rows::{draw_workers, glyphs};

/// Heights of the curves and of the decisions beside the workers, with their headings.
const CURVES: u16 = 4;
const DECISIONS: u16 = 6;
const NOTICES: u16 = 4;

/// The least height of the workers, with headings and the line below.
const LEAST_WORKERS: u16 = 4;

/// The help, as keys and what they do.
const KEYS: [(&str, &str); 8] = [
    ("↑ ↓ j k", "choose a worker: the line below the table says what it does, and why"),
    ("PgUp PgDn", "a page of workers; Home, End: the first, the last"),
    ("+ - a", "a shorter or longer part of the timeline, or all of it"),
    ("o", "order of the workers: by rank, or those that others waited for first"),
    ("Tab Esc", "one part alone (workers, curves, decisions, what happened); all parts"),
    ("?", "this help"),
    ("q", "quit; the run goes on"),
    ("Ctrl-C", "quit; with train --tui and serve --tui: end the run"),
];

/// How a run is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sight {
    /// It tells what changes.
    Live,
    /// In its folder.
    Folder,
    /// Not at present, for this reason.
    Lost(String),
}

/// Draws a run, with what is chosen of it.
pub fn draw(run: &SeenRun, sight: &Sight, choice: &mut WatchChoice, area: Rect, buffer: &mut Buffer, palette: Palette) {
    let headline = headline(run, palette, area);
    let [header, words, body, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(headline.len() as u16),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_header(run, sight, header, buffer, palette);
    Text::from(headline).render(words, buffer);
    let footer_text = match sight {
        Sight::Lost(problem) => Line::styled(problem.as_str(), palette.alarm()),
        _ => Line::styled("q quit · ↑↓ PgUp PgDn worker · +- time · o order · Tab part · ? help", palette.soft()),
    };
    footer_text.render(footer, buffer);
    match choice.part {
        ScreenPart::All => draw_parts(run, choice, body, buffer, palette),
        ScreenPart::Workers => draw_workers(run, choice, body, buffer, palette),
        ScreenPart::Curves => draw_curves(run, body, buffer, palette),
        ScreenPart::Decisions => draw_decisions(run, body, buffer, palette),
        ScreenPart::Notices => draw_notices(run, body, buffer, palette),
    }
    if choice.has_help {
        draw_help(area, buffer, palette);
    }
}

fn draw_header(run: &SeenRun, sight: &Sight, area: Rect, buffer: &mut Buffer, palette: Palette) {
    let (text, style) = match sight {
        _ if run.ended => ("ended", palette.heading()),
        Sight::Lost(_) => ("connection lost, trying again", palette.alarm()),
        Sight::Live => ("● live", palette.good()),
        Sight::Folder => ("not finished", palette.heading()),
    };
    Line::from(vec![Span::styled("Paceline ", palette.soft()), Span::styled(run.name.as_str(), palette.heading())])
        .render(area, buffer);
    let width = (text.chars().count() as u16).min(area.width);
    let right = Rect { x: area.right() - width, width, ..area };
    Clear.render(right, buffer);
    Line::styled(text, style).render(right, buffer);
}

/// The headline and the numbers of a run, for a screen of this size.
fn headline(run: &SeenRun, palette: Palette, area: Rect) -> Vec<Line<'static>> {
    let samples = run.samples;
    let all = (samples.used + samples.lost + samples.pending).max(1);
    let sentence = if run.headline.is_costly { palette.alarm() } else { palette.heading() };
    let workers = if run.ended {
        run.workers().count().to_string()
    } else {
        format!("{} of {}", run.present, run.expected.max(run.present))
    };
    let numbers = format!(
        "loss {} · accuracy {} · workers {workers} · waiting {} · samples: {} used, {} lost ({}), {} under way",
        known(run.loss, 4),
        known(run.accuracy, 4),
        percent(run.headline.waiting),
        count(samples.used),
        count(samples.lost),
        percent(samples.lost as f64 / all as f64),
        count(samples.pending)
    );
    let parts = [
        (run.headline.sentence.clone(), sentence),
        (run.headline.cost.clone(), Style::new()),
        (run.story.clone(), palette.soft()),
        (numbers, Style::new()),
    ];
    let most = usize::from(area.height / 3).max(1);
    let mut lines = Vec::new();
    for (text, style) in parts {
        let part = wrapped(&text, area.width.into());
        // Where there is little room, what comes first is said whole.
        if lines.is_empty() || lines.len() + part.len() <= most {
            lines.extend(part.into_iter().map(|text| Line::styled(text, style)));
        }
    }
    lines
}

fn draw_parts(run: &SeenRun, choice: &mut WatchChoice, body: Rect, buffer: &mut Buffer, palette: Palette) {
    let heights = part_heights(run, body.height);
    let [workers, curves, decisions, notices] = Layout::vertical(heights.map(Constraint::Length)).areas(body);
    draw_workers(run, choice, workers, buffer, palette);
    draw_curves(run, curves, buffer, palette);
    draw_decisions(run, decisions, buffer, palette);
    draw_notices(run, notices, buffer, palette);
}

/// The heights of workers, curves, decisions and notices, if there is so much room. Workers get at least half of it; what
/// they do not need goes to the others.
fn part_heights(run: &SeenRun, room: u16) -> [u16; 4] {
    let wanted = run.workers().count().saturating_add(2).min(u16::MAX.into()) as u16;
    let mut left = room.saturating_sub(wanted.min(LEAST_WORKERS.max(room / 2)));
    let mut take = |wanted: u16, least: u16| {
        let taken = if left >= least { wanted.min(left) } else { 0 };
        left -= taken;
        taken
    };
    let curves = if charts(run).is_empty() { 0 } else { take(CURVES, 2) };
    let decisions = take(list_height(run.decisions.len()).min(DECISIONS), 2);
    let notices = take(list_height(run.notices().len()).min(NOTICES), 2);
    [room - curves - decisions - notices, curves, decisions, notices]
}

/// The height of a list with its heading; nothing is left out.
fn list_height(items: usize) -> u16 {
    if items == 0 { 0 } else { (items + 1).min(u16::MAX.into()) as u16 }
}

fn draw_list(heading: &str, lines: impl Iterator<Item = String>, area: Rect, buffer: &mut Buffer, palette: Palette) {
    for (y, (index, line)) in (area.top()..area.bottom()).zip(std::iter::once(heading.into()).chain(lines).enumerate())
    {
        let style = if index == 0 { palette.heading() } else { Style::new() };
        buffer.set_stringn(area.x, y, line, area.width.into(), style);
    }
}

fn draw_decisions(run: &SeenRun, area: Rect, buffer: &mut Buffer, palette: Palette) {
    let times = run.decisions.iter().map(|row| count(row.count).len()).max().unwrap_or(0);
    let lines = run.decisions.iter().map(|row| {
        format!("{:>times$} × {}, last at {}: {}", count(row.count), row.action, duration(row.at), row.reason)
    });
    draw_list("Decisions", lines, area, buffer, palette);
}

fn draw_notices(run: &SeenRun, area: Rect, buffer: &mut Buffer, palette: Palette) {
    let lines = run.notices().iter().rev().map(|(at, text)| format!("{}  {text}", duration(*at)));
    draw_list("What happened, the latest first", lines, area, buffer, palette);
}

fn draw_help(area: Rect, buffer: &mut Buffer, palette: Palette) {
    let mut lines: Vec<Line> = KEYS
        .iter()
        .map(|(keys, what)| Line::from(vec![Span::styled(format!("{keys:<10}"), palette.heading()), (*what).into()]))
        .collect();
    let glyphs = glyphs(palette)
        .flat_map(|(glyph, style, name)| [Span::styled(glyph.to_string(), style), format!(" {name}  ").into()]);
    lines.push(Line::default());
    lines.push(glyphs.chain(["◆ straggler".into()]).collect());
    let height = (lines.len() as u16 + 2).min(area.height);
    let width = 84.min(area.width);
    let area = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    Clear.render(area, buffer);
    Paragraph::new(Text::from(lines)).block(Block::bordered().title("Keys")).render(area, buffer);
}

/// A run as plain text of this width: all workers, decisions and notices.
pub fn as_text(run: &SeenRun, is_live: bool, width: u16) -> String {
    let sight = if is_live { Sight::Live } else { Sight::Folder };
    let mut choice = WatchChoice::new(is_live);
    let room = run.workers().count() + run.decisions.len() + run.notices().len() + 40;
    let area = Rect::new(0, 0, width, room.min(usize::from(u16::MAX) / 2) as u16);
    let mut buffer = Buffer::empty(area);
    let headline = headline(run, Palette::Monochrome, area);
    let [header, words, workers, curves, decisions, notices] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(headline.len() as u16),
        Constraint::Length((run.workers().count() + 2).min(area.height.into()) as u16),
        Constraint::Length(if charts(run).is_empty() { 0 } else { CURVES }),
        Constraint::Length(list_height(run.decisions.len())),
        Constraint::Length(list_height(run.notices().len())),
    ])
    .areas(area);
    draw_header(run, &sight, header, &mut buffer, Palette::Monochrome);
    Text::from(headline).render(words, &mut buffer);
    draw_workers(run, &mut choice, workers, &mut buffer, Palette::Monochrome);
    draw_curves(run, curves, &mut buffer, Palette::Monochrome);
    draw_decisions(run, decisions, &mut buffer, Palette::Monochrome);
    draw_notices(run, notices, &mut buffer, Palette::Monochrome);
    lines(&buffer)
}

/// The text of cells, without spaces at the ends of lines and empty lines at the end.
fn lines(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width.max(1));
    let line = |cells: &[ratatui::buffer::Cell]| {
        let text: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.trim_end().to_string()
    };
    let lines: Vec<String> = buffer.content.chunks(width).map(line).collect();
    lines.join("\n").trim_end().to_string()
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
