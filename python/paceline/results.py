"""What runs and comparisons leave, as typed values."""

from __future__ import annotations

import csv
import json
import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from paceline.errors import Error, InputError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    import numpy as np
    import numpy.typing as npt
    import pandas as pd


def _column(values: Iterable[float]) -> npt.NDArray[np.float64]:
    """Return a NumPy array, or an `array.array` where NumPy is not installed."""
    column: Any = array("d", values)
    try:
        import numpy as np  # noqa: PLC0415 - it is optional
    except ImportError:
        return column  # type: ignore[no-any-return]
    return np.frombuffer(column, dtype=np.float64)


def _data_frame(data: Any) -> pd.DataFrame:  # noqa: ANN401 - as pandas types it
    try:
        import pandas as pd  # noqa: PLC0415 - it is optional
    except ImportError as error:
        message = "to_pandas needs pandas: pip install pandas"
        raise Error(message) from error
    return pd.DataFrame(data)


@dataclass(frozen=True)
class _Record:
    """A value that is read from JSON. Keys of later versions are ignored."""

    @classmethod
    def _from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})


@dataclass(frozen=True)
class WorkerTimes(_Record):
    """How a worker spent its time, in seconds."""

    worker: int
    computing: float
    querying: float
    communicating: float
    waiting: float
    samples_per_second: float
    loading: float = 0.0
    """Waiting for data; a part of `computing`."""


@dataclass(frozen=True)
class Summary(_Record):
    """A run in numbers, as its `summary.json` has them. Times are seconds."""

    scheme: str
    seed: int
    workers: int
    iterations: int
    time: float
    reached: bool
    """Whether it reached its target or, without a target, its limit."""
    time_to_target: float | None
    counted: float | None
    """The loss or accuracy that counted when it reached its target."""
    stopped_by: str
    ending: str
    """How it ended: `reached`, `target-missed`, `diverged`, `no-workers` or `interrupted`."""
    loss: float | None
    accuracy: float | None
    updates_committed: int
    updates_discarded: int
    updates_broken: int
    tasks_interrupted: int
    samples_used: int
    samples_lost: int
    idle_share: float
    bytes: int
    samples_per_second: float
    bytes_per_second: float
    worker_times: tuple[WorkerTimes, ...] = ()

    @classmethod
    def _parse(cls, text: str) -> Self:
        values = json.loads(text)
        times = tuple(WorkerTimes._from_json(times) for times in values.get("worker_times", ()))
        return cls._from_json({**values, "worker_times": times})


class Columns(Mapping[str, "npt.NDArray[np.float64]"]):
    """A table by columns: NumPy arrays, or `array.array` where NumPy is not installed."""

    def __init__(self, columns: Mapping[str, Iterable[float]]) -> None:
        """Take over these columns."""
        self._columns = {name: _column(values) for name, values in columns.items()}

    def __getitem__(self, name: str) -> npt.NDArray[np.float64]:
        """Return a column."""
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        """Go through the names of the columns."""
        return iter(self._columns)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self._columns)

    def to_pandas(self) -> pd.DataFrame:
        """Return the table as a data frame. Needs pandas."""
        return _data_frame(self._columns)


@dataclass(frozen=True)
class RunResults:
    """A run: simulated, or read from its folder."""

    summary: Summary | None
    """`None` as long as the run goes on."""
    metrics: Columns
    """A row per iteration: iteration, time, duration, waited_for, samples, loss, accuracy, held_out_loss.
    NaN: not measured."""
    reasons: tuple[str, ...]
    """Why each iteration ended when it did."""
    folder: Path | None

    @property
    def worker_times(self) -> Columns:
        """How each worker spent its time, a row per worker: the fields of `WorkerTimes`."""
        times = self.summary.worker_times if self.summary else ()
        return Columns({field.name: [getattr(row, field.name) for row in times] for field in fields(WorkerTimes)})


METRICS = ("iteration", "time", "duration", "waited_for", "samples", "loss", "accuracy", "held_out_loss")


def read_run(folder: str | os.PathLike[str]) -> RunResults:
    """Read a run folder, also one whose run goes on.

    >>> run = paceline.read_run("runs/1")
    >>> run.summary.time_to_target, run.metrics["loss"][-1]
    """
    folder = Path(folder)
    try:
        text = (folder / "metrics.csv").read_text(encoding="utf-8")
    except OSError as error:
        message = f"{folder} is not a run folder: {error}"
        raise InputError(message) from error
    # A last line without an end is being written.
    rows = list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))
    try:
        metrics = Columns({name: [float(row[name] or math.nan) for row in rows] for name in METRICS})
    except (KeyError, ValueError) as error:
        message = f"{folder / 'metrics.csv'} can't be read: {error!r}"
        raise InputError(message) from error
    summary = folder / "summary.json"
    return RunResults(
        summary=Summary._parse(summary.read_text(encoding="utf-8")) if summary.exists() else None,
        metrics=metrics,
        reasons=tuple(row["reason"] for row in rows),
        folder=folder,
    )


@dataclass(frozen=True)
class TracedWorker(_Record):
    """A worker in a trace. Shares are 0 to 1."""

    worker: int
    straggling: str
    """`steady`, `transient` or `persistent`."""
    mean_step: float
    slowness: float
    slow_steps: float
    waits: float
    """The share of the time of `bsp` that it would wait for others."""
    holds_back: float
    """The share of the time of `bsp` that would be saved if it were never the last."""


@dataclass(frozen=True)
class ComparedScheme(_Record):
    """A scheme, simulated on the times of a trace: means over the seeds."""

    place: int
    scheme: str
    step_kind: str
    rate: float
    runs: int
    reached: int
    """How many runs reached the target."""
    time_to_target: float | None
    time: float
    spread: float | None
    speedup: float | None
    """Compared with `bsp`, with the ends of its 95 % confidence interval."""
    speedup_low: float | None
    speedup_high: float | None
    difference: str
    accuracy: float | None
    counted: float | None
    idle_share: float
    updates: float
    samples_used: float
    samples_lost: float
    bytes: float


@dataclass(frozen=True)
class WhatIfAnswer(_Record):
    """A scheme to use."""

    scheme: str
    step_kind: str
    """What its steps are made of: fresh, averaged or stale."""
    why: str
    """How much faster it is, and what that rests on."""
    command: str
    """The command that trains as it was simulated."""


@dataclass(frozen=True)
class WhatIf:
    """What a trace shows, and how the schemes compare on it."""

    recommended: str | None
    """The scheme of the safe answer."""
    why: str
    safe: WhatIfAnswer | None
    """The fastest scheme without stale gradients, or bsp if none is faster beyond the noise of the seeds."""
    bold: WhatIfAnswer | None
    """The fastest of all, if that is another one."""
    steps: int
    bsp_time: float
    """How long `bsp` would take for the steps that all workers did, in seconds."""
    waiting_share: float
    """The share of that time that workers would wait."""
    workers: tuple[TracedWorker, ...]
    schemes: tuple[ComparedScheme, ...]
    """The fastest first."""

    @classmethod
    def _parse(cls, lines: Sequence[str]) -> Self:
        head, *places = map(json.loads, lines)
        trace = head["trace"]
        return cls(
            recommended=head["recommended"],
            why=head["why"],
            safe=head["safe"] and WhatIfAnswer._from_json(head["safe"]),
            bold=head["bold"] and WhatIfAnswer._from_json(head["bold"]),
            steps=trace["steps"],
            bsp_time=trace["bsp_time"],
            waiting_share=trace["waiting_share"],
            workers=tuple(TracedWorker._from_json(worker) for worker in trace["workers"]),
            schemes=tuple(ComparedScheme._from_json(place) for place in places),
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return the schemes as a data frame. Needs pandas."""
        return _data_frame([vars(scheme) for scheme in self.schemes])
