"""How rank 0 tells the other processes of a launch where its server is.

A process asks, rank 0 answers, and the process confirms. Only a rank 0 that lives answers, and only a process that
lives confirms, so that nothing of an earlier attempt is taken for an answer: a store may outlive the processes.
"""

import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._launch.launchers import Launch
from paceline.errors import InputError, RunError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined] # it is public

#: The first and the longest pause between two looks, in seconds.
_PAUSES = (0.02, 0.5)

#: How long the number of a process that asks may go without its rank, in seconds.
_RANK_TIMEOUT = 2.0


class Rendezvous:
    """A store that all processes of a launch reach. Every wait ends after `timeout` seconds.

    The one that rank 0 serves ends with this object, or later with a process group that the script makes at its port.
    """

    def __init__(self, launch: Launch, timeout: float) -> None:
        """Open the store, or serve it if this is rank 0 and the launcher has none."""
        self._launch = launch
        self._timeout = timeout
        with self._errors():
            self._store = self._open()

    def ask(self) -> dict[str, Any]:
        """Wait for what rank 0 says."""
        deadline = time.monotonic() + self._timeout
        with self._errors():
            number = self._store.add("asked", 1)
            self._store.set(f"rank/{number}", str(self._launch.rank))
            for _ in _pauses(deadline):
                if self._store.check([f"answer/{number}"]):
                    answer: dict[str, Any] = json.loads(self._store.get(f"answer/{number}"))
                    self._store.set(f"confirmed/{number}", "")
                    return answer
        message = (
            f"rank 0 of {self._launch.launcher} has not answered for {self._timeout:g} s: did it call paceline.join()? "
            "PACELINE_JOIN_TIMEOUT=SECONDS waits longer"
        )
        raise RunError(message)

    def answer(self, answer: dict[str, Any]) -> list[int]:
        """Tell all other processes. Return the ranks that have not asked in time."""
        text = json.dumps(answer)
        missing = set(range(1, self._launch.size))
        unconfirmed: dict[int, int] = {}
        with self._errors():
            answered = self._store.add("answered", 0)
            for _ in _pauses(time.monotonic() + self._timeout):
                for number in range(answered + 1, self._store.add("asked", 0) + 1):
                    rank = self._rank(number)
                    self._store.set(f"answer/{number}", text)
                    answered = self._store.add("answered", 1)
                    if rank is not None:
                        unconfirmed[number] = rank
                confirmed = [number for number in unconfirmed if self._store.check([f"confirmed/{number}"])]
                missing.difference_update(unconfirmed.pop(number) for number in confirmed)
                if not missing:
                    break
        return sorted(missing)

    def await_others(self, occasion: str) -> None:
        """Wait until all processes have called this, or for as long as they may take: those that have died never do."""
        deadline = time.monotonic() + self._timeout
        with self._errors():
            self._store.add(occasion, 1)
            for _ in _pauses(deadline):
                if self._store.add(occasion, 0) >= self._launch.size:
                    return

    def _rank(self, number: int) -> int | None:
        """Return the rank of a process that asks; None if it died before it said that."""
        for _ in _pauses(time.monotonic() + _RANK_TIMEOUT):
            if self._store.check([f"rank/{number}"]):
                return int(self._store.get(f"rank/{number}"))
        return None

    def _open(self) -> "Store":
        try:
            from torch.distributed import (  # type: ignore[attr-defined] # noqa: PLC0415 public, and may be missing
                FileStore,
                PrefixStore,
                TCPStore,
            )
        except ImportError:
            message = f"paceline.join() under {self._launch.launcher} needs PyTorch: pip install 'paceline[torch]'"
            raise InputError(message) from None
        launch = self._launch
        if launch.on_one_host and not launch.has_store:
            file = private_folder() / re.sub(r"[^\w.-]", "_", launch.name)
            return PrefixStore("paceline", FileStore(str(file), launch.size))
        if launch.host is None or launch.port is None:
            message = (
                f"{launch.launcher} has started {launch.size} processes on several hosts, and nothing says where "
                "rank 0 is: set MASTER_ADDR to its host and MASTER_PORT to a free port there, for all processes"
            )
            raise InputError(message)
        # It is shared with a process group of the script, which may be made at the same port.
        store = TCPStore(
            launch.host,
            launch.port,
            is_master=launch.rank == 0 and not launch.has_store,
            timeout=timedelta(seconds=self._timeout),
            wait_for_workers=False,
            multi_tenant=True,
        )
        return PrefixStore("paceline", store)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Name the store in its errors, which are long."""
        try:
            yield
        except RuntimeError as error:
            launch = self._launch
            where = "" if launch.host is None else f" at {launch.host}:{launch.port}"
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            message = f"the store of {launch.launcher}{where} can't be used: {reason}"
            raise RunError(message) from None


def _pauses(deadline: float) -> Iterator[None]:
    """Wait between two looks, longer each time, until the deadline. There is at least one look."""
    pause, longest = _PAUSES
    while True:
        yield
        left = deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, longest)


def private_folder() -> Path:
    """Return a folder that only processes of this user can read."""
    user = os.getuid()
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    if not base.is_dir() or not os.access(base, os.W_OK):
        base = Path(tempfile.gettempdir())
    folder = base / f"paceline-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        message = f"{folder} can't be used: {error}; TMPDIR names another place"
        raise InputError(message) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        message = (
            f"{folder} can be used by others: expected a folder of user {user} with mode 700; remove it, or set TMPDIR"
        )
        raise InputError(message)
    return folder
