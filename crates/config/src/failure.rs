//! Why a command fails, as one line and an exit code.

use std::fmt;

use paceline_runtime::RunEnding;

/// Why a command ends early.
#[derive(Debug)]
pub enum Failure {
    /// The input can't be used; exit code 2.
    Input(anyhow::Error),
    /// The input is valid, but the run failed; exit code 1.
    Run(anyhow::Error),
    /// The run ended, but not as it should have; the exit code says how.
    Ended(RunEnding),
    /// Help or version to print; exit code 0.
    Help(clap::Error),
}

impl Failure {
    /// The input can't be used.
    pub fn input(error: impl Into<anyhow::Error>) -> Self {
        Failure::Input(error.into())
    }

    /// The run failed.
    pub fn run(error: impl Into<anyhow::Error>) -> Self {
        Failure::Run(error.into())
    }

    /// Success if a run ended as it should have.
    pub fn unless_reached(ending: RunEnding) -> Result<(), Self> {
        if ending == RunEnding::Reached { Ok(()) } else { Err(Failure::Ended(ending)) }
    }

    /// The exit code, as docs/exit-codes.md lists them.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Help(_) => 0,
            Failure::Run(_) => 1,
            Failure::Input(_) => 2,
            Failure::Ended(ending) => ending.exit_code(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Input(error) | Failure::Run(error) => f.write_str(&with_causes(error)),
            Failure::Ended(ending) => write!(f, "{ending}"),
            Failure::Help(text) => write!(f, "{text}"),
        }
    }
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        use clap::error::ErrorKind;
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Failure::Help(error),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Failure::Help(error),
            _ => Failure::Input(anyhow::anyhow!("{}", in_one_line(&error.to_string()))),
        }
    }
}

/// An error and its causes. A cause that the text contains already is not repeated.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}

/// Clap's message in one line, without its advice.
fn in_one_line(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let message: Vec<&str> =
        lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information")).collect();
    // The standard library's message for text that is not a number.
    message.join(" ").replace("invalid digit found in string", "expected a whole number")
}
