//! Where results are to go, looked at before anything is run for them.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

/// Refuses a file that a flag names, if it is a folder or in none.
pub fn check_file(flag: &str, file: &Path) -> anyhow::Result<()> {
    if file.is_dir() {
        bail!("{flag} {}: that is a folder", file.display());
    }
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            bail!("{flag} {}: there is no folder {}", file.display(), folder.display())
        }
        _ => Ok(()),
    }
}

/// The same for a picture, whose name says how it is written.
pub fn check_picture(flag: &str, file: &Path) -> anyhow::Result<()> {
    match file.extension().and_then(|ending| ending.to_str()) {
        Some("png" | "svg") => check_file(flag, file),
        _ => bail!("{flag} {}: a picture's name ends in .png or .svg", file.display()),
    }
}

/// Makes the folder that `--out` names.
pub fn make_folder(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("--out {}", folder.display()))
}
