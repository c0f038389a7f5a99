"""The package as it is installed: the command, the stubs, what it imports."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import paceline
from paceline import _paceline

COMMAND = [str(Path(sys.executable).with_name("paceline"))]
MODULE = [sys.executable, "-m", "paceline"]
TINY = ["--model", "softmax", "--data", "digits:600,200", "--workers", "2", "--json"]
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "python.md"


def processes_with(text: str) -> list[int]:
    """The processes whose command line has this text."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in line:
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize("start", [COMMAND, MODULE])
def test_the_command_has_the_version_of_the_package(start: list[str]) -> None:
    printed = subprocess.run([*start, "--version"], check=True, capture_output=True, text=True).stdout
    assert printed == f"paceline {paceline.__version__}\n"


def test_the_command_fails_as_the_native_one() -> None:
    failed = subprocess.run([*COMMAND, "simulate", "--workers", "0"], check=False, capture_output=True, text=True)
    assert failed.returncode == 2
    assert failed.stderr.startswith("error: invalid value '0' for '--workers")


@pytest.mark.parametrize("start", [COMMAND, MODULE])
def test_the_command_trains(start: list[str], tmp_path: Path) -> None:
    # A file that has the package's name is not the package.
    (tmp_path / "paceline.py").write_text("raise SystemExit(7)\n")
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    trained = subprocess.run(
        [*start, "train", *TINY, "--until", "iterations=5", "--out", "run"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert json.loads(trained.stdout)["iterations"] == 5
    run = paceline.read_run(tmp_path / "run")
    assert run.summary is not None
    assert list(run.metrics["iteration"]) == [1, 2, 3, 4, 5]


def test_ctrl_c_ends_training_and_its_workers(tmp_path: Path) -> None:
    command = [*COMMAND, "train", *TINY, "--until", "time=200", "--out", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as training:
        metrics = tmp_path / "run" / "metrics.csv"
        while not (metrics.exists() and metrics.stat().st_size):
            assert training.poll() is None, training.stderr and training.stderr.read()
            time.sleep(0.05)
        address = f"paceline-{training.pid}"
        assert len(processes_with(address)) == 2
        training.send_signal(signal.SIGINT)
        assert training.wait(60) == 130
    assert processes_with(address) == []
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["ending"] == "interrupted"


def test_the_stubs_name_all_that_the_module_has() -> None:
    source = Path(paceline.__file__).with_name("_paceline.pyi").read_text()
    stubs: dict[str, dict[str, list[str]]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            functions = [node] if isinstance(node, ast.FunctionDef) else node.body
            stubs[node.name] = {
                item.name: [argument.arg for argument in (*item.args.args, *item.args.kwonlyargs)]
                for item in functions
                if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")
            }
    module = {name: value for name, value in vars(_paceline).items() if not name.startswith("_")}
    assert set(stubs) == set(module)
    for name, value in module.items():
        if isinstance(value, type):
            assert set(stubs[name]) == {member for member in vars(value) if not member.startswith("_")}, name
        members = [(name, value)] if not isinstance(value, type) else vars(value).items()
        for member, function in members:
            if callable(function) and not member.startswith("_"):
                parameters = list(inspect.signature(function).parameters)
                assert stubs[name][member] == parameters, f"{name}.{member}"
    assert Path(paceline.__file__).with_name("py.typed").exists()


def test_importing_needs_neither_torch_nor_numpy() -> None:
    script = """
import sys
for name in ("torch", "numpy", "pandas", "ray"):
    sys.modules[name] = None
import paceline
run = paceline.simulate(model="none", until="iterations=3")
assert list(run.metrics["iteration"]) == [1, 2, 3]
assert type(run.metrics["loss"]).__name__ == "array"
try:
    run.metrics.to_pandas()
except paceline.Error as error:
    assert str(error) == "to_pandas needs pandas: pip install pandas"
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    loaded = "import sys, paceline; assert not {'torch', 'numpy', 'pandas', 'ray'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", loaded], check=True)


def test_the_documentation_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENTATION.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    subprocess.run([sys.executable, "-c", "\n".join(blocks)], check=True, cwd=tmp_path)
