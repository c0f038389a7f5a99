from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Literal, TypeAlias, final

from paceline.scheme import Scheme

_Argument: TypeAlias = str | PathLike[str]
_Own: TypeAlias = Sequence[tuple[str, Callable[[Setup], Scheme]]]

def main() -> int:
    """Run the command that `sys.argv` names, without the interpreter's lock, and return its exit code."""

def simulate(arguments: Sequence[_Argument], own: _Own) -> tuple[str, dict[str, list[Any]]]:
    """Simulate one seed: the summary as JSON, and the iterations as columns."""

def whatif(arguments: Sequence[_Argument], own: _Own) -> list[str]:
    """Compare schemes on a trace: lines of JSON, as the command prints them."""

@final
class Setup:
    """The run that a scheme is built for."""

    @property
    def workers(self) -> int:
        """How many workers it starts with."""

    @property
    def batch(self) -> int:
        """Samples per worker and iteration."""

@final
class Update:
    """A finished task. Times are seconds."""

    @property
    def task(self) -> tuple[int, int]:
        """The worker and the number of its assignment."""

    @property
    def worker(self) -> int: ...
    @property
    def version(self) -> int:
        """The version its gradient was computed at."""

    @property
    def samples(self) -> int:
        """The samples of each iteration."""

    @property
    def iterations(self) -> int: ...
    @property
    def started(self) -> float:
        """When the worker was free to start it."""

    @property
    def compute(self) -> float: ...
    @property
    def querying(self) -> float: ...
    @property
    def cpu(self) -> float | None:
        """The share of the processors' time that other programs used."""

    @property
    def memory(self) -> float | None:
        """The share of the memory in use."""

@final
class Question:
    """A worker asks after a local iteration: do one more, or send the update."""

    @property
    def task(self) -> tuple[int, int]: ...
    @property
    def worker(self) -> int: ...
    @property
    def iterations(self) -> int:
        """How many local iterations are done."""

    @property
    def compute(self) -> float: ...
    @property
    def querying(self) -> float: ...

@final
class Aggregate:
    """Statistics of a commit's updates."""

    @property
    def loss(self) -> float: ...
    @property
    def rate(self) -> float:
        """The learning rate of the step."""

    @property
    def scheduled_rate(self) -> float: ...
    @property
    def mean_square(self) -> float:
        """The weighted mean of the squared norms."""

    @property
    def square_of_mean(self) -> float:
        """The squared norm of the weighted mean."""

    @property
    def norms(self) -> list[tuple[tuple[int, int], float]]:
        """The task and the squared norm of each update, by rank."""

@final
class Assignment:
    """A worker's present task."""

    @property
    def task(self) -> tuple[int, int]: ...
    @property
    def version(self) -> int: ...
    @property
    def samples(self) -> int: ...

@final
class Turn:
    """What a scheme can see and do while it handles one event.

    Actions take effect at once. A reason is a clause in the scheme's own words; a number that varies goes into `value`.
    """

    @property
    def now(self) -> float:
        """The time of the event, in seconds."""

    @property
    def version(self) -> int:
        """The newest version of the model."""

    @property
    def workers(self) -> list[int]:
        """The joined workers, by rank."""

    def is_idle(self, worker: int) -> bool:
        """Whether the worker has joined and has no task."""

    def running(self, worker: int) -> Assignment | None:
        """Return the worker's present task."""

    def next_unsettled(self) -> int | None:
        """Return the next worker that needs a decision."""

    def commit(
        self,
        tasks: Sequence[tuple[int, int]],
        reason: str,
        *,
        value: float | None = None,
        weights: Sequence[float] | None = None,
        rate_factor: float = 1.0,
        average: float | None = None,
        compensate: float | None = None,
    ) -> None:
        """Step the model by arrived updates, weighted by their samples unless `weights` says otherwise.

        `average` moves the model by this rate towards the mean of replicas; `compensate` is the λ of DC-ASGD.
        """

    def discard(self, update: tuple[int, int], reason: str, *, value: float | None = None) -> None:
        """Discard an arrived update."""

    def assign(
        self,
        worker: int,
        samples: int,
        reason: str,
        *,
        value: float | None = None,
        iterations: int | None = None,
        ask: Literal["wait", "continue"] | None = None,
        pull: float | None = None,
    ) -> None:
        """Assign a gradient at the newest version, now or after the present task.

        With `iterations` or `ask`, assign local iterations on a replica instead: this number, or until they are
        collected; the worker asks after each and waits or continues. `pull` starts at its last replica, moved by this
        share.
        """

    def continue_task(self, worker: int, reason: str, *, value: float | None = None) -> None:
        """Answer a worker that asked: one more local iteration."""

    def collect(self, worker: int, reason: str, *, value: float | None = None) -> None:
        """Make a worker send the update of its local iterations."""

    def interrupt(self, worker: int, reason: str, *, value: float | None = None) -> None:
        """Make a worker drop its present task."""

    def hold(self, worker: int, reason: str, *, until: int | None = None, value: float | None = None) -> None:
        """Keep an idle worker idle until the next commit, or until this worker reports."""

    def hold_until_timer(self, worker: int, reason: str, *, value: float | None = None) -> None:
        """Keep an idle worker idle until the next timer."""

    def wake(self, delay: float, reason: str, *, value: float | None = None) -> None:
        """Request a turn after this many seconds."""
