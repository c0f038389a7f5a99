"""Schemes written in Python, for the simulator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline._paceline import Aggregate, Question, Setup, Turn, Update


class Scheme(ABC):
    """Decides who gets work, whom to wait for, and which updates step the model.

    Each method gets a `Turn`, through which the scheme sees the workers and acts. At the end of a turn every worker
    that `turn.next_unsettled` would return must have work or something to wait for. The ledger checks this and the
    other laws.

    >>> class Asp(paceline.Scheme):
    ...     def on_joined(self, turn, worker):
    ...         turn.assign(worker, self.setup.batch, "joined")
    ...
    ...     def on_reported(self, turn, update):
    ...         turn.commit([update.task], "on arrival")
    ...         turn.assign(update.worker, self.setup.batch, "new version")
    >>> paceline.simulate(Asp, slow={0: 3}).summary.time
    """

    watches_lateness: bool = False
    """Whether `on_late` is called."""
    compensates: bool = False
    """Whether it commits with `compensate`."""

    def __init__(self, setup: Setup) -> None:
        """Build the scheme for a run."""
        self.setup = setup

    @abstractmethod
    def on_joined(self, turn: Turn, worker: int) -> None:
        """Handle a worker that joined and is idle."""

    def on_left(self, turn: Turn, worker: int) -> None:  # noqa: B027 - it may do nothing
        """Handle a worker that left. Its task and its uncommitted updates are already dropped."""

    @abstractmethod
    def on_reported(self, turn: Turn, update: Update) -> None:
        """Handle an update that has arrived. It is committed or discarded now or later."""

    def on_asked(self, turn: Turn, question: Question) -> None:  # noqa: B027
        """Answer a worker that has done a local iteration."""

    def on_committed(self, turn: Turn, aggregate: Aggregate | None) -> None:  # noqa: B027
        """Handle a commit that was carried out. Without a model there is no aggregate."""

    def on_late(self, turn: Turn, task: tuple[int, int]) -> None:  # noqa: B027
        """Handle a task that takes far longer than the worker's tasks so far."""

    def on_timer(self, turn: Turn) -> None:  # noqa: B027
        """Handle a time that was requested with `turn.wake`."""
