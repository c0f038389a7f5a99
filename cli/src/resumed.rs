//! Where an interrupted run goes on: its last good snapshot, and the events that led to it.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, bail};
use paceline_net::{Job, Resumption};
use paceline_run::{Header, Past};
use paceline_store::{Latest, Optimizer, Snapshot, SnapshotFolder};

use crate::keeper::{SNAPSHOTS, SchemeState};
use crate::run_folder::EVENTS;

/// What is needed to go on.
pub struct Resumed {
    /// Where the server goes on.
    pub from: Resumption,
    /// Where the event stream does.
    pub state: SchemeState,
    /// Snapshots that were damaged, and how.
    pub skipped: Vec<String>,
}

impl Resumed {
    /// Reads what a run folder holds. Without a good snapshot the run begins anew.
    pub fn load(folder: &Path, job: &Job) -> anyhow::Result<Self> {
        let events = folder.join(EVENTS);
        let told = || events.display().to_string();
        let stream = File::open(&events).with_context(told)?;
        let layout = job.workload.layout();
        let Latest { snapshot, skipped } = SnapshotFolder::create(folder.join(SNAPSHOTS), 1)?.latest(layout)?;
        let skipped: Vec<String> = skipped.iter().map(ToString::to_string).collect();
        let (snapshot, state) = match snapshot {
            Some(snapshot) => {
                let state = serde_json::from_str(&snapshot.scheme_state)
                    .with_context(|| format!("what the snapshot says of the scheme: '{}'", snapshot.scheme_state))?;
                (snapshot, state)
            }
            None if skipped.is_empty() => (beginning(job), SchemeState { events: 0 }),
            None => bail!("no snapshot can be read: {}; delete it to begin anew", skipped.join("; ")),
        };
        if snapshot.optimizer.spec() != job.optimizer {
            bail!("the run's optimizer was {}, not {}", snapshot.optimizer.spec(), job.optimizer);
        }
        let past = Past::read(BufReader::new(stream), state.events).with_context(told)?;
        if past.header != Header::new(job.scheme.clone(), &job.setup) {
            let Header { scheme, workers, batch, .. } = &past.header;
            bail!("{}: it is of scheme {scheme} with {workers} workers and batches of {batch}", events.display());
        }
        if past.ledger.version().0 != snapshot.version {
            let (events, version) = (past.ledger.version(), snapshot.version);
            bail!("{}: the events lead to {events}, the snapshot is of version {version}", folder.display());
        }
        Ok(Resumed { from: Resumption { past, snapshot }, state, skipped })
    }
}

fn beginning(job: &Job) -> Snapshot {
    Snapshot {
        version: 0,
        parameters: job.workload.initial(job.seed),
        optimizer: Optimizer::new(job.optimizer, job.workload.layout().trainable()),
        scheme_state: String::new(),
        extra: String::new(),
    }
}
