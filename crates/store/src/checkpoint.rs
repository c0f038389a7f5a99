//! Checkpoints: the state that a run resumes from, in files that survive a crash at any moment.
//!
//! A checkpoint is two files, `checkpoint-00000042.safetensors` (tensors) and `checkpoint-00000042.json` (manifest),
//! numbered in the order of writing. The manifest is written last and holds the checksum of the tensors, so an
//! incomplete checkpoint is detected. Older checkpoints are removed only after a new one is on disk.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::atomic::{self, UNFINISHED};
use crate::flat_tensors::{self, AmbiguousName, FlatVector};
use crate::manifest::{self, FORMAT, Manifest};
use crate::{Layout, Optimizer, OptimizerRules, OptimizerSpec};

/// The numbers that checkpoints of an epoch can have.
const NUMBERS_PER_EPOCH: u64 = 1_000_000;

const PREFIX: &str = "checkpoint-";
const MANIFEST: &str = "json";
const TENSORS: &str = "safetensors";

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system returned an error: disk full, permission denied, file not found.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The failed operation, as a verb: write, read, remove.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is truncated, damaged, or written by another program or version.
    #[error("{} is not a valid {kind}: {reason}", path.display())]
    Invalid {
        /// The damaged file.
        path: PathBuf,
        /// What it should be: a checkpoint, a model.
        kind: &'static str,
        /// What is wrong with the file.
        reason: String,
    },
    /// The checkpoint belongs to another model.
    #[error("{} belongs to another model: found {checkpoint}; expected {model}", path.display())]
    Layout {
        /// The manifest.
        path: PathBuf,
        /// The first tensor of the checkpoint that differs.
        checkpoint: String,
        /// The tensor that the model has at that position.
        model: String,
    },
    /// Two tensors would have the same name in the file, or a name that the format reserves.
    #[error("cannot write {}: tensor name '{name}' is used twice or reserved; expected a unique name", path.display())]
    TensorName {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
}

/// The state to write as a checkpoint, borrowed: saving copies no tensor.
#[derive(Debug, Clone, Copy)]
pub struct CheckpointView<'a> {
    /// The model's version.
    pub version: u64,
    /// Names and shapes of the parameters.
    pub layout: &'a Layout,
    /// The parameters; their length is that of the layout.
    pub parameters: &'a [f32],
    /// The optimizer with its state.
    pub optimizer: &'a Optimizer,
    /// The state of the run, as text that only the caller interprets.
    pub run_state: &'a str,
    /// The learning rate's state, as text that only the caller interprets.
    pub rate_state: &'a str,
}

/// A checkpoint that was read from disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// The model's version.
    pub version: u64,
    /// The parameters in the order of the layout.
    pub parameters: Vec<f32>,
    /// The optimizer with its state, ready for the next step.
    pub optimizer: Optimizer,
    /// The state of the run, as it was saved.
    pub run_state: String,
    /// The learning rate's state, as it was saved.
    pub rate_state: String,
}

/// The result of [`CheckpointFolder::latest`].
#[derive(Debug)]
pub struct LatestCheckpoint {
    /// The newest valid checkpoint; `None` if the folder has none.
    pub checkpoint: Option<Checkpoint>,
    /// Why each newer checkpoint was skipped, newest first.
    pub skipped: Vec<CheckpointError>,
}

/// A folder with the last checkpoints of one run. Only one process may write to it.
#[derive(Debug, Clone)]
pub struct CheckpointFolder {
    path: PathBuf,
    keep: usize,
}

impl CheckpointFolder {
    /// Opens the folder, and creates it if it does not exist. Each save keeps the last `keep` checkpoints (at least
    /// one) and removes older ones.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] if the folder cannot be created.
    pub fn create(path: impl Into<PathBuf>, keep: usize) -> Result<Self, CheckpointError> {
        let path = path.into();
        atomic::create_folder(&path).map_err(failure("create folder", &path))?;
        Ok(CheckpointFolder { path, keep: keep.max(1) })
    }

    /// Writes a checkpoint, then removes the oldest ones. Returns the path of the manifest.
    ///
    /// After success the checkpoint survives a power cut. After a failed write all earlier checkpoints still exist.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] if the disk is full or the folder is not writable, [`CheckpointError::TensorName`] if
    /// the layout uses a name twice.
    ///
    /// # Panics
    /// If the parameters or the optimizer do not fit the layout.
    pub fn save(&self, view: &CheckpointView<'_>) -> Result<PathBuf, CheckpointError> {
        self.save_in_epoch(0, view)
    }

    /// The same for a coordinator that holds the lease of this epoch. One of an earlier epoch, which stood still while it
    /// saved, uses none of its numbers, and is behind all of them.
    ///
    /// # Errors
    /// If it can't be written.
    ///
    /// # Panics
    /// As [`save`](CheckpointFolder::save).
    pub fn save_in_epoch(&self, epoch: u64, view: &CheckpointView<'_>) -> Result<PathBuf, CheckpointError> {
        let numbers = self.numbers()?;
        let number = numbers.last().map_or(1, |last| last + 1).max(epoch * NUMBERS_PER_EPOCH);
        let tensors_crc32 = write_tensors(&self.file(number, TENSORS), view.layout, &vectors(view))?;
        let manifest = Manifest {
            format: FORMAT,
            version: view.version,
            optimizer: view.optimizer.spec().to_string(),
            optimizer_steps: view.optimizer.steps(),
            tensors_crc32: Some(tensors_crc32),
            parts: Vec::new(),
            files: Vec::new(),
            trainable: view.layout.trainable(),
            tensors: manifest::tensors(view.layout),
            run_state: view.run_state.to_string(),
            rate_state: view.rate_state.to_string(),
        };
        let path = self.file(number, MANIFEST);
        atomic::write_file(&path, |file| file.write_all(manifest.to_json().as_bytes()))
            .map_err(failure("write", &path))?;
        atomic::sync_folder(&self.path).map_err(failure("sync folder", &self.path))?;
        self.prune(&numbers)?;
        Ok(path)
    }

    /// Reads the newest valid checkpoint. Newer ones that are not valid are skipped and listed in the result, except those
    /// without a manifest, which were never complete.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] if the folder cannot be listed, [`CheckpointError::Layout`] if the newest valid
    /// checkpoint belongs to another model.
    pub fn latest(&self, layout: &Layout) -> Result<LatestCheckpoint, CheckpointError> {
        let mut skipped = Vec::new();
        for number in self.numbers()?.into_iter().rev().filter(|&number| self.file(number, MANIFEST).exists()) {
            match load_checkpoint(&self.file(number, MANIFEST), layout) {
                Ok(checkpoint) => return Ok(LatestCheckpoint { checkpoint: Some(checkpoint), skipped }),
                Err(error @ CheckpointError::Layout { .. }) => return Err(error),
                Err(error) => skipped.push(error),
            }
        }
        Ok(LatestCheckpoint { checkpoint: None, skipped })
    }

    fn file(&self, number: u64, extension: &str) -> PathBuf {
        self.path.join(format!("{PREFIX}{number:08}.{extension}"))
    }

    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().display().to_string());
        let list = || fs::read_dir(&self.path)?.map(name).collect::<io::Result<_>>();
        list().map_err(failure("list folder", &self.path))
    }

    /// The numbers of all checkpoints, complete or not, ascending.
    fn numbers(&self) -> Result<Vec<u64>, CheckpointError> {
        let number = |name: &String| {
            let (number, extension) = name.strip_prefix(PREFIX)?.split_once('.')?;
            if [MANIFEST, TENSORS].contains(&extension) { number.parse().ok() } else { None }
        };
        let mut numbers: Vec<u64> = self.names()?.iter().filter_map(number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    /// Removes all but the newest of the `earlier` checkpoints, and unfinished files of interrupted writes.
    fn prune(&self, earlier: &[u64]) -> Result<(), CheckpointError> {
        let remove = |path: PathBuf| match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failure("remove", &path)(error)),
            _ => Ok(()),
        };
        let old = earlier.len().saturating_sub(self.keep - 1);
        for &number in &earlier[..old] {
            remove(self.file(number, MANIFEST))?;
            remove(self.file(number, TENSORS))?;
        }
        for name in self.names()? {
            if name.starts_with(&format!(".{PREFIX}")) && name.ends_with(UNFINISHED) {
                remove(self.path.join(name))?;
            }
        }
        Ok(())
    }
}

/// Reads the checkpoint with the manifest at `path`.
///
/// # Errors
/// [`CheckpointError::Layout`] if the checkpoint does not have this `layout`, [`CheckpointError::Invalid`] if a file is
/// damaged, [`CheckpointError::Io`] if a file cannot be read.
pub fn load_checkpoint(path: &Path, layout: &Layout) -> Result<Checkpoint, CheckpointError> {
    let invalid =
        |path: &Path, reason| CheckpointError::Invalid { path: path.to_path_buf(), kind: "checkpoint", reason };
    let text = fs::read(path).map_err(failure("read", path))?;
    let manifest = Manifest::from_json(&text).map_err(|reason| invalid(path, reason))?;
    if let Some((checkpoint, model)) = manifest.difference(layout) {
        return Err(CheckpointError::Layout { path: path.to_path_buf(), checkpoint, model });
    }
    let spec: OptimizerSpec = manifest.optimizer.parse().map_err(|error| invalid(path, format!("{error}")))?;

    let vector = |prefix, len| FlatVector { prefix, values: vec![0.0; len] };
    let mut vectors = vec![vector(String::new(), layout.len())];
    vectors.extend(spec.kind.state_names().iter().map(|name| vector(state_prefix(name), layout.trainable())));

    let path = path.with_extension(TENSORS);
    let found = read_vectors(&path, layout, &mut vectors, "checkpoint")?;
    let expected = manifest.tensors_crc32;
    if expected != Some(found) {
        let expected = expected.map_or("none".into(), |checksum| checksum.to_string());
        return Err(invalid(&path, format!("checksum {found}; expected {expected}, as in its manifest")));
    }

    let mut vectors = vectors.into_iter().map(|vector| vector.values);
    let parameters = vectors.next().expect("the first vector is the parameters");
    Ok(Checkpoint {
        version: manifest.version,
        parameters,
        optimizer: Optimizer::restored(OptimizerRules::new(spec, layout), manifest.optimizer_steps, vectors.collect()),
        run_state: manifest.run_state,
        rate_state: manifest.rate_state,
    })
}

/// Reads the parameters of a model from a safetensors file with exactly the tensors of `layout`.
///
/// # Errors
/// [`CheckpointError::Invalid`] if a tensor is missing, unexpected or has another shape, or the file is damaged;
/// [`CheckpointError::Io`] if it cannot be read.
pub fn read_model(path: &Path, layout: &Layout) -> Result<Vec<f32>, CheckpointError> {
    let mut vectors = [FlatVector { prefix: String::new(), values: vec![0.0; layout.len()] }];
    read_vectors(path, layout, &mut vectors, "model")?;
    let [FlatVector { values, .. }] = vectors;
    Ok(values)
}

/// Fills `vectors` from a file, and returns its checksum. Errors call it a `kind`.
fn read_vectors(
    path: &Path,
    layout: &Layout,
    vectors: &mut [FlatVector<Vec<f32>>],
    kind: &'static str,
) -> Result<u32, CheckpointError> {
    let mut read = || {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        flat_tensors::read(file, bytes, layout, vectors)
    };
    let invalid = |reason| CheckpointError::Invalid { path: path.to_path_buf(), kind, reason };
    read().map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => invalid(error.to_string()),
        io::ErrorKind::UnexpectedEof => invalid("unexpected end of file".to_string()),
        _ => failure("read", path)(error),
    })
}

/// The final model of a run: a safetensors file whose space on the disk is reserved before the run, so that a disk that
/// fills up does not lose the model. Until it is written it has another name; dropped unwritten, it is removed.
#[derive(Debug)]
pub struct ReservedModel {
    path: PathBuf,
    unfinished: PathBuf,
    file: File,
    layout: Layout,
    header: Vec<u8>,
}

impl ReservedModel {
    /// Reserves the space of a model with this layout. Where the file system can't reserve space, none is reserved.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] if the disk is full or the folder is not writable, [`CheckpointError::TensorName`] if
    /// the layout uses a name twice.
    pub fn new(path: &Path, layout: &Layout) -> Result<Self, CheckpointError> {
        let header = model_header(path, layout)?;
        let unfinished = atomic::unfinished(path).map_err(failure("reserve space for", path))?;
        // A file of its own: a process that is no longer to write may still have the last one open.
        let _ = fs::remove_file(&unfinished);
        let file = File::create(&unfinished);
        let file = file.map_err(failure("reserve space for", path))?;
        let model = ReservedModel { path: path.into(), unfinished, file, layout: layout.clone(), header };
        let bytes = model.header.len() as u64 + size_of::<f32>() as u64 * layout.len() as u64;
        match rustix::fs::fallocate(&model.file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(model),
            Err(error) => Err(failure("reserve space for", path)(error.into())),
        }
    }

    /// Writes the parameters, without optimizer state, into the reserved space. The write is atomic.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] if that fails.
    ///
    /// # Panics
    /// If the parameters differ in length from the layout.
    pub fn write(self, parameters: &[f32]) -> Result<(), CheckpointError> {
        assert_eq!(parameters.len(), self.layout.len(), "the parameters differ in length from the layout");
        let write = || {
            let vectors = [FlatVector { prefix: String::new(), values: parameters }];
            flat_tensors::write(&self.file, &self.header, &vectors)?;
            self.file.sync_all()?;
            fs::rename(&self.unfinished, &self.path)?;
            atomic::sync_folder(atomic::folder_of(&self.path))
        };
        write().map_err(failure("write", &self.path))
    }
}

impl Drop for ReservedModel {
    fn drop(&mut self) {
        let identity = |found: io::Result<fs::Metadata>| found.map(|found| (found.dev(), found.ino())).ok();
        // If the model is written, which is the rule, there is no such file. Another process may have its own there.
        if identity(self.file.metadata()) == identity(fs::metadata(&self.unfinished)) {
            let _ = fs::remove_file(&self.unfinished);
        }
    }
}

fn model_header(path: &Path, layout: &Layout) -> Result<Vec<u8>, CheckpointError> {
    // The header depends on the length of the values alone.
    let values = vec![0.0; layout.len()];
    let vectors = [FlatVector { prefix: String::new(), values: &values[..] }];
    flat_tensors::header(layout, &vectors).map_err(named_twice(path))
}

fn named_twice(path: &Path) -> impl FnOnce(AmbiguousName) -> CheckpointError + '_ {
    |AmbiguousName(name)| CheckpointError::TensorName { path: path.to_path_buf(), name }
}

fn vectors<'a>(view: &CheckpointView<'a>) -> Vec<FlatVector<&'a [f32]>> {
    let model = FlatVector { prefix: String::new(), values: view.parameters };
    let state = view.optimizer.state().map(|(name, values)| {
        assert_eq!(values.len(), view.layout.trainable(), "the optimizer state differs in length from the layout");
        FlatVector { prefix: state_prefix(name), values }
    });
    std::iter::once(model).chain(state).collect()
}

/// The prefix of tensor names in the optimizer's vector of this name.
fn state_prefix(name: &str) -> String {
    format!("optimizer.{name}.")
}

fn write_tensors(path: &Path, layout: &Layout, vectors: &[FlatVector<&[f32]>]) -> Result<u32, CheckpointError> {
    assert_eq!(vectors[0].values.len(), layout.len(), "the parameters differ in length from the layout");
    let header = flat_tensors::header(layout, vectors).map_err(named_twice(path))?;
    atomic::write_file(path, |file| flat_tensors::write(file, &header, vectors)).map_err(failure("write", path))
}

pub(crate) fn failure(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CheckpointError {
    let path = path.to_path_buf();
    move |source| CheckpointError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout::new([("weight", vec![2, 3]), ("bias", vec![2])], [("mean", vec![2])])
    }

    /// A folder that holds the versions 1 to `count`, each saved after one more step.
    struct TestRun {
        folder: CheckpointFolder,
        directory: tempfile::TempDir,
        layout: Layout,
        parameters: Vec<f32>,
        optimizer: Optimizer,
    }

    impl TestRun {
        fn new(optimizer: &str, count: u64, keep: usize) -> Self {
            let directory = tempfile::tempdir().expect("a temporary folder");
            let folder = CheckpointFolder::create(directory.path().join("deep/down"), keep).expect("a new folder");
            let layout = layout();
            let optimizer = Optimizer::new(optimizer.parse().expect("a valid optimizer"), &layout);
            let parameters = (0..layout.len()).map(|index| index as f32).collect();
            let mut run = TestRun { folder, directory, layout, parameters, optimizer };
            for version in 1..=count {
                run.step();
                run.save(version).expect("saved");
            }
            run
        }

        fn step(&mut self) {
            let gradient: Vec<_> = self.parameters.iter().map(|value| value.sin()).collect();
            self.optimizer.step(&mut self.parameters, &gradient, 0.1);
        }

        fn save(&self, version: u64) -> Result<PathBuf, CheckpointError> {
            self.save_in_epoch(0, version)
        }

        fn save_in_epoch(&self, epoch: u64, version: u64) -> Result<PathBuf, CheckpointError> {
            let view = CheckpointView {
                version,
                layout: &self.layout,
                parameters: &self.parameters,
                optimizer: &self.optimizer,
                run_state: "k = 3",
                rate_state: "\"quoted\"\n",
            };
            self.folder.save_in_epoch(epoch, &view)
        }

        fn latest(&self) -> (Option<u64>, Vec<String>) {
            let LatestCheckpoint { checkpoint, skipped } = self.folder.latest(&self.layout).expect("a readable folder");
            (checkpoint.map(|checkpoint| checkpoint.version), skipped.iter().map(CheckpointError::to_string).collect())
        }

        fn names(&self) -> Vec<String> {
            let mut names = self.folder.names().expect("a readable folder");
            names.sort();
            names
        }
    }

    #[test]
    fn a_later_epoch_has_numbers_of_its_own() {
        let run = TestRun::new("sgd", 2, 9);
        run.save_in_epoch(2, 3).expect("saved");
        run.save_in_epoch(2, 4).expect("saved");
        let names = run.names();
        assert!(names.contains(&"checkpoint-02000000.json".to_string()), "{names:?}");
        assert!(names.contains(&"checkpoint-02000001.json".to_string()), "{names:?}");
        // What a coordinator of the first epoch writes late has number 3, and is not the newest.
        for extension in [MANIFEST, TENSORS] {
            fs::copy(run.folder.file(2, extension), run.folder.file(3, extension)).expect("copied");
        }
        assert_eq!(run.latest(), (Some(4), Vec::new()));
    }

    #[test]
    fn a_resumed_run_takes_the_same_steps() {
        for optimizer in
            ["sgd", "momentum:0.9", "nesterov:0.5,decay=0.1", "delayed-nesterov:0.5,delay=2", "adam", "adamw:0.1"]
        {
            let mut run = TestRun::new(optimizer, 3, 2);
            let LatestCheckpoint { checkpoint, skipped } = run.folder.latest(&run.layout).expect("a readable folder");
            let mut checkpoint = checkpoint.expect("a valid checkpoint");
            assert!(skipped.is_empty());
            assert_eq!((checkpoint.version, checkpoint.run_state.as_str()), (3, "k = 3"));
            assert_eq!(checkpoint.rate_state, "\"quoted\"\n");
            assert_eq!((&checkpoint.parameters, &checkpoint.optimizer), (&run.parameters, &run.optimizer));

            let gradient: Vec<_> = checkpoint.parameters.iter().map(|value| value.sin()).collect();
            checkpoint.optimizer.step(&mut checkpoint.parameters, &gradient, 0.1);
            run.step();
            assert_eq!(checkpoint.parameters, run.parameters, "{optimizer}");
        }
    }

    #[test]
    fn the_last_checkpoints_stay_and_unfinished_files_are_removed() {
        let run = TestRun::new("sgd", 4, 2);
        let leftover = run.folder.path.join(".checkpoint-00000009.json.unfinished");
        fs::write(&leftover, "half").expect("written");
        fs::write(run.folder.path.join("notes.txt"), "mine").expect("written");
        // A run that resumed from version 2 saves that version again. The order of writing decides what is kept.
        run.save(2).expect("saved");
        assert_eq!(
            run.names(),
            [
                "checkpoint-00000004.json",
                "checkpoint-00000004.safetensors",
                "checkpoint-00000005.json",
                "checkpoint-00000005.safetensors",
                "notes.txt"
            ]
        );
        assert_eq!(run.latest(), (Some(2), vec![]));
    }

    #[test]
    fn any_damage_is_detected_and_the_previous_checkpoint_is_used() {
        let run = TestRun::new("momentum:0.9", 2, 5);
        for extension in [MANIFEST, TENSORS] {
            let path = run.folder.file(2, extension);
            let whole = fs::read(&path).expect("readable");
            let mut damaged: Vec<Vec<u8>> = (0..whole.len()).map(|length| whole[..length].to_vec()).collect();
            for position in 0..whole.len() {
                let mut flipped = whole.clone();
                flipped[position] ^= 1;
                damaged.push(flipped);
            }
            damaged.push([whole.as_slice(), b"more"].concat());
            for bytes in damaged {
                fs::write(&path, &bytes).expect("written");
                let LatestCheckpoint { checkpoint, skipped } =
                    run.folder.latest(&run.layout).expect("a readable folder");
                let version = checkpoint.map(|checkpoint| checkpoint.version);
                // Only white space around the values of the manifest may change.
                let same = extension == MANIFEST && Manifest::from_json(&bytes).is_ok();
                assert_eq!(version, Some(if same { 2 } else { 1 }), "{}", String::from_utf8_lossy(&bytes));
                assert_eq!(skipped.len(), usize::from(!same));
            }
            fs::write(&path, whole).expect("written");
        }
        assert_eq!(run.latest(), (Some(2), vec![]));
    }

    #[test]
    fn errors_name_the_file_and_the_problem() {
        let run = TestRun::new("sgd", 3, 5);
        let tensors = run.folder.file(3, TENSORS);
        let mut bytes = fs::read(&tensors).expect("readable");
        let last = bytes.len() - 1;
        bytes[last] ^= 0x40;
        fs::write(&tensors, bytes).expect("written");
        // Without its manifest, a checkpoint was never complete.
        fs::remove_file(run.folder.file(2, MANIFEST)).expect("removed");
        let (version, reports) = run.latest();
        assert_eq!((version, reports.len()), (Some(1), 1));
        assert!(reports[0].contains("00003.safetensors is not a valid checkpoint: checksum"), "{}", reports[0]);
    }

    #[test]
    fn another_format_is_rejected_by_number() {
        let run = TestRun::new("sgd", 1, 1);
        let path = run.folder.file(1, MANIFEST);
        let text = r#"{"format":7,"fancy":true}"#;
        let crc32 = crc32fast::hash(text.as_bytes());
        fs::write(path, format!(r#"{{"crc32":{crc32},"manifest":{text}}}"#)).expect("written");
        let (_, reports) = run.latest();
        assert!(reports[0].ends_with("format 7; expected format 3"), "{}", reports[0]);
    }

    #[test]
    fn a_checkpoint_of_another_model_is_rejected() {
        let run = TestRun::new("sgd", 1, 1);
        let rejection = |layout: Layout| run.folder.latest(&layout).expect_err("another model").to_string();
        let other = Layout::new([("weight", vec![3, 2]), ("bias", vec![2])], [("mean", vec![2])]);
        let error = rejection(other);
        assert!(error.ends_with("found 'weight' of shape [2, 3]; expected 'weight' of shape [3, 2]"));
        let fewer = Layout::new([("weight", vec![2, 3])], []);
        assert!(rejection(fewer).ends_with("found 'bias' of shape [2]; expected no tensor"));
        let trainable = Layout::new([("weight", vec![2, 3]), ("bias", vec![2]), ("mean", vec![2])], []);
        assert!(rejection(trainable).ends_with("found 8 trainable values; expected 10 trainable values"));
    }

    #[test]
    fn a_tensor_name_used_twice_is_rejected() {
        let layout = Layout::new([("a", vec![1]), ("a", vec![1])], []);
        let directory = tempfile::tempdir().expect("a temporary folder");
        let error = ReservedModel::new(&directory.path().join("model.safetensors"), &layout);
        assert!(matches!(error, Err(CheckpointError::TensorName { name, .. }) if name == "a"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_keeps_earlier_checkpoints() {
        let run = TestRun::new("adam", 2, 2);
        let before = run.names();
        let unfinished = run.folder.path.join(".checkpoint-00000003.safetensors.unfinished");
        std::os::unix::fs::symlink("/dev/full", &unfinished).expect("linked");
        match run.save(3) {
            Err(CheckpointError::Io { source, .. }) => assert_eq!(source.kind(), io::ErrorKind::StorageFull),
            other => panic!("{other:?}"),
        }
        assert_eq!(run.names(), before);
        assert_eq!(run.latest(), (Some(2), vec![]));
    }

    #[cfg(unix)]
    #[test]
    fn a_read_only_folder_is_an_error() {
        use std::os::unix::fs::PermissionsExt;
        let run = TestRun::new("sgd", 1, 1);
        fs::set_permissions(&run.folder.path, fs::Permissions::from_mode(0o555)).expect("own folder");
        if fs::write(run.folder.path.join("probe"), "").is_ok() {
            println!("skipped: this user may write to read-only folders");
            return;
        }
        assert!(matches!(run.save(2), Err(CheckpointError::Io { action: "write", .. })));
        assert_eq!(run.latest(), (Some(1), vec![]));
        fs::set_permissions(&run.folder.path, fs::Permissions::from_mode(0o755)).expect("own folder");
    }

    #[test]
    fn python_reads_names_shapes_and_values() {
        let run = TestRun::new("momentum:0.9", 1, 1);
        let model = run.directory.path().join("model.safetensors");
        ReservedModel::new(&model, &run.layout).expect("reserved").write(&run.parameters).expect("written");
        let checkpoint = run.folder.file(1, TENSORS);
        let script = "
import sys
try:
    from safetensors.numpy import load_file
except ImportError:
    sys.exit(77)
for path in sys.argv[1:]:
    for name, tensor in sorted(load_file(path).items()):
        print(name, tensor.dtype, list(tensor.shape), sum(x.item() for x in tensor.flatten()))
";
        let python = std::process::Command::new("python3").arg("-c").arg(script).arg(model).arg(checkpoint).output();
        let output = match python {
            Ok(output) if output.status.code() != Some(77) => output,
            _ => return println!("skipped: no python3 with safetensors and numpy"),
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

        let line = |name: &str, shape: &str, values: &[f32]| {
            let sum: f64 = values.iter().map(|&value| f64::from(value)).sum();
            format!("{name} float32 {shape} {sum:?}")
        };
        let [weight, bias, mean] = [0..6, 6..8, 8..10].map(|range| &run.parameters[range]);
        let model = [line("bias", "[2]", bias), line("mean", "[2]", mean), line("weight", "[2, 3]", weight)];
        let (_, velocity) = run.optimizer.state().next().expect("momentum has one vector");
        let state = [
            line("optimizer.momentum.bias", "[2]", &velocity[6..]),
            line("optimizer.momentum.weight", "[2, 3]", &velocity[..6]),
        ];
        let [bias, mean, weight] = model.clone();
        let [state_bias, state_weight] = state;
        let expected = [model.to_vec(), vec![bias, mean, state_bias, state_weight, weight]].concat();
        assert_eq!(String::from_utf8_lossy(&output.stdout).lines().collect::<Vec<_>>(), expected);
    }
}
