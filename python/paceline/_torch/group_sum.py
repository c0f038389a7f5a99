"""Sums of the updates of a group, until the coordinator says what becomes of the model."""

from collections.abc import Callable
from time import sleep
from typing import TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from paceline._paceline import Group, GroupMembership, Session, Step
from paceline._torch.collective import Collective, CollectiveError

#: Squares that are added in 32 bits, before their sum is added in 64.
_BLOCK = 1 << 16

#: Writes an update times a weight into a vector.
Write: TypeAlias = Callable[[Tensor, float], None]


class GroupSum:
    """The group that this worker is a member of, and what it sums."""

    def __init__(self, session: Session, optimizer: Optimizer, length: int, trained: int, device: torch.device) -> None:
        """Sum vectors of this length, of which the first values are trained and the others are statistics."""
        self._session = session
        self._optimizer = optimizer
        self._length = length
        self._trained = trained
        self._device = device
        self._membership: GroupMembership | None = None
        self._collective = Collective(*session.meeting(), device)
        #: The group that was formed last, and the one that is to be formed.
        self._group: Group | None = None
        self._next: Group | None = None
        self._is_silent = False
        #: What is summed: an update times its weight, and the weight. Then the mean, and the sum of the weights.
        self._values: Tensor | None = None
        #: What all divide their updates by before they are summed: the sum of the weights, as it was twice in a row.
        self._divisor = 0.0
        self._total = 0.0

    def rejoin(self, membership: GroupMembership) -> None:
        """Take part in the groups of a session that has begun."""
        self.leave()
        self._membership = membership

    @property
    def mean(self) -> Tensor:
        """The mean of the updates that were summed last."""
        assert self._values is not None
        return self._values[:-1]

    def agree(self, version: int, weight: int, write: Write) -> Step | None:
        """Sum with the others until the coordinator says what becomes of the model. None if there is another task."""
        while True:
            self._meet(weight)
            with torch.no_grad():
                self._begin_sum(version, weight, write)
            order = self._session.next_order()
            if isinstance(order, Group):
                self._next = order
                continue
            if order is None:
                self._abandon()
            elif self._values is not None:
                self._is_silent, before, self._total = False, self._total, float(self._values[-1])
                self._divisor = self._total if self._total == before else self._divisor
            return order

    def _begin_sum(self, version: int, weight: int, write: Write) -> None:
        """Begin a sum, of which the coordinator is told when it is there."""
        group, membership = self._group, self._membership
        if group is None or membership is None:
            return
        if self._values is None:
            self._values = torch.empty(self._length + 1, device=self._device)
        values, divisor, own = self._values, self._divisor, 0.0
        if self._is_silent:
            values.zero_()
        else:
            write(values[:-1], weight / divisor)
            values[-1] = weight
            own = _squares(values[: self._trained]) * (divisor / weight) ** 2

        def finish(failure: str | None) -> None:
            if failure is not None:
                membership.failed(group.number, failure)
                return
            total = float(values[-1])
            if total not in {divisor, 0.0}:
                values[:-1].mul_(divisor / total)
            membership.summed(group.number, version, own, _squares(values[: self._trained]))

        self._collective.sum(values, finish)

    def _meet(self, weight: int) -> None:
        """Form the newest group, if it is another one than the last."""
        while self._is_outdated(0.0):
            group, self._next = self._next, None
            assert group is not None
            assert self._membership is not None
            self.leave()
            try:
                divisor = self._collective.form(group, self._divisor or weight * group.size, self._is_outdated)
                if divisor is None:
                    self._await_other_group()
                    continue
                if group.source is not None and group.size > 1:
                    state = self._collective.share(self._optimizer.state_dict(), group, self._is_outdated)
                    if group.position != group.source:
                        self._optimizer.load_state_dict(state)
            except CollectiveError as error:
                self.leave()
                self._membership.failed(group.number, str(error))
                continue
            # All begin alike, whatever they have seen.
            self._group, self._is_silent, self._divisor, self._total = group, group.is_silent, divisor, 0.0

    def _await_other_group(self) -> None:
        """Wait for the next group, which the coordinator forms if a member can't take part in the last."""
        while not self._is_outdated(0.01):
            pass

    def _is_outdated(self, seconds: float) -> bool:
        """Wait. Return whether there is another group by then, or none any more."""
        if seconds:
            sleep(seconds)
        self._next = self._session.take_group() or self._next
        return self._next is not None or (seconds > 0 and self._session.has_ended())

    def _abandon(self) -> None:
        """Leave the group in the middle of a sum. If the run goes on, another one is formed."""
        group = self._group
        self.leave()
        if group is not None and self._membership is not None:
            self._membership.failed(group.number, "a worker has another task")

    def leave(self) -> None:
        """Leave the group. Values that it may still change are not used again."""
        self._group = None
        if self._collective.leave():
            self._values = None


def _squares(values: Tensor) -> float:
    """Return the sum of the squares. One sum in 32 bits would be off by thousandths in large models."""
    if values.is_cuda:
        return float(torch.linalg.vector_norm(values).double().square())
    blocks = torch.split(values, _BLOCK)
    return sum((float(torch.dot(block, block)) for block in blocks), 0.0)
