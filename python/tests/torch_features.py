"""Loops as PyTorch users write them. `torch_features.py NAME` runs one in a worker, after the same without Paceline.

Prints the losses of both as a line of JSON.
"""

from __future__ import annotations

import io
import json
import sys
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

import paceline

Pair = namedtuple("Pair", ["inputs", "labels"])
Prepare = Callable[..., tuple[Any, Any, Any]]
Backward = Callable[..., None]
Loop = Callable[[Prepare, Backward], list[float]]

LOOPS: dict[str, Loop] = {}
EPOCHS = 2


def loop(function: Loop) -> Loop:
    LOOPS[function.__name__] = function
    return function


def network(*extra: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), *extra, nn.ReLU(), nn.Linear(16, 4))


def samples(count: int = 64) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(count, 8, generator=generator), torch.randint(4, (count,), generator=generator))


def sgd(model: nn.Module, **settings: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **settings})


def fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Iterable[Any],
    backward: Backward,
    *,
    between: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
    compute: Callable[[Any], Tensor] | None = None,
) -> list[float]:
    """The common loop, with something between backward and step, and something after."""
    losses = []
    for _ in range(EPOCHS):
        for batch in loader:
            loss = compute(batch) if compute else functional.cross_entropy(model(batch[0]), batch[1])
            optimizer.zero_grad()
            backward(loss)
            between()
            optimizer.step()
            after()
            losses.append(loss.item())
    return losses


@loop
def plain_sgd(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    return fit(*prepare(model, sgd(model, momentum=0), DataLoader(samples(), 8)), backward)


@loop
def nesterov_shuffled(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    optimizer = sgd(model, nesterov=True, weight_decay=0.01)
    return fit(*prepare(model, optimizer, DataLoader(samples(), 8, shuffle=True)), backward)


@loop
def autocast(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    model, optimizer, loader = prepare(model, sgd(model), DataLoader(samples(), 8))

    def compute(batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return functional.cross_entropy(model(batch[0]), batch[1])

    return fit(model, optimizer, loader, backward, compute=compute)


def scaled(prepare: Prepare, backward: Backward, optimizer: Any, model: nn.Module) -> list[float]:
    """A loop with a scaler. The first gradients overflow."""
    model, optimizer, loader = prepare(model, optimizer, DataLoader(samples(), 8))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    losses = []
    for _ in range(EPOCHS):
        for inputs, labels in loader:
            loss = functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            backward(loss * 4, scaler)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    assert scaler.get_scale() < 2.0**127
    return losses


@loop
def grad_scaler(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    return scaled(prepare, backward, sgd(model), model)


@loop
def bfloat16_parameters(prepare: Prepare, backward: Backward) -> list[float]:
    model = network().to(torch.bfloat16)
    model, optimizer, loader = prepare(model, sgd(model), DataLoader(samples(), 8))

    def compute(batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch[0].bfloat16()).float(), batch[1])

    return fit(model, optimizer, loader, backward, compute=compute)


@loop
def batch_norm(prepare: Prepare, backward: Backward) -> list[float]:
    model = network(nn.BatchNorm1d(16))
    losses = fit(*prepare(model, sgd(model), DataLoader(samples(), 8)), backward)
    model.eval()
    with torch.no_grad():
        evaluated = functional.cross_entropy(model(samples()[:8][0]), samples()[:8][1])
    return [*losses, evaluated.item()]


@loop
def frozen_and_unused(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    model[0].requires_grad_(False)
    model.unused = nn.Linear(3, 3)
    optimizer = sgd(model)
    before = [parameter.clone() for parameter in model.unused.parameters()]

    def compute(batch: Any) -> Tensor:
        hidden = model[1](model[0](batch[0]))
        return functional.cross_entropy(model[2](hidden), batch[1])

    losses = fit(*prepare(model, optimizer, DataLoader(samples(), 8)), backward, compute=compute)
    assert all(map(torch.equal, before, model.unused.parameters()))
    return losses


@loop
def tied(prepare: Prepare, backward: Backward) -> list[float]:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    return fit(*prepare(model, sgd(model), DataLoader(samples(), 8)), backward)


@loop
def clip_norm(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    prepared = prepare(model, sgd(model), DataLoader(samples(), 8))
    return fit(*prepared, backward, between=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1))


@loop
def clip_value(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    prepared = prepare(model, sgd(model), DataLoader(samples(), 8))
    return fit(*prepared, backward, between=lambda: nn.utils.clip_grad_value_(model.parameters(), 0.01))


@loop
def replaced_gradients(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    prepared = prepare(model, sgd(model), DataLoader(samples(), 8))

    def replace() -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad * 0.5

    return fit(*prepared, backward, between=replace)


@loop
def accumulation(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    model, optimizer, loader = prepare(model, sgd(model), DataLoader(samples(), 4))
    losses = []
    for _ in range(EPOCHS):
        for number, (inputs, labels) in enumerate(loader, start=1):
            loss = functional.cross_entropy(model(inputs), labels)
            backward(loss / 2)
            losses.append(loss.item())
            if number % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
    return losses


@loop
def closure(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    model, optimizer, loader = prepare(model, sgd(model), DataLoader(samples(), 8))
    losses = []
    for _ in range(EPOCHS):
        for inputs, labels in loader:

            def compute(inputs: Tensor = inputs, labels: Tensor = labels) -> float:
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(inputs), labels)
                backward(loss)
                return loss.item()

            losses.append(optimizer.step(compute))
    return losses


@loop
def compiled(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    model, optimizer, loader = prepare(model, sgd(model), DataLoader(samples(), 8))
    return fit(cast(nn.Module, torch.compile(model)), optimizer, loader, backward)


@loop
def groups_and_schedule(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    groups = [
        {"params": [model[0].weight, model[2].weight], "weight_decay": 0.1},
        {"params": [model[0].bias, model[2].bias], "lr": 0.02},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    scheduler = LambdaLR(optimizer, [lambda step: 0.9**step, lambda step: 1 / (1 + step)])
    model, optimizer, loader = prepare(model, optimizer, DataLoader(samples(), 8), scheduler)
    losses = fit(model, optimizer, loader, backward, after=scheduler.step)
    torch.save([optimizer.state_dict(), scheduler.state_dict(), model.state_dict()], io.BytesIO())
    return [*losses, *map(float, scheduler.get_last_lr())]


@loop
def adam(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=0.1)
    return fit(*prepare(model, optimizer, DataLoader(samples(), 8)), backward)


@loop
def adamw(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, weight_decay=0.1)
    return fit(*prepare(model, optimizer, DataLoader(samples(), 8)), backward)


@loop
def adagrad(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    return fit(*prepare(model, torch.optim.Adagrad(model.parameters()), DataLoader(samples(), 8)), backward)


@loop
def rmsprop(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    return fit(*prepare(model, torch.optim.RMSprop(model.parameters(), 0.001), DataLoader(samples(), 8)), backward)


@loop
def scaler_and_unknown_optimizer(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    return scaled(prepare, backward, torch.optim.RMSprop(model.parameters(), 0.001), model)


@loop
def partial_batch(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    return fit(*prepare(model, sgd(model), DataLoader(samples(60), 8)), backward)


@loop
def drop_last(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    return fit(*prepare(model, sgd(model), DataLoader(samples(60), 8, shuffle=True, drop_last=True)), backward)


@loop
def loader_processes(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    return fit(*prepare(model, sgd(model), DataLoader(samples(), 8, num_workers=2)), backward)


class Stream(IterableDataset[Any]):
    """Samples in an order of their own."""

    def __iter__(self) -> Iterator[Any]:
        return iter(samples(60))


@loop
def iterable_dataset(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    return fit(*prepare(model, sgd(model), DataLoader(Stream(), 8)), backward)


class Dictionaries(Dataset[Any]):
    """Samples by name."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> dict[str, Any]:
        inputs, label = samples(60)[index]
        return {"text": str(index), "inputs": inputs, "label": label}


@loop
def dictionaries(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    model, optimizer, loader = prepare(model, sgd(model), DataLoader(Dictionaries(), 8))

    def compute(batch: Any) -> Tensor:
        assert len(batch["text"]) == len(batch["inputs"])
        return functional.cross_entropy(model(batch["inputs"]), batch["label"])

    return fit(model, optimizer, loader, backward, compute=compute)


@loop
def named_tuples(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    loader = DataLoader(samples(60), 8, collate_fn=lambda batch: Pair(*default_collate(batch)))
    model, optimizer, prepared = prepare(model, sgd(model), loader)

    def compute(batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch.inputs), batch.labels)

    return fit(model, optimizer, prepared, backward, compute=compute)


@loop
def lists_without_loader(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    batches = [list(samples()[start : start + 8]) for start in range(0, 64, 8)]
    return fit(*prepare(model, sgd(model), batches), backward)


@loop
def batch_sampler(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    batches = BatchSampler(SequentialSampler(samples()), 8, drop_last=False)
    return fit(*prepare(model, sgd(model), DataLoader(samples(), batch_sampler=batches)), backward)


@loop
def own_batch_sampler(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    batches = [list(range(start, start + 8)) for start in range(0, 64, 8)]
    return fit(*prepare(model, sgd(model), DataLoader(samples(), batch_sampler=batches)), backward)


@loop
def float64_loss(prepare: Prepare, backward: Backward) -> list[float]:
    model = network()
    model, optimizer, loader = prepare(model, sgd(model), DataLoader(samples(), 8))

    def compute(batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch[0]).double(), batch[1])

    return fit(model, optimizer, loader, backward, compute=compute)


@loop
def float64_parameters(prepare: Prepare, backward: Backward) -> list[float]:
    model = network().double()
    model, optimizer, loader = prepare(model, sgd(model), DataLoader(samples(), 8))

    def compute(batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch[0].double()), batch[1])

    return fit(model, optimizer, loader, backward, compute=compute)


@loop
def loaded_weights(prepare: Prepare, backward: Backward) -> list[float]:
    torch.manual_seed(9)
    weights = network().state_dict()
    model = network()
    model.load_state_dict(weights)
    return fit(*prepare(model, sgd(model), DataLoader(samples(), 8)), backward)


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = LOOPS[sys.argv[1]]
    torch.manual_seed(1)
    # Before it joins, a script is alone.
    run = paceline.join()
    alone = chosen(lambda *objects: objects[:3], run.backward)
    torch.manual_seed(1)
    losses = chosen(run.prepare, run.backward)
    print(json.dumps({"alone": alone, "run": losses, "rank": run.rank, "version": run.version}), flush=True)
