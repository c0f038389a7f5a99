//! The model that a run has trained.

use std::path::{Path, PathBuf};

use paceline_store::{CheckpointFolder, Layout, read_model};

use crate::checkpointer::CHECKPOINTS;
use crate::run_folder::{MODEL, RunFolderError};

/// The parameters that a run folder holds.
#[derive(Debug)]
pub struct TrainedModel {
    /// The parameters.
    pub parameters: Vec<f32>,
    /// Where they were read.
    pub source: PathBuf,
}

impl TrainedModel {
    /// Reads the final model of a run folder or, if there is none, its last checkpoint.
    ///
    /// # Errors
    /// If there is neither, or it is damaged or belongs to a model with another layout.
    pub fn read(folder: &Path, layout: &Layout) -> Result<Self, RunFolderError> {
        let source = folder.join(MODEL);
        if source.is_file() {
            return Ok(TrainedModel { parameters: read_model(&source, layout)?, source });
        }
        let source = folder.join(CHECKPOINTS);
        if !source.is_dir() {
            return Err(RunFolderError::NoModel { path: folder.into() });
        }
        let latest = CheckpointFolder::create(&source, 1)?.latest(layout)?;
        let checkpoint = latest.checkpoint.ok_or_else(|| match latest.skipped.as_slice() {
            [] => RunFolderError::NoModel { path: folder.into() },
            skipped => {
                let problems: Vec<String> = skipped.iter().map(ToString::to_string).collect();
                RunFolderError::NoGoodCheckpoint { problems: problems.join("; ") }
            }
        })?;
        Ok(TrainedModel { parameters: checkpoint.parameters, source })
    }
}
