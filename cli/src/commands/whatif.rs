//! `paceline whatif`: which scheme suits a recorded trace.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use paceline_config::file::{Configuration, shell_quoted};
use paceline_config::{Contestant, Failure, PreparedScenario, Scenario, SchemeList, Seeds, parallel, whole};
use paceline_core::StepKind;
use paceline_report::cluster_findings::{ClusterFinding, cluster_findings};
use paceline_report::comparison::{Advice, BoldAnswer, PairedRatio, RankedContestant, Ranking, SafeAnswer};
use paceline_report::live_table::LiveTable;
use paceline_report::numbers::{counted, listed};
use paceline_report::page::Recommendation;
use paceline_report::stragglers::Analysis;
use paceline_runtime::check_free;
use paceline_sim::{Simulation, Times};
use paceline_trace::{PROFILER_STEP, Trace};
use serde_json::{Value, json};

use super::train::TrainArgs;
use crate::comparison;
use crate::destination::make_folder;
use crate::interrupt;
use crate::output::say;

/// Find the stragglers in a recorded trace, their cost, and which scheme would have used the cluster best
#[derive(Args)]
#[command(
    mut_arg("times", |arg| arg.hide(true).conflicts_with("trace")),
    mut_args(comparison::small_defaults),
    after_help = "A TRACE is one of
  a table, .csv: a row per step, a column per worker, seconds, as --record writes it
  a run folder, or its events.jsonl
  a .json of spans as PyTorch's profiler and Chrome write it: ProfilerStep#N of every process

For spans, give one file per rank, or one file with all ranks. Spans that include waiting for other workers hide the \
stragglers: choose spans of computing alone with --span.

Every scheme is simulated on these times with a small model, the same target and the same seeds. There are two answers: \
a safe one, the fastest scheme that uses no gradient of an earlier model, or bsp if none is faster beyond the noise of the \
seeds; and a bold one, the fastest of all.

Examples:
  paceline whatif times.csv
  paceline whatif runs/1 --network latency=0.001,bandwidth=1e8,bytes=1e8
  paceline whatif rank0.json rank1.json --span forward_backward --json
  paceline whatif times.csv --out answers                 also writes a page: answers/report.html"
)]
pub struct WhatifArgs {
    /// Recorded trace (see below); several files make one trace
    #[arg(required = true, value_name = "TRACE")]
    trace: Vec<PathBuf>,

    /// In traces of spans: the name of the spans that are steps, NAME or NAME#N
    #[arg(long, value_name = "NAME", default_value = PROFILER_STEP)]
    span: String,

    /// Schemes to compare: all, or a list with commas
    #[arg(long, value_name = "SCHEMES", default_value = "all")]
    schemes: SchemeList,

    /// Seeds to simulate each scheme with: 7, 1..20 (both ends included) or 1,5,9
    #[arg(long, value_name = "SEEDS", default_value = "1..5")]
    seeds: Seeds,

    /// Threads; the results do not depend on their number [default: all cores]
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=1024))]
    threads: Option<u16>,

    #[command(flatten)]
    scenario: Scenario,

    /// Folder for a page about the answers (report.html) and the run folder of every scheme's first seed
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    out: Option<PathBuf>,

    /// Print JSON: an object with the recommendation and the workers, then one per scheme
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// What a trace shows, how the schemes compare on it, and what to use.
pub struct ComparedSchemes {
    analysis: Analysis,
    findings: Vec<ClusterFinding>,
    ranking: Ranking,
    safe: Option<PrintedAnswer<SafeAnswer>>,
    bold: Option<PrintedAnswer<BoldAnswer>>,
    /// What it rests on, as the end of a sentence: the model, its data and its optimizer.
    model: String,
}

/// An answer, with the command that does what was simulated.
struct PrintedAnswer<Kind> {
    found: Kind,
    /// Which scheme, how much faster it is, and what that rests on.
    explanation: String,
    command: String,
}

/// Flags that are printed whether or not they are the defaults of `train`.
const ALWAYS: [&str; 7] = ["scheme", "workers", "model", "data", "batch", "lr", "lr-rule"];

/// What `train` can't do as it was simulated.
const SIMULATED_ONLY: [&str; 3] = ["slow", "script", "network"];

impl ComparedSchemes {
    /// An object with the answers and the workers, then one per scheme.
    pub fn json_lines(&self) -> Vec<Value> {
        let ComparedSchemes { analysis, ranking, .. } = self;
        let answer = |place: &RankedContestant, why: &str, command: &str| {
            let RankedContestant { name, step_kind, .. } = place;
            json!({ "scheme": name, "step_kind": step_kind, "why": why, "command": command })
        };
        let with = |mut object: Value, key: &str, pair: Option<PairedRatio>| {
            let interval = pair.and_then(|pair| pair.interval);
            object[key] = json!(pair.map(|pair| pair.ratio));
            object[format!("{key}_low")] = json!(interval.map(|(low, _)| low));
            object[format!("{key}_high")] = json!(interval.map(|(_, high)| high));
            object
        };
        let safe = self.safe.as_ref().map(|PrintedAnswer { found, explanation, command }| {
            with(answer(&found.place, explanation, command), "over_bsp", found.over_baseline)
        });
        let bold = self.bold.as_ref().map(|PrintedAnswer { found, explanation, command }| {
            with(answer(&found.place, explanation, command), "over_safe", found.over_safe)
        });
        let recommended = self.safe.as_ref().map(|safe| safe.found.place.name.as_str());
        let finding = |found: &ClusterFinding| {
            let mut object = json!(found);
            object["text"] = json!(found.to_string());
            object
        };
        let cluster: Vec<Value> = self.findings.iter().map(finding).collect();
        let head = json!({
            "recommended": recommended, "why": ranking.explanation(), "safe": safe, "bold": bold, "trace": analysis, "cluster": cluster,
        });
        std::iter::once(head).chain(ranking.places.iter().map(|place| json!(place))).collect()
    }

    /// The same for the page.
    fn page_answers(&self) -> Vec<Recommendation> {
        fn answer<Kind>(
            name: &'static str,
            PrintedAnswer { explanation, command, .. }: &PrintedAnswer<Kind>,
        ) -> Recommendation {
            Recommendation { name, text: explanation.clone(), command: Some(command.clone()) }
        }
        let safe = self.safe.iter().map(|safe| answer("Safe", safe));
        safe.chain(self.bold.iter().map(|bold| answer("Bold", bold))).collect()
    }

    /// The answers, each with its command.
    fn answers(&self) -> Vec<String> {
        let mut lines = Vec::new();
        match &self.safe {
            Some(safe) => lines.push(format!("Safe: {}\n  {}", safe.explanation, safe.command)),
            None if self.bold.is_some() => {
                lines.push("Safe: none. No scheme without stale gradients reached the target in every run.".into());
            }
            None => return lines,
        }
        match &self.bold {
            Some(bold) => lines.push(format!("Bold: {}\n  {}", bold.explanation, bold.command)),
            None => {
                let seeds = self.ranking.places.iter().map(|place| place.runs).max().unwrap_or(0);
                let seeds = counted(seeds, "seed");
                lines.push(format!("Bold: the same. No other scheme is faster beyond the noise of {seeds}."));
            }
        }
        lines
    }
}

/// What an answer rests on, apart from its seeds; empty for steps as under bsp.
fn grounds(step_kind: StepKind, model: &str) -> String {
    match step_kind {
        StepKind::Fresh => String::new(),
        StepKind::Averaged => {
            format!(" What replicas lose by drifting apart depends on the model: it was simulated with {model}.")
        }
        StepKind::Stale => format!(
            " It may use gradients of earlier models, and rests on that costing little, as with {model}. Other models may need \
             more samples under it, or diverge: try it on yours."
        ),
    }
}

impl WhatifArgs {
    pub fn run(self, configuration: &Configuration) -> Result<(), Failure> {
        let compared = self.compare(configuration, |names, runs| {
            interrupt::listen_for_result()?;
            Ok(LiveTable::new(names, runs))
        })?;
        if self.json {
            compared.json_lines().into_iter().for_each(say);
        } else {
            self.print(&compared, configuration);
        }
        interrupt::check()
    }

    /// Compares the schemes. `start` is called when all input is read, and returns what shows the progress. After an
    /// interrupt, the complete runs count.
    pub fn compare(
        &self,
        configuration: &Configuration,
        start: impl FnOnce(&[String], usize) -> Result<LiveTable, Failure>,
    ) -> Result<ComparedSchemes, Failure> {
        self.check().map_err(Failure::Input)?;
        let trace = Trace::read_all(&self.trace, &self.span).map_err(Failure::input)?;
        let (analysis, findings) = (Analysis::new(&trace), cluster_findings(&trace));
        let prepared = self.scenario.prepare_with(Times::of_trace(trace)).map_err(Failure::Input)?;
        let schemes = self.schemes.specs(prepared.setup(), true).map_err(Failure::Input)?;
        let threads = parallel::threads(self.threads);
        let contestants: Vec<Contestant> =
            schemes.iter().map(|scheme| self.scenario.contestant(scheme, None)).collect();
        let names = comparison::names(&contestants);
        self.out.iter().try_for_each(|out| make_folder(out)).map_err(Failure::Input)?;
        let live = start(&names, self.seeds.0.len())?;
        let configuration_of_runs = self.configuration_of_runs(configuration, prepared.workers());
        let folder = |contestant: &Contestant, simulation: &Simulation| {
            let Some(out) = self.out.as_ref().filter(|_| simulation.seed == self.seeds.0[0]) else { return Ok(None) };
            comparison::run_folder(out, &configuration_of_runs, contestant, simulation).map(Some)
        };
        let results = comparison::simulate(&prepared, &contestants, &self.seeds.0, threads, &live, folder);
        let results = results.map_err(Failure::Run)?;
        let results = comparison::complete(results, self.seeds.0.len())?;
        let ranking = Ranking::new(&results, prepared.goals());
        let Scenario { model, training, .. } = &self.scenario;
        let model = format!("{model} on {} and {}", training.data, training.optimizer);
        let advice = Advice::new(&results, &ranking);
        let command = |place: &RankedContestant| self.train_command(configuration, &prepared, place);
        let bold = advice.bold.map(|found| PrintedAnswer {
            explanation: found.explanation(advice.safe.as_ref()) + &grounds(found.place.step_kind, &model),
            command: command(&found.place),
            found,
        });
        let safe = advice.safe.map(|found| PrintedAnswer {
            explanation: found.explanation() + &grounds(found.place.step_kind, &model),
            command: command(&found.place),
            found,
        });
        let compared = ComparedSchemes { analysis, findings, ranking, safe, bold, model };
        if let Some(out) = &self.out {
            let (ranking, answers) = (&compared.ranking, compared.page_answers());
            comparison::write_page(out, "What if".into(), results, ranking, answers).map_err(Failure::Run)?;
        }
        Ok(compared)
    }

    /// The configuration of the run folders: `simulate` repeats their runs, if the trace is a single file.
    fn configuration_of_runs(&self, configuration: &Configuration, workers: usize) -> Configuration {
        let configuration = configuration.clone().without(&["trace", "span", "schemes", "lr-of"]);
        match &self.trace[..] {
            [trace] => configuration.with("workers", workers).with("times", format!("trace:{}", trace.display())),
            _ => configuration.with("workers", workers),
        }
    }

    /// The command that trains as a contestant was simulated.
    fn train_command(
        &self,
        configuration: &Configuration,
        prepared: &PreparedScenario<'_>,
        place: &RankedContestant,
    ) -> String {
        let Scenario { training, cluster, .. } = &self.scenario;
        let workers = prepared.setup().workers;
        // The rate remains meant for a step of all workers.
        let rule = match cluster.only {
            Some(_) => training.setup(prepared.workers(), None).restricted_to(workers).rate_rule,
            None => training.lr_rule,
        };
        let settings = configuration.clone().with("scheme", &place.name).with("workers", workers);
        let settings = settings.with("lr", place.rate).with("lr-rule", rule);
        let train = TrainArgs::augment_args(clap::Command::new("train"));
        format!("paceline train {}", settings.flags_for(&train, &ALWAYS).join(" "))
    }

    /// What the printed commands lack of the simulation, in a sentence: the recorded times, if one machine can emulate them, and
    /// what only a simulation has.
    fn missing(&self, workers: usize, configuration: &Configuration) -> Option<String> {
        let given: Vec<String> =
            SIMULATED_ONLY.iter().filter(|key| configuration.is_given(key)).map(|key| format!("--{key}")).collect();
        if !given.is_empty() {
            let given: Vec<&str> = given.iter().map(String::as_str).collect();
            return Some(format!("{} was simulated; the commands do without.", listed(&given)));
        }
        let [trace] = &self.trace[..] else { return None };
        let emulated = self.scenario.cluster.only.is_none() && self.span == PROFILER_STEP;
        emulated.then(|| {
            let emulate = format!("0-{}=trace:{}", workers - 1, trace.display());
            format!("On one machine, add --emulate {} for the recorded times.", shell_quoted(&emulate))
        })
    }

    fn check(&self) -> anyhow::Result<()> {
        comparison::check_target(&self.scenario)?;
        self.out.iter().try_for_each(|out| check_free(out))?;
        if self.scenario.cluster.workers.is_some() {
            bail!("--workers can't be given: the number of workers follows from the trace");
        }
        let mut seen = BTreeSet::new();
        let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
        if let Some(twice) = self.trace.iter().find(|path| !seen.insert(real(path))) {
            bail!("{} is given twice", twice.display());
        }
        Ok(())
    }

    fn print(&self, compared: &ComparedSchemes, configuration: &Configuration) {
        let ComparedSchemes { analysis, ranking, model, .. } = compared;
        let answers = compared.answers();
        answers.iter().for_each(say);
        if let (false, Some(missing)) = (answers.is_empty(), self.missing(analysis.workers.len(), configuration)) {
            say(missing);
        }
        say(format_args!("\n{}", ranking.explanation()));
        say(analysis.explanation());
        if analysis.is_balanced() {
            say("All workers' steps take equally long. If they include waiting for other workers, they hide the \
                 stragglers: record the computing alone.");
        }
        let (steps, workers) = (counted(analysis.steps, "step"), counted(analysis.workers.len(), "worker"));
        say(format_args!("\n{steps} of {workers}\n{}", analysis.table()));
        compared.findings.iter().for_each(say);
        let seeds = counted(self.seeds.0.len(), "seed");
        say(format_args!(
            "\nSimulated on these times: {model}, {seeds}; the time of a task is proportional to its samples\n{}",
            ranking.table()
        ));
        self.out.iter().for_each(|out| say(format_args!("Page (report.html) and run folders: {}", out.display())));
    }
}
