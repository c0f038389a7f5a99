"""Measure what Paceline adds to a step of a loop, as the only worker of `paceline train`.

python python/tests/bench_overhead.py [--json]

One thread, one worker, models of three sizes, steps of about 5 and 20 ms. The worker trains two models of the same
shape in turns, a few steps each: one in plain PyTorch, one in the run. So other load and the processor's speed meet
both. The overhead of a step is the median over the turns of what its steps take longer than those of the turn before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import paceline

SIZES = [100_000, 1_000_000, 6_000_000]
STEPS = [0.005, 0.020]
INPUTS = 64
TURN = 5
"""Steps of a turn."""


class Endless(Dataset[Tensor]):
    """The same sample over and over."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.sample = torch.randn(INPUTS, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        return self.sample


class Model(nn.Module):
    """A perceptron that computes its middle layer on as many rows as a step of the wanted length takes."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        width = max(16, round((parameters / 4) ** 0.5))
        self.first = nn.Linear(INPUTS, width)
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
        self.rows = 1

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.first(inputs).repeat(self.rows, 1)
        return self.layers(hidden).square().mean()  # type: ignore[no-any-return]


def plain_step(model: Model, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    loss = model(batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def rows_of(parameters: int, seconds: float) -> int:
    """How many rows make a step of this length."""
    model = Model(parameters)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(1, INPUTS)

    def fastest(rows: int) -> float:
        model.rows = rows
        times = []
        for _ in range(15):
            began = perf_counter()
            plain_step(model, optimizer, batch)
            times.append(perf_counter() - began)
        return min(times)

    rows = 1
    while rows < 1 << 16 and fastest(2 * rows) < seconds:
        rows *= 2
    low, high = rows, 2 * rows
    for _ in range(4):
        middle = (low + high) // 2
        low, high = (middle, high) if fastest(middle) < seconds else (low, middle)
    return low


def worker(parameters: int, rows: int, turns: int, result: Path) -> None:
    """Train both models in turns; write the times of their steps, turn by turn."""
    torch.set_num_threads(1)
    run = paceline.join()
    plain, model = Model(parameters), Model(parameters)
    plain.rows = model.rows = rows
    plain_optimizer, optimizer = (torch.optim.SGD(one.parameters(), lr=1e-4) for one in (plain, model))
    plain_loader, loader = (DataLoader(Endless(TURN * turns), batch_size=1) for _ in range(2))
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    plain_batches, batches = iter(plain_loader), iter(loader)

    def joined_step() -> float:
        began = perf_counter()
        loss = model(next(batches))
        optimizer.zero_grad()
        run.backward(loss)
        optimizer.step()
        return perf_counter() - began

    def other_step() -> float:
        began = perf_counter()
        plain_step(plain, plain_optimizer, next(plain_batches))
        return perf_counter() - began

    def turn(step: Callable[[], float]) -> float:
        # The first step finds cold caches.
        return statistics.median([step() for _ in range(TURN)][1:])

    times = [(turn(other_step), turn(joined_step)) for _ in range(turns)]
    result.write_text(json.dumps(times))


def measure(parameters: int, seconds: float, turns: int) -> dict[str, float]:
    """Compare the steps of the two models."""
    torch.set_num_threads(1)
    rows = rows_of(parameters, seconds)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "times.json"
        script = [sys.executable, __file__, "--worker", f"{parameters},{rows},{turns},{result}"]
        train = [sys.executable, "-m", "paceline", "train", "--workers", "1", "--out", f"{folder}/run", "--"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(
            [*train, *script], env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        if ended.returncode:
            sys.exit(ended.stderr)
        times = json.loads(result.read_text())[2:]
    plain = statistics.median(plain for plain, _ in times)
    added = statistics.median(joined - plain for plain, joined in times)
    return {"parameters": parameters, "plain": plain, "added": added, "overhead": added / plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--sizes", type=lambda text: [round(float(size)) for size in text.split(",")], default=SIZES)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        parameters, rows, turns, result = given.worker.split(",", 3)
        worker(int(parameters), int(rows), int(turns), Path(result))
        return
    found = [measure(size, seconds, given.turns) for size in given.sizes for seconds in STEPS]
    if given.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{'parameters':>10}{'plain ms':>10}{'added ms':>10}{'overhead':>10}")
    for row in found:
        print(
            f"{row['parameters']:>10.0f}{1e3 * row['plain']:>10.2f}{1e3 * row['added']:>10.2f}{row['overhead']:>10.1%}"
        )


if __name__ == "__main__":
    main()
