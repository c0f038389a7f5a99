//! The shards as writers of a checkpoint: each writes its part, all at the same time.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use paceline_core::Version;
use paceline_protocol::{FromShard, ShardGreeting, ShardSave};
use paceline_runtime::PartWriters;
use paceline_store::WrittenParts;

use crate::blocking_link::BlockingLink;
use crate::frame_reader::{Received, invalid};
use crate::keys::Keys;
use crate::shard::PART_TIMEOUT;
use crate::socket::Traffic;

/// Shards that retain a version of the model. They are asked over connections of their own, so that steps go on.
pub(super) struct ShardWriters {
    /// Where each shard is, and where its part starts.
    pub(super) shards: Vec<(SocketAddr, usize)>,
    pub(super) keys: Option<Keys>,
    pub(super) congestion: Option<String>,
    pub(super) traffic: Traffic,
    pub(super) run: u64,
    pub(super) version: Version,
}

impl ShardWriters {
    fn ask(&self, (shard, start): &(SocketAddr, usize), place: &str, name: &str) -> io::Result<WrittenParts> {
        let (congestion, keys) = (self.congestion.as_deref(), self.keys.as_ref());
        let mut link = BlockingLink::to_shard(*shard, congestion, keys, &self.traffic)?;
        let (run, version, start) = (self.run, self.version, *start as u64);
        let save = ShardSave { run, version, start, place: place.into(), checkpoint: name.into() };
        link.send(&ShardGreeting::Save { token: self.keys.as_ref().map(Keys::token), save })?;
        match link.receive(Some(Instant::now() + PART_TIMEOUT))? {
            Received::Message(FromShard::Saved(written)) => written.map_err(io::Error::other),
            _ => Err(invalid("no answer")),
        }
    }
}

impl PartWriters for ShardWriters {
    fn write(&self, place: &str, checkpoint: &str) -> Result<WrittenParts, String> {
        let answers: Vec<io::Result<WrittenParts>> = thread::scope(|scope| {
            let ask = |shard| scope.spawn(move || self.ask(shard, place, checkpoint));
            let threads: Vec<_> = self.shards.iter().map(ask).collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
        });
        let named = |((shard, _), answer): (&(SocketAddr, usize), io::Result<WrittenParts>)| {
            answer.map_err(|error| format!("the shard at {shard}: {error}"))
        };
        let mut answers = self.shards.iter().zip(answers).map(named);
        let mut all = answers.next().ok_or("no shard holds the model")??;
        for written in answers {
            all.parts.extend(written?.parts);
        }
        Ok(all)
    }
}
