"""Measure what Paceline adds to a step of a loop: the same loop alone, and as the only worker of `paceline train`.

python python/tests/bench_overhead.py [--json]

One thread, one worker, models of three sizes, steps of about 5 and 20 ms. Both loops run at the same time on a machine
with two processors or more: they take turns, a few steps each, so that other load meets both. The overhead of a step is
the difference of the medians; that of the fastest tenth is less disturbed by other load.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, sleep

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


def worker(parameters: int, rows: int, steps: int, turns: Path, place: int) -> None:
    """Train, in turns with the other process; write the times of the steps."""
    torch.set_num_threads(1)
    run = paceline.join()
    model = Model(parameters)
    model.rows = rows
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = DataLoader(Endless(steps), batch_size=1)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    times = []
    for index, batch in enumerate(loader):
        if index % TURN == 0:
            wait_for_turn(turns, place, index // TURN)
        began = perf_counter()
        loss = model(batch)
        optimizer.zero_grad()
        run.backward(loss)
        optimizer.step()
        # The first step of a turn finds cold caches.
        if index % TURN:
            times.append(perf_counter() - began)
    (turns / f"{place}.ended").touch()
    (turns / f"{place}.json").write_text(json.dumps(times))


def wait_for_turn(turns: Path, place: int, turn: int) -> None:
    """Let the other process have its turn."""
    (turns / f"{place}.{turn}").touch()
    other = turns / f"{1 - place}.{turn + place}"
    ended = turns / f"{1 - place}.ended"
    while not (other.exists() or ended.exists()):
        sleep(0.0002)


def measure(parameters: int, seconds: float, steps: int) -> dict[str, float]:
    """Compare the two loops."""
    torch.set_num_threads(1)
    rows = rows_of(parameters, seconds)
    with tempfile.TemporaryDirectory() as folder:
        script = [sys.executable, __file__, "--worker", f"{parameters},{rows},{steps},{folder}"]
        train = [sys.executable, "-m", "paceline", "train", "--workers", "1", "--out", f"{folder}/run", "--"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        commands = [[*script, "--place", "0"], [*train, *script, "--place", "1"]]
        started = [
            subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for command in commands
        ]
        for process in started:
            _, errors = process.communicate(timeout=600)
            if process.returncode:
                sys.exit(errors)
        plain, joined = (json.loads((Path(folder) / f"{place}.json").read_text()) for place in (0, 1))
    found: dict[str, float] = {"parameters": parameters}
    for name, value in (("median", statistics.median), ("fastest", lambda times: statistics.quantiles(times, n=10)[0])):
        found |= {f"plain_{name}": value(plain), f"paceline_{name}": value(joined)}
        found[f"overhead_{name}"] = value(joined) / value(plain) - 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--sizes", type=lambda text: [round(float(size)) for size in text.split(",")], default=SIZES)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--place", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        parameters, rows, steps, turns = given.worker.split(",", 3)
        worker(int(parameters), int(rows), int(steps), Path(turns), given.place)
        return
    found = [measure(size, seconds, given.steps) for size in given.sizes for seconds in STEPS]
    if given.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{'parameters':>10}{'plain ms':>10}{'paceline ms':>13}{'overhead':>10}{'of the fastest tenth':>22}")
    for row in found:
        plain, joined = 1e3 * row["plain_median"], 1e3 * row["paceline_median"]
        overheads = f"{row['overhead_median']:>10.1%}{row['overhead_fastest']:>22.1%}"
        print(f"{row['parameters']:>10.0f}{plain:>10.2f}{joined:>13.2f}{overheads}")


if __name__ == "__main__":
    main()
