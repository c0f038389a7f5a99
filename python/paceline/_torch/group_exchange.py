"""Values that the workers sum among themselves: each has the model, and its own optimizer steps."""

import threading

import torch
from torch import Tensor
from torch.optim import Optimizer

from paceline._paceline import GroupMembership, Session, Step, Task
from paceline._torch import optimizers
from paceline._torch.group_sum import GroupSum
from paceline._torch.tensors import ModelTensors, VectorViews, float_buffer

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
        """Take part in the groups of a session."""
        self._tensors = tensors
        self._optimizer = optimizer
        self._session = session
        self._trained = tensors.trained[-1].end
        self._device = tensors.trained[0].tensor.device
        self._sum = GroupSum(session, optimizer, tensors.length, self._trained, self._device)
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
        self._note_version(task.version)

    def end(self) -> int:
        """Give the model the newest version: what a task under way has changed does not count. Return its number."""
        version = self._version
        if self._newest is not None:
            self._tensors.copy_from(self._newest)
        else:
            self._set_statistics()
        self._note_version(_LAST)
        return version

    def close(self) -> None:
        """Wait for the thread that sends models. The interpreter can't end beside it."""
        self._note_version(_LAST)
        self._sum.leave()
        if self._sender is not None:
            self._sender.join(_PATIENCE)

    def drop(self) -> None:
        """Do nothing: nobody has the update yet."""

    def _rejoin(self) -> None:
        """Take part in a session that has begun, maybe not the first."""
        membership = self._session.membership()
        assert membership is not None
        self._sum.rejoin(membership)
        self._newest = None
        self._replicas.clear()
        self._sender = threading.Thread(target=self._send_models, args=(membership,), daemon=True)
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

    def _note_version(self, version: int) -> None:
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
        self._step = step = self._sum.agree(task.version, samples, self._write_gradients)
        if step is None or step.rates is None:
            self._tensors.clear_gradients()
            return
        mean = self._sum.mean
        with torch.no_grad():
            if step.scale != 1.0:
                mean[: self._trained].mul_(step.scale)
            gradients = self._tensors.split(mean).tensors
            for entry, gradient in zip(self._tensors.trained, gradients, strict=False):
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
            changes = self._tensors.split(self._sum.mean).tensors[len(self._tensors.trained) :]
            with torch.no_grad():
                for newest, change in zip(self._statistics, changes, strict=True):
                    newest.sub_(step.statistics * change if step.statistics else 0.0)
            self._set_statistics()
        self._note_version(step.version)
        self._session.has_model(step.version)

    def _set_statistics(self) -> None:
        with torch.no_grad():
            for entry, newest in zip(self._tensors.statistics, self._statistics, strict=True):
                entry.tensor.copy_(newest)

    def settle_difference(self, task: Task, samples: int) -> None:
        """Sum the differences of the model and the replicas, and move the model as the coordinator says."""
        newest = self._newest
        assert newest is not None

        def write(place: Tensor, weight: float) -> None:
            self._tensors.copy_to(self._tensors.split(place))
            torch.sub(newest.vector, place, out=place).mul_(weight)

        step = self._sum.agree(task.version, samples, write)
        if step is None:
            return
        if step.scale or step.statistics:
            mean = self._sum.mean
            newest.vector[: self._trained].sub_(mean[: self._trained], alpha=step.scale)
            newest.vector[self._trained :].sub_(mean[self._trained :], alpha=step.statistics)
        self._note_version(step.version)
        self._session.has_model(step.version)

    def _write_gradients(self, place: Tensor, weight: float) -> None:
        places, first = self._tensors.split(place).tensors, len(self._tensors.trained)
        for entry, to in zip(self._tensors.trained, places, strict=False):
            gradient = entry.tensor.grad
            if gradient is None:
                to.zero_()
            elif gradient.dtype is torch.float32:
                torch.mul(gradient, weight, out=to)
            else:
                to.copy_(gradient).mul_(weight)
        for entry, before, to in zip(self._tensors.statistics, self._statistics, places[first:], strict=True):
            to.copy_(before - entry.tensor).mul_(weight)
