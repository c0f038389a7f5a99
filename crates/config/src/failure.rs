//! How a command fails: in one line, and whether the input was at fault.

use std::fmt;

/// Why the command ends without success.
#[derive(Debug)]
pub enum Failure {
    /// The input can't be used; exit code 2.
    Input(anyhow::Error),
    /// The input was fine, but something went wrong; exit code 1.
    Run(anyhow::Error),
    /// Help or version was asked for; exit code 0.
    Shown(clap::Error),
}

impl Failure {
    /// The input can't be used.
    pub fn input(error: impl Into<anyhow::Error>) -> Self {
        Failure::Input(error.into())
    }

    /// Something went wrong although the input was fine.
    pub fn run(error: impl Into<anyhow::Error>) -> Self {
        Failure::Run(error.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Input(error) | Failure::Run(error) => f.write_str(&with_causes(error)),
            Failure::Shown(text) => write!(f, "{text}"),
        }
    }
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        use clap::error::ErrorKind;
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Failure::Shown(error),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Failure::Shown(error),
            _ => Failure::Input(anyhow::anyhow!("{}", in_one_line(&error.to_string()))),
        }
    }
}

/// An error and what led to it, each said once: some say their cause themselves.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}

/// What clap says, up to its advice, in one line.
fn in_one_line(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let told: Vec<&str> =
        lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information")).collect();
    // The standard library's words for a number that is none.
    told.join(" ").replace("invalid digit found in string", "expected a whole number")
}
