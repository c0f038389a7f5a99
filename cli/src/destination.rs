//! Checks of output files and folders, made before a run starts.

use std::fs;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use paceline_report::plot;
use paceline_trace::Trace;

/// Refuses the file of a flag if it is a folder, or if its folder does not exist.
pub fn check_file(flag: &str, file: &Path) -> anyhow::Result<()> {
    if file.is_dir() {
        bail!("{flag} {}: is a folder; expected a file", file.display());
    }
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            bail!("{flag} {}: folder {} does not exist", file.display(), folder.display())
        }
        _ => Ok(()),
    }
}

/// The same for a picture, whose format follows from its name.
pub fn check_picture(flag: &str, file: &Path) -> anyhow::Result<()> {
    plot::check_format(file).map_err(|error| anyhow!("{flag} {error}"))?;
    check_file(flag, file)
}

/// The same for a trace, whose format follows from its name.
pub fn check_trace(flag: &str, file: &Path) -> anyhow::Result<()> {
    Trace::check_format(file).map_err(|error| anyhow!("{flag} {error}"))?;
    check_file(flag, file)
}

/// Creates the folder of `--out`.
pub fn make_folder(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("--out {}", folder.display()))
}
