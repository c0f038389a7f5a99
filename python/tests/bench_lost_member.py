"""Measure how long the others stand still when one of the workers that sum among themselves is killed, and comes back.

python python/tests/bench_lost_member.py [--json]

Four workers train a small model under bsp with `--data-plane collective`. One is killed in the middle; it is restarted
and joins again. The longest times between two steps of the others around both events are shown, beside the median time
of a step. DistributedDataParallel would end, or wait for its timeout, which is half an hour by default.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

WORKERS = 4
VICTIM = 1


def worker(folder: Path, parameters: int) -> None:
    """Train until a file says that it is enough; note the time of every step."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    width = max(8, round(parameters**0.5))
    model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    loader = DataLoader(TensorDataset(torch.randn(4096, width)), batch_size=4)
    run = paceline.join()
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    log = (folder / f"{run.rank}-{os.getpid()}").open("w", buffering=1)
    while not (folder / "enough").exists():
        for (inputs,) in loader:
            optimizer.zero_grad()
            run.backward(model(inputs).square().mean())
            optimizer.step()
            log.write(f"{time.monotonic()}\n")
            if (folder / "enough").exists():
                break


def times(folder: Path, rank: int) -> list[list[float]]:
    """When the processes of a worker made steps, the first one first."""
    logs = sorted(folder.glob(f"{rank}-*"), key=lambda path: path.stat().st_ctime)
    return [[float(line) for line in path.read_text().split()] for path in logs]


def await_steps(folder: Path, rank: int, processes: int, steps: int) -> None:
    """Wait until so many processes of a worker have made so many steps each."""
    while True:
        made = [len(process) for process in times(folder, rank)]
        if len(made) >= processes and min(made) >= steps:
            return
        time.sleep(0.05)


def longest(steps: list[float], begin: float, end: float) -> float:
    """The longest time between two steps, of which the later one is in a span."""
    return max((after - before for before, after in pairwise(steps) if begin <= after <= end), default=0.0)


def measure(parameters: int) -> dict[str, float]:
    """Kill a worker once."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = [sys.executable, __file__, "--worker", f"{folder},{parameters}"]
        options = ["--workers", str(WORKERS), "--data-plane", "collective", "--out", f"{folder}/run"]
        command = [sys.executable, "-m", "paceline", "train", *options, "--", *script]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as server:
            await_steps(folder, VICTIM, 1, 50)
            victim = int(next(folder.glob(f"{VICTIM}-*")).name.partition("-")[2])
            killed = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            await_steps(folder, VICTIM, 2, 50)
            (folder / "enough").touch()
            assert server.stderr is not None
            errors = server.stderr.read().decode()
        if server.returncode:
            sys.exit(errors)
        returned = times(folder, VICTIM)[1][0]
        others = [times(folder, rank)[0] for rank in range(WORKERS) if rank != VICTIM]
        middle = (killed + returned) / 2
        return {
            "parameters": parameters,
            "step": statistics.median(after - before for before, after in pairwise(others[0])),
            "killed": max(longest(steps, killed, middle) for steps in others),
            "rejoined": max(longest(steps, middle, returned + 1.0) for steps in others),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sizes", type=lambda text: [round(float(size)) for size in text.split(",")], default=[10_000])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        folder, parameters = given.worker.rsplit(",", 1)
        worker(Path(folder), int(parameters))
        return
    found = [measure(size) for size in given.sizes for _ in range(given.repeats)]
    if given.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{'parameters':>10}{'step ms':>10}{'killed: stood ms':>18}{'rejoined: stood ms':>20}")
    for row in found:
        print(
            f"{row['parameters']:>10.0f}{1e3 * row['step']:>10.1f}{1e3 * row['killed']:>18.0f}"
            f"{1e3 * row['rejoined']:>20.0f}"
        )


if __name__ == "__main__":
    main()
