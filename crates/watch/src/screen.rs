//! The screen: it is drawn when there is something new, and left as it was found, however the program ends.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use paceline_report::view::SeenRun;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::draw::{Sight, draw};
use crate::error::WatchError;
use crate::keys::{KeyAction, WatchChoice};
use crate::palette::Palette;
use crate::source::RunNews;

/// How long to wait for a key before looking for news.
const LOOK: Duration = Duration::from_millis(100);

/// Why the screen was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchEnding {
    /// The user quits.
    Quit,
    /// The user presses Ctrl-C.
    Interrupted,
    /// The caller ends it.
    Over,
}

/// Whether the terminal is in use.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Leaves the terminal as it was found, if it is in use: for a program that ends at once.
pub fn restore_terminal() {
    if IN_USE.swap(false, Ordering::SeqCst) {
        ratatui::restore();
    }
}

/// Restores the terminal when it is dropped.
struct RestoredTerminal;

impl Drop for RestoredTerminal {
    fn drop(&mut self) {
        restore_terminal();
    }
}

/// Shows a run until the user quits, or until `is_over`.
///
/// # Errors
/// If the terminal can't be used.
pub fn show(
    run: SeenRun,
    is_live: bool,
    news: &Receiver<RunNews>,
    is_over: impl Fn() -> bool,
) -> Result<WatchEnding, WatchError> {
    IN_USE.store(true, Ordering::SeqCst);
    let _restored = RestoredTerminal;
    let mut terminal = ratatui::try_init().map_err(WatchError::Terminal)?;
    watch(&mut terminal, run, is_live, news, is_over).map_err(WatchError::Terminal)
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    mut run: SeenRun,
    is_live: bool,
    news: &Receiver<RunNews>,
    is_over: impl Fn() -> bool,
) -> io::Result<WatchEnding> {
    let (palette, mut choice) = (Palette::of_environment(), WatchChoice::new(is_live && !run.ended));
    let seen = || if is_live { Sight::Live } else { Sight::Folder };
    let (mut sight, mut is_new) = (seen(), true);
    while !is_over() {
        // A run that has ended sends none.
        while let Ok(news) = news.try_recv() {
            is_new = true;
            match news {
                RunNews::Run(page) => (run, sight) = (SeenRun::new(*page), seen()),
                RunNews::Change(view) => run.apply(*view),
                RunNews::Lost(problem) => sight = Sight::Lost(problem),
            }
        }
        if is_new {
            terminal.draw(|frame| {
                draw(&run, &sight, &mut choice, frame.area(), frame.buffer_mut(), palette);
            })?;
            is_new = false;
        }
        if !event::poll(LOOK)? {
            continue;
        }
        is_new = true;
        if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            match choice.on_key(key, &run) {
                KeyAction::None => {}
                KeyAction::Quit => return Ok(WatchEnding::Quit),
                KeyAction::Interrupt => return Ok(WatchEnding::Interrupted),
            }
        }
    }
    Ok(WatchEnding::Over)
}
