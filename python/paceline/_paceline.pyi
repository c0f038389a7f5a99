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

@final
class Session:
    """A worker's session with its server. It rejoins when the connection is lost."""

    @staticmethod
    def join(
        *,
        address: str,
        rank: int | None,
        evaluates: bool,
        on_device: bool,
        join_timeout: float,
        emulate: str | None,
        emulated_rank: int | None,
        keys: _Argument | None,
        trainable: Sequence[tuple[str, Sequence[int]]],
        statistics: Sequence[tuple[str, Sequence[int]]],
        values: memoryview[float],
        optimizer: str,
        rate: float,
        batch: int,
        epoch: int | None,
        frozen: int,
    ) -> Session:
        """Join the server with a model. `frozen` is a checksum of what is not trained."""

    @property
    def rank(self) -> int:
        """The rank of this worker."""

    @property
    def description(self) -> str:
        """What the server says of the run, as JSON."""

    @property
    def ended(self) -> str | None:
        """Why the run ended, once it has."""

    def next_task(self) -> Task | None:
        """Wait for the next task. None if the run is over."""

    def membership(self) -> GroupMembership | None:
        """Return the worker's part in groups, if its process holds the model together with others.

        Another one after it has rejoined.
        """

    def meeting(self) -> tuple[str, int, int]:
        """Return the address where the others reach this process, and a file descriptor that listens there."""

    def take_group(self) -> Group | None:
        """Return the newest group that this worker is told to form, if there is one."""

    def next_order(self) -> Step | Group | None:
        """Wait for what becomes of the model, or for the next group.

        None if neither comes: the session has ended, or the next task can begin.
        """

    def has_ended(self) -> bool:
        """Whether the connection has ended: the next task is one of another, if there is one."""

    def has_model(self, version: int) -> None:
        """Tell that the process has made this version of the model."""

    def push(self) -> UpdatePush | None:
        """Let parts of the result go to their shards while others are computed. None if there are no shards."""

    def emulate_delay(self, computed: float) -> bool:
        """Sleep for the emulated delay after this many seconds of computing.

        Returns False if the task was cancelled or collected meanwhile.
        """

    def goes_on(self, iterations: int, compute: float, loading: float) -> bool:
        """Return whether another local iteration follows this many. Times are seconds."""

    def asks(self) -> bool:
        """Whether `goes_on` asks the server, so that times are sent with it."""

    def report(
        self,
        loss: float,
        compute: float,
        querying: float,
        loading: float,
        samples: int | None,
        rates: Sequence[float],
        device_memory: float | None,
    ) -> None:
        """Report the task that was taken last. Its result is in place. Times are seconds."""

    def report_evaluation(self, *, loss: float | None, accuracy: float | None) -> None:
        """Report what an evaluator has found for the model of the task that was taken last."""

    def is_cancelled(self) -> bool:
        """Whether the result of the task is no longer needed."""

    def progressed(self) -> None:
        """Tell the server's watch that this worker makes progress."""

    def last_model(self) -> tuple[int, Memory] | None:
        """Return the last version and the model at the end of the run, if the server sent it."""

    def leave(self, reason: str, is_done: bool) -> None:
        """Leave the run.

        A worker that has done all that it was started for stays until nobody needs the part of the parameters that its
        process holds.
        """

    def let_go(self) -> None:
        """In a process that was forked from this one: let go of the connection, so that it ends with this process."""

@final
class Task:
    """A task, as a worker gets it."""

    @property
    def number(self) -> int: ...
    @property
    def version(self) -> int:
        """The version of the model."""

    @property
    def samples(self) -> int:
        """The samples of an iteration."""

    @property
    def offset(self) -> int:
        """How many samples of this worker's stream come before."""

    @property
    def local(self) -> bool:
        """Whether this worker iterates on a replica of its own, and sends the difference."""

    @property
    def pull(self) -> float | None:
        """The share by which a replica that goes on is moved towards the model; None if it starts from the model."""

    @property
    def committed(self) -> int | None:
        """The last task of this worker whose update was committed."""

    @property
    def progress(self) -> float:
        """How far the schedule of the learning rate has advanced, in steps."""

    @property
    def used(self) -> int:
        """The samples that all workers have used in committed updates."""

    @property
    def checkpoint(self) -> bool:
        """Whether a checkpoint is due."""

    @property
    def model(self) -> Memory | None:
        """The parameters. None if this process has them, as a member of a group."""

    @property
    def result(self) -> Memory | None:
        """Where the gradient or the difference goes. None for a member of a group."""

@final
class Group:
    """Workers that sum their updates together, as one of them sees it."""

    @property
    def number(self) -> int:
        """Counts the groups of a run."""

    @property
    def size(self) -> int:
        """How many members there are."""

    @property
    def position(self) -> int:
        """The position of this worker."""

    @property
    def meeting(self) -> tuple[str, int]:
        """The host and the port where the first member listens."""

    @property
    def source(self) -> int | None:
        """The position of the member that shares the state of its optimizer, if some lack it."""

    @property
    def is_silent(self) -> bool:
        """Whether this worker adds nothing to the first sum."""

@final
class Step:
    """What becomes of the model of a group."""

    @property
    def version(self) -> int:
        """The version that it makes."""

    @property
    def rates(self) -> list[float] | None:
        """The learning rates, if the optimizer steps: of every parameter group, or one for all."""

    @property
    def scale(self) -> float:
        """The share of the mean by which it steps. The model stays as it is with 0 and without rates."""

    @property
    def statistics(self) -> float:
        """The share of the mean of statistics by which they change."""

@final
class GroupMembership:
    """A worker's part in groups, as long as it is connected. For any thread."""

    def summed(self, group: int, version: int, own: float, mean: float) -> None:
        """Tell that this worker has a sum, with the squares of its own update and of the mean."""

    def failed(self, group: int, reason: str) -> None:
        """Tell that this worker can't get the sum."""

    def wait_for_request(self) -> int | None:
        """Wait until the model is asked for. Return its version; None if the connection has ended."""

    def send_model(self, version: int, values: memoryview[float]) -> bool:
        """Send the model that was asked for. Return whether it is sent."""

@final
class Copies:
    """Copies that a thread of their own makes."""

    def __new__(cls) -> Copies: ...
    def begin(self, source: int, target: int, length: int, push: UpdatePush | None = None, offset: int = 0) -> None:
        """Begin to copy 32-bit values. Both memories must stay, and be left alone, until `finish` returns.

        With a push, they are sent: they are the values of the update from `offset` on.
        """

    def finish(self) -> None:
        """Wait until everything is copied."""

@final
class UpdatePush:
    """An update whose parts go to their shards while others are computed."""

    def ready(self, start: int, end: int) -> None:
        """Say that these values are in place. To be called once for each."""

    def change(self) -> None:
        """Say that values have changed since they were ready: what was sent is sent again."""

    @staticmethod
    def are_same(first: int, second: int, length: int) -> bool:
        """Whether 32-bit values at two addresses have the same bits."""

@final
class Memory:
    """A vector of 32-bit values. It supports the buffer protocol, and stays mapped while a buffer of it exists."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def address(self) -> int:
        """The address of the first value."""

    @property
    def is_read_only(self) -> bool:
        """Whether nothing can be written there."""

    def forget_writes(self) -> None:
        """Forget what this process has written to a model in shared memory."""
