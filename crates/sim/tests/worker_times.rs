//! The metrics of a run keep what they need of each worker's activity. Here they are compared with the whole of it.

mod common;

use std::path::Path;

use paceline_core::{ActivityChange, Decision, Event, Report, Span, Time, WorkerActivities, WorkerId};
use paceline_runtime::{Observer, WorkerTimes};
use paceline_sim::Script;

use common::timing;

/// One worker's times, from changes of its activity.
#[derive(Debug, Clone, Default)]
struct TimesOfWorker {
    present_since: Option<Time>,
    last_report: Time,
    present: Span,
    idle: Span,
    computing: Span,
    querying: Span,
    samples: u64,
}

/// The times of all workers, as a view on their activities.
#[derive(Default)]
struct TimesByActivity {
    activities: WorkerActivities,
    workers: Vec<TimesOfWorker>,
    now: Time,
}

impl TimesOfWorker {
    fn end_idle(&mut self, since: Option<Time>, now: Time) {
        if let Some(since) = since.filter(|&since| since < now) {
            self.idle += now.since(since);
            self.last_report = now;
        }
    }

    fn on_report(&mut self, now: Time, report: &Report) {
        self.last_report = now;
        self.computing += report.compute;
        self.querying += report.querying;
    }
}

impl Observer for TimesByActivity {
    fn on_turn(&mut self, now: Time, event: &Event, decisions: &[Decision]) {
        self.now = now;
        let TimesByActivity { activities, workers, .. } = self;
        let reported = match event {
            Event::Joined { worker } if worker.index() >= workers.len() => {
                workers.resize_with(worker.index() + 1, TimesOfWorker::default);
                None
            }
            Event::Reported { task, report } | Event::Asked { task, report, .. } => {
                workers[task.worker.index()].on_report(now, report);
                Some(report)
            }
            _ => None,
        };
        activities.observe(now, event, decisions, |change| match change {
            ActivityChange::Joined(worker) => {
                let times = &mut workers[worker.index()];
                (times.present_since, times.last_report) = (Some(now), now);
            }
            ActivityChange::Left(worker, before) => {
                let times = &mut workers[worker.index()];
                times.end_idle(before.idle_since(), now);
                times.present += now.since(times.present_since.take().unwrap());
            }
            ActivityChange::Started { task, idle_since } => {
                workers[task.assignment.task.worker.index()].end_idle(idle_since, now);
            }
            ActivityChange::Reported(task) => {
                let samples = reported.and_then(|report| report.samples).unwrap_or(task.assignment.samples);
                let times = &mut workers[task.assignment.task.worker.index()];
                times.samples += u64::from(samples) * u64::from(task.reported_iterations());
            }
            ActivityChange::Interrupted(..) => {}
        });
    }
}

impl TimesByActivity {
    fn times(&self, now: Time) -> Vec<WorkerTimes> {
        let of_worker = |(worker, times): (u32, &TimesOfWorker)| {
            let idle_since = self.activities.of(WorkerId(worker)).idle_since();
            let accounted = if idle_since.is_some() { now } else { times.last_report };
            let present = times.present + times.present_since.map_or(Span::ZERO, |since| accounted.since(since));
            let waiting = times.idle + idle_since.map_or(Span::ZERO, |since| now.since(since));
            WorkerTimes {
                worker,
                computing: times.computing.seconds(),
                loading: 0.0,
                querying: times.querying.seconds(),
                communicating: (present - times.computing - times.querying - waiting).seconds(),
                waiting: waiting.seconds(),
                samples_per_second: times.samples as f64 / present.seconds(),
            }
        };
        (0..).zip(&self.workers).map(of_worker).collect()
    }
}

#[test]
fn the_metrics_agree_with_the_activities_under_every_scheme() {
    let script = "5 slow 0-2 4\n9 crash 3 1\n12 leave 5\n20 join 3\n25 join 5\n30 slow 0-2 1\n33 join 8\n";
    let schemes = [
        "bsp",
        "bsp:dispatch=pull",
        "backup:k=5,dispatch=push-interrupt",
        "backup:k=5,dispatch=push-wait",
        "asp",
        "ssp:staleness=2",
        "esync",
        "local-sgd:tau=3",
        "easgd",
        "lb-bsp",
    ];
    for scheme in schemes {
        let mut simulation = timing(scheme, 8, "pareto:0.5,1.5", "time=60");
        simulation.script = Script::of(Path::new("script"), script, 8).unwrap();
        simulation.network = Some("latency=0.01,bandwidth=1e6,bytes=1e4".parse().unwrap());
        let mut expected = TimesByActivity::default();
        let summary = simulation.run(&mut expected).unwrap().summary;
        assert!(expected.now > Time::START && summary.worker_times.len() == 9, "{scheme}");
        let end = Time::START + Span::from_seconds(summary.time);
        assert_eq!(summary.worker_times, expected.times(end), "{scheme}");
    }
}
