//! What the user has chosen to see, and the keys that choose it.

use paceline_report::view::{SeenRun, SeenWorker};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// More workers than these are shown with those first that others waited for, as on the page.
const FEW: usize = 20;

/// The shortest and the longest part of the run's time in the timeline, in seconds.
const SPANS: (f64, f64) = (1e-3, 1e9);

/// What is on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScreenPart {
    /// Everything, as far as there is room.
    All,
    /// One part alone.
    Workers,
    Curves,
    Decisions,
    Notices,
}

/// Which workers come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerOrder {
    /// By rank if there are few, else those that others waited for.
    Usual,
    /// The other of the two.
    Other,
}

/// What a key does beside changing what is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyAction {
    None,
    Quit,
    Interrupt,
}

/// What the user has chosen to see.
#[derive(Debug, Clone)]
pub struct WatchChoice {
    pub part: ScreenPart,
    order: WorkerOrder,
    /// The rank of the worker that is chosen; `None` for the first of the list.
    chosen: Option<usize>,
    /// The first worker on the screen, as an index of the list.
    pub top: usize,
    /// How many workers the screen has room for.
    pub room: usize,
    /// The part of the time that the timeline shows, up to now, in seconds; `None` for all of it.
    pub span: Option<f64>,
    pub has_help: bool,
}

impl WatchChoice {
    /// What is seen at first.
    pub fn new(is_live: bool) -> Self {
        let span = is_live.then_some(60.0);
        let (part, order) = (ScreenPart::All, WorkerOrder::Usual);
        WatchChoice { part, order, chosen: None, top: 0, room: 0, span, has_help: false }
    }

    /// Whether those come first that others waited for.
    pub fn is_by_cost(&self, run: &SeenRun) -> bool {
        (run.workers().count() > FEW) == (self.order == WorkerOrder::Usual)
    }

    /// The workers in order, and the index of the one that is chosen.
    pub fn workers<'a>(&self, run: &'a SeenRun) -> (Vec<&'a SeenWorker>, usize) {
        let mut workers: Vec<&SeenWorker> = run.workers().collect();
        if self.is_by_cost(run) {
            workers.sort_by(|one, other| other.waited_for.total_cmp(&one.waited_for));
        }
        let chosen = workers.iter().position(|worker| Some(worker.rank) == self.chosen).unwrap_or(0);
        (workers, chosen)
    }

    /// Makes room for so many workers, and keeps the chosen one on the screen.
    pub fn fit(&mut self, room: usize, chosen: usize, workers: usize) {
        self.room = room;
        let last = chosen.saturating_sub(room.saturating_sub(1));
        self.top = self.top.clamp(last, chosen.max(last)).min(workers.saturating_sub(room));
    }

    fn choose(&mut self, run: &SeenRun, step: isize) {
        let (workers, chosen) = self.workers(run);
        let next = chosen.saturating_add_signed(step).min(workers.len().saturating_sub(1));
        self.chosen = workers.get(next).map(|worker| worker.rank);
    }

    fn zoom(&mut self, run: &SeenRun, factor: f64) {
        let span = self.span.unwrap_or(run.time).min(run.time) * factor;
        self.span = (span < run.time).then(|| span.clamp(SPANS.0, SPANS.1));
    }

    /// Takes in a key.
    pub fn on_key(&mut self, key: KeyEvent, run: &SeenRun) -> KeyAction {
        let page = self.room.max(1) as isize;
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return KeyAction::Interrupt,
            KeyCode::Esc if self.has_help => self.has_help = false,
            KeyCode::Esc if self.part != ScreenPart::All => self.part = ScreenPart::All,
            KeyCode::Char('q') => return KeyAction::Quit,
            KeyCode::Char('?' | 'h') => self.has_help = !self.has_help,
            KeyCode::Up | KeyCode::Char('k') => self.choose(run, -1),
            KeyCode::Down | KeyCode::Char('j') => self.choose(run, 1),
            KeyCode::PageUp => self.choose(run, -page),
            KeyCode::PageDown | KeyCode::Char(' ') => self.choose(run, page),
            KeyCode::Home | KeyCode::Char('g') => self.choose(run, isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.choose(run, isize::MAX),
            KeyCode::Char('+' | '=') | KeyCode::Right => self.zoom(run, 0.5),
            KeyCode::Char('-') | KeyCode::Left => self.zoom(run, 2.0),
            KeyCode::Char('a') => self.span = None,
            KeyCode::Char('o') => {
                self.order = if self.order == WorkerOrder::Usual { WorkerOrder::Other } else { WorkerOrder::Usual };
                (self.chosen, self.top) = (None, 0);
            }
            KeyCode::Tab => {
                self.part = match self.part {
                    ScreenPart::All => ScreenPart::Workers,
                    ScreenPart::Workers => ScreenPart::Curves,
                    ScreenPart::Curves => ScreenPart::Decisions,
                    ScreenPart::Decisions => ScreenPart::Notices,
                    ScreenPart::Notices => ScreenPart::All,
                }
            }
            _ => {}
        }
        KeyAction::None
    }
}
