"""Values that the workers sum among themselves: each has the model, and its own optimizer steps."""

import threading
from collections.abc import Callable
from time import sleep

import torch
from torch import Tensor
from torch.optim import Optimizer

from paceline._paceline import Group, GroupMembership, Session, Step, Task
from paceline._torch import optimizers
from paceline._torch.collective import Collective, CollectiveError
from paceline._torch.tensors import ModelTensors, VectorViews, float_buffer

#: Squares that are added in 32 bits, before their sum is added in 64.
_BLOCK = 1 << 16
#: How long a model may take to be sent at the end, in seconds.
_PATIENCE = 10.0
#: A version that no run reaches.
_LAST = 1 << 62


class GroupExchange:
    """A worker's updates on their way to the other members of its group, and back as their mean.

    An update is summed as soon as it is reported. When every member has the sum, the coordinator says how all step.
    Until then the update can be summed again, with others: gradients stay where the backward pass has put them.
    """

    def __init__(self, tensors: ModelTensors, optimizer: Optimizer, session: Session) -> None:
        """Take part in the groups of this session."""
        self._tensors = tensors
        self._optimizer = optimizer
        self._session = session
        self._membership: GroupMembership | None = None
        self._device = tensors.trained[0].tensor.device
        self._trained = tensors.trained[-1].end
        self._collective = Collective(*session.meeting(), self._device)
        #: The group that was formed last, and the one that is to be formed.
        self._group: Group | None = None
        self._next: Group | None = None
        self._is_silent = False
        #: What is summed: an update times its weight, and the weight. Then the mean, and the sum of the weights.
        self._sum: Tensor | None = None
        #: What all divide their updates by before they are summed: the sum of the weights, as it was twice in a row.
        self._divisor = 0.0
        self._total = 0.0
        #: How the model is stepped, while it is.
        self._step: Step | None = None
        self._own_rates: list[float | Tensor] = []
        #: The newest version, if the model is a replica; else its statistics, which change while a task is under way.
        self._newest: VectorViews | None = None
        self._statistics: list[Tensor] = []
        #: Replicas that a later task may go on from.
        self._replicas: dict[int, VectorViews] = {}
        #: The version that is here, for the thread that sends it.
        self._version = -1
        self._changed = threading.Condition()
        self._sender: threading.Thread | None = None

    def steps_here(self, task: Task) -> bool:
        """Whether the optimizer steps before the update is summed."""
        return task.local

    def rates(self, task: Task, rates: list[float]) -> list[float]:
        """Return the learning rates that count: those of the optimizer, if it steps by the mean."""
        return [] if task.local else rates

    # --- tasks ---

    def prepare(self) -> None:
        """Do nothing: the model is here already."""

    def begin(self, task: Task) -> None:
        """Give the model the parameters of a task, if the last step has not."""
        if task.model is not None:
            self._tensors.use(task.model, private=True)
            self._statistics = [entry.tensor.clone() for entry in self._tensors.statistics]
            self._rejoin()
        if task.local:
            if self._newest is None:
                self._newest = self._vector()
                self._tensors.copy_to(self._newest)
            else:
                self._tensors.copy_from(self._newest)
            self._go_on_from_replica(task, self._newest)
        self._has(task.version)

    def end(self) -> int:
        """Give the model the newest version: what a task under way has changed does not count. Return its number."""
        version = self._version
        if self._newest is not None:
            self._tensors.copy_from(self._newest)
        else:
            self._set_statistics()
        self._has(_LAST)
        return version

    def close(self) -> None:
        """Wait for the thread that sends models. The interpreter can't end beside it."""
        self._has(_LAST)
        self._leave()
        if self._sender is not None:
            self._sender.join(_PATIENCE)

    def drop(self) -> None:
        """Do nothing: nobody has the update yet."""

    def _rejoin(self) -> None:
        """Take part in a session that has begun, maybe not the first."""
        self._leave()
        self._newest = None
        self._replicas.clear()
        self._membership = self._session.membership()
        self._sender = threading.Thread(target=self._send_models, args=(self._membership,), daemon=True)
        self._sender.start()

    def _go_on_from_replica(self, task: Task, newest: VectorViews) -> None:
        """Go on from the last replica, moved towards the model by a share. One that is not finite starts over."""
        committed = -1 if task.committed is None else task.committed
        if task.pull is not None and (replica := self._replicas.get(committed)) is not None:
            pulled = replica.vector.lerp(newest.vector, task.pull)
            if bool(torch.isfinite(pulled).all()):
                self._tensors.copy_from(self._tensors.split(pulled))
        self._replicas = {number: replica for number, replica in self._replicas.items() if number >= committed}

    def _vector(self) -> VectorViews:
        return self._tensors.split(torch.empty(self._tensors.length, device=self._device))

    # --- the newest model, for the server ---

    def _has(self, version: int) -> None:
        with self._changed:
            self._version = version
            self._changed.notify_all()

    def _send_models(self, membership: GroupMembership) -> None:
        """Send the newest version whenever it is asked for."""
        while (version := membership.wait_for_request()) is not None:
            with self._changed:
                while self._version < version:
                    self._changed.wait()
                # The run waits for it, so it stays as it is.
                values = self._newest_values()
            membership.send_model(version, float_buffer(values))

    def _newest_values(self) -> Tensor:
        if self._newest is not None:
            return self._newest.vector.cpu()
        values = self._tensors.values()
        for entry, newest in zip(self._tensors.statistics, self._statistics, strict=True):
            values[entry.start : entry.end] = newest.flatten().cpu()
        return values

    # --- the backward pass ---

    def begin_backward(self) -> None:
        """Do nothing: gradients are taken when all are there."""

    def end_backward(self) -> None:
        """Do nothing."""

    def gradient_hook(self, index: int) -> None:
        """Take no gradient before all are there."""

    # --- updates ---

    def write_gradients(self, task: Task) -> None:
        """Do nothing: gradients stay where they are."""

    def write_difference(self, task: Task) -> None:
        """Keep the replica, if a later task may go on from it."""
        if task.pull is not None:
            self._replicas[task.number] = self._vector()
            self._tensors.copy_to(self._replicas[task.number])

    def settle_gradients(self, task: Task, samples: int) -> None:
        """Sum the gradients, and let the optimizer step by their mean as the coordinator says."""
        self._step = step = self._agree(task.version, samples, self._write_gradients)
        if step is None or step.rates is None:
            self._tensors.clear_gradients()
            return
        assert self._sum is not None
        with torch.no_grad():
            if step.scale != 1.0:
                self._sum[: self._trained].mul_(step.scale)
            mean = self._tensors.split(self._sum[:-1]).tensors
            for entry, gradient in zip(self._tensors.trained, mean, strict=False):
                entry.tensor.grad = gradient.to(entry.tensor.dtype)
        self._own_rates = optimizers.set_rates(self._optimizer, step.rates)

    def stepped(self) -> None:
        """Give the user's optimizer its own rates again, and the model its statistics."""
        step, self._step = self._step, None
        self._tensors.clear_gradients()
        if self._own_rates:
            optimizers.set_rates(self._optimizer, self._own_rates)
            self._own_rates = []
        if step is None:
            return
        if self._statistics:
            assert self._sum is not None
            mean = self._tensors.split(self._sum[:-1]).tensors[len(self._tensors.trained) :]
            with torch.no_grad():
                for newest, change in zip(self._statistics, mean, strict=True):
                    newest.sub_(step.statistics * change if step.statistics else 0.0)
            self._set_statistics()
        self._has(step.version)
        self._session.has_model(step.version)

    def _set_statistics(self) -> None:
        with torch.no_grad():
            for entry, newest in zip(self._tensors.statistics, self._statistics, strict=True):
                entry.tensor.copy_(newest)

    def settle_difference(self, task: Task, samples: int) -> None:
        """Sum the differences of the model and the replicas, and move the model as the coordinator says."""
        newest = self._newest
        assert newest is not None
        step = self._agree(task.version, samples, lambda place, weight: self._write_difference(newest, place, weight))
        if step is None:
            return
        if step.scale or step.statistics:
            assert self._sum is not None
            newest.vector[: self._trained].sub_(self._sum[: self._trained], alpha=step.scale)
            newest.vector[self._trained :].sub_(self._sum[self._trained : -1], alpha=step.statistics)
        self._has(step.version)
        self._session.has_model(step.version)

    def _write_gradients(self, place: VectorViews, weight: float) -> None:
        first = len(self._tensors.trained)
        for entry, to in zip(self._tensors.trained, place.tensors, strict=False):
            gradient = entry.tensor.grad
            if gradient is None:
                to.zero_()
            elif gradient.dtype is torch.float32:
                torch.mul(gradient, weight, out=to)
            else:
                to.copy_(gradient).mul_(weight)
        for entry, before, to in zip(self._tensors.statistics, self._statistics, place.tensors[first:], strict=True):
            to.copy_(before - entry.tensor).mul_(weight)

    def _write_difference(self, newest: VectorViews, place: VectorViews, weight: float) -> None:
        self._tensors.copy_to(place)
        torch.sub(newest.vector, place.vector, out=place.vector).mul_(weight)

    # --- sums ---

    def _agree(self, version: int, weight: int, write: Callable[[VectorViews, float], None]) -> Step | None:
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
            elif self._sum is not None:
                self._is_silent, before, self._total = False, self._total, float(self._sum[-1])
                self._divisor = self._total if self._total == before else self._divisor
            return order

    def _begin_sum(self, version: int, weight: int, write: Callable[[VectorViews, float], None]) -> None:
        """Begin a sum, of which the coordinator is told when it is there."""
        group, membership = self._group, self._membership
        if group is None or membership is None:
            return
        if self._sum is None:
            self._sum = torch.empty(self._tensors.length + 1, device=self._device)
        values, divisor, own = self._sum, self._divisor, 0.0
        if self._is_silent:
            values.zero_()
        else:
            write(self._tensors.split(values[:-1]), weight / divisor)
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
            self._leave()
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
                self._leave()
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
        self._leave()
        if group is not None and self._membership is not None:
            self._membership.failed(group.number, "a worker has another task")

    def _leave(self) -> None:
        """Leave the group. Values that it may still change are not used again."""
        self._group = None
        if self._collective.leave():
            self._sum = None


def _squares(values: Tensor) -> float:
    """Return the sum of the squares. One sum in 32 bits would be off by thousandths in large models."""
    if values.is_cuda:
        return float(torch.linalg.vector_norm(values).double().square())
    blocks = torch.split(values, _BLOCK)
    return sum((float(torch.dot(block, block)) for block in blocks), 0.0)
