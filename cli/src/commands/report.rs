//! `paceline report`: an HTML page about one run or several.

use std::path::{Path, PathBuf};

use clap::Args;
use paceline_config::{Failure, ForceOption};
use paceline_report::numbers::counted;
use paceline_report::{page, plot};
use paceline_runtime::REPORT;
use serde_json::json;

use crate::destination::check_picture;
use crate::output::say;

/// Write one self-contained HTML page about a run, or comparing several
#[derive(Args)]
#[command(after_help = "Examples:
  paceline report runs/1
  paceline report runs/1 --picture timeline.svg
  paceline report runs/1 runs/2 --out comparison.html
  paceline report runs/race-1                          all runs of a race")]
pub struct ReportArgs {
    /// Run folders, or folders of run folders
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,

    /// Page to write [default: report.html, in the run folder if there is only one]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Also draw the first run's timeline (.svg; .png with --features png)
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,

    #[command(flatten)]
    force: ForceOption,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl ReportArgs {
    pub fn run(self) -> Result<(), Failure> {
        let folders = page::run_folders(&self.runs).map_err(Failure::input)?;
        let inputs: Vec<PathBuf> = folders.iter().flat_map(|folder| page::inputs(folder)).collect();
        let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
        // A run folder's own report is written again; no other file is replaced.
        let (out, force) = match (self.out, folders.as_slice()) {
            (Some(out), _) => (out, self.force),
            (None, [folder]) => (folder.join(REPORT), ForceOption { force: true }),
            (None, _) => (REPORT.into(), self.force),
        };
        force.check("--out", &out, &inputs).map_err(Failure::Input)?;
        if let Some(picture) = &self.picture {
            check_picture("--picture", picture, self.force, &inputs).map_err(Failure::Input)?;
        }
        if let (Some(file), Some(folder)) = (&self.picture, folders.first()) {
            let figure = page::timeline_figure(folder).map_err(Failure::input)?;
            plot::save(file, &[figure]).map_err(Failure::input)?;
        }
        let bytes = page::write(&out, &folders).map_err(Failure::input)?;
        if self.json {
            say(json!({ "file": out, "bytes": bytes, "runs": folders }));
        } else {
            say(format_args!("{}: {}, {:.2} MB", out.display(), counted(folders.len(), "run"), bytes as f64 / 1e6));
        }
        Ok(())
    }
}
