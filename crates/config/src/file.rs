//! Configuration files: `--config FILE` reads options from TOML, and a run folder has one that repeats the run.
//!
//! The keys of a file are the command's flags. Flags on the command line take precedence.

use std::any::TypeId;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::error::ContextKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command};
use paceline_objects::{Place, open_place};
use paceline_runtime::{CONFIGURATION, StoredRun};
use paceline_spec::read_text;

use crate::failure::Failure;

/// Flags for output, and those of one process, which are not part of a configuration.
const NOT_CONFIGURATION: &[&str] = &[
    "config", "suite", "out", "resume", "standby", "json", "tui", "trace", "record", "force", "help", "parent",
    "announce",
];

/// Parses the arguments, after those of a configuration file.
pub fn matches(command: Command, arguments: Vec<OsString>) -> Result<ArgMatches, Failure> {
    let given = command.clone().try_get_matches_from(&arguments)?;
    let Some((name, subcommand)) = given.subcommand() else { return Ok(given) };
    let path_of = |id: &str| subcommand.try_get_one::<PathBuf>(id).ok().flatten();
    let resumed = path_of("resume").or(path_of("standby"));
    let place = resumed.and_then(|path| Place::of(path));
    let resume_config = || resumed.map(|folder| folder.join(CONFIGURATION));
    let Some(path) = &path_of("config").cloned().or_else(resume_config) else { return Ok(given) };
    let text = match &place {
        Some(place) if path_of("config").is_none() => ConfigText::stored(place),
        _ => ConfigText::read(path),
    };
    let text = text.map_err(Failure::Input)?;
    let command_name = arguments.iter().position(|argument| *argument == *name).unwrap_or(0);
    let (before, after) = arguments.split_at(command_name + 1);
    let known: Vec<&Arg> = command.find_subcommand(name).map(Command::get_arguments).into_iter().flatten().collect();
    // The files that a scenario of a suite names are beside it.
    let beside = path_of("suite").and(path.parent());
    let from_file = text.arguments(&known, beside).map_err(Failure::Input)?;
    // The file is parsed alone first, so that its errors name it.
    let alone = before.iter().cloned().chain(from_file.iter().map(|(_, argument)| argument.into()));
    if let Err(error) = command.clone().try_get_matches_from(alone) {
        let place = text.place_of(&error);
        let Failure::Input(error) = Failure::from(error) else { return Ok(given) };
        return Err(Failure::Input(error.context(place)));
    }
    let typed = |id: &str| subcommand.value_source(id) == Some(ValueSource::CommandLine);
    // A learning rate for all comes before those for single schemes in a file.
    let replaced = |id: &str| typed(id) || (id == "lr_of" && typed("lr")) || (id == "checkpoints" && place.is_some());
    let not_typed = from_file.iter().filter(|(id, _)| !replaced(id)).map(|(_, argument)| argument.into());
    // A run goes on where it is, wherever it began.
    let checkpoints = place.iter().map(|place| format!("--checkpoints={place}").into());
    let all = before.iter().cloned().chain(not_typed).chain(checkpoints).chain(after.iter().cloned());
    Ok(command.clone().try_get_matches_from(all)?)
}

/// Reads a group of options from TOML text. Errors call it `name`.
pub fn parse<Options: Args>(name: &str, text: &str) -> anyhow::Result<Options> {
    let command = Options::augment_args(Command::new("config").no_binary_name(true));
    let known: Vec<&Arg> = command.get_arguments().collect();
    let text = ConfigText { name: name.into(), text: text.into() };
    let arguments = text.arguments(&known, None)?;
    let matches = command.clone().try_get_matches_from(arguments.into_iter().map(|(_, argument)| argument));
    let options = matches.and_then(|matches| Options::from_arg_matches(&matches));
    options.map_err(|error| {
        let place = text.place_of(&error);
        match Failure::from(error) {
            Failure::Input(error) | Failure::Run(error) => error.context(place),
            Failure::Help(error) => error.into(),
            Failure::Ended(ending) => anyhow!("{ending}"),
        }
    })
}

/// The text of a configuration file.
struct ConfigText {
    /// What errors call it.
    name: String,
    text: String,
}

impl ConfigText {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let text = read_text(path).with_context(|| name.clone())?;
        Ok(ConfigText { name, text })
    }

    /// The configuration of a run at a place.
    fn stored(place: &Place) -> anyhow::Result<Self> {
        let run = StoredRun::new(open_place(place)?);
        Ok(ConfigText { name: format!("{place}/{CONFIGURATION}"), text: run.configuration()? })
    }

    /// The settings, each as the flag's id and the argument. Relative paths are taken to be `beside` a folder, if one is
    /// given.
    fn arguments(&self, known: &[&Arg], beside: Option<&Path>) -> anyhow::Result<Vec<(String, String)>> {
        let keys: Vec<&str> =
            known.iter().filter_map(|arg| arg.get_long()).filter(|key| !NOT_CONFIGURATION.contains(key)).collect();
        let mut arguments = Vec::new();
        for (key, value) in self.table()? {
            let arg = known.iter().find(|arg| arg.get_long() == Some(&key));
            let Some(arg) = arg.filter(|_| keys.contains(&key.as_str())) else {
                bail!("{}: unknown key '{key}'; expected {}", self.place(&key), keys.join(", "));
            };
            let id = arg.get_id().to_string();
            let mut add = |text: &str| {
                let text = beside.map_or_else(|| text.to_string(), |folder| located(arg, text, folder));
                arguments.push((id.clone(), format!("--{key}={text}")));
            };
            match value {
                toml::Value::Boolean(on) if matches!(arg.get_action(), ArgAction::SetTrue) => {
                    arguments.extend(on.then(|| (id, format!("--{key}"))));
                }
                toml::Value::String(text) => add(&text),
                toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => add(&value.to_string()),
                toml::Value::Array(values) => {
                    for value in values {
                        add(&text_of(&value));
                    }
                }
                other => bail!("{}: '{key}' is {}; expected text or a number", self.place(&key), other.type_str()),
            }
        }
        Ok(arguments)
    }

    fn table(&self) -> anyhow::Result<toml::Table> {
        toml::from_str(&self.text).map_err(|error| {
            let line = error.span().map_or(1, |span| self.text[..span.start].lines().count().max(1));
            anyhow!("{}, line {line}: {}", self.name, error.message())
        })
    }

    /// The file, and the line of a key.
    fn place(&self, key: &str) -> String {
        let is_of_key = |line: &str| {
            let rest = line.trim_start().trim_start_matches(['"', '\'']).strip_prefix(key);
            rest.is_some_and(|rest| rest.trim_start_matches(['"', '\'']).trim_start().starts_with('='))
        };
        match self.text.lines().position(is_of_key) {
            Some(index) => format!("{}, line {}", self.name, index + 1),
            None => self.name.clone(),
        }
    }

    /// The same for the key whose value is wrong, if the error names one.
    fn place_of(&self, error: &clap::Error) -> String {
        let flag = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
        let key = flag.strip_prefix("--").and_then(|flag| flag.split([' ', '=']).next());
        key.map_or_else(|| self.name.clone(), |key| self.place(key))
    }
}

/// The value of a flag with a relative path in it taken to be in a folder.
fn located(arg: &Arg, text: &str, folder: &Path) -> String {
    let in_folder = |path: &str| folder.join(path).display().to_string();
    match text.strip_prefix("trace:") {
        Some(path) if arg.get_long() == Some("times") => format!("trace:{}", in_folder(path)),
        _ if arg.get_value_parser().type_id() == TypeId::of::<PathBuf>() => in_folder(text),
        _ => text.to_string(),
    }
}

/// One setting of a configuration file, if it is there.
///
/// # Errors
/// If the file can't be read or is no TOML.
pub fn setting(path: &Path, key: &str) -> anyhow::Result<Option<String>> {
    let value = ConfigText::read(path)?.table()?.remove(key);
    Ok(value.as_ref().map(text_of))
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

    /// The flags that give another command these settings, as far as it has them: those in `always`, and those whose value is
    /// not that command's default.
    pub fn flags_for(&self, command: &Command, always: &[&str]) -> Vec<String> {
        let flags = command.get_arguments().filter_map(|arg| Some((arg, arg.get_long()?)));
        let flags = flags.filter(|(arg, key)| arg.get_action().takes_values() && !NOT_CONFIGURATION.contains(key));
        let written = |(arg, key): (&Arg, &str)| {
            let values = match self.table.get(key)? {
                toml::Value::Array(values) => values.iter().map(text_of).collect(),
                value => vec![text_of(value)],
            };
            let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
            let is_default = defaults == values;
            let flag = |value: &String| format!("--{key} {}", shell_quoted(value));
            let flags = || values.iter().map(flag).collect::<Vec<_>>().join(" ");
            (always.contains(&key) || !is_default).then(flags)
        };
        flags.filter_map(written).collect()
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

/// A value as it was given.
fn text_of(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

/// A word as a shell reads it.
pub fn shell_quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=+:,./%@".contains(letter);
    if !word.is_empty() && word.chars().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

impl std::fmt::Display for Configuration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_flags_of_another_command() {
        let one = Command::new("p").subcommand(Command::new("one").args([
            Arg::new("lr").long("lr").default_value("0.2"),
            Arg::new("batch").long("batch").default_value("64"),
            Arg::new("until").long("until").default_value("loss<1"),
            Arg::new("slow").long("slow").action(ArgAction::Append),
            Arg::new("clip").long("clip"),
        ]));
        let other = Command::new("other").args([
            Arg::new("batch").long("batch").default_value("64"),
            Arg::new("lr").long("lr").default_value("0.1"),
            Arg::new("until").long("until").default_value("loss<2"),
            Arg::new("clip").long("clip"),
            Arg::new("seed").long("seed").default_value("1"),
        ]);
        let matches = one.clone().try_get_matches_from(["p", "one", "--slow=0=3", "--slow=1=2"]).unwrap();
        let settings = Configuration::of(&one, &matches);
        assert_eq!(settings.flags_for(&other, &[]), ["--lr 0.2", "--until 'loss<1'"]);
        assert_eq!(settings.flags_for(&other, &["batch"]), ["--batch 64", "--lr 0.2", "--until 'loss<1'"]);
        let others = settings.with("lr", 0.1).with("clip", "it's");
        assert_eq!(others.flags_for(&other, &[]), ["--until 'loss<1'", r"--clip 'it'\''s'"]);
    }
}
