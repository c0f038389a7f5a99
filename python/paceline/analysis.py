"""Simulations and comparisons. The options are those of the command line, with `_` for `-`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack

from paceline import _paceline
from paceline.errors import InputError
from paceline.results import METRICS, Columns, RunResults, Summary, WhatIf

if TYPE_CHECKING:
    from paceline.scheme import Scheme

PathLike: TypeAlias = str | os.PathLike[str]
SchemeFactory: TypeAlias = "Callable[[_paceline.Setup], Scheme]"
"""A class that is a `Scheme`, or another callable that builds one."""


class Scenario(TypedDict, total=False):
    """The options of a simulation without its scheme; `paceline simulate --help` explains them."""

    threads: int
    dispatch: str
    until: str | Sequence[str]
    only: str | Sequence[int]
    slow: str | Mapping[int | str, float]
    script: PathLike
    network: str | Mapping[str, float]
    model: str
    data: str
    partition: str
    order: str
    batch: int
    lr: float
    lr_of: str
    lr_rule: str
    schedule: str
    optimizer: str
    micro_batch: int
    clip_gradient: float
    clip_sum: float
    evaluate_every: int
    init: PathLike
    device: str


class SimulateOptions(Scenario, total=False):
    """The options of `simulate` beside the scheme, the workers and the seed."""

    times: str
    config: PathLike
    out: PathLike
    record: PathLike
    force: bool


def simulate(
    scheme: str | SchemeFactory = "bsp",
    workers: int | None = None,
    *,
    seed: int = 1,
    **options: Unpack[SimulateOptions],
) -> RunResults:
    """Simulate a scheme on a virtual clock, with real gradients, as `paceline simulate` does.

    `scheme` is written as on the command line, or a class that is a `paceline.Scheme`. A run that misses its target is
    no error: `run.summary.reached` tells.

    >>> run = paceline.simulate("backup:k=6", slow={0: 3}, until="iterations=200")
    >>> run.summary.time
    """
    name, own = _scheme(scheme)
    arguments = _arguments({"scheme": name, "workers": workers, "seeds": seed, **options})
    text, columns = _paceline.simulate(arguments, own)
    out = options.get("out")
    return RunResults(
        summary=Summary._parse(text),
        metrics=Columns({name: columns[name] for name in METRICS}),
        reasons=tuple(columns["reason"]),
        folder=None if out is None else Path(out),
    )


def whatif(
    trace: PathLike | RunResults | Sequence[PathLike],
    schemes: str | Sequence[str | SchemeFactory] = "all",
    *,
    seeds: str | int | Sequence[int] = "1..5",
    span: str | None = None,
    **options: Unpack[Scenario],
) -> WhatIf:
    """Find the stragglers in a trace, their cost, and which scheme would have used the cluster best.

    `trace` is a file or several, a run folder, a run that has one, or a folder that `paceline.trace` has written.

    >>> paceline.whatif("times.csv", ["bsp", "backup:k=3"]).recommended
    """
    named = [_scheme(scheme) for scheme in ([schemes] if isinstance(schemes, str) else schemes)]
    given = {"schemes": ",".join(name for name, _ in named), "seeds": seeds, "span": span}
    arguments = [*_arguments({**given, **options}), "--", *_files(trace)]
    own = [entry for _, entries in named for entry in entries]
    return WhatIf._parse(_paceline.whatif(arguments, own))


def _files(trace: PathLike | RunResults | Sequence[PathLike]) -> list[str]:
    """Return the files and run folders of a trace."""
    if isinstance(trace, RunResults):
        if trace.folder is None:
            message = "the run has no folder: simulate it with out=DIR"
            raise InputError(message)
        trace = trace.folder
    if isinstance(trace, (str, os.PathLike)):
        ranks = sorted(Path(trace).glob("rank-*.csv"))
        return [os.fspath(path) for path in ranks] or [os.fspath(trace)]
    return [os.fspath(path) for path in trace]


def _scheme(scheme: str | SchemeFactory) -> tuple[str, list[tuple[str, SchemeFactory]]]:
    """Return how a scheme is written, and what builds it if it is one's own."""
    if isinstance(scheme, str):
        return scheme, []
    given = getattr(scheme, "name", None) or getattr(scheme, "__name__", None)
    if not callable(scheme) or not isinstance(given, str):
        message = f"{scheme!r} is no scheme: expected its name, or a class or function that builds one"
        raise InputError(message)
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", given).replace("_", "-").lower()
    if not re.fullmatch(r"[a-z0-9-]+", name):
        message = f"scheme '{name}': expected letters, digits and hyphens in the name"
        raise InputError(message)
    return name, [(name, scheme)]


def _arguments(options: Mapping[str, Any]) -> list[str]:
    """Write options as on the command line. `None` and `False` leave one out."""
    arguments = []
    for key, value in options.items():
        flag = f"--{key.replace('_', '-')}"
        if value is True:
            arguments.append(flag)
        elif value is not None and value is not False:
            arguments.append(f"{flag}={_text(value)}")
    return arguments


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}={part}" for key, part in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
