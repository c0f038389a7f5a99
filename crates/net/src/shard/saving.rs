//! How a shard writes its part of a checkpoint, beside what it does for the coordinator and the workers.

use std::sync::PoisonError;
use std::time::Instant;

use paceline_core::Version;
use paceline_objects::{Place, open_place};
use paceline_protocol::ShardSave;
use paceline_store::{WrittenParts, write_parts};

use super::Shared;
use super::held_part::RetainedPart;
use super::session::BEGIN_TIMEOUT;

/// Every place of a run has this object.
const CONFIGURATION: &str = "config.toml";

/// Writes the version that the shard was told to retain. The error says why it can't.
pub(super) fn save(shared: &Shared, save: &ShardSave) -> Result<WrittenParts, String> {
    let ShardSave { run, version, start, place, checkpoint } = save;
    if !checkpoint.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') {
        return Err(format!("'{checkpoint}' is no name of a checkpoint"));
    }
    let part = retained(shared, *run, *version)?;
    let place: Place = place.parse()?;
    let objects = open_place(&place).map_err(|error| error.to_string())?;
    // Nothing is written where no run is: the folder may be another one on this machine.
    objects.get(CONFIGURATION).map_err(|error| format!("{}: {error}", objects.path(CONFIGURATION).display()))?;
    let written = write_parts(&*objects, checkpoint, *start as usize, part.values.values(), &part.optimizer);
    written.map_err(|error| error.to_string())
}

/// Waits until the coordinator's other connection has told the shard to retain a version.
fn retained(shared: &Shared, run: u64, version: Version) -> Result<RetainedPart, String> {
    let deadline = Instant::now() + BEGIN_TIMEOUT;
    let mut held = shared.lock();
    loop {
        let part = held.as_mut().filter(|held| held.run == run).map(|held| &mut held.retained);
        if let Some(part) = part.and_then(|part| part.take_if(|part| part.version == version)) {
            return Ok(part);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("version {} is not held any more", version.0));
        }
        held = shared.changed.wait_timeout(held, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}
