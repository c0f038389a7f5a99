//! Cells of a small run are compared with what is expected, on screens of several sizes.

use paceline_core::{Action, Commit, Event, Ledger, Report, SchemeSpec, Setup, Span as Length, TaskId, Time, WorkerId};
use paceline_report::page::PageRun;
use paceline_report::view::{Kept, RunView, ViewLimits};
use paceline_runtime::{EventLogHeader, Notice, Observer};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

use super::*;
use crate::keys::KeyAction;

/// A run of `bsp`: in every round, worker 0 takes four seconds and the others take one.
fn run(workers: u32, rounds: u64) -> SeenRun {
    let (spec, setup): (SchemeSpec, _) = ("bsp".parse().unwrap(), Setup::new(workers as usize, 8));
    let header = EventLogHeader::new(spec.clone(), &setup);
    let mut ledger = Ledger::new(spec.build(&setup).unwrap());
    let mut view = RunView::new(&header, ViewLimits::new(workers as usize, 1, Kept::Newest));
    let mut tell = |view: &mut RunView, at: u64, event: Event| {
        let now = Time(at * 1_000_000_000);
        let decisions = ledger.handle(now, event.clone()).unwrap().to_vec();
        view.on_turn(now, &event, &decisions);
        for decision in decisions {
            if let Action::Commit(Commit { version, .. }) = decision.action {
                let committed = Event::Committed { version, aggregate: None };
                let decisions = ledger.handle(now, committed.clone()).unwrap();
                view.on_turn(now, &committed, decisions);
            }
        }
    };
    (0..workers).for_each(|worker| tell(&mut view, 0, Event::Joined { worker: WorkerId(worker) }));
    for round in 0..rounds {
        for (worker, seconds) in (1..workers).map(|worker| (worker, 1)).chain([(0, 4)]) {
            let (task, compute) = (TaskId { worker: WorkerId(worker), number: round }, Length(seconds * 1_000_000_000));
            let report = Report { compute, ..Report::default() };
            tell(&mut view, 4 * round + seconds, Event::Reported { task, report });
        }
        let loss = 1.0 / (round + 1) as f64;
        view.add_iteration(round + 1, (4 * (round + 1)) as f64, workers.into(), Some(loss), None);
    }
    view.on_notice(&Notice::Left {
        worker: WorkerId(1),
        reason: "not\u{1b}[2J a command".into(),
        lost: 0,
        remaining: 2,
    });
    let whole = view.whole(Time(4 * rounds * 1_000_000_000));
    SeenRun::new(PageRun::new("first".into(), &header, String::new(), whole))
}

fn screen(run: &SeenRun, choice: &mut WatchChoice, (width, height): (u16, u16), palette: Palette) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let drawn = terminal.draw(|frame| draw(run, &Sight::Live, choice, frame.area(), frame.buffer_mut(), palette));
    drawn.unwrap().buffer.clone()
}

fn press(run: &SeenRun, choice: &mut WatchChoice, keys: &[KeyCode]) {
    for key in keys {
        assert_eq!(choice.on_key(KeyEvent::new(*key, KeyModifiers::NONE), run), KeyAction::None);
    }
}

#[test]
fn a_screen_says_what_the_page_says() {
    let screen = screen(&run(3, 5), &mut WatchChoice::new(true), (80, 24), Palette::Colours);
    let expected = "\
Paceline first                                                            ● live
Worker 0 straggled: 4.00× slower than the others.
Waiting for it took 50 % of all workers’ time, as if 1.5 of 3 workers had done
nothing.
bsp with 3 workers: iteration 5 after 20.0 s.
loss 0.2 · accuracy – · workers 3 of 3 · waiting 50 % · samples: 120 used, 0
lost (0 %), 24 under way
worker now              slowness speed   reported   batch all 20 s
0 ◆    computing 0 s    4×       2/s     0 s ago    8     ██████████████████████
1      computing 0 s    0.4×     8/s     3 s ago    8     █···██···█···█····█···
2      computing 0 s    0.4×     8/s     3 s ago    8     █···██···█···█····█···
1 of 3 · worker 0 computing for 0 s: a new version is available
training loss 0.2 (0.2 to 1)
               ████████████████
               ████████████████▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂
               ████████████████████████████████▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▂
Decisions
15 × assign work, last at 20 s: a new version is available
10 × let a worker wait, last at 17 s: the worker contributed and waits for the o
 5 × step the model, last at 20 s: 3 of 3 gradients are in
 3 × assign work, last at 0 s: the worker joined
What happened, the latest first
20 s  worker 1 left: not[2J a command; 0 samples lost, 2 workers remain
q quit · ↑↓ PgUp PgDn worker · +- time · o order · Tab part · ? help";
    assert_eq!(lines(&screen), expected);
    assert_eq!(screen[(60, 8)].fg, Color::Blue);
}

#[test]
fn small_and_monochrome_screens_have_the_most_important() {
    let text = lines(&screen(&run(3, 5), &mut WatchChoice::new(true), (40, 10), Palette::Monochrome));
    assert!(text.contains("Worker 0 straggled: 4.00× slower") && text.contains("0 ◆"), "{text}");
    let run = run(3, 5);
    for (width, height) in [(1, 1), (3, 2), (10, 3), (200, 4), (7, 60), (300, 100)] {
        let mut choice = WatchChoice::new(true);
        choice.has_help = true;
        let cells = screen(&run, &mut choice, (width, height), Palette::Monochrome);
        assert!(cells.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
        for _ in 0..5 {
            press(&run, &mut choice, &[KeyCode::Tab, KeyCode::Char('?')]);
            screen(&run, &mut choice, (width, height), Palette::Colours);
        }
    }
}

#[test]
fn a_thousand_workers_can_be_scrolled() {
    let (run, mut choice) = (run(1000, 2), WatchChoice::new(true));
    let top = |choice: &mut WatchChoice| {
        let text = lines(&screen(&run, choice, (100, 30), Palette::Colours));
        let lines: Vec<&str> = text.lines().collect();
        let heading = lines.iter().position(|line| line.starts_with("worker ")).unwrap();
        let about = lines.iter().find(|line| line.contains(" of 1,000")).unwrap();
        let first = lines[heading + 1].split_whitespace().next().unwrap().parse::<usize>().unwrap();
        (first, about.rsplit("worker ").next().unwrap().split(' ').next().unwrap().parse::<usize>().unwrap())
    };
    assert_eq!(top(&mut choice), (0, 0), "the straggler comes first");
    press(&run, &mut choice, &[KeyCode::End]);
    let (first, chosen) = top(&mut choice);
    assert_eq!((chosen, first), (999, 1000 - choice.room));
    press(&run, &mut choice, &[KeyCode::PageUp, KeyCode::Up]);
    assert_eq!(top(&mut choice).1, 998 - choice.room);
    press(&run, &mut choice, &[KeyCode::Char('o'), KeyCode::Down]);
    assert_eq!(top(&mut choice), (0, 1));
}

#[test]
fn the_timeline_can_be_zoomed() {
    let (run, mut choice) = (run(2, 5), WatchChoice::new(true));
    let cells = |choice: &mut WatchChoice| {
        let text = lines(&screen(&run, choice, (80, 24), Palette::Colours));
        text.lines().find(|line| line.starts_with("1 ")).unwrap().chars().skip(58).collect::<String>()
    };
    assert_eq!(cells(&mut choice), "█···██···█···█····█···");
    press(&run, &mut choice, &[KeyCode::Char('+'), KeyCode::Char('+')]);
    assert_eq!(choice.span, Some(5.0));
    assert_eq!(cells(&mut choice), "····█████·············");
    press(&run, &mut choice, &[KeyCode::Char('a')]);
    assert_eq!(choice.span, None);
}

#[test]
fn text_has_everything() {
    let text = as_text(&run(30, 2), true, 120);
    assert_eq!(text.lines().filter(|line| line.contains("3 s ago")).count(), 29, "{text}");
    for part in ["Decisions", "What happened", "not[2J a command", "training loss 0.5"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\u{1b}'));
}
