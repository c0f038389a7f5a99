//! Checkpoints in object storage, in parts that several processes write at the same time.
//!
//! A checkpoint has a name, such as `00000042-0002`: its number, and the epoch of the lease under which it was taken. Its
//! objects are below `checkpoints/NAME/`: the values in parts, and files of the run folder. The manifest
//! `checkpoints/NAME.json` is written last. It lists all objects with their checksums, so an incomplete checkpoint is not
//! seen, and a damaged one is detected. The parts say where they belong, so any number of shards may have written them, and
//! any number may hold the values next.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;

use serde::{Deserialize, Serialize};

use crate::checkpoint::failure;
use crate::manifest::{self, CheckpointFile, CheckpointPart, FORMAT, Manifest};
use crate::{
    BLOCK, Checkpoint, CheckpointError, LatestCheckpoint, Layout, ObjectStorage, Optimizer, OptimizerRules,
    OptimizerSpec,
};

/// Parameters in a part, at most: 16 MiB, with the state of `adam` 48 MiB.
const PART: usize = 256 * BLOCK;

/// Objects that one process reads or writes at a time.
const AT_A_TIME: usize = 4;

const FOLDER: &str = "checkpoints";
const MANIFEST: &str = ".json";

/// The parts of a checkpoint's values that were written, and their optimizer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenParts {
    /// The parts, in order.
    pub parts: Vec<CheckpointPart>,
    /// The optimizer, as text.
    pub optimizer: String,
    /// The steps that it has taken.
    pub steps: u64,
}

/// What a checkpoint consists of when its parts are written.
#[derive(Debug, Clone, Copy)]
pub struct PartedView<'a> {
    /// The model's version.
    pub version: u64,
    /// Names and shapes of the parameters.
    pub layout: &'a Layout,
    /// The values.
    pub written: &'a WrittenParts,
    /// The files of the run folder.
    pub files: &'a [CheckpointFile],
    /// The state of the run, as text that only the caller interprets.
    pub run_state: &'a str,
    /// The learning rate's state, as text that only the caller interprets.
    pub rate_state: &'a str,
}

/// The result of [`CheckpointObjects::latest`].
#[derive(Debug)]
pub struct LatestParts {
    /// The newest valid checkpoint, and those that were skipped.
    pub latest: LatestCheckpoint,
    /// The files that belong to it.
    pub files: Vec<CheckpointFile>,
}

/// The last checkpoints of one run, in object storage.
#[derive(Debug, Clone)]
pub struct CheckpointObjects {
    objects: Arc<dyn ObjectStorage>,
    keep: usize,
}

impl CheckpointObjects {
    /// The checkpoints in this storage. Each one that is completed removes all but the last `keep` (at least one).
    pub fn new(objects: Arc<dyn ObjectStorage>, keep: usize) -> Self {
        CheckpointObjects { objects, keep: keep.max(1) }
    }

    /// Where they are.
    pub fn objects(&self) -> &Arc<dyn ObjectStorage> {
        &self.objects
    }

    /// The name of the next checkpoint, under the lease with this epoch.
    ///
    /// # Errors
    /// If the storage can't be listed.
    pub fn next_name(&self, epoch: u64) -> Result<String, CheckpointError> {
        let last = self.names()?.last().and_then(|name| name.split('-').next()?.parse::<u64>().ok());
        Ok(format!("{:08}-{epoch:04}", last.unwrap_or(0) + 1))
    }

    /// Writes an object of a checkpoint. Returns its name and its checksum.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn put(&self, checkpoint: &str, name: &str, bytes: Vec<u8>) -> Result<(String, u32), CheckpointError> {
        let (object, crc32) = (format!("{FOLDER}/{checkpoint}/{name}"), crc32fast::hash(&bytes));
        self.objects.put(&object, bytes).map_err(failure("write", &self.objects.path(&object)))?;
        Ok((object, crc32))
    }

    /// Reads a file of a checkpoint.
    ///
    /// # Errors
    /// If it can't be read, or is damaged.
    pub fn file(&self, file: &CheckpointFile) -> Result<Vec<u8>, CheckpointError> {
        self.read(&file.object, file.crc32)
    }

    /// Writes the manifest, which makes the checkpoint `name` one, and removes what no checkpoint needs any more.
    ///
    /// # Errors
    /// If that fails. Earlier checkpoints are still there.
    pub fn complete(&self, name: &str, view: &PartedView<'_>) -> Result<(), CheckpointError> {
        let PartedView { version, layout, written, files, run_state, rate_state } = *view;
        let manifest = Manifest {
            format: FORMAT,
            version,
            optimizer: written.optimizer.clone(),
            optimizer_steps: written.steps,
            tensors_crc32: None,
            parts: written.parts.clone(),
            files: files.to_vec(),
            trainable: layout.trainable(),
            tensors: manifest::tensors(layout),
            run_state: run_state.into(),
            rate_state: rate_state.into(),
        };
        let object = manifest_object(name);
        let written = self.objects.put(&object, manifest.to_json().into_bytes());
        written.map_err(failure("write", &self.objects.path(&object)))?;
        self.prune()
    }

    /// Reads the newest valid checkpoint. Newer ones that are not valid are skipped and listed in the result, except those
    /// without a manifest, which were never complete.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] if the storage can't be listed, [`CheckpointError::Layout`] if the newest valid checkpoint
    /// belongs to another model.
    pub fn latest(&self, layout: &Layout) -> Result<LatestParts, CheckpointError> {
        let mut skipped = Vec::new();
        for name in self.names()?.into_iter().rev() {
            match self.load(&name, layout) {
                Ok((checkpoint, files)) => {
                    let latest = LatestCheckpoint { checkpoint: Some(checkpoint), skipped };
                    return Ok(LatestParts { latest, files });
                }
                Err(error @ CheckpointError::Layout { .. }) => return Err(error),
                Err(error) => skipped.push(error),
            }
        }
        Ok(LatestParts { latest: LatestCheckpoint { checkpoint: None, skipped }, files: Vec::new() })
    }

    /// The names of all complete checkpoints, the newest last.
    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        Ok(self.list()?.iter().filter_map(|object| manifest_name(object)).map(Into::into).collect())
    }

    fn list(&self) -> Result<Vec<String>, CheckpointError> {
        self.objects.list(FOLDER).map_err(failure("list", &self.objects.path(FOLDER)))
    }

    fn read(&self, object: &str, expected: u32) -> Result<Vec<u8>, CheckpointError> {
        let bytes = self.objects.get(object).map_err(failure("read", &self.objects.path(object)))?;
        let found = crc32fast::hash(&bytes);
        if found != expected {
            return Err(self.invalid(object, format!("checksum {found}; expected {expected}, as in its manifest")));
        }
        Ok(bytes)
    }

    fn invalid(&self, object: &str, reason: String) -> CheckpointError {
        CheckpointError::Invalid { path: self.objects.path(object), kind: "checkpoint", reason }
    }

    fn manifest(&self, name: &str) -> Result<Manifest, CheckpointError> {
        let object = manifest_object(name);
        let text = self.objects.get(&object).map_err(failure("read", &self.objects.path(&object)))?;
        Manifest::from_json(&text).map_err(|reason| self.invalid(&object, reason))
    }

    fn load(&self, name: &str, layout: &Layout) -> Result<(Checkpoint, Vec<CheckpointFile>), CheckpointError> {
        let object = manifest_object(name);
        let manifest = self.manifest(name)?;
        if let Some((checkpoint, model)) = manifest.difference(layout) {
            return Err(CheckpointError::Layout { path: self.objects.path(&object), checkpoint, model });
        }
        let spec: OptimizerSpec =
            manifest.optimizer.parse().map_err(|error| self.invalid(&object, format!("{error}")))?;
        let rules = OptimizerRules::new(spec, layout);
        let ranges = self.ranges(&object, &manifest.parts, layout.len())?;
        let mut parameters = vec![0.0; layout.len()];
        let mut state = vec![vec![0.0; rules.trainable()]; rules.state_vectors()];
        let parts: Vec<(Range<usize>, u32)> =
            ranges.into_iter().zip(manifest.parts.iter().map(|part| part.crc32)).collect();
        let read = |(range, crc32): &(Range<usize>, u32)| {
            let object = part_object(name, range.start);
            let values = range.len() + rules.state_vectors() * rules.part(range.clone()).trainable();
            let bytes = self.read(&object, *crc32)?;
            if bytes.len() != values * size_of::<f32>() {
                return Err(self.invalid(&object, format!("{} bytes; expected {values} values", bytes.len())));
            }
            Ok(bytes)
        };
        in_parallel(&parts, read, |(range, _), bytes| {
            let mut values = bytes.chunks_exact(size_of::<f32>());
            let mut fill = |target: &mut [f32]| {
                for (target, bytes) in target.iter_mut().zip(&mut values) {
                    *target = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
            };
            fill(&mut parameters[range.clone()]);
            let first = range.start.min(rules.trainable());
            let trainable = first..first + rules.part(range.clone()).trainable();
            state.iter_mut().for_each(|vector| fill(&mut vector[trainable.clone()]));
        })?;
        let checkpoint = Checkpoint {
            version: manifest.version,
            parameters,
            optimizer: Optimizer::restored(rules, manifest.optimizer_steps, state),
            run_state: manifest.run_state,
            rate_state: manifest.rate_state,
        };
        Ok((checkpoint, manifest.files))
    }

    /// The ranges of the parts, which must cover the vector one after another.
    fn ranges(&self, object: &str, parts: &[CheckpointPart], len: usize) -> Result<Vec<Range<usize>>, CheckpointError> {
        let mut end = 0u64;
        let mut ranges = Vec::new();
        for part in parts {
            if part.start == end && part.length <= len as u64 - end {
                end += part.length;
                ranges.push(part.start as usize..end as usize);
            }
        }
        if ranges.len() != parts.len() || end != len as u64 {
            return Err(self.invalid(object, format!("its parts cover {end} values; expected {len}")));
        }
        Ok(ranges)
    }

    /// Removes all but the newest checkpoints, and the objects of uploads that were interrupted.
    fn prune(&self) -> Result<(), CheckpointError> {
        let listed = self.list()?;
        let names: Vec<&str> = listed.iter().filter_map(|object| manifest_name(object)).collect();
        let (old, kept) = names.split_at(names.len().saturating_sub(self.keep));
        let newest = kept.last().map(|name| format!("{FOLDER}/{name}/"));
        let mut needed = BTreeSet::new();
        for name in kept {
            // What a manifest that can't be read needs is unknown: nothing is removed.
            let Ok(manifest) = self.manifest(name) else { return Ok(()) };
            needed.insert(manifest_object(name));
            needed.extend(manifest.parts.iter().map(|part| part_object(name, part.start as usize)));
            needed.extend(manifest.files.into_iter().map(|file| file.object));
        }
        let remove =
            |object: &String| self.objects.remove(object).map_err(failure("remove", &self.objects.path(object)));
        // Without its manifest, a checkpoint is none.
        old.iter().map(|name| manifest_object(name)).try_for_each(|object| remove(&object))?;
        // What follows the newest may belong to a checkpoint that another process is writing.
        let is_past = |object: &&String| newest.as_ref().is_some_and(|newest| *object < newest);
        listed.iter().filter(is_past).filter(|object| !needed.contains(*object)).try_for_each(remove)
    }
}

/// Writes the part of a checkpoint's values that starts with the parameter `start`. The optimizer is that of this part.
///
/// # Errors
/// If it can't be written.
pub fn write_parts(
    objects: &dyn ObjectStorage,
    checkpoint: &str,
    start: usize,
    parameters: &[f32],
    optimizer: &Optimizer,
) -> Result<WrittenParts, CheckpointError> {
    let ranges: Vec<Range<usize>> =
        (0..parameters.len()).step_by(PART).map(|first| first..(first + PART).min(parameters.len())).collect();
    let write = |range: &Range<usize>| {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(bytemuck::cast_slice(&parameters[range.clone()]));
        let trainable = optimizer.rules().trainable();
        for (_, vector) in optimizer.state() {
            bytes
                .extend_from_slice(bytemuck::cast_slice(&vector[range.start.min(trainable)..range.end.min(trainable)]));
        }
        let (object, crc32) = (part_object(checkpoint, start + range.start), crc32fast::hash(&bytes));
        objects.put(&object, bytes).map_err(failure("write", &objects.path(&object)))?;
        Ok(CheckpointPart { start: (start + range.start) as u64, length: range.len() as u64, crc32 })
    };
    let mut parts = Vec::new();
    in_parallel(&ranges, write, |_, part| parts.push(part))?;
    parts.sort_unstable_by_key(|part| part.start);
    Ok(WrittenParts { parts, optimizer: optimizer.spec().to_string(), steps: optimizer.steps() })
}

fn manifest_object(name: &str) -> String {
    format!("{FOLDER}/{name}{MANIFEST}")
}

fn manifest_name(object: &str) -> Option<&str> {
    object.strip_prefix(FOLDER)?.strip_prefix('/')?.strip_suffix(MANIFEST).filter(|name| !name.contains('/'))
}

fn part_object(checkpoint: &str, start: usize) -> String {
    format!("{FOLDER}/{checkpoint}/values-{start:012}")
}

/// Calls `act` for all items, some at a time, and `take` in this thread with the results as they come, until one fails.
fn in_parallel<T: Sync, R: Send, E: Send>(
    items: &[T],
    act: impl Fn(&T) -> Result<R, E> + Sync,
    mut take: impl FnMut(&T, R),
) -> Result<(), E> {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (sender, receiver) = sync_channel(1);
        for _ in 0..AT_A_TIME.min(items.len()) {
            let (sender, next, act) = (sender.clone(), &next, &act);
            scope.spawn(move || {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // Nobody waits for more after one has failed.
                    if sender.send((item, act(item))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (item, result) in receiver {
            take(item, result?);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FolderObjects, Shards};

    const VALUES: usize = 2 * PART + 5000;

    fn layout() -> Layout {
        Layout::new([("weight", vec![VALUES - 1000]), ("bias", vec![900])], [("mean", vec![100])])
    }

    fn trained(layout: &Layout) -> (Vec<f32>, Optimizer) {
        let mut optimizer = Optimizer::new("adam".parse().unwrap(), layout);
        let mut parameters: Vec<f32> = (0..layout.len()).map(|index| (index as f32).sin()).collect();
        let gradient: Vec<f32> = (0..layout.len()).map(|index| (index as f32).cos()).collect();
        (0..2).for_each(|_| optimizer.step(&mut parameters, &gradient, 0.1));
        (parameters, optimizer)
    }

    /// Writes a checkpoint as this many shards would.
    fn save(checkpoints: &CheckpointObjects, layout: &Layout, shards: usize, version: u64) -> String {
        let (parameters, optimizer) = trained(layout);
        let name = checkpoints.next_name(3).unwrap();
        let mut all: Option<WrittenParts> = None;
        for range in Shards::new(layout.len(), shards).ranges().filter(|range| !range.is_empty()) {
            let rules = optimizer.rules().part(range.clone());
            let first = range.start.min(layout.trainable());
            let trainable = first..first + rules.trainable();
            let state = optimizer.state().map(|(_, vector)| vector[trainable.clone()].to_vec()).collect();
            let part = Optimizer::restored(rules, optimizer.steps(), state);
            let objects = &**checkpoints.objects();
            let written = write_parts(objects, &name, range.start, &parameters[range], &part).unwrap();
            match &mut all {
                None => all = Some(written),
                Some(all) => all.parts.extend(written.parts),
            }
        }
        let (object, crc32) = checkpoints.put(&name, "log", version.to_string().into()).unwrap();
        let files = [CheckpointFile { name: "log".into(), object, crc32 }];
        let written = all.as_ref().unwrap();
        let view = PartedView { version, layout, written, files: &files, run_state: "run", rate_state: "rate" };
        checkpoints.complete(&name, &view).unwrap();
        name
    }

    #[test]
    fn any_number_of_shards_writes_what_is_read_as_one() {
        let layout = layout();
        let (parameters, optimizer) = trained(&layout);
        for shards in [1, 2, 3, 5] {
            let folder = tempfile::tempdir().unwrap();
            let checkpoints = CheckpointObjects::new(Arc::new(FolderObjects::new(folder.path())), 2);
            assert!(checkpoints.latest(&layout).unwrap().latest.checkpoint.is_none());
            save(&checkpoints, &layout, shards, 7);
            let LatestParts { latest, files } = checkpoints.latest(&layout).unwrap();
            let checkpoint = latest.checkpoint.unwrap();
            assert!(checkpoint.parameters == parameters && checkpoint.optimizer == optimizer, "{shards} shards");
            assert_eq!((checkpoint.version, &*checkpoint.run_state, &*checkpoint.rate_state), (7, "run", "rate"));
            assert_eq!(checkpoints.file(&files[0]).unwrap(), b"7");
        }
    }

    #[test]
    fn interrupted_and_damaged_checkpoints_are_not_taken_and_old_ones_are_removed() {
        let layout = layout();
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = CheckpointObjects::new(Arc::new(FolderObjects::new(folder.path())), 2);
        let objects = checkpoints.objects().clone();
        let version = || checkpoints.latest(&layout).map(|found| found.latest).unwrap();
        let names: Vec<String> = (1..=3).map(|version| save(&checkpoints, &layout, 2, version)).collect();
        assert_eq!(names, ["00000001-0003", "00000002-0003", "00000003-0003"]);
        assert!(objects.list(FOLDER).unwrap().iter().all(|object| !object.contains(&names[0])), "it is removed");

        // Killed before its manifest was written.
        let interrupted = checkpoints.next_name(3).unwrap();
        let (parameters, optimizer) = trained(&layout);
        write_parts(&*objects, &interrupted, 0, &parameters, &optimizer).unwrap();
        assert_eq!(version().checkpoint.unwrap().version, 3);
        save(&checkpoints, &layout, 1, 4);
        save(&checkpoints, &layout, 1, 5);
        assert_eq!(version().checkpoint.unwrap().version, 5);

        let damage = |object: &str| {
            let mut bytes = objects.get(object).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            objects.put(object, bytes).unwrap();
        };
        damage("checkpoints/00000005-0003/values-000000000000");
        let LatestCheckpoint { checkpoint, skipped } = version();
        assert_eq!(checkpoint.unwrap().version, 4);
        assert!(skipped[0].to_string().contains("values-000000000000 is not a valid checkpoint: checksum"));
        objects.remove("checkpoints/00000004-0003/values-000000000000").unwrap();
        assert!(version().checkpoint.is_none());
        let other = Layout::new([("weight", vec![3])], []);
        assert!(matches!(checkpoints.latest(&other), Err(CheckpointError::Layout { .. })));
    }
}
