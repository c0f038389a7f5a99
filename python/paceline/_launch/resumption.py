"""Whether a launch goes on with a run that an earlier attempt has begun.

The name of the launch is in the configuration of the run folder. torchrun starts processes of the same name again, and
so does Slurm for a job that it queues again.
"""

import fcntl
import json
import sys
import time
import tomllib
from pathlib import Path

from paceline._launch.launchers import Launch

#: How often the lock of a run folder is looked at, in seconds.
_LOOK = 0.1


def names_of(options: list[str]) -> set[str]:
    """Return the names of options that are given."""
    return {option.partition("=")[0] for option in options if option.startswith("--")}


def resumption(launch: Launch, given: list[str], timeout: float) -> list[str]:
    """Return the option that goes on with the run of this launch, if an earlier attempt has begun it."""
    names = names_of(given)
    if "--resume" in names or launch.run is None:
        return []
    folder = _value(given, "--out")
    # The server refuses --out beside --resume.
    folders = [Path(folder)] if folder is not None else sorted(Path("runs").glob("*"), key=_age)
    found = next((folder for folder in folders if launch_of(folder) == launch.run), None)
    if found is None:
        return []
    _await_lock(found, timeout)
    # A run that has ended is not begun again by a restart: the server says what there is to say.
    if launch.restarts == 0 and _is_over(found):
        return []
    if folder is not None:
        _remove(given, "--out")
    print(f"paceline: {found} goes on: {launch.run} has begun it", file=sys.stderr)
    return ["--resume", str(found)]


def _await_lock(folder: Path, timeout: float) -> None:
    """Wait until no server writes a run: that of an earlier attempt may be about to end."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            with (folder / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOOK)
        except OSError:
            # The server says what is wrong with it.
            return
        else:
            return


def _value(options: list[str], name: str) -> str | None:
    for index, option in enumerate(options):
        if option.startswith(f"{name}="):
            return option.partition("=")[2]
        if option == name and index + 1 < len(options):
            return options[index + 1]
    return None


def _remove(options: list[str], name: str) -> None:
    index = next(index for index, option in enumerate(options) if option.partition("=")[0] == name)
    del options[index : index + (1 if "=" in options[index] else 2)]


def _age(folder: Path) -> float:
    """Sort the newest folder first."""
    try:
        return -folder.stat().st_mtime
    except OSError:
        return 0.0


def launch_of(folder: Path) -> str | None:
    """Return what the launch is called that has begun a run; None if there is none."""
    try:
        launch = tomllib.loads((folder / "config.toml").read_text()).get("launch")
    except (OSError, ValueError):
        return None
    return launch if isinstance(launch, str) else None


def _is_over(folder: Path) -> bool:
    """Whether a run has ended by itself."""
    try:
        ending = json.loads((folder / "summary.json").read_text()).get("ending")
    except (OSError, ValueError):
        return False
    return ending in ("reached", "target-missed", "diverged")
