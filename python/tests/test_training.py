"""Scripts under schemes: what they compute, how they end, how they resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

if TYPE_CHECKING:
    from conftest import Scripts

#: A loop with momentum, clipping, a cosine schedule, accumulation, and a last batch that is smaller.
LOOP = """
    import json, sys
    import torch
    from torch import nn
    import paceline

    def option(name, default):
        return type(default)(next((a.partition("=")[2] for a in sys.argv[1:] if a.startswith(name + "=")), default))

    torch.manual_seed(1)
    inputs = torch.randn(option("samples", 600), 20)
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :3].argmax(1))
    loader = torch.utils.data.DataLoader(data, batch_size=option("batch", 32), shuffle="shuffle" in sys.argv)
    norm = nn.BatchNorm1d(32) if "norm" in sys.argv else nn.Identity()
    model = nn.Sequential(nn.Linear(20, 32), norm, nn.ReLU(), nn.Dropout(option("dropout", 0.0)), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=option("lr", 0.1), momentum=option("momentum", 0.9))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    every = option("accumulate", 1)

    run = paceline.join()
    model, optimizer, loader = run.prepare(model, optimizer, loader, scheduler)
    for epoch in range(option("epochs", 5)):
        for index, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y) / every
            run.backward(loss)
            if (index + 1) % every == 0 or index + 1 == len(loader):
                nn.utils.clip_grad_norm_(model.parameters(), option("clip", 1.0))
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
            print(json.dumps({"loss": loss.item(), "samples": len(x), "epoch": epoch, "version": run.version}))
    print(json.dumps({"weight": model[0].weight.flatten()[:4].tolist(), "version": run.version}))
"""

SCHEMES = (
    "bsp", "backup:k=3", "asp", "ssp:staleness=2", "dssp", "dc-asgd", "elastic-bsp", "lb-bsp", "cutoff", "dbw", "b-dbw",
    "adasync", "local-sgd:tau=4", "adacomm", "easgd", "esync", "async-local-sgd:tau=4",
)  # fmt: skip


def summary(scripts: Scripts, folder: str = "run") -> dict[str, object]:
    """The summary of a run."""
    found: dict[str, object] = json.loads((scripts.folder / folder / "summary.json").read_text())
    return found


@pytest.mark.parametrize("arguments", [("norm",), ("shuffle", "norm"), ("accumulate=3",), ("shuffle", "dropout=0.2")])
def test_one_worker_under_bsp_computes_what_the_loop_computes_alone(
    scripts: Scripts, arguments: tuple[str, ...]
) -> None:
    script = scripts.write(LOOP)
    alone = scripts.alone(script, *arguments)
    trained = scripts.train("--workers", "1", script=script, arguments=arguments)
    assert (alone.code, trained.code) == (0, 0), str(trained)
    assert len(alone.losses()) == 95
    assert trained.losses(0) == alone.losses()
    assert trained.records(0)[-1]["weight"] == alone.records()[-1]["weight"]
    assert summary(scripts)["samples_used"] == 5 * 600


def test_four_workers_under_bsp_compute_what_one_computes_with_batches_of_all(scripts: Scripts) -> None:
    script = scripts.write(LOOP)
    alone = scripts.alone(script, "samples=640", "batch=64", "clip=100")
    trained = scripts.train("--workers", "4", script=script, arguments=("samples=640", "batch=16", "clip=100"))
    assert trained.code == 0, str(trained)
    workers = [trained.losses(rank) for rank in range(4)]
    means = [sum(losses) / 4 for losses in zip(*workers, strict=True)]
    assert len(means) == len(alone.losses()) == 50
    assert means == pytest.approx(alone.losses(), abs=1e-5)


@pytest.mark.parametrize("arguments", [("norm",), ("shuffle", "dropout=0.2")])
def test_a_run_resumes_as_if_it_had_not_ended(scripts: Scripts, arguments: tuple[str, ...]) -> None:
    script = scripts.write(LOOP)
    alone = scripts.alone(script, *arguments)
    first = scripts.train("--workers", "1", "--until", "iterations=47", script=script, arguments=arguments)
    assert first.code == 0, str(first)
    resumed = scripts.train("--resume", "run", "--until", "iterations=1000", script=script, arguments=arguments)
    assert resumed.losses(0) == alone.losses()[47:], str(resumed)
    without = scripts.train("--resume", "run", script=script, arguments=arguments)
    assert without.code == 0, "the script has nothing left to do"
    missing = subprocess.run(
        [*scripts.command("--resume", "run", script=script)[:6]],
        check=False, cwd=scripts.folder, capture_output=True, text=True,
    )  # fmt: skip
    assert missing.returncode == 2
    assert "trains the model of a script: give its command after --" in missing.stderr


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_trains_a_script_with_a_straggler(scripts: Scripts, scheme: str) -> None:
    script = scripts.write(LOOP)
    options = ("--scheme", scheme, "--workers", "4", "--emulate", "0=3", "--until", "loss<0.5,time=120")
    trained = scripts.train(*options, script=script, arguments=("lr=0.05", "momentum=0.5", "epochs=1000"))
    assert trained.code == 0, str(trained)
    assert "Straggling was emulated: worker 0, 3" in trained.output
    last = [trained.records(rank)[-1] for rank in range(4)]
    assert all(record == last[0] for record in last), "all workers end with the last model"


def test_a_killed_worker_is_replaced_and_a_killed_server_leaves_nobody_behind(scripts: Scripts) -> None:
    script = scripts.write(LOOP)
    options = ("--workers", "2", "--checkpoint-every", "0.2", "--out", "run")
    command = scripts.command(*options, script=script, arguments=("epochs=100000",))
    # Nobody reads its output: a full pipe would stop the script.
    with subprocess.Popen(
        command,
        cwd=scripts.folder,
        env=scripts.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        worker = await_worker(process.pid, "1")
        await_checkpoint(scripts)
        os.kill(worker, signal.SIGKILL)
        assert process.stderr is not None
        assert any("worker 1 was killed by signal 9; it is restarted" in line for line in process.stderr)
        replaced = await_worker(process.pid, "1", other_than=worker)
        process.kill()
        process.communicate()
    while Path(f"/proc/{replaced}").exists():
        time.sleep(0.05)
    versions = [int(path.suffix[1:]) for path in (scripts.folder / "run").glob("workers/0.state.*")]
    goal = f"iterations={max(versions) + 50}"
    resumed = scripts.train("--resume", "run", "--until", goal, script=script, arguments=("epochs=100000",))
    assert resumed.code == 0, str(resumed)


def await_worker(server: int, rank: str, other_than: int = 0) -> int:
    """The process of a worker, once there is one."""
    while True:
        for folder in Path("/proc").iterdir():
            try:
                variables = (folder / "environ").read_bytes().split(b"\0")
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if parent == server and f"PACELINE_RANK={rank}".encode() in variables and int(folder.name) != other_than:
                return int(folder.name)
        time.sleep(0.05)


def await_checkpoint(scripts: Scripts) -> None:
    """Wait until the run has a checkpoint of its own model, not of the initial one."""
    while len(list((scripts.folder / "run").glob("workers/*.state.*"))) == 0:
        time.sleep(0.05)


def test_flags_about_the_model_are_refused_beside_a_script(scripts: Scripts) -> None:
    script = scripts.write(LOOP)
    for flag, value in [("--model", "cnn"), ("--lr", "0.1"), ("--batch", "3"), ("--data", "digits")]:
        refused = scripts.train(flag, value, script=script)
        assert refused.code == 2
        assert f"error: {flag} can't be given with a script" in refused.errors
    refused = scripts.train("--until", "accuracy>0.5", "--evaluate-every", "0", script=script)
    assert refused.code == 2
    assert "needs evaluations: expected --evaluate-every above 0" in refused.errors
    assert not (scripts.folder / "run").exists()


def test_a_script_that_does_not_train_says_so(scripts: Scripts) -> None:
    ended = scripts.train(script=scripts.write("print('nothing')"))
    assert ended.code == 1
    assert "exited with code 0 before the run started" in ended.errors
    assert "[0] nothing" in ended.output
