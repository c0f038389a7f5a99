"""Record the times of any training loop, for `paceline whatif`.

Two lines, in every rank:

>>> tracer = paceline.trace.start("times")
>>> for batch in loader:
...     with tracer.step():  # around the computing, without the waiting for others
...         loss(model(batch)).backward()

Then, with no rank waiting for another: `paceline whatif times/*.csv`, or `paceline.whatif("times")`.
"""

from __future__ import annotations

import atexit
import os
import time
from array import array
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from paceline.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

RANK_VARIABLES = ("PACELINE_RANK", "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Where launchers put a process's rank, the first that is set."""


class Tracer:
    """Records the steps of one rank. Also a context manager, which saves at its end."""

    def __init__(self, folder: str | os.PathLike[str], *, rank: int | None = None, save_every: float = 30.0) -> None:
        """Record to `folder`, for this rank, and save at most every `save_every` seconds and at the end."""
        self.rank = _rank() if rank is None else rank
        self.path = Path(folder) / f"rank-{self.rank:05}.csv"
        self._save_every = save_every
        self._times = array("d")
        self._saved = 0
        self._last_save = time.monotonic()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        atexit.register(self.save)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time what is inside. A step that raises an exception does not count."""
        start = time.perf_counter()
        yield
        self.add(time.perf_counter() - start)

    def add(self, seconds: float) -> None:
        """Add a step that was timed otherwise, such as with CUDA events."""
        if not 0.0 < seconds < float("inf"):
            message = f"a step of {seconds} seconds: expected a finite number above 0"
            raise InputError(message)
        self._times.append(seconds)
        if time.monotonic() - self._last_save >= self._save_every:
            self.save()

    def save(self) -> None:
        """Write all steps so far. A reader sees the earlier file or this one, never a part of it."""
        self._last_save = time.monotonic()
        if len(self._times) == self._saved:
            return
        rows = (f"{step},{seconds:.9g}\n" for step, seconds in enumerate(self._times))
        unfinished = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(f"step,worker{self.rank}\n")
            file.writelines(rows)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.path)
        self._saved = len(self._times)

    def __enter__(self) -> Self:
        """Return the tracer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Save."""
        self.save()
        atexit.unregister(self.save)


def start(folder: str | os.PathLike[str], *, rank: int | None = None, save_every: float = 30.0) -> Tracer:
    """Record this process's steps to a file in `folder`. The rank is that of the launcher, or 0 without one."""
    return Tracer(folder, rank=rank, save_every=save_every)


def _rank() -> int:
    for variable in RANK_VARIABLES:
        text = os.environ.get(variable)
        if text is not None:
            if not text.isdecimal():
                message = f"{variable}={text}: expected a rank, a whole number"
                raise InputError(message)
            return int(text)
    return 0
