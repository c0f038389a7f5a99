//! A run is followed over HTTP, from a real server that goes away and comes back.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use paceline_core::{Event, Reason, Setup, Time, WorkerId};
use paceline_report::live::{FollowedRun, follow};
use paceline_report::view::SeenRun;
use paceline_runtime::{EventLogHeader, Monitor, Observer, SharedStatus, StatusServer, Summary};
use paceline_watch::{RunNews, RunSource};

/// A server of a run's page, and what tells it of the run.
fn serve(address: SocketAddr) -> (StatusServer, FollowedRun) {
    let header = EventLogHeader::new("bsp".parse().unwrap(), &Setup::new(2, 8));
    let (run, page) = follow("first".into(), header, String::new());
    let listener = TcpListener::bind(address).unwrap();
    let warn = |warning| panic!("{warning}");
    (StatusServer::start(listener, SharedStatus::default(), Some(Box::new(page)), warn).unwrap(), run)
}

fn source(server: &StatusServer) -> RunSource {
    server.address().to_string().parse().unwrap()
}

fn joined(worker: u32) -> Event {
    Event::Joined { worker: WorkerId(worker) }
}

/// What is known of a run that has ended.
fn summary() -> Summary {
    let text = r#"{"scheme": "bsp", "seed": 1, "workers": 2, "iterations": 1, "time": 4.0, "reached": true,
        "time_to_target": null, "stopped_by": "iterations=1", "loss": 0.25, "accuracy": null, "updates_committed": 1,
        "updates_discarded": 0, "tasks_interrupted": 0, "samples_used": 8, "samples_lost": 0, "idle_share": 0.0,
        "bytes": 0, "samples_per_second": 2.0, "bytes_per_second": 0.0}"#;
    serde_json::from_str(text).unwrap()
}

/// Takes in news until something is true of the run.
fn await_run(news: &Receiver<RunNews>, run: &mut SeenRun, is_true: impl Fn(&SeenRun) -> bool) {
    while !is_true(run) {
        match news.recv_timeout(Duration::from_secs(300)).expect("the run is followed") {
            RunNews::Run(page) => *run = SeenRun::new(*page),
            RunNews::Change(view) => run.apply(*view),
            RunNews::Lost(problem) => panic!("{problem}"),
        }
    }
}

#[test]
fn a_run_is_followed_through_a_restart_of_its_server_to_its_end() {
    let (server, mut run) = serve("127.0.0.1:0".parse().unwrap());
    let address = server.address();
    run.on_turn(Time(1_000_000_000), &joined(0), &[]);
    let mut seen = SeenRun::new(source(&server).read().unwrap());
    assert_eq!((seen.name.as_str(), seen.present, seen.expected), ("first", 1, 2));
    let news = source(&server).follow();
    run.on_turn(Time(2_000_000_000), &joined(1), &[]);
    await_run(&news, &mut seen, |run| run.present == 2);
    assert_eq!(seen.workers().count(), 2);
    drop(server);
    // What was under way may come first.
    let lost = std::iter::from_fn(|| news.recv().ok()).find(|news| matches!(news, RunNews::Lost(_)));
    assert!(lost.is_some());
    let (_server, mut run) = serve(address);
    run.on_turn(Time(3_000_000_000), &joined(0), &[]);
    let again = std::iter::from_fn(|| news.recv().ok()).find(|news| matches!(news, RunNews::Run(_)));
    let Some(RunNews::Run(page)) = again else { panic!("no run") };
    seen = SeenRun::new(*page);
    assert_eq!(seen.workers().count(), 1, "all of it is new");
    let iteration = Monitor::default().stepped(Time(3_500_000_000), 1, Some(0.25), Reason::OnArrival);
    run.on_iteration(&iteration, &Monitor::default());
    await_run(&news, &mut seen, |run| run.loss == Some(0.25));
    run.end(&summary());
    await_run(&news, &mut seen, |run| run.ended);
    assert!(news.recv().is_err(), "a run that has ended has no news");
}

#[test]
fn what_is_no_run_is_refused_with_what_to_do() {
    let refused = |text: &str| text.parse::<RunSource>().and_then(|source| source.read()).unwrap_err().to_string();
    // Nobody listens at a port that was free just now.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = refused(&free.to_string());
    assert!(
        error.starts_with(&format!("no answer from http://{free}: ")) && error.contains("watch the run at"),
        "{error}"
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = StatusServer::start(listener, SharedStatus::default(), None, |warning| panic!("{warning}")).unwrap();
    let error = refused(&server.address().to_string());
    assert!(error.contains("/view answers, but not as a run's page does: 404 Not Found"), "{error}");
    assert!(refused("nowhere").starts_with("'nowhere' is neither a run folder nor an address"));
    let folder = tempfile::tempdir().unwrap();
    assert!(refused(folder.path().to_str().unwrap()).contains("has no events.jsonl"));
}
