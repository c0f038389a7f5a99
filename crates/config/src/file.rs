//! Configuration files: `--config FILE` reads options from TOML, and a run folder has one that repeats the run.
//!
//! The keys of a file are the command's flags. Flags on the command line take precedence.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command};
use paceline_spec::read_text;

use crate::failure::Failure;

/// Flags for output, which are not part of a configuration.
const NOT_CONFIGURATION: &[&str] = &["config", "out", "resume", "json", "trace", "record", "force", "help"];

/// Parses the arguments, after those of a configuration file.
pub fn matches(command: Command, arguments: Vec<OsString>) -> Result<ArgMatches, Failure> {
    let given = command.clone().try_get_matches_from(&arguments)?;
    let Some((name, subcommand)) = given.subcommand() else { return Ok(given) };
    let path_of = |id: &str| subcommand.try_get_one::<PathBuf>(id).ok().flatten();
    let resume_config = || path_of("resume").map(|folder| folder.join("config.toml"));
    let Some(path) = &path_of("config").cloned().or_else(resume_config) else { return Ok(given) };
    let place = arguments.iter().position(|argument| *argument == *name).unwrap_or(0);
    let (before, after) = arguments.split_at(place + 1);
    let known: Vec<&Arg> = command.find_subcommand(name).map(Command::get_arguments).into_iter().flatten().collect();
    let from_file = read(path, &known).map_err(Failure::Input)?;
    // The file is parsed alone first, so that its errors name it.
    let alone = before.iter().cloned().chain(from_file.iter().map(|(_, argument)| argument.into()));
    if let Err(error) = command.clone().try_get_matches_from(alone) {
        let Failure::Input(error) = Failure::from(error) else { return Ok(given) };
        return Err(Failure::Input(error.context(path.display().to_string())));
    }
    let typed = |id: &str| subcommand.value_source(id) == Some(ValueSource::CommandLine);
    let not_typed = from_file.iter().filter(|(id, _)| !typed(id)).map(|(_, argument)| argument.into());
    let all = before.iter().cloned().chain(not_typed).chain(after.iter().cloned());
    Ok(command.clone().try_get_matches_from(all)?)
}

/// Reads a group of options from TOML text. Errors call it `name`.
pub fn parse<Options: Args>(name: &str, text: &str) -> anyhow::Result<Options> {
    let command = Options::augment_args(Command::new("config").no_binary_name(true));
    let known: Vec<&Arg> = command.get_arguments().collect();
    let arguments = arguments(name, text, &known)?;
    let matches = command.clone().try_get_matches_from(arguments.into_iter().map(|(_, argument)| argument));
    let options = matches.and_then(|matches| Options::from_arg_matches(&matches));
    options.map_err(|error| match Failure::from(error) {
        Failure::Input(error) | Failure::Run(error) => error.context(name.to_string()),
        Failure::Help(error) => error.into(),
        Failure::Ended(ending) => anyhow!("{ending}"),
    })
}

fn read(path: &Path, known: &[&Arg]) -> anyhow::Result<Vec<(String, String)>> {
    let name = path.display().to_string();
    let text = read_text(path).with_context(|| name.clone())?;
    arguments(&name, &text, known)
}

/// The settings of a text, each as the flag's id and the argument.
fn arguments(name: &str, text: &str, known: &[&Arg]) -> anyhow::Result<Vec<(String, String)>> {
    let table = table(name, text)?;
    let keys: Vec<&str> =
        known.iter().filter_map(|arg| arg.get_long()).filter(|key| !NOT_CONFIGURATION.contains(key)).collect();
    let mut arguments = Vec::new();
    for (key, value) in table {
        let Some(arg) = known.iter().find(|arg| arg.get_long() == Some(&key)).filter(|_| keys.contains(&key.as_str()))
        else {
            bail!("{name}: unknown key '{key}'; expected {}", keys.join(", "));
        };
        let id = arg.get_id().to_string();
        match value {
            toml::Value::Boolean(on) if matches!(arg.get_action(), ArgAction::SetTrue) => {
                arguments.extend(on.then(|| (id, format!("--{key}"))));
            }
            toml::Value::String(text) => arguments.push((id, format!("--{key}={text}"))),
            toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => {
                arguments.push((id, format!("--{key}={value}")));
            }
            toml::Value::Array(values) => {
                for value in values {
                    let text = value.as_str().map_or_else(|| value.to_string(), String::from);
                    arguments.push((id.clone(), format!("--{key}={text}")));
                }
            }
            other => bail!("{name}: '{key}' is {}; expected text or a number", other.type_str()),
        }
    }
    Ok(arguments)
}

/// One setting of a configuration file, if it is there.
///
/// # Errors
/// If the file can't be read or is no TOML.
pub fn setting(path: &Path, key: &str) -> anyhow::Result<Option<String>> {
    let name = path.display().to_string();
    let text = read_text(path).with_context(|| name.clone())?;
    let value = table(&name, &text)?.remove(key);
    Ok(value.map(|value| value.as_str().map_or_else(|| value.to_string(), String::from)))
}

fn table(name: &str, text: &str) -> anyhow::Result<toml::Table> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
        anyhow!("{name}, line {line}: {}", error.message())
    })
}

/// All settings of a command, including defaults.
#[derive(Debug, Clone, Default)]
pub struct Configuration {
    table: toml::Table,
    /// The keys that were given, by a flag or a file.
    given: BTreeSet<String>,
}

impl Configuration {
    /// The settings of the subcommand.
    pub fn of(command: &Command, matches: &ArgMatches) -> Self {
        let Some((name, given)) = matches.subcommand() else { return Configuration::default() };
        let arguments = command.find_subcommand(name).map(Command::get_arguments).into_iter().flatten();
        let (mut table, mut explicit) = (toml::Table::new(), BTreeSet::new());
        for arg in arguments {
            let Some(key) = arg.get_long().filter(|key| !NOT_CONFIGURATION.contains(key)) else { continue };
            let id = arg.get_id().as_str();
            if given.value_source(id) == Some(ValueSource::CommandLine) {
                explicit.insert(key.to_string());
            }
            if matches!(arg.get_action(), ArgAction::SetTrue) {
                table.insert(key.into(), toml::Value::Boolean(given.get_flag(id)));
            } else if let Ok(Some(values)) = given.try_get_raw(id) {
                let values: Vec<_> = values.map(|value| plain(&value.to_string_lossy())).collect();
                let value = if let [value] = &values[..] { value.clone() } else { toml::Value::Array(values) };
                table.insert(key.into(), value);
            }
        }
        Configuration { table, given: explicit }
    }

    /// Whether a setting was given, by a flag or a file.
    pub fn is_given(&self, key: &str) -> bool {
        self.given.contains(key)
    }

    /// Removes settings, e.g. those that another command does not have.
    pub fn without(mut self, keys: &[&str]) -> Self {
        self.table.retain(|key, _| !keys.contains(&key));
        self
    }

    /// Replaces one setting, e.g. the seed of one of several runs.
    pub fn with(mut self, key: &str, value: impl ToString) -> Self {
        self.table.insert(key.into(), plain(&value.to_string()));
        self
    }
}

/// A whole number as a number, everything else as text.
fn plain(text: &str) -> toml::Value {
    let integer = text.parse().ok().filter(|number: &i64| number.to_string() == text).map(toml::Value::Integer);
    integer.unwrap_or_else(|| toml::Value::String(text.into()))
}

impl std::fmt::Display for Configuration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.table)
    }
}
