"""A loop that ends early. `torch_endings.py fails` raises an error after two steps.

`torch_endings.py is_killed FILE` kills worker 1 after two steps, with processes that load data. They wait for the file.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torch_features import network, samples, sgd

import paceline


class Waiting(Dataset[tuple[Tensor, ...]]):
    """Samples of which the later half comes when a file is there."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        while index >= 32 and not self.file.exists():
            time.sleep(0.02)
        inputs, label = samples()[index]
        return inputs, label


def train(loader: DataLoader[tuple[Tensor, ...]]) -> None:
    run = paceline.join()
    model = network()
    model, optimizer, prepared = run.prepare(model, sgd(model), loader)
    for number, (inputs, labels) in enumerate(prepared, start=1):
        loss = functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        run.backward(loss)
        optimizer.step()
        if number == 2:
            end(run.rank)


def end(rank: int) -> None:
    if sys.argv[1] == "fails":
        message = "broken here"
        raise RuntimeError(message)
    if rank == 1 and not Path(sys.argv[2]).exists():
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(1)
    if sys.argv[1] == "fails":
        train(DataLoader(samples(), 2))
    else:
        train(DataLoader(Waiting(Path(sys.argv[2])), 8, num_workers=2))
