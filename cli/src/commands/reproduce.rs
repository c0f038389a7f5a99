//! `paceline reproduce`: run the papers' experiments.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use clap::builder::PossibleValuesParser;
use paceline_config::{Failure, ForceOption};
use paceline_experiments::{Conditions, EXPERIMENTS, Experiment};
use paceline_report::plot;
use paceline_runtime::is_interrupted;
use paceline_store::try_file;

use crate::destination::make_folder;
use crate::interrupt;
use crate::output::say;

/// Run a paper's experiment; print its table, and write its figure
#[derive(Args)]
#[command(after_help = after_help())]
pub struct ReproduceArgs {
    /// Experiment to run (see below)
    #[arg(value_parser = PossibleValuesParser::new(EXPERIMENTS.iter().map(|experiment| experiment.name)), hide_possible_values = true)]
    experiment: String,

    #[command(flatten)]
    conditions: Conditions,

    /// Folder for the figures
    #[arg(long, value_name = "DIR", default_value = "reproduced")]
    out: PathBuf,

    #[command(flatten)]
    force: ForceOption,

    /// Print one JSON object per record instead of a table
    #[arg(long)]
    json: bool,
}

fn after_help() -> String {
    let mut text = String::from("Experiments:\n");
    for Experiment { name, summary, .. } in EXPERIMENTS {
        text += &format!("  {name:<16} {summary}\n");
    }
    text + "\nExample:\n  paceline reproduce zipline-fig11 --out figures"
}

impl ReproduceArgs {
    pub fn run(self) -> Result<(), Failure> {
        let chosen = EXPERIMENTS.iter().find(|experiment| experiment.name == self.experiment);
        let Experiment { name, run, .. } = chosen.expect("clap accepts only names of experiments");
        let figures = plot::FORMATS.iter().map(|ending| self.out.join(name).with_extension(ending));
        let figures: Vec<PathBuf> = figures.collect();
        self.check(&figures).map_err(Failure::Input)?;
        interrupt::listen_for_result()?;
        let findings = run(&self.conditions).and_then(|findings| {
            if findings.records.is_empty() {
                interrupt::check()?
            }
            Ok(findings)
        });
        let findings = findings.inspect_err(|failure| {
            if let Failure::Ended(_) = failure {
                eprintln!("no run is complete");
            }
        })?;
        // An interrupted experiment has a table of the runs that are complete, and no figure.
        let panels = if is_interrupted() { Vec::new() } else { findings.panels };
        if self.json {
            for record in &findings.records {
                say(record);
            }
        } else {
            say(findings.text);
            if is_interrupted() {
                say("\nOnly the runs that were complete count; NaN stands for a mean of none.");
            }
        }
        if !panels.is_empty() {
            make_folder(&self.out).map_err(Failure::Run)?;
            for path in &figures {
                plot::save(path, &panels).map_err(Failure::run)?;
                eprintln!("wrote {}", path.display());
            }
        }
        interrupt::check()
    }

    /// Tries the figures before the experiment, which may take hours, and leaves no folder behind: not every experiment
    /// has a figure.
    fn check(&self, figures: &[PathBuf]) -> anyhow::Result<()> {
        let existing = self.out.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
        if existing == self.out {
            return figures.iter().try_for_each(|file| self.force.check("--out", file, &[]));
        }
        let above = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
        try_file(&above.join("paceline")).with_context(|| format!("--out {}", self.out.display()))
    }
}
