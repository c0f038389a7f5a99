//! The core does no I/O, spawns nothing, reads no clock and has no source of randomness of its own.

use std::fs;
use std::path::{Path, PathBuf};

const FORBIDDEN: [&str; 14] = [
    "std::fs",
    "std::net",
    "std::io",
    "std::os",
    "std::process",
    "std::thread",
    "std::env",
    "Instant",
    "SystemTime",
    "print!",
    "println!",
    "RandomState",
    "HashMap",
    "HashSet",
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The lines that are compiled into the library: unit tests are at the bottom of a file.
fn library_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let code = |line: &&str| !line.trim_start().starts_with("//");
    text.lines()
        .enumerate()
        .take_while(|(_, line)| !line.starts_with("mod tests {"))
        .filter(move |(_, line)| code(line))
}

#[test]
fn sources_use_no_io_no_clock_and_no_randomness() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = sources(&root);
    assert!(files.len() > 10);
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        for (index, line) in library_lines(&text) {
            for forbidden in FORBIDDEN {
                assert!(!line.contains(forbidden), "{}:{}: {forbidden} in: {line}", path.display(), index + 1);
            }
        }
    }
}

#[test]
fn dependencies_use_no_io_no_clock_and_no_randomness() {
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let dependencies = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
    let names: Vec<&str> = dependencies.split_whitespace().filter_map(|word| word.strip_suffix(".workspace")).collect();
    assert_eq!(
        names,
        ["paceline-spec", "libm", "serde", "serde_json", "smallvec", "thiserror"],
        "a new dependency of the core: does it do I/O or read a clock?"
    );
}
