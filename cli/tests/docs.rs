//! Runs the commands in README and docs.
//!
//! Every block that starts with ```` ```sh ```` runs in its own empty folder; those of the README share one, as a
//! reader would type them. Blocks marked `hosts` run between machines, which are network namespaces here. Blocks marked
//! `elsewhere` (they need what is not here) or `long` (they take minutes) are not run; only the arguments of their
//! `paceline` commands are checked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use paceline_core::{Setting, SettingDefault, StepKind, catalogue, parts};
use tempfile::tempdir;

/// A block of commands.
struct CommandBlock {
    file: PathBuf,
    line: usize,
    mark: String,
    text: String,
}

impl CommandBlock {
    fn name(&self) -> String {
        format!("{}, line {}", self.file.display(), self.line)
    }

    fn runs(&self) -> bool {
        self.mark.is_empty()
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md"].map(PathBuf::from).into();
    for folder in ["docs", "docs/schemes"] {
        let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.filter(|name| name.to_string_lossy().ends_with(".md")).collect();
        names.sort();
        pages.extend(names.iter().map(|name| Path::new(folder).join(name)));
    }
    pages
}

fn blocks(file: &Path) -> Vec<CommandBlock> {
    let text = fs::read_to_string(root().join(file)).unwrap();
    let mut blocks = Vec::new();
    let mut open: Option<CommandBlock> = None;
    for (index, line) in text.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.text += &format!("{line}\n"),
            (None, Some(kind)) => {
                let mark = kind.strip_prefix("sh").unwrap_or("no commands").trim().to_string();
                open = Some(CommandBlock { file: file.into(), line: index + 1, mark, text: String::new() });
            }
            (None, None) => {}
        }
    }
    blocks.retain(|block| block.mark != "no commands");
    blocks
}

/// Runs a script with this build's `paceline` first on the path. `cargo run -- …` runs it too; other cargo commands are
/// skipped.
fn run(script: &str, folder: &Path) -> Result<(), String> {
    let program = Path::new(env!("CARGO_BIN_EXE_paceline")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let cargo =
        "cargo() { [ \"$1\" = run ] || return 0; while [ \"$1\" != -- ]; do shift; done; shift; paceline \"$@\"; }";
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &format!("{cargo}\n{script}")])
        .current_dir(folder)
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let text = || format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(()) } else { Err(text()) }
}

/// The `paceline` commands of a block, each with `--help` added: the arguments before it must be valid. What follows `--` is
/// the command of a script, which is not started.
fn calls(block: &CommandBlock) -> Vec<String> {
    let joined = block.text.replace("\\\n", " ");
    let of_line = |line: &str| {
        let line = line.split(" # ").next().unwrap_or(line);
        let call = &line[line.find("paceline ")?..];
        let call = call.split(" -- ").next().unwrap_or(call);
        let end = call.find(['&', ';', '|']).unwrap_or(call.len());
        Some(format!("{} --help", call[..end].trim()))
    };
    joined.lines().filter(|line| !line.starts_with('#')).filter_map(of_line).collect()
}

#[test]
fn the_page_on_whatif_says_which_schemes_are_safe() {
    let page = fs::read_to_string(root().join("docs/whatif.md")).unwrap();
    for (word, kind) in [("fresh", StepKind::Fresh), ("averaged", StepKind::Averaged), ("stale", StepKind::Stale)] {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{word}`"))).unwrap();
        let found: Vec<&str> =
            row.split(" | ").nth(1).unwrap().split(", ").map(|name| name.trim_matches('`')).collect();
        let entries = catalogue().into_iter().chain(parts()).filter(|entry| entry.step_kind == kind);
        let mut expected: Vec<&str> = entries.map(|entry| entry.name).collect();
        expected.extend((kind == StepKind::Stale).then_some("auto:stale=yes"));
        assert_eq!(found, expected);
    }
}

#[test]
fn the_commands_of_the_readme_run() {
    let folder = tempdir().unwrap();
    let blocks = blocks(Path::new("README.md"));
    assert!(blocks.iter().filter(|block| block.runs()).count() >= 4, "the README has a tour");
    for block in blocks.iter().filter(|block| block.runs()) {
        run(&block.text, folder.path()).unwrap_or_else(|output| panic!("{}:\n{}\n{output}", block.name(), block.text));
    }
}

#[test]
fn the_commands_of_all_other_pages_run() {
    let others = pages().into_iter().filter(|page| page != Path::new("README.md"));
    let blocks: Vec<CommandBlock> = others.flat_map(|page| blocks(&page)).filter(CommandBlock::runs).collect();
    assert!(blocks.len() >= 10, "{} blocks", blocks.len());
    for block in &blocks {
        let folder = tempdir().unwrap();
        run(&block.text, folder.path()).unwrap_or_else(|output| panic!("{}:\n{}\n{output}", block.name(), block.text));
    }
}

/// What `ssh` and `scp` do between the hosts of `experiments/network/hosts`: `node2` is the second one, with a home of its own.
const REMOTE: &str = r#"
    cargo() { :; }
    place() { case $1 in *:*) echo "../${1%%:*}/${1#*:}" ;; *) echo "$1" ;; esac; }
    scp() {
        local options=() places=()
        for argument in "$@"; do case $argument in -*) options+=("$argument") ;; *) places+=("$(place "$argument")") ;; esac; done
        cp "${options[@]}" "${places[@]}"
    }
    ssh() { "$EXPERIMENT" on "${1#node}" env -C "../$1" "${@:2}"; }
    mkdir here node1 node2 node3
    cd here
    mkdir -p target/release
    cp "$(command -v paceline)" target/release
"#;

#[test]
fn the_commands_between_machines_run() {
    let experiment = fs::canonicalize(root().join("experiments/network/hosts")).unwrap();
    let blocks = pages().into_iter().flat_map(|page| blocks(&page)).filter(|block| block.mark == "hosts");
    for block in blocks {
        let folder = tempdir().unwrap();
        let script = folder.path().join("script");
        fs::write(&script, format!("set -euo pipefail\n{REMOTE}\n{}", block.text)).unwrap();
        let command = format!("{0} 3 -- env EXPERIMENT={0} bash script || [ $? = 77 ]", experiment.display());
        run(&command, folder.path()).unwrap_or_else(|output| panic!("{}:\n{}\n{output}", block.name(), block.text));
        let was_run = folder.path().join("here").exists();
        let summary = fs::read_to_string(folder.path().join("node1/run/summary.json"));
        match summary {
            Ok(summary) => assert!(summary.contains("\"reached\": true"), "{}: {summary}", block.name()),
            Err(_) if was_run => panic!("{}: no run on node1", block.name()),
            Err(_) => eprintln!("skipped {}: hosts can't be made here", block.name()),
        }
    }
}

#[test]
fn the_arguments_of_blocks_that_are_not_run_are_valid() {
    let folder = tempdir().unwrap();
    let mut checked = 0;
    for block in pages().iter().flat_map(|page| blocks(page)).filter(|block| !block.runs() && block.mark != "hosts") {
        assert!(
            ["elsewhere", "long"].contains(&block.mark.as_str()),
            "{}: unknown mark '{}'",
            block.name(),
            block.mark
        );
        for call in calls(&block) {
            // Gives values to Slurm's variables.
            let script = format!("export SLURM_NTASKS=4 SLURM_JOB_ID=1\n{call}");
            match run(&script, folder.path()) {
                // The flags are valid; only a file is missing that an earlier line would have written.
                Err(output) if output.contains("No such file or directory") => {}
                outcome => outcome.unwrap_or_else(|output| panic!("{}:\n{call}\n{output}", block.name())),
            }
            checked += 1;
        }
    }
    assert!(checked >= 5, "{checked} calls");
    let nonsense = run("paceline serve --listen 0.0.0.0:7077 --wrokers 3 --help", folder.path());
    assert!(nonsense.is_err(), "an unknown flag must fail");
}

#[test]
fn links_between_pages_are_valid() {
    for page in pages() {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        for part in text.split("](").skip(1) {
            let target = part.split([')', '#']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let path = root().join(page.parent().unwrap()).join(target);
            assert!(path.exists(), "{}: {target}", page.display());
        }
    }
}

#[test]
fn scheme_pages_list_every_setting_with_its_default() {
    for entry in catalogue().into_iter().chain(parts()) {
        let text = fs::read_to_string(root().join(format!("docs/schemes/{}.md", entry.name))).unwrap();
        for Setting { key, default, .. } in entry.settings {
            let row = text.lines().find(|line| line.starts_with(&format!("| `{key}` | ")));
            let row = row.unwrap_or_else(|| panic!("docs/schemes/{}.md: no row for the setting {key}", entry.name));
            let expected = match default {
                SettingDefault::Required => "required".into(),
                SettingDefault::Count(count) => count.to_string(),
                SettingDefault::Number(number) => number.to_string(),
                SettingDefault::Text(text) => format!("`{text}`"),
                SettingDefault::Derived(_) => continue,
            };
            assert_eq!(row.split(" | ").nth(1), Some(expected.as_str()), "docs/schemes/{}.md: {key}", entry.name);
        }
    }
}

#[test]
fn the_readme_names_every_scheme_and_all_scheme_pages_have_the_same_parts() {
    let names: Vec<&str> = catalogue().into_iter().chain(parts()).map(|entry| entry.name).collect();
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    for name in &names {
        assert!(readme.contains(&format!("`{name}`")), "the README does not say when to use {name}");
        assert!(root().join(format!("docs/schemes/{name}.md")).exists(), "{name} has no page");
    }
    for page in pages().iter().filter(|page| page.starts_with("docs/schemes")) {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let name = page.file_stem().unwrap().to_string_lossy();
        assert!(names.contains(&name.as_ref()), "{} is not named after a scheme", page.display());
        assert!(text.starts_with(&format!("# `{name}`")), "{}", page.display());
        for part in ["![", "## Settings", "```sh"] {
            assert!(text.contains(part), "{}: no {part}", page.display());
        }
    }
}
