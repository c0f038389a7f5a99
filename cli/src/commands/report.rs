//! `paceline report`: a page about a run, or about several.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::destination::{check_file, check_picture};
use crate::failure::Failure;
use crate::numerals::counted;
use crate::output::say;
use crate::plot;
use crate::report;

/// Write one HTML page, which needs nothing else, about a run or comparing several
#[derive(Args)]
#[command(after_help = "Examples:
  paceline report runs/1
  paceline report runs/1 --picture timeline.svg
  paceline report runs/1 runs/2 --out comparison.html
  paceline report runs/race-1                          all runs of a race")]
pub struct Report {
    /// Run folders, or folders of run folders
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,

    /// The page [default: report.html, in the run folder if there is one only]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Draw who did what when of the first run, too (.png or .svg)
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl Report {
    pub fn run(self) -> Result<(), Failure> {
        let folders = report::run_folders(&self.runs).map_err(Failure::Input)?;
        let out = self.out.unwrap_or_else(|| match folders.as_slice() {
            [folder] => folder.join("report.html"),
            _ => "report.html".into(),
        });
        check_file("--out", &out).map_err(Failure::Input)?;
        if let Some(picture) = &self.picture {
            check_picture("--picture", picture).map_err(Failure::Input)?;
        }
        if let (Some(file), Some(folder)) = (&self.picture, folders.first()) {
            let figure = report::picture(folder).map_err(Failure::Input)?;
            plot::save(file, &[figure]).map_err(Failure::Input)?;
        }
        let bytes = report::write(&out, &folders).map_err(Failure::Input)?;
        if self.json {
            say(json!({ "file": out, "bytes": bytes, "runs": folders }));
        } else {
            say(format_args!("{}: {}, {:.2} MB", out.display(), counted(folders.len(), "run"), bytes as f64 / 1e6));
        }
        Ok(())
    }
}
