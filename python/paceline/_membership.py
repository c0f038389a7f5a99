"""What a process of a script is in a run, and where the run's server is."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline._launch.server import LaunchedServer
from paceline.errors import InputError

#: How long to try to reach a server, in seconds, without PACELINE_JOIN_TIMEOUT.
_JOIN_TIMEOUT = 60.0


@dataclass(frozen=True, kw_only=True)
class Membership:
    """One process of a run."""

    #: The server's addresses.
    server: str
    #: None if the server gives one.
    rank: int | None
    workers: int
    seed: int
    join_timeout: float
    evaluates: bool = False
    #: A folder with the keys of the server.
    keys: Path | None = None
    #: The run folder.
    folder: Path | None = None
    #: Whether this process can use it, which may show only when the run has begun.
    sees_folder: Callable[[], bool] = bool
    #: Waits until all other processes have joined too, where a launcher starts all of them.
    await_others: Callable[[], object] = bool
    #: The server, if this process has started it.
    own_server: LaunchedServer | None = None


def from_environment() -> Membership | None:
    """Read what `paceline train` and `paceline work` tell a process; None if they have not started it."""
    server = os.environ.get("PACELINE_SERVER")
    if server is None:
        return None
    keys, folder = os.environ.get("PACELINE_KEYS"), os.environ.get("PACELINE_FOLDER")
    return Membership(
        server=server,
        rank=whole_number("PACELINE_RANK"),
        workers=whole_number("PACELINE_WORKERS") or 1,
        seed=whole_number("PACELINE_SEED") or 1,
        join_timeout=join_timeout(),
        evaluates=os.environ.get("PACELINE_ROLE") == "evaluator",
        keys=None if keys is None else Path(keys),
        folder=None if folder is None else Path(folder),
        sees_folder=lambda: True,
    )


def join_timeout() -> float:
    """Read how long to try to reach a server, in seconds."""
    text = os.environ.get("PACELINE_JOIN_TIMEOUT", "")
    if text == "":
        return _JOIN_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < 1e9:  # noqa: PLR2004 the limit of the command's options
        message = f"PACELINE_JOIN_TIMEOUT is '{text}': expected seconds, at least 0"
        raise InputError(message)
    return seconds


def whole_number(variable: str) -> int | None:
    """Read a whole number of the environment."""
    text = os.environ.get(variable)
    if text is None or text == "":
        return None
    if not text.isdecimal():
        message = f"{variable} is '{text}': expected a whole number"
        raise InputError(message)
    return int(text)
