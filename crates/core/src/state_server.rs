//! ESync's state server: decides after each local iteration of a worker whether there is time for one more.
//!
//! A round can end when every worker has done an iteration. Until the *slowest* worker, whose first iteration is
//! expected to end last, has done it, the others use the wait: a worker continues as long as its next iteration ends
//! sooner. Only the coordinator's clock and durations are used, never a worker's clock.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{Span, Time, WorkerId};

/// How workers query the state server (ESync, section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueryMode {
    /// A worker waits for the answer.
    Blocking,
    /// A worker continues while it waits for the answer. If the answer is "ready", it drops the iteration it has
    /// started.
    NonBlocking,
}

/// One worker's record (Algorithm 2).
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct WorkerRecord {
    /// Local iterations done in this round.
    iterations: u32,
    /// When the present iteration started; in non-blocking mode, when the first one of the round started.
    since: Time,
    /// How long its last iteration took, including the overhead. `None` before its first.
    capability: Option<Span>,
    /// The time of an iteration that is not computing: query and answer, and in a round's first iteration the transfer
    /// of the model.
    overhead: Span,
    ready: bool,
}

/// An answer of the [`StateServer`] and the times it follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryAnswer {
    /// Whether the worker sends its update; otherwise it does one more iteration.
    pub ready: bool,
    /// The expected length of one more iteration.
    pub iteration: Span,
    /// The slowest worker that has not done an iteration, and its expected remaining time. `None` if every worker has.
    pub slowest: Option<(WorkerId, Span)>,
}

/// Decides how many local iterations each worker does in a round (ESync, Algorithm 2).
///
/// Call [`start`](StateServer::start) for every worker when it gets a round's model, [`query`](StateServer::query) when
/// it asks, [`finish`](StateServer::finish) when it sends its update without asking, and [`leave`](StateServer::leave)
/// when it leaves. No round hangs: a worker continues only while another worker has not done its first iteration of the
/// round and is expected to take longer for it.
///
/// ```
/// use paceline_core::{QueryMode, Span, StateServer, Time, WorkerId};
///
/// let (fast, slow) = (WorkerId(0), WorkerId(1));
/// let mut server = StateServer::new(QueryMode::Blocking, Span(1));
/// // In the first round no times are known, and every worker does one iteration.
/// server.start(Time(0), fast);
/// server.start(Time(0), slow);
/// assert!(server.query(Time(30), fast, 1, Span(30)).ready);
/// assert!(server.query(Time(100), slow, 1, Span(100)).ready);
/// // In the second round the fast worker does three iterations in the time of the slow worker's first.
/// server.start(Time(100), fast);
/// server.start(Time(100), slow);
/// assert!(!server.query(Time(130), fast, 1, Span(30)).ready);
/// assert!(!server.query(Time(160), fast, 2, Span(30)).ready);
/// assert!(server.query(Time(190), fast, 3, Span(30)).ready);
/// ```
#[derive(Debug, Serialize, Deserialize)]
pub struct StateServer {
    mode: QueryMode,
    margin: Span,
    records: Vec<WorkerRecord>,
    /// The workers that have not done an iteration in this round, by the expected end of their first.
    awaited: BTreeSet<(Time, WorkerId)>,
}

impl StateServer {
    /// A state server without workers. `margin` is added to the expected length of an iteration (the paper's ε in
    /// Algorithm 2): with a larger margin workers stop earlier.
    pub fn new(mode: QueryMode, margin: Span) -> Self {
        StateServer { mode, margin, records: Vec::new(), awaited: BTreeSet::new() }
    }

    /// The worker gets the model of a round. A new worker has no history, so its iteration is expected to end at any
    /// moment.
    pub fn start(&mut self, now: Time, worker: WorkerId) {
        if worker.index() >= self.records.len() {
            self.records.resize(worker.index() + 1, WorkerRecord::default());
        }
        self.stop_awaiting(worker);
        let record = &mut self.records[worker.index()];
        (record.iterations, record.since, record.ready) = (0, now, false);
        self.awaited.insert((due(record), worker));
    }

    /// The worker left. Its record is cleared.
    pub fn leave(&mut self, worker: WorkerId) {
        self.stop_awaiting(worker);
        if let Some(record) = self.records.get_mut(worker.index()) {
            *record = WorkerRecord::default();
        }
    }

    /// The [started](StateServer::start) worker has done `iterations` iterations in this round and asks whether to do
    /// one more. The last one took the worker `compute`. A repeated query is answered again.
    pub fn query(&mut self, now: Time, worker: WorkerId, iterations: u32, compute: Span) -> QueryAnswer {
        if iterations > self.records[worker.index()].iterations {
            self.record_iteration(now, worker, iterations, compute);
        }
        let record = self.records[worker.index()];
        let iteration = record.capability.unwrap_or_default();
        let slowest = self.awaited.last().map(|&(due, slowest)| (slowest, due.since(now)));
        // Algorithm 2, line 9. An overdue worker may finish at any moment: its remaining time is 0.
        let ready = record.ready || slowest.is_none_or(|(_, rest)| iteration + self.margin > rest);
        let record = &mut self.records[worker.index()];
        record.ready = ready;
        if self.mode == QueryMode::Blocking {
            record.since = now;
        }
        QueryAnswer { ready, iteration, slowest }
    }

    /// The worker has done its one iteration without asking, in `compute`.
    pub fn finish(&mut self, now: Time, worker: WorkerId, compute: Span) {
        self.record_iteration(now, worker, 1, compute);
        self.records[worker.index()].ready = true;
    }

    /// Whether the worker's first query of the round that begins now is certain to be answered "ready". The query would
    /// only cost the time until the answer arrives.
    pub fn predicts_ready(&self, now: Time, worker: WorkerId) -> bool {
        let Some(iteration) = self.records[worker.index()].capability else { return false };
        let rest = self.awaited.last().map_or(Span::ZERO, |&(due, _)| due.since(now + iteration));
        iteration + self.margin > rest
    }

    fn record_iteration(&mut self, now: Time, worker: WorkerId, iterations: u32, compute: Span) {
        self.stop_awaiting(worker);
        let record = &mut self.records[worker.index()];
        // A worker that does not wait measures the overhead in its first query only.
        if self.mode == QueryMode::Blocking || iterations == 1 {
            record.overhead = now.since(record.since) - compute;
        }
        record.capability = Some(compute + record.overhead);
        record.iterations = iterations;
    }

    fn stop_awaiting(&mut self, worker: WorkerId) {
        if let Some(record) = self.records.get(worker.index()) {
            self.awaited.remove(&(due(record), worker));
        }
    }
}

/// The expected end of the present iteration.
fn due(record: &WorkerRecord) -> Time {
    record.since + record.capability.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: WorkerId = WorkerId(0);
    const SLOW: WorkerId = WorkerId(1);
    const OTHER: WorkerId = WorkerId(2);

    /// A state server after a first round in which the workers took 30, 100 and 90.
    fn second_round(mode: QueryMode) -> StateServer {
        let mut server = StateServer::new(mode, Span(1));
        [FAST, SLOW, OTHER].into_iter().for_each(|worker| server.start(Time(0), worker));
        for (worker, compute) in [(FAST, 30), (OTHER, 90), (SLOW, 100)] {
            assert!(server.query(Time(compute), worker, 1, Span(compute)).ready, "no times are known yet");
        }
        [FAST, SLOW, OTHER].into_iter().for_each(|worker| server.start(Time(1000), worker));
        server
    }

    #[test]
    fn fast_workers_continue_and_slow_workers_do_not() {
        let mut server = second_round(QueryMode::Blocking);
        let mut ask = |now, worker, iterations, compute| server.query(Time(now), worker, iterations, Span(compute));
        let answer = ask(1030, FAST, 1, 30);
        assert_eq!(answer, QueryAnswer { ready: false, iteration: Span(30), slowest: Some((SLOW, Span(70))) });
        assert!(!ask(1060, FAST, 2, 30).ready);
        assert!(ask(1090, OTHER, 1, 90).ready);
        assert!(ask(1090, FAST, 3, 30).ready);
        assert!(ask(1100, SLOW, 1, 100).ready);
        // The answer was lost and the query is repeated: the answer is the same.
        assert!(ask(1150, FAST, 3, 30).ready);
    }

    #[test]
    fn when_the_slowest_leaves_the_next_slowest_counts() {
        let mut server = second_round(QueryMode::Blocking);
        assert_eq!(server.query(Time(1030), FAST, 1, Span(30)).slowest, Some((SLOW, Span(70))));
        server.leave(SLOW);
        assert_eq!(server.query(Time(1060), FAST, 2, Span(30)).slowest, Some((OTHER, Span(30))));
        assert!(server.query(Time(1060), OTHER, 1, Span(30)).ready, "the other worker was faster this time");
        assert_eq!(server.query(Time(1090), FAST, 2, Span(30)).slowest, None);
    }

    #[test]
    fn new_and_overdue_workers_do_not_make_others_continue() {
        let mut server = second_round(QueryMode::Blocking);
        server.leave(SLOW);
        server.leave(OTHER);
        server.start(Time(1050), WorkerId(9));
        assert!(server.query(Time(1060), FAST, 1, Span(30)).ready);
        let mut server = second_round(QueryMode::Blocking);
        assert!(server.query(Time(1500), FAST, 1, Span(30)).ready);
    }

    #[test]
    fn the_time_around_an_iteration_counts() {
        let mut server = StateServer::new(QueryMode::NonBlocking, Span(0));
        [FAST, SLOW].into_iter().for_each(|worker| server.start(Time(0), worker));
        server.query(Time(50), FAST, 1, Span(30));
        server.query(Time(120), SLOW, 1, Span(100));
        [FAST, SLOW].into_iter().for_each(|worker| server.start(Time(200), worker));
        assert!(server.predicts_ready(Time(200), SLOW) && !server.predicts_ready(Time(200), FAST));
        // The worker continues at once, but gets the answer only after the round trip of 20.
        assert_eq!(server.query(Time(250), FAST, 1, Span(30)).iteration, Span(50));
        let answer = server.query(Time(280), FAST, 2, Span(30));
        assert_eq!(answer, QueryAnswer { ready: true, iteration: Span(50), slowest: Some((SLOW, Span(40))) });
        server.finish(Time(320), SLOW, Span(100));
        assert_eq!(server.query(Time(330), FAST, 3, Span(30)).slowest, None);
    }

    #[test]
    fn an_implausible_compute_time_does_no_harm() {
        let mut server = second_round(QueryMode::Blocking);
        // The compute time is longer than the time since the start.
        assert!(server.query(Time(1010), SLOW, 1, Span(u64::MAX)).ready);
        assert!(!server.query(Time(1030), FAST, 1, Span(30)).ready, "the other worker has not asked yet");
        assert!(server.query(Time(1095), FAST, 2, Span(30)).ready);
    }
}
