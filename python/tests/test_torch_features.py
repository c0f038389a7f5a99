"""What the loops of PyTorch users do, with workers and without."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_package import processes_with

pytest.importorskip("torch")

HERE = Path(__file__).parent
WARM = [sys.executable, "-S", "-E", str(HERE / "warm_python.py"), "run"]

SERVER_STEPS = [
    "plain_sgd",
    "nesterov_shuffled",
    "autocast",
    "batch_norm",
    "frozen_and_unused",
    "tied",
    "clip_norm",
    "clip_value",
    "replaced_gradients",
    "accumulation",
    "closure",
    "groups_and_schedule",
    "partial_batch",
    "drop_last",
    "loader_processes",
    "iterable_dataset",
    "dictionaries",
    "named_tuples",
    "lists_without_loader",
    "batch_sampler",
    "own_batch_sampler",
    "float64_loss",
    "loaded_weights",
]
"""The server steps as torch does, to the last bit."""
WORKERS_STEP = ["adagrad", "rmsprop"]
"""Optimizers that the server does not know."""
NEARLY = {"adam": 1e-6, "adamw": 1e-6, "float64_parameters": 1e-6, "bfloat16_parameters": 1e-2}
"""Losses that differ by rounding. The server keeps 32 bits of a parameter, whatever it has on the workers."""
SKIPPED = ["grad_scaler", "scaler_and_unknown_optimizer"]
"""Loops whose scaler skips two steps."""
SHARED = [*SERVER_STEPS, *WORKERS_STEP, *NEARLY, *SKIPPED]
ALIKE = {
    "clip_value",
    "replaced_gradients",
    "dictionaries",
    "loaded_weights",
    "rmsprop",
    "adamw",
    "closure",
    "plain_sgd",
}
"""Loops that differ from another in nothing that a second worker could change."""
OWN_DATA = {"iterable_dataset", "lists_without_loader", "own_batch_sampler"}
"""Loaders that can't be shared: every worker gets all batches."""

compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The start of a command that runs a script with PyTorch imported."""
    path = str(tmp_path_factory.mktemp("warm") / "socket")
    command = [sys.executable, str(HERE / "warm_python.py"), "serve", path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin and server.stdout
        assert server.stdout.readline() == "ready\n"
        yield [*WARM, path]
        server.stdin.close()


def train_command(folder: Path, workers: int, command: list[str], *options: str) -> list[str]:
    settings = ["--workers", str(workers), "--until", "iterations=100000", "--out", str(folder / "run")]
    return [sys.executable, "-m", "paceline", "train", *settings, *options, "--", *command]


def train(folder: Path, workers: int, command: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    return subprocess.run(
        train_command(folder, workers, command, *options),
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
    )


def trained(folder: Path, workers: int, warm: list[str], name: str, *options: str) -> list[dict[str, Any]]:
    """What the workers of a loop print, by rank."""
    ended = train(folder, workers, [*warm, str(HERE / "torch_features.py"), name], *options)
    assert ended.returncode == 0, ended.stderr
    printed = [json.loads(line) for line in re.findall(r"^(?:\[\d+\] )?({.*})$", ended.stdout, re.MULTILINE)]
    assert len(printed) == workers, ended.stdout
    return sorted(printed, key=lambda worker: int(worker["rank"]))


@pytest.mark.parametrize("name", [*SERVER_STEPS, *WORKERS_STEP, pytest.param("compiled", marks=compiler)])
def test_one_worker_has_the_losses_of_the_plain_loop(name: str, warm: list[str], tmp_path: Path) -> None:
    (worker,) = trained(tmp_path, 1, warm, name)
    assert worker["run"] == worker["alone"]


@pytest.mark.parametrize("name", NEARLY)
def test_one_worker_nearly_has_the_losses_of_the_plain_loop(name: str, warm: list[str], tmp_path: Path) -> None:
    (worker,) = trained(tmp_path, 1, warm, name)
    assert worker["run"] == pytest.approx(worker["alone"], rel=NEARLY[name])


@pytest.mark.parametrize("name", SKIPPED)
def test_a_skipped_step_is_no_step(name: str, warm: list[str], tmp_path: Path) -> None:
    (worker,) = trained(tmp_path, 1, warm, name)
    # The two batches of the skipped steps were not used, so the epochs have two more.
    assert worker["run"][:16] == worker["alone"]
    assert len(worker["run"]) == 18
    assert worker["version"] == 16


@pytest.mark.parametrize("name", [name for name in SHARED if name not in ALIKE])
def test_two_workers_share_the_samples(name: str, warm: list[str], tmp_path: Path) -> None:
    workers = trained(tmp_path, 2, warm, name)
    versions = {worker["version"] for worker in workers}
    if name in OWN_DATA:
        assert versions == {16}
        assert all(worker["run"] == worker["alone"] for worker in workers)
    else:
        # A worker's share of 60 samples has three full batches.
        assert versions == ({6} if name == "drop_last" else {8})
        assert workers[0]["run"] != workers[1]["run"]


@pytest.mark.parametrize("scheme", ["asp", "local-sgd:tau=4", "lb-bsp"])
def test_other_schemes_train(scheme: str, warm: list[str], tmp_path: Path) -> None:
    workers = trained(tmp_path, 2, warm, "nesterov_shuffled", "--scheme", scheme, "--emulate", "0=3")
    assert all(worker["version"] > 0 for worker in workers)


REFUSED = {
    "other_frozen_values": "different workload: its optimizer, or values that are not trained, are not those of the ",
    "other_model": "refused this worker: different workload: the server has ",
    "other_optimizer": "different workload: its optimizer, or values that are not trained, are not those of the ",
    "changed_weights": "parameter '0.weight' was changed after run.prepare: load weights before run.prepare",
    "replaced_weights": "parameter '0.weight' was replaced after run.prepare: change the model before run.prepare",
    "another_type_before_the_loop": "parameter '0.weight' was torch.float32 at run.prepare and is torch.bfloat16: ",
    "another_type_in_the_loop": "parameter '0.weight' was torch.float32 at run.prepare and is torch.float64: ",
    "prepared_twice": "run.prepare was called twice: a run trains one model",
    "plain_backward": "optimizer.step() without run.backward(loss): replace loss.backward() by run.backward(loss)",
    "losses_of_samples": "run.backward takes one number, not a tensor of shape (8,): use loss.mean()",
    "lbfgs": "LBFGS calls its closure several times in one step, which no scheme can spread: use SGD or Adam",
    "sparse_adam": "SparseAdam needs sparse gradients, which are not supported: use Adam, and sparse=False ",
    "sparse_gradients": "the gradient of 'weight' is sparse, which is not supported: use sparse=False in nn.Embedding",
    "part_of_the_model": "the optimizer does not train parameter '2.weight': give it all, or set requires_grad to ",
    "new_group": "the optimizer got new parameters after run.prepare: add them before",
    "changed_momentum": "the optimizer's momentum was 0.9 at run.prepare and is 0.5: only learning rates may change",
    "no_trained_parameters": "the model has no parameter with requires_grad: there is nothing to train",
    "no_batch_size": "the loader has batch_size=None, so that its samples can't be counted: give it a batch size",
    "unequal_batches": "batches of shapes (2, 8) and (2, 9) can't be joined to one of the size that the scheme ",
    "uncountable_batches": "the loader gives batches of type object, which can't be cut: expected tensors, or ",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_trained_is_refused_in_one_line(name: str, warm: list[str], tmp_path: Path) -> None:
    workers = 2 if name.startswith("other_") else 1
    ended = train(tmp_path, workers, [*warm, str(HERE / "torch_refusals.py"), name])
    assert ended.returncode == 1
    errors = [line for line in ended.stderr.splitlines() if "InputError: " in line]
    assert len(errors) == 1, ended.stderr
    assert REFUSED[name] in errors[0]


def test_without_torch_prepare_says_what_to_install(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.modules['torch'] = None\nimport paceline\npaceline.join().prepare(1, 2, [])\n")
    ended = train(tmp_path, 1, [sys.executable, str(script)])
    assert ended.returncode == 1
    assert "InputError: run.prepare needs PyTorch: pip install 'paceline[torch]'\n" in ended.stderr
    assert ended.stderr.count("Traceback") == 1


def test_an_error_in_the_loop_is_shown_once(warm: list[str], tmp_path: Path) -> None:
    ended = train(tmp_path, 2, [*warm, str(HERE / "torch_endings.py"), "fails"])
    assert ended.returncode == 5
    assert ended.stderr.count("RuntimeError: broken here") == 1
    for rank in range(2):
        assert re.findall(rf"worker {rank} exited with code 1; (.*)", ended.stderr) == [
            "it is restarted in 0.5 s (attempt 1 of 3)",
            "it is restarted in 2 s (attempt 2 of 3)",
            "it is restarted in 8 s (attempt 3 of 3)",
            "it is not restarted",
        ]
    assert ended.stderr.endswith("the run ended because no worker was left\n")
    assert processes_with(str(tmp_path)) == []


def test_a_killed_worker_is_noticed_while_its_loaders_live(warm: list[str], tmp_path: Path) -> None:
    noticed = tmp_path / "noticed"
    command = train_command(tmp_path, 2, [*warm, str(HERE / "torch_endings.py"), "is_killed", str(noticed)])
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment) as training:
        assert training.stderr
        lines = []
        for line in training.stderr:
            lines.append(line)
            if line.startswith("worker 1 left: connection closed"):
                # Its data loaders wait for this.
                noticed.touch()
        assert training.wait() == 0, lines
    assert noticed.exists(), lines
    assert any(line.startswith("worker 1 exited") for line in lines)
