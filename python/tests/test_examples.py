"""The examples for PyTorch run: alone, and with workers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import paceline

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[2] / "examples" / "pytorch"
PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"
TINY = {
    "classifier.py": ["--epochs", "1", "--samples", "240", "--batch", "20"],
    "classifier_ddp.py": ["--epochs", "1", "--samples", "240", "--batch", "20"],
    "transformer.py": ["--epochs", "1", "--characters", "3000", "--layers", "1"],
}


def started(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, *command], check=False, capture_output=True, text=True, cwd=folder, env=environment
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("script", TINY)
def test_an_example_runs_alone(script: str, tmp_path: Path) -> None:
    printed = started([str(EXAMPLES / script), *TINY[script]], tmp_path)
    assert re.search(r"^epoch 1: loss \d", printed, re.MULTILINE), printed


# Between them the two runs have gradients and local iterations, both optimizers, groups, a scheduler and statistics.
@pytest.mark.parametrize(("script", "scheme"), [("classifier.py", "lb-bsp"), ("transformer.py", "local-sgd:tau=2")])
def test_an_example_trains_with_workers(script: str, scheme: str, tmp_path: Path) -> None:
    options = ["--scheme", scheme, "--workers", "2", "--out", "run"]
    command = ["-m", "paceline", "train", *options, "--", sys.executable, str(EXAMPLES / script), *TINY[script]]
    started(command, tmp_path)
    run = paceline.read_run(tmp_path / "run")
    assert run.summary is not None
    assert run.summary.ending == "reached"
    assert run.summary.scheme.startswith(scheme.partition(":")[0])
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert (tmp_path / "run" / "report.html").exists()


def test_the_comparison_with_ddp_runs(tmp_path: Path) -> None:
    options = ["--json", "--repeats", "1", "--workers", "1", "--steps", "8", "--sizes", "1e4", "--schemes", ""]
    found = json.loads(started([str(EXAMPLES / "compare_ddp.py"), *options], tmp_path))
    assert set(found["steps"]["1e4"]) == {"ddp", "bsp", "bsp --data-plane collective"}
    assert all(contestant["step"]["median"] > 0 for contestant in found["steps"]["1e4"].values())


def test_the_documented_errors_exist() -> None:
    section = PAGE.read_text().partition("## Errors")[2]
    texts = [
        text for cell in re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE) for text in re.findall(r"`(.*?)`", cell)
    ]
    assert len(texts) > 5
    sources = "".join(path.read_text() for path in Path(paceline.__file__).parent.rglob("*.py"))
    for text in texts:
        assert text in sources, text


def test_the_documented_lines_are_those_of_the_example() -> None:
    added = re.findall(r"^\+ +(\S.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(added) >= 4
    example = (EXAMPLES / "classifier.py").read_text()
    for line in added:
        assert line in example, line
