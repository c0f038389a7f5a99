//! `paceline data`: download published data sets.

use std::path::PathBuf;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use paceline_config::{Failure, ForceOption};
use paceline_report::progress::bars;
use paceline_workload::{DownloadError, PublishedSet, download};

use crate::output::say;

/// Download data sets
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  paceline data get mnist
  paceline train --data mnist --model mlp")]
pub enum DataCommand {
    Get(DataGetArgs),
}

/// Download a data set into the cache, where --data finds it, and verify its checksums
#[derive(Args)]
#[command(after_help = "Example:\n  paceline data get mnist && paceline fit --data mnist")]
pub struct DataGetArgs {
    /// Data set: mnist, fashion-mnist or cifar10
    set: PublishedSet,

    /// Folder to download to [default: the cache folder]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,

    /// Another address of the set's files
    #[arg(long, value_name = "URL")]
    mirror: Option<String>,

    #[command(flatten)]
    force: ForceOption,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl DataCommand {
    pub fn run(self) -> Result<(), Failure> {
        let DataCommand::Get(get) = self;
        get.run()
    }
}

impl DataGetArgs {
    fn run(self) -> Result<(), Failure> {
        let folder = self.to.or_else(|| self.set.cache_folder());
        let folder = folder.ok_or_else(|| {
            Failure::Input(anyhow!("no cache folder: set PACELINE_DATA, XDG_CACHE_HOME or HOME, or give --to DIR"))
        })?;
        let style = ProgressStyle::with_template("{msg} {bar:24} {bytes}/{total_bytes} {bytes_per_sec}");
        let bar = bars().add(ProgressBar::no_length().with_style(style.map_err(Failure::run)?));
        let mut progress = |progress: paceline_workload::DownloadProgress<'_>| {
            bar.set_message(progress.file.to_string());
            bar.set_length(progress.total.unwrap_or(progress.done));
            bar.set_position(progress.done);
        };
        let downloaded = download(self.set, self.mirror.as_deref(), &folder, self.force.force, &mut progress);
        downloaded.map_err(|error| match error {
            DownloadError::Differs { .. } => Failure::input(error),
            _ => Failure::run(error),
        })?;
        bar.finish_and_clear();
        if self.json {
            say(serde_json::json!({ "set": self.set.name(), "folder": folder }));
        } else {
            say(format_args!("{} is in {}", self.set, folder.display()));
        }
        Ok(())
    }
}
