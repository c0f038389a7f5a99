"""Runs on a Ray cluster: `pip install 'paceline[ray]'`.

`run` starts workers as plain actors, each with resources of its own. `Config` is a backend for Ray Train.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline._ray.actors import ActorRun, Resources, Result, spec_of
from paceline._ray.train import Config
from paceline.errors import InputError

__all__ = ["ActorRun", "Config", "Resources", "Result", "run", "start"]


def start(  # noqa: PLR0913 each has a name
    train: Callable[[], Any],
    *,
    scheme: str = "bsp",
    workers: Sequence[Resources],
    options: str = "",
    restarts: int = 3,
    folder: Path | None = None,
) -> ActorRun:
    """Start a run, to which workers may be added, and from which they may be removed.

    Every worker is an actor that calls `train`, in which `paceline.join()` joins the run. The server runs on this node.

    Args:
        train: What a worker does.
        scheme: The scheme, as in `paceline train --scheme`.
        workers: What each worker gets: options of `ray.remote` such as `num_gpus`, `num_cpus` and `runtime_env`.
        options: More options of `paceline serve`, as they are typed: `"--until 'accuracy>0.97'"`.
        restarts: How often each worker is started again when it fails or its process dies; -1 for any number.
        folder: The run folder; by default a new one in runs/.

    """
    if not workers:
        message = "paceline.ray needs workers: expected a list such as [{'num_gpus': 1}, {'num_cpus': 8}]"
        raise InputError(message)
    return ActorRun(train, spec_of(scheme, options, len(workers), folder, Path.cwd()), workers, restarts)


def run(  # noqa: PLR0913 each has a name
    train: Callable[[], Any],
    *,
    scheme: str = "bsp",
    workers: Sequence[Resources],
    options: str = "",
    restarts: int = 3,
    folder: Path | None = None,
) -> Result:
    """Start a run as `start` does, and wait for its end."""
    return start(train, scheme=scheme, workers=workers, options=options, restarts=restarts, folder=folder).wait()
