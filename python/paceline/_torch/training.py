"""What a worker does between two tasks: hooks on the user's model and optimizer."""

import json
import warnings
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from paceline._paceline import Session, Task
from paceline._torch import optimizers
from paceline._torch.device import Device
from paceline._torch.evaluation import Evaluator
from paceline._torch.exchange import Exchange
from paceline._torch.group_exchange import GroupExchange
from paceline._torch.loader import PreparedLoader
from paceline._torch.server_exchange import ServerExchange
from paceline._torch.state import StateKeeper
from paceline._torch.tensors import ModelTensors
from paceline.errors import InputError, Interrupted


class Training:
    """The model, the optimizer and the session of one worker.

    The user's objects stay what they are. Hooks take the gradients as the backward pass makes them. A hook before the
    optimizer's step reports them, and one after it takes the next task. Where the values go is the exchange's: if the
    server steps, the optimizer finds no gradients and does nothing; in a group it finds their mean. With local
    iterations the optimizer steps, and the hook after it sends the difference when the scheme asks for it.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, rank: int | None, workers: int, seed: int) -> None:
        """Find out what the server has to know of the model and the optimizer."""
        self.rank = rank or 0
        self.workers = workers
        self.seed = seed
        self.model = model
        self.optimizer = optimizer
        self.tensors = ModelTensors(model)
        optimizers.check(optimizer, self.tensors)
        self.specification = optimizers.specification(optimizer, self.tensors)
        #: Whether a batch of one sample has no meaning: batch normalization takes the variance of a batch.
        self.needs_pairs = any(isinstance(module, _BatchNorm) for module in model.modules())
        self._settings = optimizers.settings(optimizer)
        #: How many batches the loop accumulates for a step.
        self.batches_per_step = 1
        self._batches = 0
        #: What the server says of the run.
        self.description: dict[str, Any] = {}
        self.session: Session | None = None
        self.task: Task | None = None
        self.over = False
        #: What this process does instead of training, if it does.
        self.evaluator: Evaluator | None = None
        self.version = 0
        self._interruptible = False
        self._watches_modules = False
        self._versions = [entry.tensor._version for entry in self.tensors.trained]
        self._parameters = sum(len(group["params"]) for group in optimizer.param_groups)
        self._exchange: Exchange | None = None
        #: Whether the gradients of the task are reported.
        self._is_reported = False
        self._schedulers: list[FollowedScheduler] = []
        #: What this worker needs to resume, and where it is kept; None if there is no folder.
        self.keeper: StateKeeper | None = None
        #: The device whose memory the scheme wants to know.
        self._measured_device: Device | None = None
        self._begin_counts()
        self._iterations = 0
        self._is_dropped = False

    def join(self, session: Session) -> None:
        """Take part in the run: from now on the hooks act."""
        self.session = session
        self.rank = session.rank
        if session.description.startswith("{"):
            self.description = json.loads(session.description)
        for option, own in (("workers", self.workers), ("seed", self.seed)):
            served = self.description.get(option, own)
            if served != own:
                message = f"the server has --{option} {served}, this worker --{option} {own}: expected the same"
                raise InputError(message)
        if session.membership() is not None:
            self._exchange = GroupExchange(self.tensors, self.optimizer, session)
        else:
            knows_optimizer = self.specification is not None
            self._exchange = ServerExchange(self.tensors, session, knows_optimizer=knows_optimizer)
        if "mode=gpu" in self.description.get("scheme", ""):
            self._measured_device = self.tensors.device
        for index, entry in enumerate(self.tensors.trained):
            hook = self._gradient_hook(index, entry.name)
            entry.tensor.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self.optimizer.register_step_pre_hook(self._before_step)
        self.optimizer.register_step_post_hook(self._after_step)

    @property
    def interruptible(self) -> bool:
        """Whether the body of a loop can be interrupted."""
        return self._interruptible

    @interruptible.setter
    def interruptible(self, value: bool) -> None:
        self._interruptible = value
        # A module with a hook is called more slowly.
        if value and not self._watches_modules:
            self._watches_modules = True
            for module in self.model.modules():
                if not any(module.children()):
                    module.register_forward_pre_hook(self._interruption_hook)

    # --- tasks ---

    def has_task(self) -> bool:
        """Whether there is work. Waits for the first task; later ones are taken as soon as the last is reported."""
        if self.task is None and not self.over:
            self._check_untouched()
            self._begin_task()
        return self.task is not None

    @property
    def samples(self) -> int:
        """The samples of an iteration of the task."""
        return self.task.samples if self.task else 0

    @property
    def offset(self) -> int:
        """How many samples of this worker come before the task."""
        return self.task.offset if self.task else 0

    @property
    def used(self) -> int:
        """The samples that all workers have used."""
        return self.task.used if self.task else 0

    def loaded(self, seconds: float) -> None:
        """Note how long a batch took to be loaded."""
        self._loading += seconds

    def computes(self, samples: int) -> None:
        """Note that the loop gets a batch of this many samples."""
        self._samples += samples
        self._last_samples = samples
        self._batches += 1

    def _begin_counts(self) -> None:
        self._began = self._iteration_began = perf_counter()
        self._samples = 0
        self._last_samples = 0
        self._losses: list[Tensor] = []
        self._loading = 0.0
        self._querying = 0.0

    def _begin_task(self) -> None:
        """Take the next task. What does not depend on it comes first: the server is still stepping."""
        assert self.session is not None
        assert self._exchange is not None
        keeper = self.keeper
        if keeper is not None:
            keeper.note_random_state()
        self._exchange.prepare()
        self._is_reported = False
        self._iterations = 0
        self._total = 0
        self._loss = 0.0
        self.task = task = self.session.next_task()
        if task is None:
            self.end()
            return
        self.version = task.version
        self._exchange.begin(task)
        if keeper is not None:
            keeper.begin_task(task.version, is_due=task.checkpoint)
        for scheduler in self._schedulers:
            scheduler.advance()
        if self._measured_device:
            self._measured_device.begin_measuring()
        self._begin_counts()

    def end(self) -> None:
        """Give the model its last parameters: the run is over."""
        self.over = True
        last = self._exchange.end() if self._exchange else None
        if last is not None:
            self.version = last
        if self.keeper is not None:
            self.keeper.end(self.version)

    def leave(self, failure: BaseException | None) -> None:
        """Leave the run, because of a failure if there is one."""
        if self.session is None:
            return
        if not self.over:
            reason = "its script has ended"
            if failure is not None:
                reason = f"its script failed: {type(failure).__name__}: {failure}".splitlines()[0]
            if self.keeper is not None:
                self.keeper.leave()
            self.session.leave(reason, is_done=failure is None)
        if self._exchange is not None:
            self._exchange.close()

    def _check_untouched(self) -> None:
        """Raise an error if the model was changed between `prepare` and the loop: the server has the old values."""
        if self.version == 0 and self.session is not None and self._versions:
            self.tensors.check_same()
            versions = [entry.tensor._version for entry in self.tensors.trained]
            for entry, before, now in zip(self.tensors.trained, self._versions, versions, strict=True):
                if before != now:
                    message = f"parameter '{entry.name}' was changed after run.prepare: load weights before run.prepare"
                    raise InputError(message)
            self._versions = []

    # --- gradients ---

    def backward(self, loss: Tensor, scaler: GradScaler | None = None) -> None:
        """Compute the gradients of a loss."""
        if loss.ndim != 0:
            message = f"run.backward takes one number, not a tensor of shape {tuple(loss.shape)}: use loss.mean()"
            raise InputError(message)
        self.note(loss)
        assert self._exchange is not None
        self._exchange.begin_backward()
        try:
            (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        finally:
            self._exchange.end_backward()

    def note(self, loss: Tensor) -> None:
        """Note a loss whose gradients are about to be computed."""
        if self._losses and all(entry.tensor.grad is None for entry in self.tensors.trained):
            # A scaler has skipped a step: what it would have used was zeroed.
            self._losses.clear()
            self._samples = self._last_samples
        self._losses.append(loss.detach())

    def _gradient_hook(self, index: int, name: str) -> Callable[[Tensor], None]:
        assert self.session is not None
        assert self._exchange is not None
        progressed, strided, take = self.session.progressed, torch.strided, self._exchange.gradient_hook(index)

        def hook(parameter: Tensor) -> None:
            gradient = parameter.grad
            if self.task is None or gradient is None:
                return
            if gradient.layout is not strided:
                message = (
                    f"the gradient of '{name}' is sparse, which is not supported: use sparse=False in nn.Embedding"
                )
                raise InputError(message)
            if self._interruptible:
                self._check_interruption()
            progressed()
            if take is not None:
                take(parameter, gradient)

        return hook

    def _interruption_hook(self, *_: object) -> None:
        self._check_interruption()

    def _check_interruption(self) -> None:
        if self._interruptible and self.task is not None and self.session is not None and self.session.is_cancelled():
            raise Interrupted

    def drop(self) -> None:
        """Leave the interrupted task, and take the next."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.task is not None and self.session is not None and self._exchange is not None:
            self._exchange.drop()
            self.session.report(0.0, perf_counter() - self._began, 0.0, self._loading, None, [], None)
            self._begin_task()

    # --- steps ---

    def _before_step(
        self, optimizer: Optimizer, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        closure = keywords.get("closure", arguments[1] if len(arguments) > 1 else None)
        if closure is None:
            self._finish_gradients(optimizer)
            return None
        # The step would call it after this hook.
        with torch.enable_grad():
            loss = closure()
        self._finish_gradients(optimizer)
        return (optimizer, *arguments[2:]), {**keywords, "closure": lambda: loss}

    def _finish_gradients(self, optimizer: Optimizer) -> None:
        """Report the gradients, unless the optimizer steps before the update is sent."""
        task, exchange = self.task, self._exchange
        if task is None or exchange is None or self.session is None:
            # The run is over, or has not begun: the model is not to be changed.
            self.tensors.clear_gradients()
            return
        steps_here = exchange.steps_here(task)
        if not self._losses:
            message = "optimizer.step() without run.backward(loss): replace loss.backward() by run.backward(loss)"
            raise InputError(message)
        if sum(len(group["params"]) for group in optimizer.param_groups) != self._parameters:
            message = "the optimizer got new parameters after run.prepare: add them before"
            raise InputError(message)
        if not steps_here:
            optimizers.check_fixed(optimizer, self._settings)
        self.tensors.check_unchanged()
        if self._overflowed(optimizer):
            self.tensors.clear_gradients()
            self._losses.clear()
            self._samples = 0
            return
        losses = self._losses
        self._loss += float(losses[0] if len(losses) == 1 else torch.stack(losses).sum())
        self._losses.clear()
        self.batches_per_step, self._batches = max(self.batches_per_step, self._batches), 0
        self._total += self._samples
        self._samples = 0
        self._is_dropped = not self.session.emulate_delay(perf_counter() - self._iteration_began)
        if steps_here:
            if self._is_dropped:
                self.tensors.clear_gradients()
            return
        exchange.write_gradients(task)
        self._report(self._total, optimizers.rates(optimizer))
        exchange.settle_gradients(task, self._total or task.samples)
        self._is_reported = True

    def _overflowed(self, optimizer: Optimizer) -> bool:
        """Undo the scale of a GradScaler that leaves it to a fused optimizer. Return whether gradients overflowed."""
        scale = getattr(optimizer, "grad_scale", None)
        if scale is None:
            return False
        found = getattr(optimizer, "found_inf", None)
        if found is not None and bool(found):
            return True
        with torch.no_grad():
            for entry in self.tensors.trained:
                if entry.tensor.grad is not None:
                    entry.tensor.grad.div_(scale)
        # The optimizer would divide by it once more.
        optimizer.grad_scale = None  # type: ignore[attr-defined]
        return False

    def _after_step(self, *_: object) -> None:
        task, exchange = self.task, self._exchange
        if task is None or exchange is None or self.session is None:
            return
        if self._is_reported:
            exchange.stepped()
            self._begin_task()
            return
        if not exchange.steps_here(task):
            # Gradients have overflowed.
            return
        if self._is_dropped:
            self._querying += perf_counter() - self._began
            self._finish_replica()
            return
        self._iterations += 1
        if not task.local:
            # An optimizer that the server does not know: the difference of one step counts as a gradient at rate 1.
            self._finish_replica()
            return
        asks = self.session.asks()
        compute = perf_counter() - self._began
        asked = perf_counter()
        goes_on = self.session.goes_on(self._iterations, compute, self._loading)
        if asks:
            self._began, self._loading = perf_counter(), 0.0
            self._querying += perf_counter() - asked
        if goes_on:
            self._iteration_began = perf_counter()
        else:
            self._finish_replica()

    def _finish_replica(self) -> None:
        """Send the difference of the model and the replica."""
        task, exchange = self.task, self._exchange
        assert task is not None
        assert exchange is not None
        exchange.write_difference(task)
        count = max(self._iterations, 1)
        self._loss /= count
        samples = round(self._total / count)
        self._report(samples, optimizers.rates(self.optimizer))
        exchange.settle_difference(task, samples or task.samples)
        self._begin_task()

    def _report(self, samples: int, rates: list[float]) -> None:
        """Report an update of so many samples, or of none if the loop did not tell."""
        assert self.session is not None
        assert self._exchange is not None
        assert self.task is not None
        compute = max(perf_counter() - self._began - self._querying, 0.0)
        memory = self._measured_device.needed_memory() if self._measured_device else None
        others = samples if samples not in {0, self.task.samples} else None
        rates = self._exchange.rates(self.task, rates)
        self.session.report(self._loss, compute, self._querying, self._loading, others, rates, memory)

    # --- schedules ---

    def follow(self, scheduler: Any, position: Callable[[], float]) -> None:  # noqa: ANN401 any of torch
        """Let a scheduler that is stepped after every batch follow a position in the run."""
        followed = FollowedScheduler(scheduler, position)
        self._schedulers.append(followed)
        if self.keeper is not None:
            self.keeper.register(f"scheduler {len(self._schedulers)}", followed)


class FollowedScheduler:
    """A scheduler that follows the run, not the steps of one worker.

    The loop steps it after every batch, which does nothing then: it advances when a task begins, as far as the run has.
    """

    def __init__(self, scheduler: Any, position: Callable[[], float]) -> None:  # noqa: ANN401 any scheduler of torch
        """Take the place of the scheduler's `step`."""
        kind = type(scheduler)
        self._scheduler = scheduler
        self._step = partial(kind.step, scheduler)
        self._position = 0
        self._run_position = position
        # Not an attribute of the scheduler, as its attributes are what its state_dict holds.
        scheduler.__class__ = type(kind.__name__, (kind,), {"step": staticmethod(self.step)})

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler, and how far it has followed the run."""
        return {"scheduler": self._scheduler.state_dict(), "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._scheduler.load_state_dict(state["scheduler"])
        self._position = state["position"]

    def advance(self) -> None:
        """Advance as far as the run is."""
        with warnings.catch_warnings():
            # A worker that joins late has not stepped its optimizer yet.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            while self._position < int(self._run_position()):
                self._step()
                self._position += 1

    def step(self, *arguments: object, **keywords: object) -> None:
        """Do nothing, when the loop calls it."""
        if arguments or keywords:
            message = "a scheduler that is given to run.prepare follows the run: call its step() without arguments"
            raise InputError(message)


__all__ = ["PreparedLoader", "Training"]
