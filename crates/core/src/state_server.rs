//! ESync's state server: after each local iteration of a worker, is there time for one more?
//!
//! A round can end once everyone has done an iteration. Until the *slowest*, whose first one is expected to end last,
//! has done it, the others use the wait: a worker goes on as long as another iteration of its own ends sooner.
//! Only the coordinator's clock and lengths of time are used, never a worker's clock.

use std::collections::BTreeSet;

use crate::{Span, Time, WorkerId};

/// How workers ask (ESync, section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryMode {
    /// A worker waits for the answer.
    Blocking,
    /// A worker goes on while its question is under way, and drops what it is at when told that it is ready.
    NonBlocking,
}

/// What is known of a worker (Algorithm 2's record).
#[derive(Debug, Clone, Copy, Default)]
struct WorkerRecord {
    /// Local iterations done in this round.
    iterations: u32,
    /// Since when it has been at the present one; in non-blocking mode, at the first.
    since: Time,
    /// How long its last iteration took with everything around it: question and answer, in a round's first the model on
    /// its way. `None` before its very first.
    capability: Option<Span>,
    /// What is around it.
    overhead: Span,
    ready: bool,
}

/// An answer of the [`StateServer`] and what it rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryAnswer {
    /// Whether the worker is to send what it has; else it is to do one more iteration.
    pub ready: bool,
    /// How long one more would take.
    pub iteration: Span,
    /// The slowest of those that have not done an iteration, and how long it should still take; `None` if all have.
    pub slowest: Option<(WorkerId, Span)>,
}

/// Decides how many local iterations each worker does in a round (ESync, Algorithm 2).
///
/// Call [`start`](StateServer::start) for every worker when it is given a round's model,
/// [`query`](StateServer::query) when it asks, [`finish`](StateServer::finish) when it sends its update unasked, and
/// [`leave`](StateServer::leave) when it is gone. No round hangs: whoever asks is told to go on only while someone has
/// yet to do a first iteration of the round, and should need longer for that.
///
/// ```
/// use paceline_core::{QueryMode, Span, StateServer, Time, WorkerId};
///
/// let (fast, slow) = (WorkerId(0), WorkerId(1));
/// let mut server = StateServer::new(QueryMode::Blocking, Span(1));
/// // In the first round nothing is known, and everyone does one iteration.
/// server.start(Time(0), fast);
/// server.start(Time(0), slow);
/// assert!(server.query(Time(30), fast, 1, Span(30)).ready);
/// assert!(server.query(Time(100), slow, 1, Span(100)).ready);
/// // In the second the fast one does as many as fit into the slow one's.
/// server.start(Time(100), fast);
/// server.start(Time(100), slow);
/// assert!(!server.query(Time(130), fast, 1, Span(30)).ready);
/// assert!(!server.query(Time(160), fast, 2, Span(30)).ready);
/// assert!(server.query(Time(190), fast, 3, Span(30)).ready);
/// ```
#[derive(Debug)]
pub struct StateServer {
    mode: QueryMode,
    margin: Span,
    records: Vec<WorkerRecord>,
    /// Those that have done no iteration in this round, by when they should have.
    awaited: BTreeSet<(Time, WorkerId)>,
}

impl StateServer {
    /// A state server without workers. `margin` is added to the time that an iteration takes (the paper's ε in
    /// Algorithm 2): the larger, the sooner workers stop.
    pub fn new(mode: QueryMode, margin: Span) -> Self {
        StateServer { mode, margin, records: Vec::new(), awaited: BTreeSet::new() }
    }

    /// The worker is given the model of a round. Someone new has no history: it counts as done at any moment.
    pub fn start(&mut self, now: Time, worker: WorkerId) {
        if worker.index() >= self.records.len() {
            self.records.resize(worker.index() + 1, WorkerRecord::default());
        }
        self.stop_awaiting(worker);
        let record = &mut self.records[worker.index()];
        (record.iterations, record.since, record.ready) = (0, now, false);
        self.awaited.insert((due(record), worker));
    }

    /// The worker is gone, and with it what is known of it.
    pub fn leave(&mut self, worker: WorkerId) {
        self.stop_awaiting(worker);
        if let Some(record) = self.records.get_mut(worker.index()) {
            *record = WorkerRecord::default();
        }
    }

    /// The worker, which was [started](StateServer::start), has done so many iterations in this round, the last in
    /// `compute` by its own stopwatch, and asks what to do. A question that was asked before is answered anew.
    pub fn query(&mut self, now: Time, worker: WorkerId, iterations: u32, compute: Span) -> QueryAnswer {
        if iterations > self.records[worker.index()].iterations {
            self.note(now, worker, iterations, compute);
        }
        let record = self.records[worker.index()];
        let iteration = record.capability.unwrap_or_default();
        let slowest = self.awaited.last().map(|&(due, slowest)| (slowest, due.since(now)));
        // Algorithm 2, line 9; who is overdue may be done at any moment.
        let ready = record.ready || slowest.is_none_or(|(_, rest)| iteration + self.margin > rest);
        let record = &mut self.records[worker.index()];
        record.ready = ready;
        if self.mode == QueryMode::Blocking {
            record.since = now;
        }
        QueryAnswer { ready, iteration, slowest }
    }

    /// The worker, which was to do one iteration without asking, has done it in `compute`.
    pub fn finish(&mut self, now: Time, worker: WorkerId, compute: Span) {
        self.note(now, worker, 1, compute);
        self.records[worker.index()].ready = true;
    }

    /// Whether the answer to the worker's first question of the round that begins now is known already: it will be
    /// ready then. Asking would only cost it the time until the answer comes.
    pub fn predicts_ready(&self, now: Time, worker: WorkerId) -> bool {
        let Some(iteration) = self.records[worker.index()].capability else { return false };
        let rest = self.awaited.last().map_or(Span::ZERO, |&(due, _)| due.since(now + iteration));
        iteration + self.margin > rest
    }

    fn note(&mut self, now: Time, worker: WorkerId, iterations: u32, compute: Span) {
        self.stop_awaiting(worker);
        let record = &mut self.records[worker.index()];
        // Later questions of a worker that does not wait say nothing of how long an answer takes.
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

/// When the iteration should be done.
fn due(record: &WorkerRecord) -> Time {
    record.since + record.capability.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: WorkerId = WorkerId(0);
    const SLOW: WorkerId = WorkerId(1);
    const OTHER: WorkerId = WorkerId(2);

    /// After a first round in which the workers took 30, 100 and 90.
    fn second_round(mode: QueryMode) -> StateServer {
        let mut server = StateServer::new(mode, Span(1));
        [FAST, SLOW, OTHER].into_iter().for_each(|worker| server.start(Time(0), worker));
        for (worker, compute) in [(FAST, 30), (OTHER, 90), (SLOW, 100)] {
            assert!(server.query(Time(compute), worker, 1, Span(compute)).ready, "nothing is known yet");
        }
        [FAST, SLOW, OTHER].into_iter().for_each(|worker| server.start(Time(1000), worker));
        server
    }

    #[test]
    fn the_fast_use_the_wait_and_the_slow_do_not_wait_for_each_other() {
        let mut server = second_round(QueryMode::Blocking);
        let mut ask = |now, worker, iterations, compute| server.query(Time(now), worker, iterations, Span(compute));
        let answer = ask(1030, FAST, 1, 30);
        assert_eq!(answer, QueryAnswer { ready: false, iteration: Span(30), slowest: Some((SLOW, Span(70))) });
        assert!(!ask(1060, FAST, 2, 30).ready);
        assert!(ask(1090, OTHER, 1, 90).ready);
        assert!(ask(1090, FAST, 3, 30).ready);
        assert!(ask(1100, SLOW, 1, 100).ready);
        // A reply is lost and the question repeated: the answer stands.
        assert!(ask(1150, FAST, 3, 30).ready);
    }

    #[test]
    fn when_the_slowest_dies_or_another_becomes_slowest_the_rest_goes_by_the_next() {
        let mut server = second_round(QueryMode::Blocking);
        assert_eq!(server.query(Time(1030), FAST, 1, Span(30)).slowest, Some((SLOW, Span(70))));
        server.leave(SLOW);
        assert_eq!(server.query(Time(1060), FAST, 2, Span(30)).slowest, Some((OTHER, Span(30))));
        assert!(server.query(Time(1060), OTHER, 1, Span(30)).ready, "the other was faster this time");
        assert_eq!(server.query(Time(1090), FAST, 2, Span(30)).slowest, None);
    }

    #[test]
    fn whoever_joins_in_the_middle_or_is_overdue_keeps_nobody_going() {
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
        // It goes on at once, yet will hear the answer only after the round trip of 20.
        assert_eq!(server.query(Time(250), FAST, 1, Span(30)).iteration, Span(50));
        let answer = server.query(Time(280), FAST, 2, Span(30));
        assert_eq!(answer, QueryAnswer { ready: true, iteration: Span(50), slowest: Some((SLOW, Span(40))) });
        server.finish(Time(320), SLOW, Span(100));
        assert_eq!(server.query(Time(330), FAST, 3, Span(30)).slowest, None);
    }

    #[test]
    fn nonsense_of_a_worker_does_no_harm() {
        let mut server = second_round(QueryMode::Blocking);
        // It claims to compute longer than it was away, or for ever.
        assert!(server.query(Time(1010), SLOW, 1, Span(u64::MAX)).ready);
        assert!(!server.query(Time(1030), FAST, 1, Span(30)).ready, "the other is still awaited");
        assert!(server.query(Time(1095), FAST, 2, Span(30)).ready);
    }
}
