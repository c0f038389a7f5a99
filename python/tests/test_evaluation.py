"""Scripts whose model is evaluated in a process of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

import paceline

pytest.importorskip("torch")

if TYPE_CHECKING:
    from conftest import Scripts

SCRIPT = """
    import json, sys
    import torch
    from torch import nn
    import paceline

    epochs, found = int(sys.argv[1]), sys.argv[2]
    torch.manual_seed(1)
    inputs = torch.randn(800, 20)
    labels = inputs[:, :3].argmax(1)
    data = torch.utils.data.TensorDataset(inputs[:600], labels[:600])
    loader = torch.utils.data.DataLoader(data, batch_size=20, shuffle=True)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    run = paceline.join()
    model, optimizer, loader = run.prepare(model, optimizer, loader)

    def measure():
        right = model(inputs[600:]).argmax(1) == labels[600:]
        return {"loss": nn.functional.cross_entropy(model(inputs[600:]), labels[600:]).item(),
                "accuracy": right.float().mean().item()}

    if found == "measure":
        run.evaluate(measure)
    elif found:
        run.evaluate(lambda: eval(found))

    for epoch in range(epochs):
        for x, y in loader:
            assert not run.is_evaluator
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            run.backward(loss)
            optimizer.step()
    model.eval()
    print(json.dumps({"rank": run.rank, "version": run.version, **measure()}))
"""


@pytest.mark.parametrize("transport", ["shared-memory", "tcp"])
def test_the_accuracy_of_an_evaluator_ends_the_run(scripts: Scripts, transport: str) -> None:
    script = scripts.write(SCRIPT)
    options = ("--workers", "2", "--until", "accuracy>0.9", "--evaluate-every", "500", "--transport", transport)
    trained = scripts.train(*options, script=script, arguments=("100000", "measure"))
    assert trained.code == 0, str(trained)
    line = next(line for line in trained.output.splitlines() if line.startswith("[evaluator] "))
    evaluator = json.loads(line.removeprefix("[evaluator] "))
    [worker] = trained.records(0)
    assert evaluator == {**worker, "rank": -1}, "it ends with the last model too"
    summary = paceline.read_run(scripts.folder / "run").summary
    assert summary is not None
    assert summary.reached
    assert summary.accuracy == pytest.approx(worker["accuracy"])
    rows = paceline.read_run(scripts.folder / "run").metrics
    assert np.isfinite(rows["accuracy"]).sum() == np.isfinite(rows["held_out_loss"]).sum() >= 1
    assert (scripts.folder / "run/workers/evaluator.log").exists()
    assert "the evaluator joined from " in trained.errors


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ("", "this run asks for evaluations: put @run.evaluate before a function that evaluates the model"),
        ("[1]", "the function of run.evaluate returned [1]: expected a dict with 'loss', 'accuracy' or both"),
        ("{'accuracy': 90}", "the function of run.evaluate returned the accuracy 90.0: expected a share from 0 to 1"),
    ],
)
def test_a_mistake_in_the_evaluation_costs_no_training(scripts: Scripts, found: str, message: str) -> None:
    script = scripts.write(SCRIPT)
    trained = scripts.train("--workers", "1", "--evaluate-every", "20", script=script, arguments=("20", found))
    assert trained.code == 0, str(trained)
    assert f"InputError: {message}" in trained.errors, str(trained)
    assert trained.errors.count("Traceback") == 1
    summary = paceline.read_run(scripts.folder / "run").summary
    assert summary is not None
    assert summary.samples_used == 20 * 600


def test_alone_nobody_evaluates(scripts: Scripts) -> None:
    trained = scripts.alone(scripts.write(SCRIPT), "1", "{}['never called']")
    assert trained.code == 0, str(trained)
    assert trained.records()[0]["rank"] == 0
