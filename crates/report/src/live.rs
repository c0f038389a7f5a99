//! A run that goes on, as a page shows it.
//!
//! [`follow`] gives an observer for the run and a page for the server of its status. The observer only puts what it is told
//! into a list. The server's thread folds the list into a [`RunView`] several times a second, and writes JSON when somebody
//! looks. So the run never waits for the page.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use paceline_core::{Decision, Event, Span, Time};
use paceline_runtime::{
    EVENTS, EventLogHeader, Iteration, LivePage, Monitor, Notice, Observer, Summary, has_older_events, read_events,
    read_metrics,
};
use serde::Serialize;

use crate::error::{ReportError, at, in_log};
use crate::page::{PageRun, live_page};
use crate::view::{Kept, RunView, ViewLimits};

/// How much may wait for the server's thread. The observer folds more itself, so that the memory is bounded.
const MAX_WAITING: usize = 16_384;

/// The longest log that is read when a run resumes, in bytes: it takes about a second.
const MAX_READ: u64 = 64 * 1024 * 1024;

/// Something that happened in a run.
#[derive(Debug)]
enum RunFact {
    Turn { at: Time, event: Event, decisions: Vec<Decision> },
    Iteration { iteration: Iteration, accuracy: Option<f64> },
    Notice(Notice),
}

/// What happened since it was last folded.
#[derive(Debug, Default)]
struct Recent {
    facts: Vec<RunFact>,
    /// The last turn: the run's time, and the clock's.
    last_turn: Option<(Time, Instant)>,
}

#[derive(Debug)]
struct LiveRun {
    name: String,
    header: EventLogHeader,
    configuration: String,
    recent: Mutex<Recent>,
    view: Mutex<RunView>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LiveRun {
    fn add(&self, fact: RunFact) {
        let waiting = {
            let mut recent = lock(&self.recent);
            if let RunFact::Turn { at, .. } = fact {
                recent.last_turn = Some((at, Instant::now()));
            }
            recent.facts.push(fact);
            recent.facts.len()
        };
        if waiting >= MAX_WAITING {
            drop(self.fold());
        }
    }

    /// Takes in what happened. Returns the view, and the run's time.
    fn fold(&self) -> (MutexGuard<'_, RunView>, Time) {
        // The view first, so that two threads can't fold in the wrong order.
        let mut view = lock(&self.view);
        let (facts, last_turn) = {
            let mut recent = lock(&self.recent);
            (std::mem::take(&mut recent.facts), recent.last_turn)
        };
        for fact in facts {
            match fact {
                RunFact::Turn { at, event, decisions } => view.on_turn(at, &event, &decisions),
                RunFact::Iteration { iteration: Iteration { iteration, time, waited_for, loss, .. }, accuracy } => {
                    view.add_iteration(iteration, time, waited_for as u64, loss, accuracy);
                }
                RunFact::Notice(notice) => view.on_notice(&notice),
            }
        }
        let elapsed = |(at, then): (Time, Instant)| at + Span::from_seconds(then.elapsed().as_secs_f64());
        let now = if view.has_ended() { view.time() } else { last_turn.map_or(view.time(), elapsed) };
        (view, now)
    }
}

/// The observer of a run that a page follows.
#[derive(Debug, Clone)]
pub struct FollowedRun(Arc<LiveRun>);

/// The page that follows a run.
#[derive(Debug)]
pub struct LiveRunPage(Arc<LiveRun>);

/// An observer for a run with this header and configuration, and the page that shows what it observes.
pub fn follow(name: String, header: EventLogHeader, configuration: String) -> (FollowedRun, LiveRunPage) {
    let view = RunView::new(&header, ViewLimits::new(header.workers, 1, Kept::Newest));
    let (recent, view) = (Mutex::default(), Mutex::new(view));
    let run = Arc::new(LiveRun { name, header, configuration, recent, view });
    (FollowedRun(run.clone()), LiveRunPage(run))
}

impl FollowedRun {
    /// Takes in what a run folder says, for a run that resumes. Of a log that takes long to read, nothing: then the page begins
    /// where the run resumes.
    ///
    /// # Errors
    /// If the folder can't be read.
    pub fn read(&self, folder: &Path) -> Result<(), ReportError> {
        let path = folder.join(EVENTS);
        let log = File::open(&path).map_err(at(&path))?;
        let is_long = log.metadata().map_err(at(&path))?.len() > MAX_READ || has_older_events(folder);
        if is_long {
            return Ok(());
        }
        let (mut view, _) = self.0.fold();
        read_events(log, &mut *view).map_err(in_log(&path))?;
        for row in read_metrics(folder)? {
            view.add_iteration(row.iteration, row.time, row.waited_for, row.loss, row.accuracy);
        }
        Ok(())
    }

    /// The run has ended.
    pub fn end(&self, summary: &Summary) {
        let (mut view, _) = self.0.fold();
        view.finish_timeline();
        view.end(summary);
    }
}

impl Observer for FollowedRun {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.0.add(RunFact::Turn { at: now, event: event.clone(), decisions: decisions.to_vec() });
    }

    fn on_iteration(&mut self, iteration: &Iteration, monitor: &Monitor) {
        let accuracy = monitor.fresh_evaluation().and_then(|found| found.accuracy);
        self.0.add(RunFact::Iteration { iteration: *iteration, accuracy });
    }

    fn on_notice(&mut self, notice: &Notice) {
        self.0.add(RunFact::Notice(notice.clone()));
    }
}

impl LivePage for LiveRunPage {
    fn page(&self) -> String {
        live_page(self.0.name.clone())
    }

    fn advance(&self) {
        drop(self.0.fold());
    }

    fn whole(&self) -> String {
        let (view, now) = self.0.fold();
        let LiveRun { name, header, configuration, .. } = &*self.0;
        json(&PageRun::new(name.clone(), header, configuration.clone(), view.whole(now)))
    }

    fn changes(&self) -> String {
        let (mut view, now) = self.0.fold();
        json(&view.changes(now))
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use paceline_core::{Reason, Setup, WorkerId};
    use serde_json::Value;

    use super::*;

    fn parsed(text: &str) -> Value {
        assert!(!text.contains('\n'), "server-sent events have one line");
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_page_gets_everything_then_what_changes() {
        let header = EventLogHeader::new("bsp".parse().unwrap(), &Setup::new(2, 8));
        let (mut run, page) = follow("first\nrun".into(), header, "seed = 1\n".into());
        let joined = |worker| Event::Joined { worker: WorkerId(worker) };
        run.on_turn(Time(1_000_000_000), &joined(0), &[]);
        let whole = parsed(&page.whole());
        assert_eq!((&whole["name"], &whole["view"]["present"]), (&"first\nrun".into(), &1.into()));
        page.changes();
        run.on_turn(Time(2_000_000_000), &joined(1), &[]);
        let iteration = Monitor::default().stepped(Time(2_000_000_000), 2, Some(0.5), Reason::OnArrival);
        run.on_iteration(&iteration, &Monitor::default());
        let changes = parsed(&page.changes());
        assert_eq!((&changes["iterations"], &changes["loss"]), (&1.into(), &0.5.into()));
        assert_eq!(
            (changes["workers"].as_array().unwrap().len(), &changes["workers"][0][0]),
            (1, &1.into()),
            "the new one"
        );
        assert!(changes["time"].as_f64() >= Some(2.0));
        let nothing = parsed(&page.changes());
        assert_eq!(
            (nothing["workers"].as_array().unwrap().len(), nothing["segments"].as_array().unwrap().len()),
            (0, 0)
        );
    }

    #[test]
    fn what_waits_is_bounded_and_stays_in_order() {
        let header = EventLogHeader::new("bsp".parse().unwrap(), &Setup::new(1, 8));
        let (mut run, page) = follow("run".into(), header, String::new());
        for count in 1..=3 * MAX_WAITING as u64 {
            let event = if count % 2 == 1 {
                Event::Joined { worker: WorkerId(0) }
            } else {
                Event::Left { worker: WorkerId(0) }
            };
            run.on_turn(Time(count), &event, &[]);
            assert!(lock(&run.0.recent).facts.len() < MAX_WAITING);
        }
        // It joined, and left last.
        let row = &parsed(&page.whole())["view"]["workers"][0];
        assert_eq!((&row[1][0], &row[2][1]), (&4.into(), &(3 * MAX_WAITING as u64 / 2).into()));
    }
}
