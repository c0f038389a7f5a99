"""Compare Paceline with DistributedDataParallel (Gloo) on this machine: the same model, data, batch, rate and threads.

python compare_ddp.py            # about a quarter of an hour on two cores
python compare_ddp.py --json --repeats 1 --schemes lb-bsp

First nobody is slow, and the time of a step is compared for models of several sizes. Then one of the workers is slower,
and the time is compared until the mean training loss of the samples of five rounds is below a target. Contestants take
turns. The slow worker sleeps, after it has computed a gradient, twice as long as that took: under DDP in a hook before
it communicates, under Paceline by --emulate. The time until all processes are ready is no part of these times.

On fewer processors than workers, a worker that waits leaves its processor to the others, so that little is lost. Where
every worker has a device of its own, it is lost. Therefore in the second part all workers also sleep for a millisecond
per sample (--device), as if a device computed meanwhile.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import paceline
from digits import SIZE, accuracy, digits, network

DDP = "ddp"
COLLECTIVE = "bsp --data-plane collective"
SCHEMES = "bsp;lb-bsp;lb-bsp --data-plane collective;backup:k=3;esync;cutoff"
"""Each with options, if any: "asp --lr-rule proportional"."""
WARMUP = 5
"""Steps that are left out of the times of steps."""
LIMIT = 120
"""Seconds in which the target is to be reached."""
MISSED = {3, 4}
"""Exit codes of a run that missed its target, or diverged."""
SMOOTHED = 5
"""Rounds whose samples give the training loss, as Paceline counts it."""


@dataclass
class Settings:
    """What all contestants share."""

    workers: int
    batch: int
    rate: float
    slow: float
    """How many times slower worker 0 is."""
    target: float | None
    """The training loss to reach, or none: then steps are counted."""
    steps: int
    parameters: int | None
    """The size of a perceptron, or none for the convolutional network."""
    device: float
    """Milliseconds per sample that every worker sleeps, as if a device of its own computed meanwhile."""


# --- one worker ---


def perceptron(parameters: int) -> nn.Module:
    """Two layers and a head, with about this many parameters."""
    inputs, classes = SIZE * SIZE, 10
    fixed = inputs + classes
    width = round((math.sqrt(fixed * fixed + 4 * parameters) - fixed) / 2)
    torch.manual_seed(1)
    hidden = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, classes))


class Worker:
    """One process of a contestant."""

    def __init__(self, settings: Settings) -> None:
        """Make the model and the data."""
        self.settings = settings
        self.model = perceptron(settings.parameters) if settings.parameters else network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=settings.rate, momentum=0.9)
        self.data = digits(8000, seed=1)
        self.times: list[float] = []

    def train(self, name: str) -> dict[str, Any]:
        """Train until the target or for the number of steps; return what was measured."""
        rank = self.train_ddp() if name == DDP else self.train_paceline()
        if rank != 0:
            return {}
        durations = [after - before for before, after in zip(self.times, self.times[1:], strict=False)]
        return {
            "step": statistics.median(durations[WARMUP:] or [math.nan]),
            "time": self.times[-1] - self.times[0],
            "accuracy": accuracy(self.model, digits(2000, seed=2)),
        }

    def train_paceline(self) -> int:
        """Train as classifier.py does."""
        run = paceline.join()
        loader = DataLoader(self.data, batch_size=self.settings.batch, shuffle=True)
        model, optimizer, loader = run.prepare(self.model, self.optimizer, loader)
        while not run.is_over and len(self.times) <= self.settings.steps:
            for images, labels in loader:
                self.times = self.times or [perf_counter()]
                with run.step():
                    sleep(self.settings.device / 1e3 * len(images))
                    loss = functional.cross_entropy(model(images), labels)
                    optimizer.zero_grad()
                    run.backward(loss)
                    optimizer.step()
                self.times.append(perf_counter())
                if len(self.times) > self.settings.steps:
                    break
        return run.rank

    def train_ddp(self) -> int:
        """Train as classifier_ddp.py does, with a slow worker and a goal."""
        distributed.init_process_group("gloo")
        rank, settings = distributed.get_rank(), self.settings
        sampler: DistributedSampler[Any] = DistributedSampler(self.data)
        loader = DataLoader(self.data, batch_size=settings.batch, sampler=sampler)
        model = DistributedDataParallel(self.model, broadcast_buffers=False)
        slowness = Slowness(settings.slow)
        if rank == 0 and settings.slow > 1:
            model.register_comm_hook(slowness, late)
        reached = Reached(settings)
        distributed.barrier()
        slowness.began = perf_counter()
        for images, labels in passes(loader, sampler):
            self.times = self.times or [perf_counter()]
            sleep(settings.device / 1e3 * len(images))
            loss = functional.cross_entropy(model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.times.append(perf_counter())
            slowness.began = self.times[-1]
            if len(self.times) > settings.steps or reached(loss):
                break
        distributed.destroy_process_group()
        return rank


def passes(loader: "DataLoader[Any]", sampler: "DistributedSampler[Any]") -> Iterator[Any]:
    """Give batches without end."""
    for epoch in range(sys.maxsize):
        sampler.set_epoch(epoch)
        yield from loader


@dataclass
class Slowness:
    """How slow a worker is, and when its present step began."""

    factor: float
    began: float = field(default_factory=perf_counter)


def late(slowness: Slowness, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Be slower: wait when the gradient is computed, before its last part is communicated."""
    if bucket.is_last():
        sleep((slowness.factor - 1) * (perf_counter() - slowness.began))
    return allreduce_hook(None, bucket)  # type: ignore[arg-type] # the default group


class Reached:
    """Whether the loss of all workers is below the target.

    It is summed in the background while the next step computes, so that DDP is not delayed, and known one step later.
    """

    def __init__(self, settings: Settings) -> None:
        """Without a target it never is."""
        self.settings = settings
        self.losses: deque[float] = deque(maxlen=SMOOTHED)
        self.summing: tuple[distributed.Work, Tensor] | None = None

    def __call__(self, loss: Tensor) -> bool:
        """Count the loss of a step."""
        if self.settings.target is None:
            return False
        if self.summing is not None:
            work, summed = self.summing
            work.wait()
            self.losses.append(float(summed) / self.settings.workers)
        summed = loss.detach().clone()
        self.summing = (distributed.all_reduce(summed, async_op=True), summed)
        return len(self.losses) == SMOOTHED and statistics.fmean(self.losses) < self.settings.target


# --- all of them ---


def measure(name: str, settings: Settings) -> dict[str, float]:
    """Run a contestant once."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        worker = [__file__, "--worker", name, "--out", str(result), "--settings", json.dumps(asdict(settings))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if name == DDP:
            launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(settings.workers)]
            command = [sys.executable, "-m", *launcher, *worker]
        else:
            options = [
                "--scheme",
                *name.split(),
                "--workers",
                str(settings.workers),
                "--out",
                str(Path(folder) / "run"),
            ]
            if settings.slow > 1:
                options += ["--emulate", f"0={settings.slow}"]
            if settings.target is not None:
                options += ["--until", f"loss<{settings.target},time={LIMIT}"]
            command = [sys.executable, "-m", "paceline", "train", "--json", *options, "--", sys.executable, *worker]
        began = perf_counter()
        ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        wall = perf_counter() - began
        if ended.returncode not in {0, *MISSED} or not result.exists():
            sys.exit(f"{name} failed:\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}")
        measured: dict[str, float] = json.loads(result.read_text())
        return {**measured, "startup": wall - measured["time"], "reached": float(ended.returncode == 0)}


def compare(names: list[str], repeats: int, settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Let the contestants take turns; return medians, smallest and largest values."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for repeat in range(repeats):
        for name in names if repeat % 2 == 0 else reversed(names):
            runs[name].append(measure(name, settings))
            say(f"{name}: {json.dumps({key: round(value, 4) for key, value in runs[name][-1].items()})}")
    summary: dict[str, Any] = {}
    for name, found in runs.items():
        summary[name] = {}
        for key in found[0]:
            values = sorted(run[key] for run in found)
            summary[name][key] = {"median": statistics.median(values), "least": values[0], "most": values[-1]}
    return summary


def table(title: str, summary: dict[str, Any], key: str, unit: str, scale: float) -> str:
    """Show one number of all contestants, and how many times sooner they are than DDP."""
    lines = [f"\n{title}", f"{'contestant':<30}{unit:>8}{'range':>18}{'DDP / it':>10}{'accuracy':>10}{'startup s':>11}"]
    for name, values in summary.items():
        found = values[key]
        spread = f"{scale * found['least']:.2f} to {scale * found['most']:.2f}"
        ratio = summary[DDP][key]["median"] / found["median"]
        ratio = ratio if values["reached"]["least"] else math.nan  # missed the target
        right, startup = values["accuracy"]["median"], values["startup"]["median"]
        lines.append(
            f"{name:<30}{scale * found['median']:>8.2f}{spread:>18}{ratio:>10.2f}{right:>10.3f}{startup:>11.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Compare, or be one worker of a contestant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes", default="1e6;25e6", help="parameters of the models whose steps are timed; '' for none"
    )
    parser.add_argument("--schemes", default=SCHEMES, help="with a slow worker; '' for none")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60, help="steps that are timed")
    parser.add_argument("--slow", type=float, default=3.0, help="how many times slower worker 0 is")
    parser.add_argument("--target", type=float, default=0.05, help="the training loss to reach")
    parser.add_argument("--device", type=float, default=1.0, help="see above; 0 computes on processors alone")
    parser.add_argument("--json", action="store_true")
    for hidden in ("--worker", "--out", "--settings"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    given = parser.parse_args()

    if given.worker:
        settings = Settings(**json.loads(given.settings))
        if measured := Worker(settings).train(given.worker):
            Path(given.out).write_text(json.dumps(measured))
        return

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    found: dict[str, Any] = {"machine": {"processors": os.cpu_count(), "torch": torch.__version__}, "steps": {}}
    for size in filter(None, given.sizes.split(";")):
        settings = Settings(given.workers, 8, 0.01, 1.0, None, given.steps, round(float(size)), 0.0)
        found["steps"][size] = compare([DDP, "bsp", COLLECTIVE], given.repeats, settings, say)
    schemes = list(filter(None, given.schemes.split(";")))
    if schemes:
        settings = Settings(given.workers, 32, 0.05, given.slow, given.target, 100_000, None, given.device)
        found["straggler"] = compare([DDP, *schemes], given.repeats, settings, say)

    if given.json:
        print(json.dumps(found, indent=1))
        return
    for size, summary in found["steps"].items():
        print(table(f"A step of {size} parameters, nobody slow, {given.workers} workers", summary, "step", "ms", 1e3))
    if schemes:
        title = f"Time to a training loss of {given.target}, one of {given.workers} workers {given.slow:g} times slower"
        print(table(title, found["straggler"], "time", "s", 1.0))


if __name__ == "__main__":
    main()
