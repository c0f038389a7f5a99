//! Checks of output files and folders, made before anything is computed.

use std::path::Path;

use anyhow::{Context, anyhow};
use paceline_config::ForceOption;
use paceline_report::plot;
use paceline_store::{create_folder, try_file};
use paceline_trace::Trace;

/// Checks a picture, whose format follows from its name.
pub fn check_picture(flag: &str, file: &Path, force: ForceOption, inputs: &[&Path]) -> anyhow::Result<()> {
    plot::check_format(file).map_err(|error| anyhow!("{flag} {error}"))?;
    force.check(flag, file, inputs)
}

/// Checks a trace, whose format follows from its name.
pub fn check_trace(flag: &str, file: &Path, force: ForceOption, inputs: &[&Path]) -> anyhow::Result<()> {
    Trace::check_format(file).map_err(|error| anyhow!("{flag} {error}"))?;
    force.check(flag, file, inputs)
}

/// Creates the folder of `--out`, and tries whether it can be written.
pub fn make_folder(folder: &Path) -> anyhow::Result<()> {
    let tried = create_folder(folder).and_then(|()| try_file(&folder.join("paceline")));
    tried.with_context(|| format!("--out {}", folder.display()))
}
