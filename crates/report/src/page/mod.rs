//! A page that explains one run, or compares several: a single HTML file that needs no network.

mod picture;
mod run;
mod thin;
mod timeline;

use std::io::Write;
use std::path::{Path, PathBuf};

use paceline_runtime::{EVENTS, REPORT, RunFolder, Summary};
use paceline_store::{Layout, write_file};
use serde::Serialize;

use crate::error::{ReportError, at};

pub use picture::timeline_figure;
use run::{PageLimits, ReportedRun};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Most stretches of all timelines together, and most bytes of reasons: what keeps a page under 3 MB.
const STRETCHES: usize = 120_000;
const REASONS: usize = 900_000;

/// What the page is made of.
#[derive(Serialize)]
struct PageData {
    title: String,
    runs: Vec<ReportedRun>,
}

/// The run folders meant by `paths`: themselves, or those inside them.
///
/// # Errors
/// If one is no run folder and holds none.
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

/// Writes a page about these run folders, whole or not at all. Returns its size in bytes.
///
/// # Errors
/// If a folder can't be read or the file can't be written.
pub fn write(file: &Path, folders: &[PathBuf]) -> Result<usize, ReportError> {
    let page = page(folders)?;
    write_file(file, |file| file.write_all(page.as_bytes())).map_err(at(file))?;
    Ok(page.len())
}

/// Ends a run folder, and adds its report.
///
/// # Errors
/// If anything can't be written.
pub fn finish_run_folder(
    folder: RunFolder,
    summary: &Summary,
    model: Option<(&Layout, &[f32])>,
) -> Result<(), ReportError> {
    let path = folder.path().to_path_buf();
    folder.finish(summary, model)?;
    write(&path.join(REPORT), &[path]).map(drop)
}

fn page(folders: &[PathBuf]) -> Result<String, ReportError> {
    let runs = folders.len().max(1);
    let room = PageLimits { stretches: STRETCHES / runs, reasons: REASONS / runs };
    let name = |folder: &Path| folder.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into());
    let runs = folders.iter().map(|folder| ReportedRun::read(folder, name(folder), room));
    let runs = runs.collect::<Result<Vec<ReportedRun>, _>>()?;
    let title = match folders {
        [folder] => format!("Run {}", name(folder)),
        _ => format!("{} runs", folders.len()),
    };
    // Inside a script element only its own end matters; as JSON, the slash may be escaped.
    let data = serde_json::to_string(&PageData { title, runs }).unwrap_or_default().replace("</", "<\\/");
    Ok(PAGE.replace("/*style*/", STYLE).replace("/*script*/", SCRIPT).replace("/*data*/", &data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_asks_for_nothing_from_elsewhere() {
        let page = page(&[]).unwrap();
        for outside in ["http://", "https://", "src=", "@import", "url(", "<link"] {
            // The namespace of SVG is a name, not an address.
            let left = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!left.contains(outside), "{outside}");
        }
        for placeholder in ["/*style*/", "/*script*/", "/*data*/"] {
            assert!(!page.contains(placeholder), "{placeholder}");
        }
    }
}
