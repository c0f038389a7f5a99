//! The HTML page that shows runs: one or several that have ended, as a single file that needs no network; or one that goes on,
//! over HTTP. Both are the same page. Its script gets the same data, from the file or from the server.

mod picture;
mod run;

use std::cmp::Ordering;
use std::io::Write;
use std::path::{Path, PathBuf};

use paceline_runtime::{EVENTS, REPORT, RunFolder, Summary};
use paceline_store::write_file;
use serde::Serialize;

use crate::error::{ReportError, at};
use crate::view::Kept;

pub use picture::timeline_figure;
pub use run::PageRun;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");

/// The parts of the script, in this order.
const SCRIPTS: [&str; 6] = [
    include_str!("base.js"),
    include_str!("view.js"),
    include_str!("timeline.js"),
    include_str!("charts.js"),
    include_str!("tables.js"),
    include_str!("page.js"),
];

/// The data that the page's script draws.
#[derive(Serialize)]
struct PageData {
    title: String,
    /// Whether the server of the page sends the run.
    live: bool,
    runs: Vec<PageRun>,
}

impl PageData {
    fn page(&self) -> String {
        // In a script element only `</` is special; JSON allows an escaped slash.
        let data = serde_json::to_string(self).unwrap_or_default().replace("</", "<\\/");
        PAGE.replace("/*style*/", STYLE).replace("/*script*/", &SCRIPTS.concat()).replace("/*data*/", &data)
    }
}

/// The page that follows a run.
pub(crate) fn live_page(title: String) -> String {
    PageData { title, live: true, runs: Vec::new() }.page()
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

/// A run with more updates gets its report only on request: its log takes seconds to read.
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
    let own =
        |folder: &Path| folder.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned());
    // Folders of the same name are told apart by the folders that they are in.
    let name = |folder: &Path| match folder
        .parent()
        .filter(|_| folders.iter().filter(|one| own(one) == own(folder)).count() > 1)
    {
        Some(parent) => format!("{}/{}", own(parent), own(folder)),
        None => own(folder),
    };
    let runs = folders.iter().map(|folder| PageRun::read(folder, name(folder), folders.len(), Kept::Oldest));
    let mut runs = runs.collect::<Result<Vec<PageRun>, _>>()?;
    runs.sort_by(|one, other| one.rank().partial_cmp(&other.rank()).unwrap_or(Ordering::Equal));
    // What the others are compared with comes second, unless it is first.
    if let Some(baseline) = runs.iter().position(|run| run.is_baseline()).filter(|place| *place > 1) {
        runs[1..=baseline].rotate_right(1);
    }
    let title = match folders {
        [folder] => format!("Run {}", name(folder)),
        _ => format!("{} runs", folders.len()),
    };
    Ok(PageData { title, live: false, runs }.page())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_loads_nothing_from_the_network() {
        let page = page(&[]).unwrap();
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            // The namespace of SVG is not an address.
            let left = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!left.contains(outside), "{outside}");
        }
        for placeholder in ["/*style*/", "/*script*/", "/*data*/"] {
            assert!(!page.contains(placeholder), "{placeholder}");
        }
    }
}
