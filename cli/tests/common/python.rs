//! A Python with packages that tests need.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Set where no test may be skipped.
const ALL_TESTS: &str = "PACELINE_ALL_TESTS";

/// A Python that can import these modules, of these packages: that of `./test`, or the system's. `None`, and a line, where
/// there is none.
pub fn python_with(modules: &str, packages: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_BIN_EXE_paceline")).parent()?.parent()?;
    let candidates = [target.join("python/bin/python"), "python3".into()];
    let imports = format!("import {modules}");
    let has_them = |python: &PathBuf| {
        let check = Command::new(python).args(["-c", &imports]).stderr(Stdio::null()).status();
        check.is_ok_and(|status| status.success())
    };
    let found = candidates.into_iter().find(has_them);
    if found.is_none() {
        assert!(std::env::var_os(ALL_TESTS).is_none(), "no Python has {packages}");
        println!("skipped: no Python has {packages}; ./test installs them");
    }
    found
}
