//! A view is compared with what is counted in another way.

use std::collections::VecDeque;

use paceline_core::{
    Action, Assignment, Commit, CommitStep, Ledger, Reason, Report, SchemeSpec, Setup, Share, Span, TaskId, Version,
    Work, WorkerId,
};
use paceline_runtime::Monitor;
use serde_json::Value;

use super::*;
use crate::page::PageRun;

const WORKERS: u32 = 4;

/// A run of a scheme on four workers, the first of which is slow, for so many reports. Returns also the ledger.
fn run(scheme: &str, reports: u64, kept: Kept, mut after_turn: impl FnMut(&mut RunView)) -> (RunView, Ledger) {
    let (spec, setup): (SchemeSpec, _) = (scheme.parse().unwrap(), Setup::new(WORKERS as usize, 8));
    let mut ledger = Ledger::new(spec.build(&setup).unwrap());
    let mut view = RunView::new(&EventLogHeader::new(spec, &setup), ViewLimits::new(WORKERS as usize, 1, kept));
    let mut monitor = Monitor::new(&setup);
    let mut busy: Vec<Option<(TaskId, Time)>> = vec![None; WORKERS as usize];
    let mut queued: Vec<Option<TaskId>> = vec![None; WORKERS as usize];
    let length = |task: TaskId| 10_000_000 * if task.worker.0 == 0 { 3 } else { 1 } + u64::from(task.worker.0) * 1000;
    let mut events: VecDeque<Event> = (0..WORKERS).map(|worker| Event::Joined { worker: WorkerId(worker) }).collect();
    let mut now = Time(0);
    for _ in 0..reports {
        while let Some(event) = events.pop_front() {
            let decisions = ledger.handle(now, event.clone()).unwrap().to_vec();
            view.on_turn(now, &event, &decisions);
            if let Some(iteration) = monitor.observe(now, &event, &decisions) {
                view.add_iteration(iteration.iteration, iteration.time, iteration.waited_for as u64, Some(1.0), None);
            }
            for decision in &decisions {
                match decision.action {
                    Action::Assign(Assignment { task, .. }) if busy[task.worker.index()].is_none() => {
                        busy[task.worker.index()] = Some((task, now + Span(length(task))));
                    }
                    Action::Assign(Assignment { task, .. }) => queued[task.worker.index()] = Some(task),
                    Action::Interrupt { task } => {
                        let next = queued[task.worker.index()].take();
                        busy[task.worker.index()] = next.map(|task| (task, now + Span(length(task))));
                    }
                    Action::Commit(Commit { version, .. }) => {
                        events.push_front(Event::Committed { version, aggregate: None });
                    }
                    _ => {}
                }
            }
        }
        after_turn(&mut view);
        let (task, end) = busy.iter().flatten().min_by_key(|(_, end)| *end).copied().expect("somebody works");
        now = end;
        let next = queued[task.worker.index()].take();
        busy[task.worker.index()] = next.map(|task| (task, now + Span(length(task))));
        let compute = Span(10_000_000 * if task.worker.0 == 0 { 3 } else { 1 });
        events.push_back(Event::Reported { task, report: Report { compute, ..Report::default() } });
    }
    (view, ledger)
}

fn json(data: &ViewData) -> Value {
    serde_json::to_value(data).unwrap()
}

#[test]
fn samples_are_those_of_the_ledger() {
    for scheme in ["bsp", "backup:k=3,dispatch=push-wait", "asp", "ssp"] {
        let (view, ledger) = run(scheme, 500, Kept::Newest, |_| {});
        let (found, expected) = (view.members.samples(), ledger.samples());
        assert_eq!((found.used, found.lost), (expected.used, expected.stale + expected.dropped), "{scheme}");
    }
}

#[test]
fn times_add_up_however_much_is_merged() {
    let (mut view, ..) = run("bsp", 20_000, Kept::Newest, |_| {});
    view.finish_timeline();
    let whole = view.time().seconds();
    for worker in 0..WORKERS as usize {
        let totals = view.timeline.totals[worker];
        assert!((totals.iter().sum::<f64>() - whole).abs() < 1e-6 * whole, "worker {worker}: {totals:?}, {whole} s");
        for (found, expected) in view.timeline.shares.totals(worker).iter().zip(totals) {
            assert!((found - expected).abs() < 1e-3 * whole, "worker {worker}: {found} {expected}");
        }
    }
    let headline = view.headline();
    assert_eq!((headline.stragglers.as_slice(), headline.is_costly), (&[0][..], true));
    // Three of four workers wait for two thirds of the time.
    assert!(
        (headline.waiting - 0.5).abs() < 0.01 && headline.cost.starts_with("Waiting for it took 50 %"),
        "{headline:?}"
    );
}

#[test]
fn the_memory_of_a_long_run_is_bounded() {
    let length = |reports| json(&run("asp", reports, Kept::Newest, |_| {}).0.whole(Time(1))).to_string().len();
    let (short, long) = (length(60_000), length(240_000));
    assert!((200_000..3_000_000).contains(&long) && long < short + short / 4, "{short} {long}");
}

/// What the page's script makes of a list: items before `first` are forgotten, those from `from` on are replaced.
fn splice(known: &mut (u64, Vec<Value>), data: &Value, items: Vec<Value>) {
    let [first, from] = ["first", "from"].map(|name| data[name].as_u64().unwrap());
    known.1.truncate((from.saturating_sub(known.0)) as usize);
    known.1.drain(..((first.saturating_sub(known.0)) as usize).min(known.1.len()));
    known.1.extend(items);
    known.0 = first;
}

#[test]
fn changes_lead_to_the_whole() {
    // Segments in seconds, as the script reads them: a page that listens must have what a new one gets.
    let segments = |view: &Value, (_, data): (usize, &Value)| {
        let (tick, mut at) = (view["tick"].as_f64().unwrap(), data["items"][0].as_i64().unwrap());
        let numbers: Vec<i64> =
            data["items"].as_array().unwrap()[1..].iter().map(|one| one.as_i64().unwrap()).collect();
        let segment = |numbers: &[i64]| {
            at += numbers[0];
            serde_json::json!([(at as f64 * tick * 1000.0).round(), numbers[1], view["reasons"][numbers[2] as usize]])
        };
        numbers.chunks(3).map(segment).collect::<Vec<Value>>()
    };
    let mut known = vec![(0, Vec::new()); WORKERS as usize];
    let mut shares = vec![String::new(); WORKERS as usize];
    let mut take = |known: &mut Vec<(u64, Vec<Value>)>, data: &Value| {
        for entry in data["segments"].as_array().unwrap() {
            let worker = entry[0].as_u64().unwrap() as usize;
            splice(&mut known[worker], &entry[1], segments(data, (worker, &entry[1])));
        }
        let from = 5 * data["shares"]["from"].as_u64().unwrap() as usize;
        for (worker, text) in data["shares"]["workers"].as_array().unwrap().iter().enumerate() {
            shares[worker].truncate(from);
            shares[worker] += text.as_str().unwrap();
        }
    };
    let mut turns = 0;
    let (view, ..) = run("backup:k=3,dispatch=push-wait", 3_000, Kept::Newest, |view| {
        turns += 1;
        if turns % 37 == 0 {
            let now = view.time();
            take(&mut known, &json(&view.changes(now)));
        }
    });
    let mut view = view;
    let now = view.time();
    take(&mut known, &json(&view.changes(now)));
    let mut anew = vec![(0, Vec::new()); WORKERS as usize];
    let heard = shares.clone();
    shares.iter_mut().for_each(String::clear);
    let whole = json(&view.whole(now));
    for entry in whole["segments"].as_array().unwrap() {
        let worker = entry[0].as_u64().unwrap() as usize;
        splice(&mut anew[worker], &entry[1], segments(&whole, (worker, &entry[1])));
    }
    assert!(known.iter().all(|(_, list)| list.len() > 100));
    for ((known_first, known), (first, anew)) in known.iter().zip(&anew) {
        assert_eq!((known_first, known.len()), (first, anew.len()));
        // Times were rounded to ticks of other lengths.
        let end = |segment: &Value| segment[0].as_f64().unwrap();
        let differs = |(one, other): &(&Value, &Value)| {
            (end(one) - end(other)).abs() > 1.0 || one[1] != other[1] || one[2] != other[2]
        };
        assert_eq!(known.iter().zip(anew).find(differs), None);
    }
    let encoded: Vec<&str> =
        whole["shares"]["workers"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert_eq!(heard, encoded);
}

#[test]
fn who_follows_knows_what_a_new_reader_gets() {
    let read = |data: ViewData| -> ViewData { serde_json::from_value(json(&data)).unwrap() };
    let (spec, setup): (SchemeSpec, _) = ("bsp".parse().unwrap(), Setup::new(WORKERS as usize, 8));
    let header = EventLogHeader::new(spec, &setup);
    let page = |data| SeenRun::new(PageRun::new("first".into(), &header, String::new(), read(data)));
    let mut followed: Option<SeenRun> = None;
    let mut turns = 0;
    let (mut view, ..) = run("backup:k=3,dispatch=push-wait", 3_000, Kept::Newest, |view| {
        turns += 1;
        if turns % 37 == 0 {
            let now = view.time();
            let changes = view.changes(now);
            match &mut followed {
                None => followed = Some(page(view.whole(now))),
                Some(run) => run.apply(read(changes)),
            }
        }
    });
    let now = view.time();
    let mut followed = followed.unwrap();
    followed.apply(read(view.changes(now)));
    let anew = page(view.whole(now));
    let workers = |run: &SeenRun| {
        // The slowness of a worker of which nothing else is new may be older.
        run.workers().map(|worker| SeenWorker { slowness: None, ..worker.clone() }).collect::<Vec<_>>()
    };
    assert_eq!(workers(&followed), workers(&anew));
    assert_eq!((followed.samples, followed.iterations), (anew.samples, anew.iterations));
    let points = |run: &SeenRun| run.curves("training loss").map(|curve| curve.points.len()).sum::<usize>();
    assert!(points(&anew) > 50 && points(&followed) == points(&anew));
    let mut known = 0;
    for worker in 0..WORKERS as usize {
        for cell in 0..100 {
            let [from, to] = [cell, cell + 1].map(|cell| f64::from(cell) / 100.0 * now.seconds());
            let (one, other) = (followed.mostly(worker, from, to), anew.mostly(worker, from, to));
            known += usize::from(one.is_some() && one == other);
        }
    }
    // Times were rounded to ticks of other lengths, so that a tie may be seen in two ways.
    assert!(known >= 98 * WORKERS as usize, "{known}");
}

#[test]
fn a_week_of_a_thousand_workers_stays_small() {
    const ALL: u32 = 1000;
    // Every worker reports about every three minutes; now and then one leaves and comes back.
    const REPORTS: u64 = 3_400_000;
    const WEEK: u64 = 7 * 24 * 3600 * 1_000_000_000;
    let (spec, setup): (SchemeSpec, _) = ("asp".parse().unwrap(), Setup::new(ALL as usize, 8));
    let header = EventLogHeader::new(spec, &setup);
    let mut view = RunView::new(&header, ViewLimits::new(ALL as usize, 1, Kept::Newest));
    let assignment = |worker, number| Assignment {
        task: TaskId { worker: WorkerId(worker), number },
        version: Version(number),
        work: Work::Gradient,
        samples: 8,
        offset: 8 * number,
        queued: false,
    };
    let assign = |worker, number| Decision {
        action: Action::Assign(assignment(worker, number)),
        reason: Reason::Stale { behind: number },
    };
    let mut numbers = vec![0; ALL as usize];
    for worker in 0..ALL {
        view.on_turn(Time(0), &Event::Joined { worker: WorkerId(worker) }, &[assign(worker, 0)]);
    }
    let (mut largest, mut first_day) = (0, 0);
    for count in 1..=REPORTS {
        let now = Time(WEEK / REPORTS * count);
        // Every worker once in a thousand reports, in another order every time.
        let worker = ((count * 387 + count / 1000) % u64::from(ALL)) as u32;
        let number = &mut numbers[worker as usize];
        let task = TaskId { worker: WorkerId(worker), number: *number };
        if count % 1009 == 0 {
            view.on_turn(now, &Event::Left { worker: WorkerId(worker) }, &[]);
            *number += 1;
            view.on_turn(now, &Event::Joined { worker: WorkerId(worker) }, &[assign(worker, *number)]);
            continue;
        }
        *number += 1;
        let report = Report { compute: Span(100_000_000_000), ..Report::default() };
        let updates = [Share { task, weight: 1.0 }].into_iter().collect();
        let commit = Commit { updates, version: Version(count), step: CommitStep::Optimizer, rate_factor: 1.0 };
        let step = Decision { action: Action::Commit(commit), reason: Reason::OnArrival };
        view.on_turn(now, &Event::Reported { task, report }, &[step, assign(worker, *number)]);
        view.add_iteration(count, now.seconds(), 1, Some(1.0 / count as f64), None);
        if count % (REPORTS / 70) == 0 {
            largest = largest.max(serde_json::to_string(&view.whole(now)).unwrap().len());
            assert!(serde_json::to_string(&view.changes(now)).unwrap().len() <= largest);
        }
        if count == REPORTS / 7 {
            first_day = largest;
        }
    }
    assert!(largest < 3_500_000 && largest < first_day + first_day / 4, "{first_day} {largest}");
    assert!(view.members.unsettled.len() <= ALL as usize && view.timeline.unsettled_tasks() <= ALL as usize);
}
