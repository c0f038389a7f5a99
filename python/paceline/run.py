"""A training script as a worker of a run."""

import atexit
import ctypes
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from paceline._paceline import Session
from paceline.errors import InputError, Interrupted

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.amp import GradScaler
    from torch.optim import Optimizer

    from paceline._torch.evaluation import Evaluation
    from paceline._torch.state import Stateful
    from paceline._torch.training import Training

    Model = TypeVar("Model", bound=nn.Module)
    AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)

_SERVER = "PACELINE_SERVER"


def join() -> "Run":
    """Take part in the run that this script was started for.

    `paceline train -- python script.py` starts one process of the script per worker. Started alone, by `python
    script.py`, the script trains as it would without Paceline.

    Example:
        >>> import paceline
        >>> run = paceline.join()
        >>> run.is_alone
        True

    """
    server = os.environ.get(_SERVER)
    if server is not None:
        atexit.register(_say_that_input_is_wrong)
    evaluates = os.environ.get("PACELINE_ROLE") == "evaluator"
    return Run(server, _number("PACELINE_RANK"), _number("PACELINE_WORKERS") or 1, evaluates=evaluates)


def _failure() -> BaseException | None:
    """Return the exception that ended the script, if one did."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def _say_that_input_is_wrong() -> None:
    """End with exit code 2 after an error that would come again: the script is not to be restarted."""
    if isinstance(_failure(), InputError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(2)


def _number(variable: str) -> int | None:
    """Read a whole number of the environment."""
    text = os.environ.get(variable)
    if text is None or text == "":
        return None
    if not text.isdecimal():
        message = f"{variable} is '{text}': expected a whole number"
        raise InputError(message)
    return int(text)


class Run:
    """A run, as one of its workers sees it."""

    def __init__(self, server: str | None, rank: int | None, workers: int, *, evaluates: bool = False) -> None:
        """Use `paceline.join`."""
        self._server = server
        self._rank = rank
        self._workers = workers
        self._evaluates = evaluates
        self._evaluate: Callable[[], Evaluation] | None = None
        self._training: Training | None = None
        self._is_prepared = False
        self._states: dict[str, Stateful] = {}
        self._steps: Callable[[], float] = float

    @property
    def is_alone(self) -> bool:
        """Whether the script was started without a server."""
        return self._server is None

    @property
    def is_evaluator(self) -> bool:
        """Whether this process evaluates the model instead of training it."""
        return self._evaluates

    @property
    def rank(self) -> int:
        """The number of this worker, from 0; -1 for an evaluator. Without a launcher it is known after `prepare`."""
        if self._evaluates:
            return -1
        return self._training.rank if self._training else self._rank or 0

    @property
    def workers(self) -> int:
        """How many workers the run is planned for."""
        return self._workers

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
        if self._server is None:
            return model, optimizer, loader
        try:
            from paceline._torch import optimizers  # noqa: PLC0415 may be missing
            from paceline._torch.evaluation import Evaluator  # noqa: PLC0415 may be missing
            from paceline._torch.state import StateKeeper  # noqa: PLC0415 may be missing
            from paceline._torch.training import PreparedLoader, Training  # noqa: PLC0415 may be missing
        except ModuleNotFoundError:
            message = "run.prepare needs PyTorch: pip install 'paceline[torch]'"
            raise InputError(message) from None
        training = Training(
            model, optimizer, rank=self._rank, workers=self._workers, seed=_number("PACELINE_SEED") or 1
        )
        prepared = PreparedLoader(loader, training)
        session = Session.join(
            address=self._server,
            rank=self._rank,
            evaluates=self._evaluates,
            on_device=training.tensors.device is not None,
            join_timeout=float(os.environ.get("PACELINE_JOIN_TIMEOUT", "60")),
            emulate=os.environ.get("PACELINE_EMULATE"),
            emulated_rank=_number("PACELINE_EMULATED_RANK"),
            keys=os.environ.get("PACELINE_KEYS"),
            trainable=[(entry.name, list(entry.tensor.shape)) for entry in training.tensors.trained],
            statistics=[(entry.name, list(entry.tensor.shape)) for entry in training.tensors.statistics],
            values=_floats(training.tensors.values()),
            optimizer=training.specification or "sgd",
            rate=optimizers.rates(optimizer)[0] if training.specification else 1.0,
            batch=prepared.batch_size,
            epoch=prepared.epoch_samples,
            frozen=zlib.crc32((training.specification or "").encode(), training.tensors.frozen),
        )
        training.join(session)
        if self._evaluates:
            training.evaluator = Evaluator(self._evaluate)
        folder = os.environ.get("PACELINE_FOLDER")
        if folder is not None and not self._evaluates:
            training.keeper = StateKeeper(Path(folder) / "workers", session.rank)
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

    def leave(self) -> None:
        """Leave the run. A script does so when it ends."""
        training, self._training = self._training, None
        if training is not None and training.session is not None and not training.over:
            failure = _failure()
            reason = "its script has ended"
            if failure is not None:
                reason = f"its script failed: {type(failure).__name__}: {failure}".splitlines()[0]
            if training.keeper is not None:
                training.keeper.leave()
            training.session.leave(reason, is_done=failure is None)

    def __enter__(self) -> Self:
        """Take part until the block ends."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the run."""
        self.leave()


def _floats(values: "Tensor") -> "memoryview[float]":
    """Return the values of a tensor on a processor, as a buffer."""
    length = values.numel()
    memory = (ctypes.c_float * length).from_address(values.data_ptr())
    memory.tensor = values  # type: ignore[attr-defined] # keeps it alive
    return memoryview(memory).cast("B").cast("f")
