//! The manifests of deploy/kubernetes: their form, and what their containers do.

mod common;

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

use common::python::python_with;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kubernetes");
const HOSTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../experiments/network/hosts");

/// The exit status where hosts can't be made.
const SKIPPED: i32 = 77;

/// Checks all objects of YAML files, or of standard input, against the schemas of Kubernetes.
const VALIDATE: &str = "
import sys, yaml, kubernetes_validate
for text in [open(path).read() for path in sys.argv[1:]] or [sys.stdin.read()]:
    for thing in yaml.safe_load_all(text):
        kubernetes_validate.validate(thing, '1.32', strict=True)
";

fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_manifests_are_valid() {
    let Some(python) = python_with("kubernetes_validate", "kubernetes-validate") else { return };
    let names = ["base/service", "base/storage", "base/server", "base/workers", "reader"];
    let files = names.map(|name| format!("{FOLDER}/{name}.yaml"));
    assert_success(&Command::new(&python).args(["-c", VALIDATE]).args(files).output().unwrap());
    // A misspelled field is found.
    let broken =
        fs::read_to_string(format!("{FOLDER}/base/server.yaml")).unwrap().replace("backoffLimit", "backofLimit");
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("broken.yaml"), broken).unwrap();
    let refused = Command::new(&python).args(["-c", VALIDATE]).arg(folder.path().join("broken.yaml")).output().unwrap();
    assert!(!refused.status.success());

    for base in ["base", "script"] {
        let Ok(built) = Command::new("kubectl").args(["kustomize", &format!("{FOLDER}/{base}")]).output() else {
            return println!("skipped: there is no kubectl to build the kustomizations");
        };
        assert_success(&built);
        let path = folder.path().join("built.yaml");
        fs::write(&path, &built.stdout).unwrap();
        assert_success(&Command::new(&python).args(["-c", VALIDATE]).arg(&path).output().unwrap());
    }
}

#[test]
fn the_options_of_the_server_fit_the_number_of_workers() {
    let line = |name: &str, start: &str| -> String {
        let text = fs::read_to_string(format!("{FOLDER}/{name}")).unwrap();
        let found = text.lines().find_map(|line| line.trim().strip_prefix(start));
        found.expect(start).trim_matches([' ', '=', ':']).to_string()
    };
    let workers = line("base/run.toml", "workers");
    assert_eq!(line("base/workers.yaml", "completions"), workers);
    assert_eq!(line("base/workers.yaml", "parallelism"), workers);
    assert_eq!(line("script/run.toml", "workers"), workers);
    assert!(line("script/kustomization.yaml", "value: [--join").contains(&format!("--workers, \"{workers}\"")));
}

#[test]
fn a_run_survives_evictions_and_a_lost_machine() {
    let Some(python) = python_with("yaml", "PyYAML") else { return };
    let mut rehearsal = Command::new(HOSTS);
    rehearsal.args(["5", "--"]).arg(python).args([&format!("{FOLDER}/rehearse"), env!("CARGO_BIN_EXE_paceline")]);
    let output = rehearsal.output().expect("the script is there");
    let message = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(SKIPPED) {
        return println!("{message}");
    }
    assert!(output.status.success(), "{message}");
    let summary: Value = serde_json::from_slice(&output.stdout).expect(&message);
    assert_eq!((&summary["reached"], &summary["iterations"]), (&true.into(), &3000.into()), "{summary}");
}
