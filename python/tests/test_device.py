"""Scripts whose model is on a device: a card where there is one, and the processor in the part of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from conftest import Scripts

SCRIPT = """
    import json, sys
    import torch
    from torch import nn
    import paceline
    from paceline._torch import tensors

    place, options = sys.argv[1], sys.argv[2:]
    if place == "cpu":
        tensors.is_host = lambda device: False
    torch.manual_seed(1)
    inputs = torch.randn(200, 20)
    labels = inputs[:, :3].argmax(1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, labels), batch_size=16)
    model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3)).to(place)
    if "bf16" in options:
        model[3].bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    every = 2 if "accumulate" in options else 1

    run = paceline.join()
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    run.evaluate(lambda: {"accuracy": (logits(inputs.to(place)).argmax(1).cpu() == labels).float().mean().item()})

    def logits(x):
        hidden = model[:3](x)
        return model[3](hidden.to(model[3].weight.dtype)).float()

    for epoch in range(4):
        for index, (x, y) in enumerate(loader):
            with run.step():
                loss = nn.functional.cross_entropy(logits(x.to(place)), y.to(place)) / every
                run.backward(loss)
                if (index + 1) % every == 0 or index + 1 == len(loader):
                    if "clip" in options:
                        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    if "data" in options:
                        for parameter in model.parameters():
                            parameter.grad.data.clamp_(-0.01, 0.01)
                    optimizer.step()
                    optimizer.zero_grad()
            print(json.dumps({"loss": loss.item(), "version": run.version}))
"""

#: What else a script does with its gradients, and the versions that it then has at the end.
OPTIONS: dict[str, int] = {"": 52, "clip": 52, "data": 52, "accumulate": 28, "bf16": 52}


def places() -> list[str]:
    """The devices here, and the processor, treated as one."""
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.mark.parametrize("place", places())
@pytest.mark.parametrize("option", OPTIONS)
def test_a_model_on_a_device_trains_as_alone(scripts: Scripts, place: str, option: str) -> None:
    script = scripts.write(SCRIPT)
    alone = scripts.alone(script, place, option)
    trained = scripts.train("--workers", "1", script=script, arguments=(place, option))
    assert (alone.code, trained.code) == (0, 0), trained.errors
    if option == "bf16":
        # The server keeps 32 bits, so that small steps are not lost.
        assert trained.losses(0) == pytest.approx(alone.losses(), abs=0.1)
    elif place == "cpu":
        assert trained.losses(0) == alone.losses()
    else:
        assert trained.losses(0) == pytest.approx(alone.losses(), abs=1e-3)
    assert trained.records(0)[-1]["version"] == OPTIONS[option]
    assert "can't be registered" not in trained.errors


@pytest.mark.parametrize("place", places())
@pytest.mark.parametrize("scheme", ["local-sgd:tau=4", "easgd", "lb-bsp:mode=gpu", "cutoff"])
def test_schemes_train_models_on_devices(scripts: Scripts, place: str, scheme: str) -> None:
    script = scripts.write(SCRIPT)
    options = ("--workers", "2", "--scheme", scheme, "--emulate", "0=2", "--evaluate-every", "400")
    trained = scripts.train(*options, script=script, arguments=(place,))
    assert trained.code == 0, trained.errors
    losses = trained.losses(1)
    assert min(losses[-4:]) < losses[0] / 2, losses
