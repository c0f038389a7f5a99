"""Values that the server sums: parameters come from memory that it writes, updates go to memory that it reads."""

import torch
from torch import Tensor

from paceline._paceline import Copies, Session, Task, UpdatePush
from paceline._torch.exchange import GradientHook
from paceline._torch.tensors import ModelTensors

#: Gradients with fewer values are copied at once.
_LARGE = 1 << 15


class ServerExchange:
    """The way of a worker's values to and from the server, or its shards.

    Gradients are copied as the backward pass makes them. The server steps the model; the optimizer's step then finds no
    gradients and does nothing.
    """

    def __init__(self, tensors: ModelTensors, session: Session, *, knows_optimizer: bool) -> None:
        """Exchange values in a session. An optimizer that the server does not know steps here."""
        self._tensors = tensors
        self._session = session
        self._knows_optimizer = knows_optimizer
        #: Where the server wants the gradients; None if it wants none.
        self._results: list[Tensor] | None = None
        self._arrived: set[int] = set()
        #: Copies the large gradients of a backward pass that goes on.
        self._copies = Copies()
        #: What it copies, to be kept until it has.
        self._copied: list[Tensor] = []
        self._in_backward = False
        #: The gradients on their way to shards, while the backward pass goes on. Those of a device are sent later.
        self._push: UpdatePush | None = None
        #: Whether gradients are sent as soon as they are there. That is in vain if the loop changes them, e.g. clips.
        self._pushes_early = tensors.device is None
        #: Replicas that a later task may go on from.
        self._kept: dict[int, Tensor] = {}

    def steps_here(self, task: Task) -> bool:
        """Whether the optimizer steps before the update is sent."""
        return task.local or not self._knows_optimizer

    def rates(self, task: Task, rates: list[float]) -> list[float]:
        """Return the learning rates that the server is to use: the difference of one step is a gradient at rate 1."""
        if task.local:
            return []
        return rates if self._knows_optimizer else [1.0] * len(rates)

    # --- tasks ---

    def prepare(self) -> None:
        """Get ready for the next task while the server is still stepping."""
        self._tensors.forget_writes()
        self._arrived.clear()

    def begin(self, task: Task) -> None:
        """Give the model the parameters of a task."""
        assert task.model is not None
        assert task.result is not None
        steps_here = self.steps_here(task)
        self._tensors.use(task.model, private=steps_here)
        if self._kept:
            committed = -1 if task.committed is None else task.committed
            if task.pull is not None and (replica := self._kept.get(committed)) is not None:
                self._tensors.pull(task.model, replica, task.pull)
            self._kept = {number: kept for number, kept in self._kept.items() if number >= committed}
        self._results = None if steps_here else self._tensors.views(task.result).tensors
        self._push = None if steps_here or not self._pushes_early else self._session.push()

    def end(self) -> int | None:
        """Give the model its last parameters, if the server has sent them."""
        last = self._session.last_model()
        if last is None:
            return None
        self._tensors.use(last[1], private=True)
        return last[0]

    def close(self) -> None:
        """Do nothing: the server needs no more."""

    def drop(self) -> None:
        """Let go of the task's memory: it is interrupted."""
        self._tensors.finish_copies()

    # --- the backward pass ---

    def begin_backward(self) -> None:
        """Note that gradients come from now on, and are left alone until the end."""
        self._in_backward = True

    def end_backward(self) -> None:
        """Wait until all gradients are copied."""
        self._in_backward = False
        if self._copied:
            self._copies.finish()
            self._copied.clear()

    def gradient_hook(self, index: int) -> GradientHook | None:
        """Return what copies the gradient of a tensor."""
        arrived, device = self._arrived, self._tensors.device
        float32 = torch.float32
        entry = self._tensors.trained[index]
        copies, copied, is_large = self._copies, self._copied, entry.tensor.numel() >= _LARGE

        def can_wait(parameter: Tensor, gradient: Tensor) -> bool:
            # Another hook may look at the gradient.
            hooks = parameter._post_accumulate_grad_hooks
            return self._in_backward and len(hooks or ()) == 1 and gradient.is_contiguous()

        def copy(parameter: Tensor, gradient: Tensor) -> None:
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

    # --- updates ---

    def write_gradients(self, task: Task) -> None:
        """Write the gradients that no hook could write where they belong, and zeros where there are none."""
        assert self._results is not None
        with torch.no_grad():
            self._write_gradients(self._results)
        assert task.model is not None
        assert task.result is not None
        self._tensors.write_statistics(task.model, task.result)
        self._tensors.finish_copies()

    def _write_gradients(self, results: list[Tensor]) -> None:
        arrived, device = self._arrived, self._tensors.device
        if device is not None:
            trained = self._tensors.trained
            device.finish_gradients([entry.tensor.grad for entry in trained], results[: len(trained)])
            return
        for index, (entry, result) in enumerate(zip(self._tensors.trained, results, strict=False)):
            gradient = entry.tensor.grad
            if gradient is None:
                if index not in arrived:
                    result.zero_()
            elif index not in arrived or not _is_in(gradient, result):
                # Also one that the user's code replaced or changed, e.g. to clip it.
                if index in arrived:
                    self._stop_pushing()
                result.copy_(gradient)

    def write_difference(self, task: Task) -> None:
        """Write the difference of the model and its replica."""
        assert task.model is not None
        assert task.result is not None
        self._tensors.write_difference(task.model, task.result)
        if task.pull is not None:
            self._kept[task.number] = self._tensors.values()

    def settle_gradients(self, task: Task, samples: int) -> None:
        """Leave nothing for the optimizer: the server steps by the gradients that were reported."""
        self._tensors.clear_gradients()

    def settle_difference(self, task: Task, samples: int) -> None:
        """Do nothing: the server has the difference that was reported."""

    def stepped(self) -> None:
        """Do nothing: the optimizer had no gradients to step by."""


def _is_in(gradient: Tensor, result: Tensor) -> bool:
    """Whether the values of a gradient are in their place, by their bits."""
    source, target = gradient.data_ptr(), result.data_ptr()
    if source == target:
        return True
    is_plain = gradient.dtype is torch.float32 and gradient.is_contiguous()
    return is_plain and UpdatePush.are_same(source, target, gradient.numel())
