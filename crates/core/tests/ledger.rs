//! The ledger detects schemes that break its laws, and refuses invalid events.

use paceline_core::{
    Action, CommitRequest, CommitStep, Event, Law, Ledger, LedgerError, LocalLength, LocalWork, Question, Reason,
    Refusal, ReplicaStart, Report, SampleCounts, Scheme, Span, TaskId, Time, Turn, Until, Update, Version, Work,
    WorkerId,
};

type OnJoined = fn(&mut Turn<'_>, WorkerId);
type OnReported = fn(&mut Turn<'_>, &Update);

/// A scheme made of two functions. It does nothing when a worker leaves.
struct FunctionScheme<R>(OnJoined, R);

impl<R: Fn(&mut Turn<'_>, &Update) + Send> Scheme for FunctionScheme<R> {
    fn on_joined(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.0(turn, worker);
    }
    fn on_left(&mut self, _turn: &mut Turn<'_>, _worker: WorkerId) {}
    fn on_reported(&mut self, turn: &mut Turn<'_>, update: &Update) {
        self.1(turn, update);
    }
    fn on_timer(&mut self, turn: &mut Turn<'_>) {
        while let Some(worker) = turn.next_unsettled() {
            turn.assign(worker, 1, Reason::Free);
        }
    }
}

fn work(turn: &mut Turn<'_>, worker: WorkerId) {
    turn.assign(worker, 1, Reason::Joined);
}

fn ledger(on_joined: OnJoined, on_reported: impl Fn(&mut Turn<'_>, &Update) + Send + 'static) -> Ledger {
    Ledger::new(Box::new(FunctionScheme(on_joined, on_reported)))
}

const ZERO: WorkerId = WorkerId(0);
const ONE: WorkerId = WorkerId(1);

fn reported(worker: WorkerId, number: u64) -> Event {
    Event::Reported { task: TaskId { worker, number }, report: Report { compute: Span(1), ..Report::default() } }
}

/// Two workers join, then the first one reports. Returns the law that the scheme breaks.
fn law_broken(on_joined: OnJoined, on_reported: impl Fn(&mut Turn<'_>, &Update) + Send + 'static) -> Law {
    let mut ledger = ledger(on_joined, on_reported);
    let events = [Event::Joined { worker: ZERO }, Event::Joined { worker: ONE }, reported(ZERO, 0)];
    for event in events {
        match ledger.handle(Time(1), event) {
            Ok(_) => {}
            Err(LedgerError::Broken(broken)) => {
                assert!(broken.history.last().is_some(), "the error contains the history");
                return broken.law;
            }
            Err(LedgerError::Refused(refusal)) => panic!("{refusal}"),
        }
    }
    panic!("no law broken");
}

#[test]
fn each_broken_law_is_named() {
    let nothing: OnReported = |_, _| {};
    let task = TaskId { worker: ZERO, number: 0 };
    assert_eq!(law_broken(|_, _| {}, nothing), Law::LeftIdle { worker: ZERO });
    assert_eq!(law_broken(work, nothing), Law::LeftIdle { worker: ZERO });
    assert_eq!(
        law_broken(|turn, worker| turn.assign(worker, 0, Reason::Joined), nothing),
        Law::NoSamples { worker: ZERO }
    );
    assert_eq!(
        law_broken(|turn, _| turn.assign(WorkerId(7), 1, Reason::Joined), nothing),
        Law::AssignedToAbsent { worker: WorkerId(7) }
    );
    assert_eq!(law_broken(|turn, worker| turn.interrupt(worker, Reason::Superseded), nothing), {
        Law::NothingToInterrupt { worker: ZERO }
    });
    assert_eq!(law_broken(|turn, worker| turn.hold(worker, Until::Commit, Reason::Contributed), nothing), {
        Law::WaitsForNothing { worker: ZERO, until: Until::Commit }
    });
    assert_eq!(law_broken(|turn, worker| turn.hold(worker, Until::Timer, Reason::Contributed), nothing), {
        Law::WaitsForNothing { worker: ZERO, until: Until::Timer }
    });
    assert_eq!(
        law_broken(
            |turn, worker| {
                work(turn, worker);
                turn.hold(worker, Until::Commit, Reason::Contributed);
            },
            nothing
        ),
        Law::HeldWhileNotIdle { worker: ZERO }
    );
    assert_eq!(
        law_broken(|turn, _| turn.wake(Span::ZERO, Reason::Joined), nothing),
        Law::TimerInThePast { at: Time(1), now: Time(1) }
    );
    assert_eq!(law_broken(work, |turn, _| turn.commit(CommitRequest::of(&[]), Reason::OnArrival)), Law::EmptyCommit);
    assert_eq!(
        law_broken(work, |turn, update| {
            turn.commit(CommitRequest::of(&[update.task]), Reason::OnArrival);
            turn.discard(update.task, Reason::OnArrival);
        }),
        Law::NothingToSettle { task }
    );
    assert_eq!(
        law_broken(work, |turn, update| turn.commit(CommitRequest::of(&[update.task, update.task]), Reason::OnArrival)),
        Law::NothingToSettle { task }
    );
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let broken = law_broken(work, move |turn, update| {
            turn.commit(CommitRequest::weighted(&[(update.task, weight)]), Reason::OnArrival);
        });
        assert!(matches!(broken, Law::BadWeight { task: bad, .. } if bad == task), "{broken}");
    }
    for factor in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let broken = law_broken(work, move |turn, update| {
            turn.commit(CommitRequest::of(&[update.task]).rate_factor(factor), Reason::OnArrival);
        });
        assert!(matches!(broken, Law::BadRateFactor { .. }), "{broken}");
    }
    // A worker may wait for another one that works, but not for itself.
    assert_eq!(
        law_broken(work, |turn, _| turn.hold(ZERO, Until::Worker(ZERO), Reason::Contributed)),
        Law::WaitsForNothing { worker: ZERO, until: Until::Worker(ZERO) }
    );
}

#[test]
fn a_scheme_chooses_weights_and_a_factor_on_the_rate() {
    let mut ledger = ledger(work, |turn, update| {
        if update.task.worker == ONE {
            let [zero, one] = [ZERO, ONE].map(|worker| TaskId { worker, number: 0 });
            let request = CommitRequest::weighted(&[(one, 3.0), (zero, 1.0)]).rate_factor(0.5);
            turn.commit(request, Reason::own_value("three to one", 3.0));
        }
        while let Some(worker) = turn.next_unsettled() {
            turn.assign(worker, 1, Reason::own("more"));
        }
    });
    for event in [Event::Joined { worker: ZERO }, Event::Joined { worker: ONE }, reported(ZERO, 0)] {
        ledger.handle(Time(1), event).unwrap();
    }
    let decision = ledger.handle(Time(1), reported(ONE, 0)).unwrap()[0].clone();
    let Action::Commit(commit) = &decision.action else { panic!("{decision:?}") };
    let shares: Vec<_> = commit.updates.iter().map(|share| (share.task.worker, share.weight)).collect();
    assert_eq!(shares, [(ZERO, 0.25), (ONE, 0.75)], "by rank, scaled to add up to one");
    assert_eq!((commit.rate_factor, decision.reason.to_string()), (0.5, "three to one: 3".into()));
}

#[test]
fn invalid_events_are_refused_and_change_nothing() {
    let mut ledger = ledger(work, |turn, update| {
        turn.commit(CommitRequest::of(&[update.task]), Reason::OnArrival);
        turn.assign(update.task.worker, 1, Reason::Free);
    });
    let task = |number| TaskId { worker: ZERO, number };
    let mut handle = |now, event| ledger.handle(Time(now), event).map(<[_]>::len);
    let refused = |refusal: Refusal| Err(LedgerError::Refused(refusal));
    let committed = |version| Event::Committed { version: Version(version), aggregate: None };

    assert_eq!(handle(5, Event::Left { worker: ZERO }), refused(Refusal::NotJoined(ZERO)));
    assert_eq!(handle(5, Event::Joined { worker: ZERO }), Ok(1));
    assert_eq!(handle(5, Event::Joined { worker: ZERO }), refused(Refusal::AlreadyJoined(ZERO)));
    assert_eq!(handle(4, Event::Timer), refused(Refusal::OutOfOrder { now: Time(4), latest: Time(5) }));
    assert_eq!(handle(6, reported(ZERO, 3)), refused(Refusal::NotRunning(task(3))));
    assert!(matches!(handle(6, committed(1)), Err(LedgerError::Refused(Refusal::OutOfTurn { .. }))));
    assert_eq!(handle(6, reported(ZERO, 0)), Ok(2));
    assert!(matches!(handle(6, Event::Timer), Err(LedgerError::Refused(Refusal::OutOfTurn { .. }))));
    assert_eq!(handle(6, committed(1)), Ok(0));
    assert_eq!(handle(7, reported(ZERO, 0)), refused(Refusal::NotRunning(task(0))));
    assert_eq!(handle(8, Event::Left { worker: ZERO }), Ok(0));
    assert_eq!(handle(9, reported(ZERO, 1)), refused(Refusal::NotRunning(task(1))));
    assert_eq!(handle(9, Event::Joined { worker: ZERO }), Ok(1));
    assert_eq!((ledger.version(), ledger.live()), (Version(1), 1));
}

#[test]
fn only_a_running_task_can_be_late() {
    let mut ledger = ledger(work, |_, _| {});
    ledger.handle(Time::START, Event::Joined { worker: ZERO }).unwrap();
    let task = |number| TaskId { worker: ZERO, number };
    assert!(ledger.handle(Time::START, Event::Late { task: task(0) }).unwrap().is_empty(), "nothing follows");
    let refused = ledger.handle(Time::START, Event::Late { task: task(1) }).unwrap_err();
    assert!(matches!(refused, LedgerError::Refused(Refusal::NotRunning(_))), "{refused}");
}

#[test]
fn a_broken_update_of_the_last_commit_does_not_count() {
    // The second worker's report commits both updates, each in a commit of its own.
    let mut ledger = ledger(
        |turn, worker| turn.assign(worker, worker.0 + 1, Reason::Free),
        |turn, update| {
            if update.task.worker == ZERO {
                turn.hold(ZERO, Until::Commit, Reason::Contributed);
            } else {
                turn.commit(CommitRequest::of(&[TaskId { worker: ZERO, number: 0 }]), Reason::OnArrival);
                turn.commit(CommitRequest::of(&[update.task]), Reason::OnArrival);
                while let Some(worker) = turn.next_unsettled() {
                    turn.assign(worker, 1, Reason::Free);
                }
            }
        },
    );
    let one = WorkerId(1);
    let task = |worker| TaskId { worker, number: 0 };
    let committed = |version| Event::Committed { version: Version(version), aggregate: None };
    let not_committed = |worker| Err(LedgerError::Refused(Refusal::NotCommitted(task(worker))));
    let mut handle = |event| ledger.handle(Time(1), event).map(|decisions| decisions.len());
    for event in [Event::Joined { worker: ZERO }, Event::Joined { worker: one }, reported(ZERO, 0)] {
        handle(event).unwrap();
    }
    assert_eq!(handle(Event::Broken { task: task(ZERO) }), not_committed(ZERO), "not committed yet");
    handle(reported(one, 0)).unwrap();
    assert_eq!(handle(Event::Broken { task: task(ZERO) }), not_committed(ZERO), "not confirmed yet");
    handle(committed(1)).unwrap();
    assert_eq!(handle(Event::Broken { task: task(one) }), not_committed(one), "of the next commit");
    assert_eq!(handle(Event::Broken { task: task(ZERO) }), Ok(0), "although another commit is not confirmed yet");
    assert_eq!(handle(Event::Broken { task: task(ZERO) }), not_committed(ZERO), "a second time");
    handle(committed(2)).unwrap();
    let samples = ledger.samples();
    assert_eq!((samples.used, samples.dropped, samples.issued, samples.outstanding), (2, 1, 5, 2));
}

#[test]
fn a_timer_ends_the_waits_for_it() {
    let mut ledger = ledger(
        |turn, worker| {
            turn.wake(Span(10), Reason::Joined);
            turn.hold(worker, Until::Timer, Reason::Contributed);
        },
        |_, _| {},
    );
    ledger.handle(Time(0), Event::Joined { worker: ZERO }).unwrap();
    assert_eq!(ledger.next_timer(), Some(Time(10)));
    assert_eq!(ledger.waits_for(ZERO), Some(Until::Timer));
    assert_eq!(ledger.handle(Time(10), Event::Timer).unwrap().len(), 1);
    assert_eq!((ledger.next_timer(), ledger.waits_for(ZERO)), (None, None));
}

type OnAsked = fn(&mut Turn<'_>, WorkerId);

/// A scheme that assigns local iterations of one sample each and averages the updates.
fn average(update: &Update) -> CommitRequest {
    CommitRequest::of(&[update.task]).step(CommitStep::Average { rate: 1.0, share: 1.0 })
}

struct LocalScheme(LocalLength, OnAsked);

impl LocalScheme {
    fn assign(&self, turn: &mut Turn<'_>, worker: WorkerId) {
        turn.assign_work(
            worker,
            Work::Local(LocalWork { start: ReplicaStart::Model, length: self.0 }),
            1,
            Reason::Free,
        );
    }
}

impl Scheme for LocalScheme {
    fn on_joined(&mut self, turn: &mut Turn<'_>, worker: WorkerId) {
        self.assign(turn, worker);
    }
    fn on_left(&mut self, _turn: &mut Turn<'_>, _worker: WorkerId) {}
    fn on_reported(&mut self, turn: &mut Turn<'_>, update: &Update) {
        turn.commit(average(update), Reason::OnArrival);
        self.assign(turn, update.task.worker);
    }
    fn on_asked(&mut self, turn: &mut Turn<'_>, question: &Question) {
        self.1(turn, question.task.worker);
    }
}

fn asked(number: u64, iterations: u32) -> Event {
    Event::Asked {
        task: TaskId { worker: ZERO, number },
        iterations,
        report: Report { compute: Span(1), ..Report::default() },
    }
}

/// Returns the law that an answer breaks.
fn law_broken_by_answer(length: LocalLength, answer: OnAsked) -> Law {
    let mut ledger = Ledger::new(Box::new(LocalScheme(length, answer)));
    ledger.handle(Time(0), Event::Joined { worker: ZERO }).unwrap();
    ledger.handle(Time(0), Event::Joined { worker: ONE }).unwrap();
    match ledger.handle(Time(1), asked(0, 1)) {
        Err(LedgerError::Broken(broken)) => broken.law,
        other => panic!("no law broken: {other:?}"),
    }
}

#[test]
fn answers_that_break_a_law_are_detected() {
    let nothing: OnAsked = |_, _| {};
    assert_eq!(law_broken_by_answer(LocalLength::AskAndWait, nothing), Law::Unanswered { worker: ZERO });
    for answer in
        [(|turn, _| turn.continue_task(ONE, Reason::Free)) as OnAsked, |turn, _| turn.collect(ONE, Reason::Free)]
    {
        assert_eq!(law_broken_by_answer(LocalLength::AskAndContinue, answer), Law::NothingAsked { worker: ONE });
    }
    let twice: OnAsked = |turn, worker| {
        turn.continue_task(worker, Reason::Free);
        turn.continue_task(worker, Reason::Free);
    };
    assert_eq!(law_broken_by_answer(LocalLength::AskAndWait, twice), Law::NothingAsked { worker: ZERO });
    let more: OnAsked = |turn, worker| turn.assign(worker, 1, Reason::Free);
    assert_eq!(law_broken_by_answer(LocalLength::AskAndWait, more), Law::QueuedBehindQuestions { worker: ZERO });
    let none: OnAsked = |turn, _| turn.assign_work(WorkerId(1), Work::iterations(0), 1, Reason::Free);
    assert_eq!(law_broken_by_answer(LocalLength::AskAndWait, none), Law::NoSamples { worker: ONE });
    let task = TaskId { worker: ZERO, number: 0 };
    assert_eq!(
        law_broken(work, |turn, update| turn.commit(average(update), Reason::Free)),
        Law::WrongStep { task, local: false }
    );
}

#[test]
fn questions_follow_each_iteration_and_reports_follow_a_collect() {
    let answer: OnAsked = |turn, worker| {
        if turn.now() < Time(5) { turn.continue_task(worker, Reason::Free) } else { turn.collect(worker, Reason::Free) }
    };
    for length in [LocalLength::AskAndWait, LocalLength::AskAndContinue] {
        let mut ledger = Ledger::new(Box::new(LocalScheme(length, answer)));
        let mut handle = |now, event| ledger.handle(Time(now), event).map(<[_]>::to_vec);
        let task = TaskId { worker: ZERO, number: 0 };
        assert_eq!(handle(0, asked(0, 1)), Err(LedgerError::Refused(Refusal::NotRunning(task))));
        handle(0, Event::Joined { worker: ZERO }).unwrap();
        let mut refused = |now, event| match handle(now, event) {
            Err(LedgerError::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        };
        assert!(matches!(refused(0, asked(0, 0)), Refusal::UnexpectedQuestion { iterations: 0, .. }));
        assert!(matches!(refused(0, asked(0, 2)), Refusal::UnexpectedQuestion { iterations: 2, .. }));
        assert_eq!(refused(0, reported(ZERO, 0)), Refusal::NotCollected(task));
        let answers = usize::from(length == LocalLength::AskAndWait);
        assert_eq!(handle(1, asked(0, 1)).unwrap().len(), answers);
        // The answer was lost, so the question is repeated.
        assert_eq!(handle(2, asked(0, 1)).unwrap().len(), answers);
        assert_eq!(handle(3, asked(0, 2)).unwrap().len(), answers);
        assert_eq!(handle(6, asked(0, 2)).unwrap()[0].action, Action::Collect { task });
        assert_eq!(handle(7, reported(ZERO, 0)).unwrap().len(), 2);
        // The third batch was never started, or was stopped.
        assert_eq!(
            ledger.samples(),
            SampleCounts { issued: 4, used: 2, stale: 0, dropped: 0, reissued: 1, outstanding: 1 }
        );
    }
}

#[test]
fn an_update_with_newer_work_queued_behind_it_is_never_committed() {
    // The second worker's update makes a new version, which is queued for the first worker behind its present task.
    let on_reported = |turn: &mut Turn<'_>, update: &Update| {
        turn.commit(CommitRequest::of(&[update.task]), Reason::OnArrival);
        turn.assign(ZERO, 1, Reason::NewVersion);
        if turn.is_idle(ONE) {
            turn.assign(ONE, 1, Reason::NewVersion);
        }
    };
    let mut ledger = ledger(work, on_reported);
    for event in [Event::Joined { worker: ZERO }, Event::Joined { worker: ONE }, reported(ONE, 0)] {
        ledger.handle(Time(1), event).unwrap();
    }
    ledger.handle(Time(1), Event::Committed { version: Version(1), aggregate: None }).unwrap();
    match ledger.handle(Time(2), reported(ZERO, 0)) {
        Err(LedgerError::Broken(broken)) => {
            assert_eq!(broken.law, Law::Withheld { task: TaskId { worker: ZERO, number: 0 } });
        }
        other => panic!("{other:?}"),
    }
}
