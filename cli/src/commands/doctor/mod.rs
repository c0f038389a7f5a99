//! `paceline doctor`: what this machine and environment offer a run, and what a run would do here.

mod environment;
mod machine;
mod network;

use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;
use paceline_config::Failure;
use paceline_net::Address;
use serde::Serialize;

use crate::output::say;

/// Say what this machine and environment offer a run, what is wrong with that, and what a run would do here
#[derive(Args)]
#[command(
    after_help = "A line begins with 'wrong' if a run would fail, and then the exit code is 1; with 'note' if there is something to know.

Examples:
  paceline doctor
  paceline doctor --join 10.0.0.1:7077 --keys keys
  paceline doctor --json        (also as a process of srun, mpirun or torchrun --no-python)"
)]
pub struct DoctorArgs {
    /// Also try to connect to a server at this address, and say how long that takes
    #[arg(long, value_name = "ADDRESS")]
    join: Option<Address>,

    /// Also read the keys in this folder
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,

    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
}

/// What a finding means for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Fine,
    /// A run works, but there is something to know.
    Note,
    /// A run would fail.
    Wrong,
}

/// One thing that was found.
#[derive(Debug, Serialize)]
struct Finding {
    name: &'static str,
    found: String,
    verdict: Verdict,
    /// What it means, or what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Finding {
    fn fine(name: &'static str, found: impl Into<String>) -> Self {
        Finding { name, found: found.into(), verdict: Verdict::Fine, advice: None }
    }

    fn note(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { verdict: Verdict::Note, advice: Some(advice.into()), ..Finding::fine(name, found) }
    }

    fn wrong(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { verdict: Verdict::Wrong, advice: Some(advice.into()), ..Finding::fine(name, found) }
    }

    /// As lines for a terminal.
    fn text(&self) -> String {
        let mark = match self.verdict {
            Verdict::Fine => "",
            Verdict::Note => "note",
            Verdict::Wrong => "wrong",
        };
        let line = format!("{mark:<6}{:<15}{}", self.name, self.found);
        self.advice.iter().fold(line, |line, advice| format!("{line}\n{:21}{advice}", ""))
    }
}

/// Everything that was found.
#[derive(Serialize)]
struct Diagnosis {
    findings: Vec<Finding>,
    /// What a run would do here.
    would: Vec<String>,
}

impl DoctorArgs {
    pub fn run(self) -> Result<(), Failure> {
        let variable = |name: &str| std::env::var(name).ok();
        let (launch, would) = environment::launch(&variable);
        let mut findings = vec![launch];
        findings.extend(machine::findings());
        findings.push(environment::python());
        findings.extend(network::findings());
        findings.extend(self.keys.as_deref().map(network::keys));
        findings.extend(self.join.as_ref().map(network::server));
        let found = Diagnosis { findings, would };
        if self.json {
            say(serde_json::to_string(&found).map_err(Failure::run)?);
        } else {
            found.findings.iter().for_each(|finding| say(finding.text()));
            say("");
            found.would.iter().for_each(say);
        }
        let wrong = found.findings.iter().filter(|finding| finding.verdict == Verdict::Wrong).count();
        match wrong {
            0 => Ok(()),
            _ => Err(Failure::Run(anyhow!("a run would fail here; the lines with 'wrong' say what to do"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_aligned_and_say_what_to_do() {
        assert_eq!(Finding::fine("processors", "2").text(), "      processors     2");
        let text = Finding::wrong("server", "10.0.0.1:7077", "start it").text();
        assert_eq!(text, "wrong server         10.0.0.1:7077\n                     start it");
    }
}
