//! Runs whose parameters are in shards, in the processes of their workers.

mod common;

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::Duration;

use tempfile::tempdir;

use common::process::PacelineProcess;
use common::{json, refused};

/// A model of several blocks.
const MODEL: [&str; 8] = ["--model", "mlp", "--data", "digits:600,200", "--batch", "16", "--lr", "0.05"];

/// An address that no other process listens on.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn serve(arguments: &[&str]) -> PacelineProcess {
    PacelineProcess::start(&[&["serve"], &MODEL[..], arguments].concat())
}

fn work(join: &str, rank: usize) -> PacelineProcess {
    let slow = ["--emulate", "deterministic:0.02", "--json"];
    PacelineProcess::start(&[&["work", "--join", join, "--rank", &rank.to_string()], &slow[..]].concat())
}

fn hold(join: &str) -> PacelineProcess {
    PacelineProcess::start(&["shard", "--join", join, "--json"])
}

fn await_checkpoint(run: &Path) {
    while !fs::read_dir(run.join("checkpoints")).is_ok_and(|mut entries| entries.next().is_some()) {
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_sharded_run_gives_the_model_of_one_server() {
    let folder = tempdir().unwrap();
    let models = ["none", "3", "apart:2"].map(|shards| {
        let (address, out) = (free_address(), folder.path().join(shards).display().to_string());
        let goal = ["--workers", "3", "--until", "iterations=25", "--json"];
        let server = serve(&[&["--listen", &address, "--out", &out, "--shards", shards], &goal[..]].concat());
        server.await_line("waiting for 3 workers");
        let workers = [0, 1, 2].map(|rank| work(&address, rank));
        let apart = shards.strip_prefix("apart:").map_or(0, |count| count.parse().unwrap());
        let apart: Vec<PacelineProcess> = (0..apart).map(|_| hold(&address)).collect();
        assert_eq!(server.finish()["iterations"], 25);
        apart.into_iter().for_each(|shard| assert_eq!(shard.finish()["reason"], "iterations=25 is reached"));
        workers.into_iter().for_each(|worker| assert_eq!(worker.finish()["tasks"], 25));
        fs::read(format!("{out}/model.safetensors")).unwrap()
    });
    assert!(models[0] == models[1] && models[0] == models[2], "the models differ");
}

/// No worker takes a part of the parameters along.
#[test]
fn workers_may_die_where_shards_are_apart() {
    let folder = tempdir().unwrap();
    let (address, path) = (free_address(), folder.path().join("run"));
    let out = path.display().to_string();
    let rest = ["--workers", "2", "--shards", "apart:2", "--checkpoint-every", "0.1", "--until", "loss<0.5", "--json"];
    let server = serve(&[&["--listen", &address, "--out", &out], &rest[..]].concat());
    server.await_line("waiting for 2 workers");
    let shards = [(); 2].map(|()| hold(&address));
    let [zero, one] = [0, 1].map(|rank| work(&address, rank));
    server.await_line("the parameters are in 2 shards");
    await_checkpoint(&path);
    one.kill();
    server.await_line("worker 1 left");
    let run = server.finish();
    assert_eq!(run["reached"], true, "{run}");
    for process in [zero].into_iter().chain(shards) {
        assert!(process.finish()["reason"].as_str().unwrap().contains("loss<0.5"));
    }
}

/// A shard that joins over shared memory could not be reached by others.
#[test]
fn a_shard_joins_over_tcp_only() {
    let folder = tempdir().unwrap();
    let (local, out) = (format!("local:shard-{}", std::process::id()), folder.path().join("run").display().to_string());
    let server = serve(&["--listen", &local, "--workers", "1", "--shards", "apart:1", "--out", &out]);
    server.await_line("waiting for 1 worker");
    let error = refused(&["shard", "--join", &local]);
    assert!(error.contains("a shard joins over TCP"), "{error}");
    server.kill();
}

/// A worker that is killed takes its shard along. The server ends, and the standby goes on from the last checkpoint.
#[test]
fn a_standby_takes_over_when_a_shard_is_killed() {
    for scheme in ["bsp", "dbw", "esync"] {
        let folder = tempdir().unwrap();
        let path = folder.path().join("run");
        let (out, first, second) = (path.display().to_string(), free_address(), free_address());
        let limits = ["--checkpoint-every", "0.1", "--until", "time=300", "--lease", "1"];
        let rest = ["--listen", &first, "--workers", "3", "--scheme", scheme, "--shards", "3", "--out", &out];
        let server = serve(&[&rest[..], &limits].concat());
        server.await_line("waiting for 3 workers");
        let until = ["--until", "loss<0.8", "--json"];
        let standby =
            PacelineProcess::start(&[&["serve", "--standby", &out, "--listen", &second], &until[..]].concat());
        standby.await_line("standing by for ");
        let join = format!("{first},{second}");
        let [zero, one, two] = [0, 1, 2].map(|rank| work(&join, rank));
        await_checkpoint(&path);
        two.kill();
        let two = work(&join, 2);
        server.await_line("error: the shard at 127.0.0.1:");
        standby.await_line("resumed from version ");
        let run = standby.finish();
        assert_eq!(run["reached"], true, "{scheme}: {run}");
        for worker in [zero, one, two] {
            assert!(worker.finish()["reason"].as_str().unwrap().contains("loss<0.8"), "{scheme}");
        }
        let replayed = json(&["replay", &out, "--json"]);
        assert!(replayed[0]["events"].as_u64() > run["iterations"].as_u64(), "{replayed:?}");
        let metrics = fs::read_to_string(path.join("metrics.csv")).unwrap();
        assert_eq!(metrics.lines().count() as u64, run["iterations"].as_u64().unwrap() + 1, "one row per iteration");
        server.kill();
    }
}

#[test]
fn a_number_of_shards_is_checked() {
    assert!(
        refused(&["serve", "--shards", "0"])
            .contains("expected none, hosts, N or apart:N, with a number N of at least 1")
    );
}
