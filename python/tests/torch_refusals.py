"""Loops that can't be trained as they are. `torch_refusals.py NAME` runs one in a worker."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch_features import fit, network, samples, sgd

import paceline

Refused = Callable[[paceline.Run], object]
REFUSED: dict[str, Refused] = {}


def refused(function: Refused) -> Refused:
    REFUSED[function.__name__] = function
    return function


def train(run: paceline.Run, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    fit(*run.prepare(model, optimizer, DataLoader(samples(), 8)), run.backward)


@refused
def other_frozen_values(run: paceline.Run) -> None:
    model = network()
    nn.init.constant_(model[0].requires_grad_(False).get_parameter("bias"), run.rank)
    train(run, model, sgd(model))


@refused
def other_model(run: paceline.Run) -> None:
    model = nn.Sequential(nn.Linear(8, 16 + run.rank), nn.ReLU(), nn.Linear(16 + run.rank, 4))
    train(run, model, sgd(model))


@refused
def other_optimizer(run: paceline.Run) -> None:
    model = network()
    train(run, model, sgd(model, momentum=0.5 * run.rank))


@refused
def changed_weights(run: paceline.Run) -> None:
    model = network()
    prepared = run.prepare(model, sgd(model), DataLoader(samples(), 8))
    model.load_state_dict(network().state_dict())
    fit(*prepared, run.backward)


@refused
def replaced_weights(run: paceline.Run) -> None:
    model = network()
    prepared = run.prepare(model, sgd(model), DataLoader(samples(), 8))
    model.load_state_dict(network().state_dict(), assign=True)
    fit(*prepared, run.backward)


@refused
def another_type_before_the_loop(run: paceline.Run) -> None:
    model = network()
    prepared = run.prepare(model, sgd(model), DataLoader(samples(), 8))
    model.to(torch.bfloat16)
    fit(*prepared, run.backward)


@refused
def another_type_in_the_loop(run: paceline.Run) -> None:
    model = network()
    model, optimizer, loader = run.prepare(model, sgd(model), DataLoader(samples(), 8))
    for inputs, labels in loader:
        model.to(torch.float64)
        run.backward(nn.functional.cross_entropy(model(inputs.double()), labels))
        optimizer.step()


@refused
def prepared_twice(run: paceline.Run) -> None:
    for _ in range(2):
        model = network()
        run.prepare(model, sgd(model), DataLoader(samples(), 8))


@refused
def plain_backward(run: paceline.Run) -> None:
    model = network()
    fit(*run.prepare(model, sgd(model), DataLoader(samples(), 8)), lambda loss: loss.backward())


@refused
def losses_of_samples(run: paceline.Run) -> None:
    model = network()
    model, _, loader = run.prepare(model, sgd(model), DataLoader(samples(), 8))
    for inputs, labels in loader:
        run.backward(nn.functional.cross_entropy(model(inputs), labels, reduction="none"))


@refused
def lbfgs(run: paceline.Run) -> None:
    model = network()
    train(run, model, torch.optim.LBFGS(model.parameters()))


@refused
def sparse_adam(run: paceline.Run) -> None:
    model = network()
    train(run, model, torch.optim.SparseAdam(model.parameters()))


@refused
def sparse_gradients(run: paceline.Run) -> None:
    model = nn.Embedding(8, 4, sparse=True)
    loader = DataLoader(range(8), 8)  # type: ignore[arg-type,var-annotated] # numbers are samples too
    prepared = run.prepare(model, sgd(model), loader)
    fit(*prepared, run.backward, compute=lambda batch: model(batch).sum())


@refused
def part_of_the_model(run: paceline.Run) -> None:
    model = network()
    train(run, model, sgd(model[0]))


@refused
def new_group(run: paceline.Run) -> None:
    model = network()
    model, optimizer, loader = run.prepare(model, sgd(model), DataLoader(samples(), 8))
    optimizer.add_param_group({"params": nn.Linear(2, 2).parameters()})
    fit(model, optimizer, loader, run.backward)


@refused
def changed_momentum(run: paceline.Run) -> None:
    model = network()
    model, optimizer, loader = run.prepare(model, sgd(model), DataLoader(samples(), 8))
    optimizer.param_groups[0]["momentum"] = 0.5
    fit(model, optimizer, loader, run.backward)


@refused
def no_trained_parameters(run: paceline.Run) -> None:
    model = network()
    optimizer = sgd(model)
    train(run, model.requires_grad_(False), optimizer)


@refused
def no_batch_size(run: paceline.Run) -> None:
    model = network()
    run.prepare(model, sgd(model), DataLoader(samples(), batch_size=None))


@refused
def unequal_batches(run: paceline.Run) -> None:
    batches = [torch.randn(4, 8), torch.randn(4, 9), torch.randn(4, 8)]
    model = network()
    loader = run.prepare(model, sgd(model), [batches[0], torch.randn(2, 8), batches[1]])[2]
    list(loader)


@refused
def uncountable_batches(run: paceline.Run) -> None:
    model = network()
    run.prepare(model, sgd(model), [object()])


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(1)
    REFUSED[sys.argv[1]](paceline.join())
