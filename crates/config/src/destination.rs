//! Output files that a user names: tried before anything is computed, and never replaced by accident.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, bail};
use clap::Args;
use paceline_store::try_file;

/// `--force`.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct ForceOption {
    /// Replace output files that exist
    #[arg(long, help_heading = "Output")]
    pub force: bool,
}

impl ForceOption {
    /// Checks the file that a flag names for output: that it can be written, that it is none of the `inputs`, and that
    /// it does not exist, unless it is to be replaced. A pipe or a device may exist.
    ///
    /// # Errors
    /// If it can't be used.
    pub fn check(self, flag: &str, file: &Path, inputs: &[&Path]) -> anyhow::Result<()> {
        let name = file.display();
        if file.is_dir() {
            bail!("{flag} {name}: is a folder; expected a file");
        }
        if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
            bail!("{flag} {name}: folder {} does not exist", folder.display());
        }
        let identity = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        if let Some(input) = inputs.iter().find(|input| identity(input).is_some_and(|id| identity(file) == Some(id))) {
            bail!("{flag} {name}: is the input {}; choose another file", input.display());
        }
        if file.is_file() && !self.force {
            bail!("{flag} {name}: exists; choose another file, or replace it with --force");
        }
        try_file(file).with_context(|| format!("{flag} {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn a_destination_is_new_or_forced_and_never_an_input() {
        let folder = tempfile::tempdir().unwrap();
        let [new, old, link] = ["new", "old", "link"].map(|name| folder.path().join(name));
        fs::write(&old, "old").unwrap();
        fs::hard_link(&old, &link).unwrap();
        let check = |force, file: &PathBuf, inputs: &[&Path]| {
            ForceOption { force }.check("--out", file, inputs).map_err(|error| format!("{error:#}"))
        };
        check(false, &new, &[&old]).unwrap();
        assert!(!new.exists(), "nothing is left behind");
        assert!(
            check(false, &old, &[]).unwrap_err().ends_with("exists; choose another file, or replace it with --force")
        );
        check(true, &old, &[&new]).unwrap();
        assert!(check(true, &link, &[&old]).unwrap_err().contains("is the input "));
        assert!(check(true, &folder.path().into(), &[]).unwrap_err().ends_with("is a folder; expected a file"));
        let missing = check(true, &folder.path().join("no/file"), &[]).unwrap_err();
        assert!(missing.contains("does not exist"), "{missing}");
        check(false, &"/dev/null".into(), &[Path::new("/dev/zero")]).unwrap();
        // Nobody can create a file there, not even root.
        assert!(check(false, &"/proc/paceline".into(), &[]).unwrap_err().starts_with("--out /proc/paceline: "));
        assert_eq!(fs::read_to_string(&old).unwrap(), "old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
