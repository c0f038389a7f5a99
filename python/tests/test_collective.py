"""Scripts whose workers sum their updates among themselves: `--data-plane collective`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_training import LOOP, await_checkpoint, await_worker

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from conftest import Scripts

COLLECTIVE = ("--data-plane", "collective")

#: Another optimizer than the server knows, with two groups of parameters; and the model and its state at the end.
GROUPS = """
    import hashlib, json, sys
    import torch
    from torch import nn
    import paceline

    torch.manual_seed(1)
    inputs = torch.randn(600, 20)
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :3].argmax(1))
    loader = torch.utils.data.DataLoader(data, batch_size=20)
    model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    if "half" in sys.argv:
        model[3].bfloat16()
    groups = [{"params": model[:3].parameters(), "lr": 0.01}, {"params": model[3].parameters(), "lr": 0.02}]
    optimizer = torch.optim.RMSprop(groups, momentum=0.5)

    run = paceline.join()
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for epoch in range(100_000 if "endless" in sys.argv else 4):
        for x, y in loader:
            hidden = model[:3](x).to(model[3].weight.dtype)
            loss = nn.functional.cross_entropy(model[3](hidden).float(), y)
            optimizer.zero_grad()
            run.backward(loss)
            if "broken" in sys.argv and run.rank == 1 and run.version == 7:
                model[0].bias.grad.fill_(torch.nan)
            optimizer.step()
            if "endless" not in sys.argv:
                print(json.dumps({"loss": loss.item(), "version": run.version}))

    def digest(values):
        content = b"".join(bytes(value.detach().float().clone().untyped_storage()) for value in values)
        return hashlib.sha256(content).hexdigest()

    state = [value for state in optimizer.state.values() for value in state.values()]
    rates = [group["lr"] for group in optimizer.param_groups]
    print(json.dumps({
        "trained": digest([*model.parameters(), *state]),
        "statistics": digest([model[1].running_mean, model[1].running_var]),
        "version": run.version, "rates": rates,
    }))
"""


def last(scripts: Scripts, *options: str, text: str, arguments: tuple[str, ...], workers: int) -> list[dict[str, Any]]:
    """What each worker printed last."""
    trained = scripts.train("--workers", str(workers), *options, script=scripts.write(text), arguments=arguments)
    assert trained.code == 0, str(trained)
    return [trained.records(rank)[-1] for rank in range(workers)]


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (("--scheme", "bsp"), ("norm", "accumulate=2", "clip=0.5")),
        (("--scheme", "bsp", "--transport", "tcp", "--clip-sum", "0.1"), ("samples=610",)),
        (("--scheme", "local-sgd:tau=4"), ("norm", "clip=1e9")),
        (("--scheme", "easgd:tau=4"), ("clip=1e9",)),
    ],
)
def test_the_losses_are_those_of_a_server_but_for_rounding(
    scripts: Scripts, options: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    script = scripts.write(LOOP)
    found: list[Any] = []
    for plane in ((), COLLECTIVE):
        trained = scripts.train("--workers", "3", *options, *plane, script=script, arguments=arguments)
        assert trained.code == 0, str(trained)
        (scripts.folder / "run").rename(scripts.folder / f"run{len(found)}")
        found.append(trained)
    for rank in range(3):
        served, summed = (trained.losses(rank) for trained in found)
        assert len(served) > 20
        assert summed == pytest.approx(served, rel=2e-3, abs=1e-4)
        assert summed[:3] == pytest.approx(served[:3], rel=1e-5)
    used = [json.loads((scripts.folder / f"run{index}" / "summary.json").read_text()) for index in range(2)]
    assert used[0]["samples_used"] == used[1]["samples_used"]


@pytest.mark.parametrize("scheme", ["lb-bsp", "adacomm", "esync"])
def test_all_members_have_the_same_model_in_the_end(scripts: Scripts, scheme: str) -> None:
    options = ("--scheme", scheme, "--emulate", "0=2", *COLLECTIVE)
    found = last(scripts, *options, text=LOOP, arguments=("norm", "epochs=2"), workers=3)
    assert found[0]["version"] > 0
    assert found == [found[0]] * 3


@pytest.mark.parametrize("arguments", [(), ("half",)])
def test_an_optimizer_that_no_server_knows_steps_alike_everywhere(scripts: Scripts, arguments: tuple[str, ...]) -> None:
    options = ("--lr-rule", "proportional", *COLLECTIVE)
    found = last(scripts, *options, text=GROUPS, arguments=arguments, workers=2)
    assert found == [found[0]] * 2
    assert found[0]["rates"] == [0.01, 0.02]
    alone = scripts.alone(scripts.write(GROUPS), *arguments)
    (scripts.folder / "run").rename(scripts.folder / "two")
    (single,) = last(scripts, *COLLECTIVE, text=GROUPS, arguments=arguments, workers=1)
    assert single["version"] == 120
    assert single["trained"] == alone.records()[-1]["trained"]


def test_a_broken_update_is_left_out_by_all(scripts: Scripts) -> None:
    found = last(scripts, *COLLECTIVE, text=GROUPS, arguments=("broken",), workers=2)
    assert found == [found[0]] * 2
    summary = json.loads((scripts.folder / "run/summary.json").read_text())
    assert summary["samples_lost"] >= 20, summary


def start(scripts: Scripts, *options: str, text: str) -> subprocess.Popen[str]:
    """Train an endless script. Nobody reads its output but its errors."""
    command = scripts.command(*options, *COLLECTIVE, "--out", "run", script=scripts.write(text), arguments=("endless",))
    return subprocess.Popen(
        command,
        cwd=scripts.folder,
        env=scripts.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_go_on_without_a_member_which_gets_the_model_and_the_optimizer_when_it_is_back(
    scripts: Scripts, signal_number: int
) -> None:
    with start(scripts, "--workers", "3", "--checkpoint-every", "0.2", "--until", "time=25", text=GROUPS) as process:
        victim = await_worker(process.pid, "1")
        await_checkpoint(scripts)
        os.kill(victim, signal_number)
        assert process.stderr is not None
        errors = []
        for line in process.stderr:
            errors.append(line)
            if line.startswith("worker 1 left"):
                break
        if signal_number == signal.SIGSTOP:
            os.kill(victim, signal.SIGCONT)
        errors += process.stderr.readlines()
    text = "".join(errors)
    assert process.returncode == 0, text
    assert text.count("worker 1 joined") == 2, text
    logs = [Path(scripts.folder / f"run/workers/{rank}.log").read_text() for rank in range(3)]
    found = [json.loads(next(line for line in reversed(log.splitlines()) if line.startswith("{"))) for log in logs]
    assert found == [found[0]] * 3
    assert found[0]["version"] > 50


def test_a_run_resumes_with_the_state_of_the_optimizer_and_ends_with_a_model(scripts: Scripts) -> None:
    script, arguments = scripts.write(LOOP), ("epochs=4", "norm", "shuffle")
    whole = scripts.train("--workers", "2", *COLLECTIVE, script=script, arguments=arguments)
    assert whole.code == 0, str(whole)
    (scripts.folder / "run").rename(scripts.folder / "whole")
    first = scripts.train("--workers", "2", *COLLECTIVE, "--until", "iterations=20", script=script, arguments=arguments)
    assert first.code == 0, str(first)
    rest = scripts.train("--resume", "run", "--until", "iterations=1000", script=script, arguments=arguments)
    assert rest.code == 0, str(rest)
    losses = [line["loss"] for line in (*first.records(0), *rest.records(0)) if "loss" in line]
    # The update that was under way is computed once more.
    assert losses[-10:] == whole.losses(0)[-10:]
    checkpoint = sorted((scripts.folder / "run").glob("*.safetensors"))
    assert checkpoint, list((scripts.folder / "run").iterdir())


def test_an_evaluator_gets_models_from_the_members(scripts: Scripts) -> None:
    text = LOOP.replace(
        "    for epoch in",
        """
    @run.evaluate
    def evaluate():
        return {"accuracy": (model(inputs).argmax(1) == inputs[:, :3].argmax(1)).float().mean().item()}

    for epoch in""".replace("\n    ", "\n    "),
        1,
    )
    options = ("--workers", "2", "--evaluate-every", "200", "--until", "accuracy>0.5,iterations=400", *COLLECTIVE)
    trained = scripts.train(*options, script=scripts.write(text), arguments=("epochs=1000",))
    assert trained.code == 0, str(trained)
    summary = json.loads((scripts.folder / "run/summary.json").read_text())
    assert summary["reached"], summary
    assert summary["accuracy"] > 0.5, summary


def test_processes_of_torchrun_give_the_losses_of_a_server(scripts: Scripts) -> None:
    script = scripts.write(LOOP)
    served = scripts.train("--workers", "2", script=script, arguments=("epochs=2",))
    (scripts.folder / "run").rename(scripts.folder / "served")
    scripts.environment["PACELINE_OPTIONS"] = " ".join(COLLECTIVE)
    # A file for each process: their lines in one pipe may be mixed.
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--redirects", "1"]
    launched = scripts._run([*launcher, "--log-dir", "logs", str(script), "epochs=2"])
    assert launched.code == 0, str(launched)
    logs = sorted(scripts.folder.glob("logs/**/stdout.log"))
    assert len(logs) == 2
    for rank, log in enumerate(logs):
        printed = replace(launched, output=log.read_text())
        expected = served.records(rank)[-1]["weight"]
        assert printed.records()[-1]["weight"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert printed.losses() == pytest.approx(served.losses(rank), rel=2e-3, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scheme", "asp"), "asp does not step by one update of every worker"),
        (("--scheme", "backup:k=1"), "backup:k=1 does not step by one update of every worker"),
        (("--scheme", "local-sgd:tau=4,outer=nesterov"), "does not step by one update of every worker"),
        (("--payload", "int8"), "values are summed as they are, without --payload"),
        (("--data-plane", "ring"), "'ring': expected server or collective"),
    ],
)
def test_what_can_not_be_summed_by_the_workers_is_refused_before_they_start(
    scripts: Scripts, options: tuple[str, ...], message: str
) -> None:
    trained = scripts.train(
        "--workers", "2", *COLLECTIVE[: 0 if "ring" in options else 2], *options, script=scripts.write(LOOP)
    )
    assert trained.code == 2
    assert message in trained.errors
    assert "joined" not in trained.errors
    assert not (scripts.folder / "run").exists()
