//! One name per idea: type names are unique in the workspace, and words that were replaced stay out of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Names that several crates give to the same idea.
const SAME_IDEA: &[&str] = &["StopOnPanic", "Tensors", "TransportKind"];

/// Words that the glossary replaced, and what to say instead.
const REPLACED: &[(&str, &str)] =
    &[("handout", "dispatch"), ("learnt", "learned or pretrained"), ("snapshot", "checkpoint")];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All files below `folder` whose name ends in `.{extension}`, except build output.
fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
}

fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["crates", "cli", "examples", "fuzz", "python"] {
        files(&root().join(folder), "rs", &mut found);
    }
    found
}

/// The type that a line defines. Associated types are no definitions.
fn defined(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    match words.next()? {
        "struct" | "enum" | "trait" | "union" => {}
        "type" if !line.starts_with(' ') => {}
        _ => return None,
    }
    let name = words.next()?;
    name.split(|letter: char| !letter.is_alphanumeric()).next().filter(|name| !name.is_empty())
}

#[test]
fn type_names_are_unique() {
    let mut places: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for path in sources() {
        for line in fs::read_to_string(&path).unwrap().lines() {
            if let Some(name) = defined(line) {
                places.entry(name.into()).or_default().push(path.clone());
            }
        }
    }
    assert!(places.len() > 300, "only {} types found", places.len());
    let twice: Vec<_> =
        places.iter().filter(|(name, files)| files.len() > 1 && !SAME_IDEA.contains(&name.as_str())).collect();
    assert!(twice.is_empty(), "rename all but one of each: {twice:#?}");
}

#[test]
fn replaced_words_stay_out() {
    let mut pages = sources();
    files(&root().join("docs"), "md", &mut pages);
    pages.push(root().join("README.md"));
    let own = Path::new(file!()).file_name().unwrap();
    for path in pages.iter().filter(|path| path.file_name() != Some(own)) {
        for (index, line) in fs::read_to_string(path).unwrap().lines().enumerate() {
            for (word, instead) in REPLACED {
                let found = line.to_lowercase().contains(word);
                assert!(!found, "{}, line {}: say {instead}, not {word}", path.display(), index + 1);
            }
        }
    }
}
