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

from paceline._paceline import Copies, Session, Task, UpdatePush
from paceline._torch import optimizers
from paceline._torch.device import Device
from paceline._torch.evaluation import Evaluator
from paceline._torch.loader import PreparedLoader
from paceline._torch.state import StateKeeper
from paceline._torch.tensors import ModelTensors
from paceline.errors import InputError, Interrupted

#: Gradients with fewer values are copied at once.
_LARGE = 1 << 15


class Training:
    """The model, the optimizer and the session of one worker.

    The user's objects stay what they are. Gradients are copied by hooks as the backward pass makes them. A hook before
    the optimizer's step reports them and takes the next task; the step itself then finds no gradients and does nothing.
    With local iterations the optimizer steps, and a hook after it sends the difference when the scheme asks for it.
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
        #: Where the server wants the gradients; None if it wants none.
        self._results: list[Tensor] | None = None
        self._arrived: set[int] = set()
        #: Copies the large gradients of a backward pass that goes on.
        self._copies = Copies()
        self._in_backward = False
        #: The gradients on their way to shards, while the backward pass goes on. Those of a device are sent later.
        self._push: UpdatePush | None = None
        #: Whether gradients are sent as soon as they are there. That is in vain if the loop changes them, e.g. clips.
        self._pushes_early = self.tensors.device is None
        #: What it copies, to be kept until it has.
        self._copied: list[Tensor] = []
        self._kept: dict[int, Tensor] = {}
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

    @property
    def _steps_here(self) -> bool:
        """Whether the optimizer steps in this process."""
        return self.specification is None or (self.task is not None and self.task.local)

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
        keeper = self.keeper
        if keeper is not None:
            keeper.note_random_state()
        self.tensors.forget_writes()
        self._arrived.clear()
        self._iterations = 0
        self._total = 0
        self._loss = 0.0
        self.task = task = self.session.next_task()
        if task is None:
            self.end()
            return
        self.version = task.version
        steps_here = self._steps_here
        self.tensors.use(task.model, private=steps_here)
        if keeper is not None:
            keeper.begin_task(task.version, is_due=task.checkpoint)
        for scheduler in self._schedulers:
            scheduler.advance()
        if self._kept:
            committed = -1 if task.committed is None else task.committed
            if task.pull is not None and (replica := self._kept.get(committed)) is not None:
                self.tensors.pull(task.model, replica, task.pull)
            self._kept = {number: kept for number, kept in self._kept.items() if number >= committed}
        self._results = None if steps_here else self.tensors.views(task.result).tensors
        self._push = None if steps_here or not self._pushes_early else self.session.push()
        if self._measured_device:
            self._measured_device.begin_measuring()
        self._begin_counts()

    def end(self) -> None:
        """Give the model its last parameters: the run is over."""
        self.over = True
        last = self.session.last_model() if self.session else None
        if last is not None:
            self.version, memory = last
            self.tensors.use(memory, private=True)
        if self.keeper is not None:
            self.keeper.end(self.version)

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
        self._in_backward = True
        try:
            (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        finally:
            self._in_backward = False
            if self._copied:
                self._copies.finish()
                self._copied.clear()

    def note(self, loss: Tensor) -> None:
        """Note a loss whose gradients are about to be computed."""
        if self._losses and all(entry.tensor.grad is None for entry in self.tensors.trained):
            # A scaler has skipped a step: what it would have used was zeroed.
            self._losses.clear()
            self._samples = self._last_samples
        self._losses.append(loss.detach())

    def _gradient_hook(self, index: int, name: str) -> Callable[[Tensor], None]:
        assert self.session is not None
        progressed, arrived, device = self.session.progressed, self._arrived, self.tensors.device
        strided, float32 = torch.strided, torch.float32
        entry = self.tensors.trained[index]
        copies, copied, is_large = self._copies, self._copied, entry.tensor.numel() >= _LARGE

        def can_wait(parameter: Tensor, gradient: Tensor) -> bool:
            # Another hook may look at the gradient.
            hooks = parameter._post_accumulate_grad_hooks
            return self._in_backward and len(hooks or ()) == 1 and gradient.is_contiguous()

        def copy(parameter: Tensor) -> None:
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
            results = self._results
            if results is None:
                return
            result = results[index]
            if device is not None:
                device.begin_gradient(index, gradient, result)
                return
            if gradient.dtype is not float32:
                return
            if index in arrived:
                # It accumulates.
                self._stop_pushing()
            push, source, target = self._push, gradient.data_ptr(), result.data_ptr()
            if source != target:
                if is_large and can_wait(parameter, gradient):
                    copied.append(gradient)
                    copies.begin(source, target, gradient.numel(), push, entry.start)
                else:
                    result.copy_(gradient)
                    if push is not None:
                        push.ready(entry.start, entry.end)
                if push is None:
                    parameter.grad = result
            arrived.add(index)

        return copy

    def _stop_pushing(self) -> None:
        """Send gradients with the report from now on, and those of this task again."""
        if self._push is not None:
            self._push.change()
            self._push = None
            self._pushes_early = False

    def _interruption_hook(self, *_: object) -> None:
        self._check_interruption()

    def _check_interruption(self) -> None:
        if self._interruptible and self.task is not None and self.session is not None and self.session.is_cancelled():
            raise Interrupted

    def drop(self) -> None:
        """Leave the interrupted task, and take the next."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.task is not None and self.session is not None:
            self.tensors.finish_copies()
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
        """Report the gradients, if the server steps."""
        if self.task is None or self.session is None:
            # The run is over, or has not begun: the model is not to be changed.
            self._clear_gradients()
            return
        if not self._losses:
            message = "optimizer.step() without run.backward(loss): replace loss.backward() by run.backward(loss)"
            raise InputError(message)
        if sum(len(group["params"]) for group in optimizer.param_groups) != self._parameters:
            message = "the optimizer got new parameters after run.prepare: add them before"
            raise InputError(message)
        if not self._steps_here:
            optimizers.check_fixed(optimizer, self._settings)
        self.tensors.check_unchanged()
        if self._overflowed(optimizer):
            self._clear_gradients()
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
        if self._results is None:
            if self._is_dropped:
                self._clear_gradients()
            return
        self._write_gradients(self._results)
        self.tensors.write_statistics(self.task.model, self.task.result)
        self.tensors.finish_copies()
        samples = self._total if self._total not in {0, self.task.samples} else None
        self._report(samples, optimizers.rates(optimizer))
        self._clear_gradients()
        self._begin_task()

    def _write_gradients(self, results: list[Tensor]) -> None:
        """Write the gradients that no hook could write where they belong, and zeros where there are none."""
        arrived, device = self._arrived, self.tensors.device
        with torch.no_grad():
            if device is not None:
                trained = self.tensors.trained
                device.finish_gradients([entry.tensor.grad for entry in trained], results[: len(trained)])
                return
            for index, (entry, result) in enumerate(zip(self.tensors.trained, results, strict=False)):
                gradient = entry.tensor.grad
                if gradient is None:
                    if index not in arrived:
                        result.zero_()
                elif index not in arrived or not _is_in(gradient, result):
                    # Also one that the user's code replaced or changed, e.g. to clip it.
                    if index in arrived:
                        self._stop_pushing()
                    result.copy_(gradient)

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
        return False

    def _clear_gradients(self) -> None:
        for entry in self.tensors.trained:
            entry.tensor.grad = None

    def _after_step(self, *_: object) -> None:
        if self.task is None or self.session is None or not self._steps_here:
            return
        if self._is_dropped:
            self._querying += perf_counter() - self._began
            self._finish_replica()
            return
        self._iterations += 1
        if not self.task.local:
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
        assert self.task is not None
        task = self.task
        self.tensors.write_difference(task.model, task.result)
        if task.pull is not None:
            self._kept[task.number] = self.tensors.values()
        count = max(self._iterations, 1)
        self._loss /= count
        samples = round(self._total / count)
        rates = [] if task.local else [1.0] * len(self.optimizer.param_groups)
        self._report(samples if samples not in {0, task.samples} else None, rates)
        self._begin_task()

    def _report(self, samples: int | None, rates: list[float]) -> None:
        assert self.session is not None
        compute = max(perf_counter() - self._began - self._querying, 0.0)
        memory = self._measured_device.needed_memory() if self._measured_device else None
        self.session.report(self._loss, compute, self._querying, self._loading, samples, rates, memory)

    # --- schedules ---

    def follow(self, scheduler: Any, position: Callable[[], float]) -> None:  # noqa: ANN401 any of torch
        """Let a scheduler that is stepped after every batch follow a position in the run."""
        followed = FollowedScheduler(scheduler, position)
        self._schedulers.append(followed)
        if self.keeper is not None:
            self.keeper.register(f"scheduler {len(self._schedulers)}", followed)


def _is_in(gradient: Tensor, result: Tensor) -> bool:
    """Whether the values of a gradient are in their place, by their bits."""
    source, target = gradient.data_ptr(), result.data_ptr()
    if source == target:
        return True
    is_plain = gradient.dtype is torch.float32 and gradient.is_contiguous()
    return is_plain and UpdatePush.are_same(source, target, gradient.numel())


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
