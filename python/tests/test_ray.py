"""Runs on a Ray cluster of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if "PACELINE_ALL_TESTS" in os.environ:
    import ray
else:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'paceline[ray]'")
pytest.importorskip("torch")

import paceline.ray
from paceline.errors import InputError

#: A function of workers, and a script.
JOB = """
import json, os, time
import torch
from torch import nn
import paceline

def train(epochs=4, pause=0.0, mark=None):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    draw = torch.Generator().manual_seed(2)
    inputs = torch.randn(256, 20, generator=draw)
    labels = (inputs @ torch.randn(20, 3, generator=draw)).argmax(1)
    model = nn.Linear(20, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.utils.data.TensorDataset(inputs, labels)
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    run = paceline.join()
    model, optimizer, loader = run.prepare(model, optimizer, loader)

    @run.evaluate
    def evaluate():
        with torch.no_grad():
            return {"accuracy": (model(inputs).argmax(1) == labels).float().mean().item()}

    losses = []
    for epoch in range(epochs):
        for batch, wanted in loader:
            loss = nn.functional.cross_entropy(model(batch), wanted)
            optimizer.zero_grad()
            run.backward(loss)
            optimizer.step()
            losses.append(loss.item())
            time.sleep(pause)
            if mark is not None and run.rank == 1 and run.version > 10 and not os.path.exists(mark):
                open(mark, "w").close()
                os._exit(1)
    return {"rank": run.rank, "process": os.getpid(), "losses": losses}

if __name__ == "__main__":
    print(json.dumps(train()))
"""


def joins(folder: Path, rank: int) -> int:
    """How often a worker joined, as the event log of the run has it."""
    path = folder / "events.jsonl"
    text = path.read_text() if path.exists() else ""
    return text.count(f'"event":{{"event":"joined","worker":{rank}}}')


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The module of the job, in a cluster that knows it."""
    folder = tmp_path_factory.mktemp("ray")
    (folder / "paceline_ray_job.py").write_text(JOB)
    sys.path.insert(0, str(folder))
    import paceline_ray_job as module  # type: ignore[import-not-found] # noqa: PLC0415 it is written here

    ray.init(
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        runtime_env={"env_vars": {"PYTHONPATH": str(folder)}},
    )
    yield module
    ray.shutdown()
    sys.path.remove(str(folder))


def test_actors_train_as_train_does_bit_for_bit(job: Any, tmp_path: Path) -> None:
    result = paceline.ray.run(
        job.train, scheme="bsp", workers=[{"num_cpus": 1}, {"num_cpus": 0.5}], folder=tmp_path / "ray"
    )
    train = [sys.executable, "-m", "paceline", "train", "--workers", "2", "--scheme", "bsp", "--out", "train"]
    script = subprocess.run(
        [*train, "--", sys.executable, job.__file__], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    expected = {}
    for line in script.stdout.splitlines():
        prefix, _, record = line.partition("] ")
        if record.startswith("{"):
            expected[int(prefix.removeprefix("["))] = json.loads(record)["losses"]
    assert {rank: returned["losses"] for rank, returned in result.returned.items()} == expected
    assert result.summary["ending"] == "reached"
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("ray", "train")]
    assert models[0] == models[1]


def test_a_killed_worker_is_replaced_alone(job: Any, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")

    def train() -> Any:
        return job.train(epochs=40, pause=0.05, mark=mark)

    result = paceline.ray.run(train, scheme="backup:k=1", workers=2 * [{"num_cpus": 1}], folder=tmp_path / "run")
    assert sorted(result.returned) == [0, 1]
    assert result.summary["ending"] == "reached"
    # The other one was never replaced.
    assert [joins(tmp_path / "run", rank) for rank in (0, 1)] == [1, 2]


def test_a_run_survives_its_server(job: Any, tmp_path: Path) -> None:
    def train() -> Any:
        return job.train(epochs=30, pause=0.02)

    run = paceline.ray.start(
        train, workers=2 * [{"num_cpus": 1}], options="--checkpoint-every 0.2", folder=tmp_path / "run"
    )
    process = ray.get(run._server.__ray_call__.remote(lambda _: os.getpid()))

    def kill() -> None:
        while not any((run.folder / "checkpoints").glob("*")):
            time.sleep(0.05)
        os.kill(process, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    result = run.wait()
    killer.join()
    assert sorted(result.returned) == [0, 1]
    assert result.summary["ending"] == "reached"


def test_workers_are_added_and_removed(job: Any, tmp_path: Path) -> None:
    def train() -> Any:
        return job.train(epochs=120, pause=0.02)

    run = paceline.ray.start(train, scheme="asp", workers=2 * [{"num_cpus": 1}], folder=tmp_path / "run")
    assert run.add({"num_cpus": 1}) == 2
    while joins(run.folder, 2) == 0:
        time.sleep(0.1)
    run.remove(1)
    with pytest.raises(InputError, match=r"no worker 1 is running; expected one of \[0, 2\]"):
        run.remove(1)
    result = run.wait()
    assert sorted(result.returned) == [0, 2]


def test_one_more_actor_evaluates(job: Any, tmp_path: Path) -> None:
    def train() -> Any:
        return job.train(epochs=1000, pause=0.01)

    options = "--until 'accuracy>0.6' --evaluate-every 200"
    result = paceline.ray.run(train, workers=2 * [{"num_cpus": 1}], options=options, folder=tmp_path / "run")
    assert result.summary["reached"] is True
    assert result.summary["accuracy"] > 0.6
    assert sorted(result.returned) == [0, 1]


def test_what_can_not_succeed_is_not_tried_again(job: Any, tmp_path: Path) -> None:
    def train() -> None:
        message = "wrong"
        raise InputError(message)

    with pytest.raises(paceline.RunError, match="without a summary"):
        paceline.ray.run(train, workers=[{"num_cpus": 1}], options="--empty-timeout 1", folder=tmp_path / "run")
    with pytest.raises(paceline.RunError, match="exit code 2"):
        paceline.ray.run(train, scheme="nonsense", workers=[{"num_cpus": 1}], folder=tmp_path / "run")
    with pytest.raises(InputError, match="expected a list such as"):
        paceline.ray.run(train, workers=[])


def test_ray_train_refuses_goals_that_it_can_not_evaluate(job: Any, tmp_path: Path) -> None:
    from ray.train import RunConfig, ScalingConfig  # noqa: PLC0415 it takes a while
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer  # noqa: PLC0415

    trainer = DataParallelTrainer(
        job.train,
        backend_config=paceline.ray.Config(options="--until 'accuracy>0.6'", folder=tmp_path / "run"),
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(tmp_path / "storage"), name="run"),
    )
    with pytest.raises(Exception, match="Ray Train has no process that evaluates"):
        trainer.fit()


def test_ray_train_replaces_a_killed_worker_alone(job: Any, tmp_path: Path) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig  # noqa: PLC0415 it takes a while
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer  # noqa: PLC0415

    mark, done = str(tmp_path / "mark"), tmp_path / "done"
    done.mkdir()

    def train() -> None:
        returned = job.train(epochs=60, pause=0.05, mark=mark)
        (done / str(returned["rank"])).write_text(str(returned["process"]))

    trainer = DataParallelTrainer(
        train,
        backend_config=paceline.ray.Config(scheme="backup:k=1", folder=tmp_path / "run"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=str(tmp_path / "storage"), name="run", failure_config=FailureConfig(max_failures=3)
        ),
    )
    assert trainer.fit().error is None
    assert {path.name for path in done.iterdir()} == {"0", "1"}
    assert [joins(tmp_path / "run", rank) for rank in (0, 1)] == [1, 2]
    assert json.loads((tmp_path / "run/summary.json").read_text())["ending"] == "reached"
