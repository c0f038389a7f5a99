//! `paceline race --suite`: a race in every scenario of a folder, and one table of all.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use paceline_config::{Contestant, Failure, SchemeList};
use paceline_report::comparison::{ContestantRuns, Suite, SuiteEntry, SuiteRace};
use paceline_report::plot;
use paceline_runtime::{check_free, is_interrupted, next_free, set_aside};
use paceline_spec::read_text;
use serde_json::json;

use super::RaceArgs;
use crate::comparison;
use crate::destination::make_folder;
use crate::interrupt;
use crate::output::say;
use crate::{Command, parse};

/// What the baselines on some of the workers are called, whichever workers these are.
const ON_FAST_WORKERS: &str = "bsp on the fast workers";
const ON_FASTEST: &str = "bsp on the fastest alone";

/// Races in all scenarios of a folder. `arguments` are those of the program.
pub fn run(race: &RaceArgs, folder: &Path, arguments: &[OsString]) -> Result<(), Failure> {
    if let Some(config) = race.output.config.path() {
        let both = anyhow!("--suite {} and --config {}: expected one of them", folder.display(), config.display());
        return Err(Failure::Input(both));
    }
    let out = match &race.output.out {
        Some(out) => check_free(out).map(|()| out.clone()).map_err(Failure::input)?,
        None => next_free("suite-"),
    };
    let scenarios = scenario_files(folder).map_err(Failure::Input)?.into_iter();
    let scenarios = scenarios.map(|path| SuiteScenario::read(path, arguments)).collect::<Result<Vec<_>, _>>()?;
    interrupt::listen_for_result()?;
    make_folder(&out).map_err(Failure::Input)?;
    let mut races = Vec::new();
    for (number, scenario) in (1..).zip(&scenarios) {
        eprintln!("scenario {number} of {}: {}", scenarios.len(), scenario.name);
        let held = scenario.hold().inspect_err(|_| drop(fs::remove_dir(&out)))?;
        if is_interrupted() {
            eprintln!("{} of {} scenarios are done", races.len(), scenarios.len());
            break;
        }
        races.push(held);
    }
    if races.is_empty() {
        // The folder is empty.
        let _ = fs::remove_dir(&out);
        return interrupt::check();
    }
    let suite = Suite::new(races);
    let out = write(&suite, out, race.output.out.is_some()).map_err(Failure::Run)?;
    if race.output.json {
        let mut lines = suite.json_lines();
        lines[0]["folder"] = json!(out);
        lines.iter().for_each(say);
    } else {
        say(format_args!("{}\nTable, picture and all times: {}", suite.table(), out.display()));
    }
    interrupt::check()
}

/// Writes the table as text, as a picture and as lines of JSON. Returns the folder, which has another name after an
/// interrupt if the user named it.
fn write(suite: &Suite, out: PathBuf, is_named: bool) -> anyhow::Result<PathBuf> {
    let lines = suite.json_lines().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for (name, text) in [("suite.txt", suite.table()), ("suite.jsonl", lines)] {
        let path = out.join(name);
        fs::write(&path, text + "\n").with_context(|| path.display().to_string())?;
    }
    for ending in plot::FORMATS {
        suite.figure().save(&out.join("suite").with_extension(ending))?;
    }
    Ok(if is_interrupted() && is_named { set_aside(&out)? } else { out })
}

/// The scenarios of a folder, by name. Those in folders inside it are set aside.
fn scenario_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let place = || format!("--suite {}", folder.display());
    let entries = fs::read_dir(folder).with_context(place)?;
    let paths =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>().with_context(place)?;
    let is_scenario = |path: &PathBuf| path.is_file() && path.extension().is_some_and(|extension| extension == "toml");
    let mut scenarios: Vec<PathBuf> = paths.into_iter().filter(is_scenario).collect();
    if scenarios.is_empty() {
        bail!("{}: it has no scenario; expected files that end in .toml", place());
    }
    scenarios.sort();
    Ok(scenarios)
}

/// A race in one scenario.
struct SuiteScenario {
    path: PathBuf,
    name: String,
    description: String,
    race: RaceArgs,
}

impl SuiteScenario {
    /// Reads a scenario and checks all that it names. `arguments` are those of the program, which take precedence.
    fn read(path: PathBuf, arguments: &[OsString]) -> Result<Self, Failure> {
        let config: [OsString; 2] = ["--config".into(), path.clone().into()];
        let (Command::Race(race), _) = parse(arguments.iter().cloned().chain(config).collect())? else {
            unreachable!("the command is race")
        };
        let text = read_text(&path).map_err(Failure::input)?;
        let first = text.lines().next().and_then(|line| line.strip_prefix('#')).unwrap_or_default();
        let name = path.file_stem().unwrap_or_default().display().to_string();
        let scenario = SuiteScenario { name, description: first.trim().into(), race, path };
        scenario.check().map_err(Failure::Input)?;
        Ok(scenario)
    }

    fn check(&self) -> anyhow::Result<()> {
        let check = || {
            comparison::check_target(&self.race.scenario)?;
            let prepared = self.race.scenario.prepare()?;
            self.race.schemes.specs(prepared.setup(), false).map(drop)
        };
        check().with_context(|| self.path.display().to_string())
    }

    /// Runs all contestants.
    fn hold(&self) -> Result<SuiteRace, Failure> {
        let SuiteScenario { name, description, race, path } = self;
        let in_file = |error: anyhow::Error| Failure::Run(error.context(path.display().to_string()));
        let prepared = race.scenario.prepare().map_err(in_file)?;
        let (contestants, fast) = race.simulated_contestants(&prepared)?;
        let names: Vec<String> = contestants.iter().map(|contestant| self.row_of(contestant)).collect();
        let results = race.hold(contestants, prepared.setup().workers, |heat| {
            race.simulate_heat(&prepared, heat, |_, _| Ok(None)).map_err(in_file)
        })?;
        let with_name = |(name, result): (String, &ContestantRuns)| SuiteEntry::new(name, result);
        let mut entries: Vec<SuiteEntry> = names.into_iter().zip(&results).map(with_name).collect();
        // The fast workers may be all, or the fastest alone.
        if let Some(fast) = fast.filter(|_| entries.iter().all(|entry| entry.name != ON_FAST_WORKERS)) {
            entries.push(SuiteEntry::new(ON_FAST_WORKERS.into(), &results[fast]));
        }
        Ok(SuiteRace { scenario: name.clone(), description: description.clone(), entries })
    }

    /// The name of a contestant's row. It is the same in all scenarios, whatever workers there are.
    fn row_of(&self, contestant: &Contestant) -> String {
        match &contestant.ranks {
            Some(ranks) if ranks.workers().len() == 1 => ON_FASTEST.into(),
            Some(_) => ON_FAST_WORKERS.into(),
            // The settings of `all` depend on the number of workers.
            None if self.race.schemes == SchemeList::All => contestant.scheme.name().into(),
            None => contestant.to_string(),
        }
    }
}
