"""How a worker's values come and go: what its training asks for, wherever they are summed."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from torch import Tensor

from paceline._paceline import Task

#: Is called with a parameter and its gradient when the backward pass has made it.
GradientHook: TypeAlias = Callable[[Tensor, Tensor], None]


class Exchange(Protocol):
    """The way of a worker's parameters and updates."""

    def steps_here(self, task: Task) -> bool:
        """Whether the optimizer steps before the update is sent: the update is then a difference of models."""

    def rates(self, task: Task, rates: list[float]) -> list[float]:
        """Return the learning rates to report, where the optimizer has these."""

    def prepare(self) -> None:
        """Get ready for the next task, before it is there."""

    def begin(self, task: Task) -> None:
        """Give the model the parameters of a task."""

    def end(self) -> int | None:
        """Give the model the last parameters: the run is over. Return their version, unless they are not to be had."""

    def close(self) -> None:
        """Do nothing more: the worker has left."""

    def drop(self) -> None:
        """Let go of a task that is interrupted."""

    def begin_backward(self) -> None:
        """Note that gradients come from now on, and are left alone until the end."""

    def end_backward(self) -> None:
        """Wait until all gradients are where they are wanted."""

    def gradient_hook(self, index: int) -> GradientHook | None:
        """Return what takes the gradient of this tensor as soon as it is there, if anything does."""

    def write_gradients(self, task: Task) -> None:
        """Put the gradients where they are expected when the task is reported."""

    def write_difference(self, task: Task) -> None:
        """Put the difference of the model and its replica where it is expected when the task is reported."""

    def settle_gradients(self, task: Task, samples: int) -> None:
        """Give the optimizer what it steps by, or nothing, after the report of a gradient of so many samples."""

    def settle_difference(self, task: Task, samples: int) -> None:
        """Do what is left after the report of a difference whose weight is so many samples."""

    def stepped(self) -> None:
        """Do what is left after the optimizer has stepped by what `settle_gradients` gave it."""
