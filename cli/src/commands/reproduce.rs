//! `paceline reproduce`: run the papers' experiments.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use clap::builder::PossibleValuesParser;
use paceline_config::Failure;
use paceline_experiments::{Conditions, EXPERIMENTS, Experiment};
use paceline_report::plot;

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
        let findings = run(&self.conditions)?;
        if self.json {
            for record in &findings.records {
                say(record);
            }
        } else {
            say(findings.text);
        }
        if !findings.panels.is_empty() {
            std::fs::create_dir_all(&self.out).with_context(|| self.out.display().to_string()).map_err(Failure::Run)?;
            for ending in plot::FORMATS {
                let path = self.out.join(name).with_extension(ending);
                plot::save(&path, &findings.panels).map_err(Failure::run)?;
                eprintln!("wrote {}", path.display());
            }
        }
        Ok(())
    }
}
