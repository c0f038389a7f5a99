//! The HTML page that shows runs: one or several that have ended, as a single file that needs no network; or one that goes on,
//! over HTTP. Both are the same page. Its script gets the same data, from the file or from the server.

mod contestants;
mod picture;
mod run;

use std::cmp::Ordering;
use std::io::Write;
use std::path::{Path, PathBuf};

use paceline_runtime::{EVENTS, REPORT, RunFolder, Summary};
use paceline_store::write_file;
use serde::Serialize;

use crate::comparison::{BASELINE, ContestantRuns, Ranking};
use crate::error::{ReportError, at};
use crate::view::Kept;
use contestants::{PageComparison, PageContestant, common_target, contestants_of};

pub use contestants::Recommendation;
pub use picture::timeline_figure;
pub use run::PageRun;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");

/// The parts of the script, in this order.
const SCRIPTS: [&str; 8] = [
    include_str!("base.js"),
    include_str!("view.js"),
    include_str!("timeline.js"),
    include_str!("charts.js"),
    include_str!("tables.js"),
    include_str!("ranking.js"),
    include_str!("several.js"),
    include_str!("page.js"),
];

/// The data that the page's script draws.
#[derive(Serialize)]
struct PageData {
    title: String,
    /// Whether the server of the page sends the run.
    live: bool,
    /// Of several, those of the best contestant first.
    runs: Vec<PageRun>,
    /// The same as contestants, in the same order.
    contestants: Vec<PageContestant>,
    /// How they compare; `None` without a common target.
    comparison: Option<PageComparison>,
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
    PageData { title, live: true, runs: Vec::new(), contestants: Vec::new(), comparison: None }.page()
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
    if let [folder] = folders {
        let title = format!("Run {}", name(folder));
        return Ok(PageData { title, live: false, runs, contestants: Vec::new(), comparison: None }.page());
    }
    runs.sort_by(|one, other| one.rank().partial_cmp(&other.rank()).unwrap_or(Ordering::Equal));
    let mut contestants = contestants_of(&runs);
    // Those without a complete run are not ranked, and come last.
    contestants.sort_by_key(|(results, _)| results.runs.is_empty());
    let complete = contestants.partition_point(|(results, _)| !results.runs.is_empty());
    let (mut results, places): (Vec<ContestantRuns>, Vec<Vec<usize>>) = contestants.into_iter().unzip();
    let rest = results.split_off(complete);
    let ranking = common_target(&runs).filter(|_| complete > 1).map(|goals| Ranking::new(&results, &goals));
    let answers = ranking.as_ref().map(|ranking| Recommendation::all(&results, ranking));
    results.extend(rest);
    let all = results.into_iter().zip(places).collect();
    Ok(several(format!("{} runs", folders.len()), runs, all, ranking.as_ref().zip(answers)))
}

/// A page of several runs. Each contestant comes with the places of its runs.
fn several(
    title: String,
    runs: Vec<PageRun>,
    mut all: Vec<(ContestantRuns, Vec<usize>)>,
    ranked: Option<(&Ranking, Vec<Recommendation>)>,
) -> String {
    let ranking = ranked.as_ref().map(|(ranking, _)| *ranking);
    let place = |name: &str| ranking.and_then(|ranking| ranking.places.iter().position(|place| place.name == name));
    all.sort_by_key(|(results, _)| place(&results.name).unwrap_or(usize::MAX));
    // What the others are compared with comes second, unless it is first.
    let baseline = all.iter().position(|(results, _)| results.name == BASELINE).filter(|place| *place > 1);
    baseline.into_iter().for_each(|baseline| all[1..=baseline].rotate_right(1));
    let mut runs: Vec<Option<PageRun>> = runs.into_iter().map(Some).collect();
    let mut ordered = Vec::new();
    let mut contestants = Vec::new();
    for (results, own) in all {
        let first = ordered.len();
        ordered.extend(own.into_iter().filter_map(|index| runs[index].take()));
        contestants.push(PageContestant::new(&results, (first..ordered.len()).collect(), ranking));
    }
    let comparison = ranked.map(|(ranking, answers)| PageComparison::new(ranking, answers));
    PageData { title, live: false, runs: ordered, contestants, comparison }.page()
}

/// Writes a page about contestants that were ranked, atomically: each with the folder of one of its runs, if it has one.
///
/// # Errors
/// If a folder can't be read or the file can't be written.
pub fn write_ranking(
    file: &Path,
    title: String,
    contestants: Vec<(ContestantRuns, PathBuf)>,
    ranking: &Ranking,
    answers: Vec<Recommendation>,
) -> Result<(), ReportError> {
    let count = contestants.len();
    let mut runs = Vec::new();
    let mut all = Vec::new();
    for (results, folder) in contestants {
        let has_run = folder.join(EVENTS).is_file();
        let own = if has_run { vec![runs.len()] } else { Vec::new() };
        if has_run {
            runs.push(PageRun::read(&folder, results.name.clone(), count, Kept::Oldest)?);
        }
        all.push((results, own));
    }
    let page = several(title, runs, all, Some((ranking, answers)));
    write_file(file, |file| file.write_all(page.as_bytes())).map_err(at(file))
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
