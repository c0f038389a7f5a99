//! An HTML page that explains one run or compares several: a single file that needs no network.

mod downsample;
mod picture;
mod run;
mod timeline;

use std::io::Write;
use std::path::{Path, PathBuf};

use paceline_runtime::{EVENTS, REPORT, RunFolder, Summary};
use paceline_store::write_file;
use serde::Serialize;

use crate::error::{ReportError, at};

pub use picture::timeline_figure;
use run::{PageLimits, ReportedRun};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Limits on the segments of all timelines and on the bytes of all reasons, which keep a page under 3 MB.
const MAX_SEGMENTS: usize = 120_000;
const MAX_REASON_BYTES: usize = 900_000;

/// The data that the page's script draws.
#[derive(Serialize)]
struct PageData {
    title: String,
    runs: Vec<ReportedRun>,
}

/// The run folders among `paths`, and those inside the others.
///
/// # Errors
/// If a path neither is a run folder nor contains one.
pub fn run_folders(paths: &[PathBuf]) -> Result<Vec<PathBuf>, ReportError> {
    let is_run = |path: &Path| path.join(EVENTS).is_file();
    let mut folders = Vec::new();
    for path in paths {
        if is_run(path) {
            folders.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).map_err(at(path))?;
        let mut inside: Vec<PathBuf> =
            entries.flatten().map(|entry| entry.path()).filter(|path| is_run(path)).collect();
        if inside.is_empty() {
            return Err(ReportError::NoRun { path: path.clone() });
        }
        inside.sort();
        folders.append(&mut inside);
    }
    Ok(folders)
}

/// The files of a run folder that its page is made of.
pub fn inputs(folder: &Path) -> impl Iterator<Item = PathBuf> {
    ["events.jsonl", "metrics.csv", "summary.json", "config.toml", "model.safetensors"]
        .map(|name| folder.join(name))
        .into_iter()
}

/// Writes a page about these run folders, atomically. Returns its size in bytes.
///
/// # Errors
/// If a folder can't be read or the file can't be written.
pub fn write(file: &Path, folders: &[PathBuf]) -> Result<usize, ReportError> {
    let page = page(folders)?;
    write_file(file, |file| file.write_all(page.as_bytes())).map_err(at(file))?;
    Ok(page.len())
}

/// A run with more updates gets its report only on request: a report keeps about 150 bytes for each in memory.
const MOST_UPDATES: u64 = 250_000;

/// Finishes a run folder, and adds its report unless the run was very long.
///
/// # Errors
/// If anything can't be written.
pub fn finish_run_folder(folder: RunFolder, summary: &Summary, parameters: Option<&[f32]>) -> Result<(), ReportError> {
    let lock = folder.finish(summary, parameters)?;
    if summary.updates_committed + summary.updates_discarded > MOST_UPDATES {
        return Ok(());
    }
    let path = lock.folder().to_path_buf();
    write(&path.join(REPORT), &[path]).map(drop)
}

fn page(folders: &[PathBuf]) -> Result<String, ReportError> {
    let runs = folders.len().max(1);
    let limits = PageLimits { segments: MAX_SEGMENTS / runs, reason_bytes: MAX_REASON_BYTES / runs };
    let name = |folder: &Path| folder.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into());
    let runs = folders.iter().map(|folder| ReportedRun::read(folder, name(folder), limits));
    let runs = runs.collect::<Result<Vec<ReportedRun>, _>>()?;
    let title = match folders {
        [folder] => format!("Run {}", name(folder)),
        _ => format!("{} runs", folders.len()),
    };
    // In a script element only `</` is special; JSON allows an escaped slash.
    let data = serde_json::to_string(&PageData { title, runs }).unwrap_or_default().replace("</", "<\\/");
    Ok(PAGE.replace("/*style*/", STYLE).replace("/*script*/", SCRIPT).replace("/*data*/", &data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_loads_nothing_from_the_network() {
        let page = page(&[]).unwrap();
        for outside in ["http://", "https://", "src=", "@import", "url(", "<link"] {
            // The namespace of SVG is not an address.
            let left = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!left.contains(outside), "{outside}");
        }
        for placeholder in ["/*style*/", "/*script*/", "/*data*/"] {
            assert!(!page.contains(placeholder), "{placeholder}");
        }
    }
}
