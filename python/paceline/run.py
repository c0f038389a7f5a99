"""A training script as a worker of a run."""

import atexit
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from paceline._launch.launched import join_launch
from paceline._launch.launchers import find_launch
from paceline._launch.server import OPTIONS
from paceline._membership import Membership, from_environment, whole_number
from paceline._paceline import Session
from paceline.errors import InputError, Interrupted, RunError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.amp import GradScaler
    from torch.optim import Optimizer

    from paceline._torch.evaluation import Evaluation
    from paceline._torch.state import Stateful
    from paceline._torch.training import Training

    Model = TypeVar("Model", bound=nn.Module)
    AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)

#: The exit code of a run that was interrupted.
_INTERRUPTED = 130


def join() -> "Run":
    """Take part in the run that this script was started for.

    `paceline train -- python script.py` starts one process of the script per worker. So do torchrun, srun and mpirun:
    then rank 0 starts the server, with the options in PACELINE_OPTIONS. Started alone, by `python script.py`, the
    script trains as it would without Paceline.

    Example:
        >>> import paceline
        >>> run = paceline.join()
        >>> run.is_alone
        True

    """
    if RUN_IS_OVER in os.environ:
        raise RunIsOverError
    # What is registered first is called last.
    atexit.register(_say_that_input_is_wrong)
    run = Run(from_environment())
    _joined.append(run)
    launch = find_launch() if run.is_alone else None
    # The only process of a launcher is alone, unless the user asks for a run.
    if launch is not None and (launch.size > 1 or OPTIONS in os.environ):
        atexit.register(run._end_launch)
        run._membership = join_launch(launch)
    return run


#: Set for a process that is started when its run has ended.
RUN_IS_OVER = "PACELINE_RUN_IS_OVER"


class RunIsOverError(Exception):
    """There is nothing left to do."""


#: The runs that this process has joined.
_joined: "list[Run]" = []


@contextmanager
def leaving() -> Iterator[None]:
    """Around a function that takes part in a run, in a process that goes on: leaves the run when the function ends."""
    failure: BaseException | None = None
    try:
        yield
    except RunIsOverError:
        pass
    except BaseException as error:
        failure = error
        raise
    finally:
        while _joined:
            _joined.pop().leave(failure)


def _failure() -> BaseException | None:
    """Return the exception that ended the script, if one did."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def _say_that_input_is_wrong() -> None:
    """End with exit code 2 after an error that would come again: the script is not to be restarted."""
    if isinstance(_failure(), InputError):
        _exit(2)


def _exit(code: int) -> None:
    """End this process, whatever else was to be done at its end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Run:
    """A run, as one of its workers sees it."""

    def __init__(self, membership: Membership | None) -> None:
        """Use `paceline.join`."""
        self._membership = membership
        self._process = os.getpid()
        #: Why the run has ended.
        self._ended: str | None = None
        self._evaluate: Callable[[], Evaluation] | None = None
        self._training: Training | None = None
        self._is_prepared = False
        self._states: dict[str, Stateful] = {}
        self._steps: Callable[[], float] = float

    @property
    def is_alone(self) -> bool:
        """Whether the script was started without a server."""
        return self._membership is None

    @property
    def is_evaluator(self) -> bool:
        """Whether this process evaluates the model instead of training it."""
        return self._membership is not None and self._membership.evaluates

    @property
    def rank(self) -> int:
        """The number of this worker, from 0; -1 for an evaluator. Without a launcher it is known after `prepare`."""
        if self.is_evaluator:
            return -1
        if self._training is not None:
            return self._training.rank
        return self._membership.rank or 0 if self._membership else 0

    @property
    def workers(self) -> int:
        """How many workers the run is planned for."""
        return self._membership.workers if self._membership else 1

    @property
    def scheme(self) -> str | None:
        """The scheme; None before `prepare`, or alone."""
        return self._training.description.get("scheme") if self._training else None

    @property
    def version(self) -> int:
        """The version of the model that this worker has: how often it was stepped by all workers."""
        return self._training.version if self._training else 0

    @property
    def is_over(self) -> bool:
        """Whether the run has ended. The model then has its last parameters."""
        return self._training is not None and self._training.over

    def prepare(
        self,
        model: "Model",
        optimizer: "AnyOptimizer",
        loader: Iterable[Any],
        scheduler: Any = None,  # noqa: ANN401 any scheduler of torch
    ) -> "tuple[Model, AnyOptimizer, Any]":
        """Put hooks on the model and the optimizer, and share the loader's data among the workers.

        The model and the optimizer stay the same objects. A scheduler that the loop steps after every batch should be
        given too: it then follows the samples that all workers have used, not the batches of one.
        """
        if self._is_prepared:
            message = "run.prepare was called twice: a run trains one model"
            raise InputError(message)
        self._is_prepared = True
        membership = self._membership
        if membership is None:
            return model, optimizer, loader
        try:
            from paceline._torch import optimizers  # noqa: PLC0415 may be missing
            from paceline._torch.evaluation import Evaluator  # noqa: PLC0415 may be missing
            from paceline._torch.state import StateKeeper  # noqa: PLC0415 may be missing
            from paceline._torch.tensors import float_buffer  # noqa: PLC0415 may be missing
            from paceline._torch.training import PreparedLoader, Training  # noqa: PLC0415 may be missing
        except ModuleNotFoundError:
            message = "run.prepare needs PyTorch: pip install 'paceline[torch]'"
            raise InputError(message) from None
        training = Training(model, optimizer, rank=membership.rank, workers=membership.workers, seed=membership.seed)
        prepared = PreparedLoader(loader, training)
        session = Session.join(
            address=membership.server,
            rank=membership.rank,
            evaluates=membership.evaluates,
            on_device=training.tensors.device is not None,
            join_timeout=membership.join_timeout,
            emulate=os.environ.get("PACELINE_EMULATE"),
            emulated_rank=whole_number("PACELINE_EMULATED_RANK"),
            keys=membership.keys,
            trainable=[(entry.name, list(entry.tensor.shape)) for entry in training.tensors.trained],
            statistics=[(entry.name, list(entry.tensor.shape)) for entry in training.tensors.statistics],
            values=float_buffer(training.tensors.values()),
            optimizer=training.specification or "sgd",
            rate=optimizers.rates(optimizer)[0] if training.specification else 1.0,
            batch=prepared.batch_size,
            epoch=prepared.epoch_samples,
            frozen=zlib.crc32((training.specification or "").encode(), training.tensors.frozen),
        )
        training.join(session)
        membership.await_others()
        if membership.evaluates:
            training.evaluator = Evaluator(self._evaluate)
        elif membership.folder is not None and membership.sees_folder():
            training.keeper = StateKeeper(membership.folder / "workers", session.rank)
            training.keeper.register("optimizer", optimizer)
            for name, thing in self._states.items():
                training.keeper.register(name, thing)
        if scheduler is not None:
            training.follow(scheduler, prepared.steps)
        self._training, self._steps = training, prepared.steps
        os.register_at_fork(after_in_child=session.let_go)
        atexit.register(self.leave)
        return model, optimizer, prepared

    def state(self, **things: "Stateful") -> None:
        """Save the state of these things with every checkpoint, and bring it back when the run resumes.

        They have `state_dict` and `load_state_dict`, as a GradScaler, a scheduler or a metric has.
        """
        for name, thing in things.items():
            if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
                message = f"run.state({name}=...): {type(thing).__name__} has no state_dict and load_state_dict"
                raise InputError(message)
            self._states[name] = thing
            if self._training is not None and self._training.keeper is not None:
                self._training.keeper.register(name, thing)

    def evaluate(self, function: "Callable[[], Evaluation]") -> "Callable[[], Evaluation]":
        """Evaluate the model with this function, if the run asks for evaluations.

        It returns the held-out loss, the share of correct predictions, or both: `{"loss": 0.3, "accuracy": 0.91}`. It
        is called in a process of its own, with the model in evaluation mode and without gradients.
        """
        self._evaluate = function
        if self._training is not None and self._training.evaluator is not None:
            self._training.evaluator.function = function
        return function

    def backward(self, loss: "Tensor", scaler: "GradScaler | None" = None) -> None:
        """Compute the gradients of a loss, as `loss.backward()` does, and note the loss.

        With a scaler, as `scaler.scale(loss).backward()` does. The loss is noted as it is.
        """
        if self._training is not None:
            self._training.backward(loss, scaler)
        else:
            (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]

    def note(self, loss: "Tensor") -> None:
        """Note a loss, where `run.backward(loss)` can't be called because other code computes the gradients."""
        if self._training is not None:
            self._training.note(loss)

    def follow(self, scheduler: Any, position: "Callable[[], float] | None" = None) -> None:  # noqa: ANN401 any of torch
        """Let a scheduler that was made after `prepare` follow the run, or a position of your own in it."""
        if self._training is not None:
            self._training.follow(scheduler, position or self._steps)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around the body of the loop: lets the scheme interrupt it when its result is no longer needed."""
        training = self._training
        if training is None:
            yield
            return
        training.interruptible = True
        try:
            yield
        except Interrupted:
            training.drop()
        finally:
            training.interruptible = False

    def fit(
        self,
        compute_loss: "Callable[[Any], Tensor]",
        loader: Iterable[Any],
        optimizer: "Optimizer",
        epochs: int = 1,
    ) -> None:
        """Train with a function that computes the loss of a batch."""
        for _ in range(epochs):
            for batch in loader:
                with self.step():
                    loss = compute_loss(batch)
                    optimizer.zero_grad()
                    self.backward(loss)
                    optimizer.step()

    def leave(self, failure: BaseException | None = None) -> None:
        """Leave the run, because of a failure if there is one. A script does so when it ends."""
        training, self._training = self._training, None
        if training is None or training.session is None:
            return
        self._ended = training.session.ended
        training.leave(failure or _failure())

    def _end_launch(self) -> None:
        """End this process as the run has: with the exit code of the server, if this process has started it."""
        if self._membership is None or os.getpid() != self._process:
            return
        server, failure = self._membership.own_server, _failure()
        code = 0
        if server is None:
            code = _INTERRUPTED if failure is None and self._ended == "interrupted" else 0
        elif failure is not None:
            # What the script has found may only follow from that.
            code = server.exit_code or 0 if isinstance(failure, RunError) else 0
            server.end()
        elif self._is_prepared:
            code = server.wait()
        else:
            server.end()
            print("paceline: the script has ended without run.prepare", file=sys.stderr)
            code = 1
        if code != 0:
            _exit(code)

    def __enter__(self) -> Self:
        """Take part until the block ends."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the run."""
        self.leave(error)
