//! The workers as rows of a table: what each does, and its part of the timeline.

use paceline_report::view::{Activity, SeenRun, SeenWorker};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::keys::WatchChoice;
use crate::palette::Palette;
use crate::words::{brief, count, duration, known, rate};

/// What a column says of a worker of a run.
type ColumnText = fn(&SeenWorker, &SeenRun) -> String;

/// A column: its heading, its width, and what it says.
struct WorkerColumn {
    heading: &'static str,
    width: u16,
    text: ColumnText,
}

const fn column(heading: &'static str, width: u16, text: ColumnText) -> WorkerColumn {
    WorkerColumn { heading, width, text }
}

/// The columns that are always there, and those that follow as far as there is room for them.
const FIRST: [WorkerColumn; 2] = [column("worker", 7, rank), column("now", 17, now)];
const FURTHER: [WorkerColumn; 7] = [
    column("slowness", 9, |worker, _| worker.slowness.map_or_else(|| "–".into(), |_| known(worker.slowness, 3) + "×")),
    column("speed", 8, |worker, _| worker.speed.map_or_else(|| "–".into(), rate)),
    column("reported", 11, reported),
    column("batch", 6, |worker, _| worker.batch.to_string()),
    column("others waited", 14, |worker, _| duration(worker.waited_for)),
    column("samples used", 13, |worker, _| count(worker.samples.used)),
    column("lost", 9, |worker, _| count(worker.samples.lost)),
];

/// The least width of the timeline, if the table has room for it.
const LEAST_TIMELINE: u16 = 12;

fn rank(worker: &SeenWorker, run: &SeenRun) -> String {
    format!("{}{}", worker.rank, if run.is_straggler(worker.rank) { " ◆" } else { "" })
}

fn state(worker: &SeenWorker) -> &'static str {
    if worker.is_late { "late" } else { worker.activity.name() }
}

fn now(worker: &SeenWorker, run: &SeenRun) -> String {
    if run.ended { state(worker).into() } else { format!("{} {}", state(worker), brief(since(worker, run))) }
}

fn since(worker: &SeenWorker, run: &SeenRun) -> f64 {
    (run.time - worker.since).max(0.0)
}

fn reported(worker: &SeenWorker, run: &SeenRun) -> String {
    match worker.reported {
        None => "–".into(),
        Some(at) if run.ended => duration(at),
        Some(at) => format!("{} ago", brief((run.time - at).max(0.0))),
    }
}

/// Draws the table: a line of headings, the workers, and a line about the one that is chosen.
pub fn draw_workers(run: &SeenRun, choice: &mut WatchChoice, area: Rect, buffer: &mut Buffer, palette: Palette) {
    if area.height < 2 {
        return;
    }
    let timeline = LEAST_TIMELINE.max(area.width / 4);
    let mut left = area.width.saturating_sub(FIRST.iter().map(|column| column.width).sum::<u16>() + timeline);
    let further = FURTHER.iter().take_while(|column| {
        let has_room = column.width <= left;
        left = left.saturating_sub(column.width);
        has_room
    });
    let columns: Vec<&WorkerColumn> = FIRST.iter().chain(further).collect();
    let x = area.x + columns.iter().map(|column| column.width).sum::<u16>();
    let cells = Rect { x, width: area.right().saturating_sub(x), ..area };
    let span = choice.span.filter(|span| *span < run.time);
    let from = span.map_or(0.0, |span| run.time - span);
    let (workers, chosen) = choice.workers(run);
    choice.fit(usize::from(area.height.saturating_sub(2)), chosen, workers.len());
    let heading = palette.heading();
    write_row(&columns, area.x, area.y, buffer, heading, |column| column.heading.into());
    let named = span.map_or_else(|| format!("all {}", duration(run.time)), |span| format!("last {}", duration(span)));
    buffer.set_stringn(cells.x, area.y, named, cells.width.into(), heading);
    let rows = workers.iter().enumerate().skip(choice.top).take(choice.room);
    for (y, (index, worker)) in (area.y + 1..).zip(rows) {
        let alarm = if run.is_straggler(worker.rank) { palette.alarm() } else { Style::new() };
        let style = if index == chosen { alarm.patch(palette.chosen()) } else { alarm };
        write_row(&columns, area.x, y, buffer, style, |column| (column.text)(worker, run));
        draw_cells(run, worker.rank, from, Rect { y, height: 1, ..cells }, buffer, palette);
    }
    let line = match workers.get(chosen) {
        None => "No worker has joined yet.".into(),
        Some(worker) => about(worker, run, (chosen, workers.len()), choice.is_by_cost(run)),
    };
    buffer.set_stringn(area.x, area.bottom() - 1, line, area.width.into(), palette.soft());
}

fn write_row(
    columns: &[&WorkerColumn],
    mut x: u16,
    y: u16,
    buffer: &mut Buffer,
    style: Style,
    text: impl Fn(&WorkerColumn) -> String,
) {
    for column in columns {
        buffer.set_stringn(x, y, text(column), usize::from(column.width - 1), style);
        x += column.width;
    }
}

/// What a worker mostly did, in cells of the same length up to now.
fn draw_cells(run: &SeenRun, rank: usize, from: f64, area: Rect, buffer: &mut Buffer, palette: Palette) {
    let length = (run.time - from) / f64::from(area.width.max(1));
    for (number, x) in (area.left()..area.right()).enumerate() {
        let start = from + number as f64 * length;
        if let Some(activity) = run.mostly(rank, start, start + length) {
            let (glyph, style) = palette.cell(activity);
            buffer[(x, area.y)].set_char(glyph).set_style(style);
        }
    }
}

/// The chosen worker: which one of all it is, what it does, and why.
fn about(worker: &SeenWorker, run: &SeenRun, (index, all): (usize, usize), is_by_cost: bool) -> String {
    let order = if is_by_cost { ", those that others waited for first" } else { "" };
    let what = if run.ended {
        format!("{} at the end", state(worker))
    } else {
        format!("{} for {}", state(worker), duration(since(worker, run)))
    };
    let why = if worker.reason.is_empty() { String::new() } else { format!(": {}", worker.reason) };
    format!("{} of {}{order} · worker {} {what}{why}", count(index as u64 + 1), count(all as u64), worker.rank)
}

/// The glyphs of the timeline with their meaning.
pub fn glyphs(palette: Palette) -> impl Iterator<Item = (char, Style, &'static str)> {
    Activity::ALL.into_iter().filter(|activity| *activity != Activity::Absent).map(move |activity| {
        let (glyph, style) = palette.cell(activity);
        (glyph, style, activity.name())
    })
}
