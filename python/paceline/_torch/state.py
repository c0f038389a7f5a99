"""What a worker needs to resume beside the model: random numbers, its place in the data, what the user registers."""

import importlib
import pickle
import random
import sys
from pathlib import Path
from typing import Any, Protocol

import torch

from paceline.errors import InputError

#: States that are kept, of the last checkpoints.
_KEPT = 3


class Stateful(Protocol):
    """Whatever has a state, such as a scheduler, a GradScaler or a model."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:  # noqa: ANN401 torch returns various things
        """Go on from a state."""


def random_state() -> dict[str, Any]:
    """Return the states of all random number generators."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state()
    # PyTorch imports NumPy; the generator is there when it was used first.
    if "numpy.random" in sys.modules:
        state["numpy"] = sys.modules["numpy.random"].get_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Set all random number generators."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state:
        importlib.import_module("numpy").random.set_state(state["numpy"])


class StateKeeper:
    """Saves the state of one worker with every checkpoint, and brings it back when the run resumes."""

    def __init__(self, folder: Path, rank: int) -> None:
        """Keep states in the folder of the workers' logs."""
        self._folder = folder
        self._rank = rank
        self._objects: dict[str, Stateful] = {}
        #: The random state and the position at the beginning of the present task.
        self._version = 0
        self._random: dict[str, Any] | None = None
        self._position: Any = None
        self._is_new = True
        #: The random state before the next task, if it is known already.
        self._noted: dict[str, Any] | None = None
        #: Set by the loader: where it is in the data.
        self.position: Any = None
        self._restored: dict[str, Any] | None = None

    def register(self, name: str, thing: Stateful) -> None:
        """Save and restore the state of a thing."""
        self._objects[name] = thing
        if self._restored is not None and name in self._restored["objects"]:
            thing.load_state_dict(self._restored["objects"][name])

    @property
    def restored_position(self) -> Any:  # noqa: ANN401 the loader's own
        """Where the loader was, if the run resumes."""
        return self._restored["position"] if self._restored else None

    def note_random_state(self) -> None:
        """Note the random state before a task is known. Nothing may draw random numbers until it begins."""
        self._noted = random_state()

    def begin_task(self, version: int, *, is_due: bool) -> None:
        """Note where a task of this version begins. With the first, restore what was saved with that version."""
        noted, self._noted = self._noted, None
        if self._is_new:
            self._is_new, noted = False, None
            self._restore(version)
        self._version, self._random, self._position = version, noted or random_state(), self.position
        if is_due:
            self._save()

    def leave(self) -> None:
        """Save the state of a worker that leaves with a task that it has not begun."""
        if self._random is not None:
            self._save()

    def end(self, version: int) -> None:
        """Save the state at the end of the run, which has a checkpoint of this version."""
        if self._version != version or self._random is None:
            self._version, self._random, self._position = version, random_state(), self.position
        # Else the last task counts for nothing: its step is not in the checkpoint.
        self._save()

    def restore_random(self) -> None:
        """Set the random numbers of the restored state, now that everything before it has been repeated."""
        if self._restored is not None:
            set_random_state(self._restored["random"])

    def _file(self, version: int) -> Path:
        return self._folder / f"{self._rank}.state.{version}"

    def _versions(self) -> list[int]:
        suffixes = (path.name.rpartition(".")[2] for path in self._folder.glob(f"{self._rank}.state.*"))
        return sorted(int(suffix) for suffix in suffixes if suffix.isdecimal())

    def _save(self) -> None:
        """Write the state. What can't be written costs a warning, not the run."""
        state = {
            "random": self._random,
            "position": self._position,
            "objects": {name: thing.state_dict() for name, thing in self._objects.items()},
        }
        path = self._file(self._version)
        partial = path.with_name(f"{path.name}.partial")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            torch.save(state, partial)
            partial.replace(path)
            for version in self._versions()[:-_KEPT]:
                self._file(version).unlink(missing_ok=True)
        except OSError as error:
            print(f"paceline: the state of worker {self._rank} can't be saved: {error}", file=sys.stderr)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            partial.unlink(missing_ok=True)
            message = f"what run.state was given can't be saved: {error}"
            raise InputError(message) from error

    def _restore(self, version: int) -> None:
        """Read the newest state that is not newer than the version. A new run has none."""
        known = [known for known in self._versions() if known <= version]
        if version == 0 or not known:
            return
        try:
            self._restored = torch.load(self._file(known[-1]), weights_only=False)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            print(f"paceline: the state of worker {self._rank} can't be read: {error}", file=sys.stderr)
            return
        if known[-1] != version and self._restored is not None:
            # Its position in the data is an older one; the server knows a better one.
            self._restored["position"] = None
        for name, thing in self._objects.items():
            if self._restored is not None and name in self._restored["objects"]:
                thing.load_state_dict(self._restored["objects"][name])
