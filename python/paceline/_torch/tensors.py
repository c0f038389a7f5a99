"""The tensors of a model as one vector of values, the way server and workers exchange them."""

import ctypes
import zlib
from typing import NamedTuple

import torch
from torch import Tensor, nn

from paceline._paceline import Memory
from paceline._torch.device import Device, is_host
from paceline.errors import InputError


class Entry(NamedTuple):
    """A tensor of the model and its place in the vector."""

    name: str
    tensor: Tensor
    start: int
    end: int


class VectorViews(NamedTuple):
    """A vector in some memory, the tensors in it and their addresses."""

    vector: Tensor
    tensors: list[Tensor]
    addresses: list[int]


class ModelTensors:
    """The trained parameters of a model, then its statistics, in one vector.

    On a processor, parameters of 32 bits are views of the memory that the server writes: no value is copied. Others are
    copied from it and converted.
    """

    def __init__(self, model: nn.Module) -> None:
        """Find the tensors. Tied parameters are one tensor, under their first name."""
        trained: list[tuple[str, Tensor]]
        trained = [(name, tensor) for name, tensor in model.named_parameters() if tensor.requires_grad]
        if not trained:
            message = "the model has no parameter with requires_grad: there is nothing to train"
            raise InputError(message)
        for name, tensor in trained:
            if tensor.is_complex() or not tensor.is_floating_point():
                message = f"parameter '{name}' is {tensor.dtype}: expected real numbers"
                raise InputError(message)
        devices = {str(tensor.device) for _, tensor in trained}
        if len(devices) > 1:
            message = f"the model is on several devices ({', '.join(sorted(devices))}): expected one per worker"
            raise InputError(message)
        device = trained[0][1].device
        self.trained: list[Entry] = []
        self.statistics: list[Entry] = []
        end = 0
        for entries, tensors in ((self.trained, trained), (self.statistics, _statistics(model))):
            for name, tensor in tensors:
                start, end = end, end + tensor.numel()
                entries.append(Entry(name, tensor, start, end))
        self.length = end
        self.frozen = _checksum([tensor for tensor in model.parameters() if not tensor.requires_grad])
        self._views: dict[int, VectorViews] = {}
        #: The memories that the model's parameters have been in.
        self._memories: dict[int, Memory] = {}
        # On another device, the vector is there too, and parameters are views of that one.
        self.device = None if is_host(device) else Device(device)
        self._placed = None if self.device is None else self.split(torch.empty(end, device=device))
        #: Where the parameters of 32 bits are.
        self._addresses: list[int] = []
        self._model = model
        self._tensors = [entry.tensor for entry in self.trained]
        self._types = [tensor.dtype for tensor in self._tensors]

    def values(self) -> Tensor:
        """Return all values, in one vector."""
        tensors = [entry.tensor.detach().flatten().float().cpu() for entry in (*self.trained, *self.statistics)]
        return torch.cat(tensors)

    def copy_to(self, vector: VectorViews) -> None:
        """Copy all values to a vector."""
        for entry, place in zip((*self.trained, *self.statistics), vector.tensors, strict=True):
            place.copy_(entry.tensor.detach())

    def copy_from(self, vector: VectorViews) -> None:
        """Give the model the values in a vector."""
        with torch.no_grad():
            for entry, value in zip((*self.trained, *self.statistics), vector.tensors, strict=True):
                entry.tensor.copy_(value)

    def clear_gradients(self) -> None:
        """Leave nothing for the optimizer to step by."""
        for entry in self.trained:
            entry.tensor.grad = None

    def views(self, memory: Memory) -> VectorViews:
        """Return the vector in a memory, and the tensors in it."""
        known = self._views.get(memory.address)
        if known is None or len(known.vector) != self.length:
            known = self._views[memory.address] = self.split(torch.frombuffer(memory, dtype=torch.float32))
            if self.device is not None:
                self.device.register(memory)
        return known

    def split(self, vector: Tensor) -> VectorViews:
        """Return the tensors in a vector."""
        entries = (*self.trained, *self.statistics)
        tensors = [vector[entry.start : entry.end].view(entry.tensor.shape) for entry in entries]
        return VectorViews(vector, tensors, [tensor.data_ptr() for tensor in tensors])

    def forget_writes(self) -> None:
        """Forget what this process has written to the server's models, which may be used again from now on.

        To be called when no task runs: none of the user's code writes to them until the next one begins.
        """
        for memory in self._memories.values():
            memory.forget_writes()

    def use(self, memory: Memory, *, private: bool) -> None:
        """Give the model the parameters in a memory: as views, or as copies of its own if it changes them."""
        views = self.views(memory)
        if self.device is not None and self._placed is not None:
            # Before the task is reported, it is done: the server leaves the memory alone until then.
            self.device.upload(views.vector, self._placed.vector)
            views = self._placed
        elif private:
            views = self.split(views.vector.clone())
        else:
            self._memories[memory.address] = memory
        self._addresses = views.addresses
        with torch.no_grad():
            for tensor, dtype, view in zip(self._tensors, self._types, views.tensors, strict=False):
                if dtype is torch.float32:
                    tensor.data = view
                else:
                    tensor.data.copy_(view)
            if self.statistics:
                for entry, view in zip(self.statistics, views.tensors[len(self.trained) :], strict=True):
                    entry.tensor.copy_(view)

    def check_same(self) -> None:
        """Raise an error if the model no longer has the parameters that it was prepared with."""
        now = {id(parameter) for parameter in self._model.parameters()}
        for entry in self.trained:
            if id(entry.tensor) not in now:
                message = (
                    f"parameter '{entry.name}' was replaced after run.prepare: change the model before run.prepare"
                )
                raise InputError(message)
        self._check_types()

    def _check_types(self) -> None:
        """Raise an error if parameters have another type than they were prepared with."""
        for tensor, dtype in zip(self._tensors, self._types, strict=True):
            if tensor.dtype is not dtype:
                message = (
                    f"parameter '{self._name(tensor)}' was {dtype} at run.prepare and is {tensor.dtype}: call "
                    "model.to() before run.prepare"
                )
                raise InputError(message)

    def check_unchanged(self) -> None:
        """Raise an error if the model's parameters are no longer those that the run gave it."""
        for tensor, dtype, address in zip(self._tensors, self._types, self._addresses, strict=False):
            if tensor.dtype is not dtype:
                self._check_types()
            if dtype is torch.float32 and tensor.data_ptr() != address and tensor.numel():
                message = (
                    f"parameter '{self._name(tensor)}' was replaced after run.prepare (by model.to(), .data = or "
                    "load_state_dict(assign=True)): change the model before run.prepare"
                )
                raise InputError(message)

    def _name(self, tensor: Tensor) -> str:
        return next(entry.name for entry in self.trained if entry.tensor is tensor)

    def finish_copies(self) -> None:
        """Wait until nothing is copied from or to a device: the server may have the memory."""
        if self.device is not None:
            self.device.finish()

    def write_statistics(self, model: Memory, result: Memory) -> None:
        """Write how the statistics have changed since the task began."""
        if self.statistics:
            first = len(self.trained)
            before, changes = self.views(model).tensors[first:], self.views(result).tensors[first:]
            now = [entry.tensor.float() for entry in self.statistics]
            if self.device is None or self._placed is None:
                for old, new, change in zip(before, now, changes, strict=True):
                    torch.sub(old, new, out=change)
            else:
                differences = torch._foreach_sub(self._placed.tensors[first:], now)
                self.device.download(differences, changes)

    def write_difference(self, model: Memory, result: Memory) -> None:
        """Write the difference of the model and the replica that was trained from it."""
        before, changes = self.views(model), self.views(result)
        now = [entry.tensor.detach() for entry in (*self.trained, *self.statistics)]
        with torch.no_grad():
            if self.device is None:
                for old, new, change in zip(before.tensors, now, changes.tensors, strict=True):
                    torch.sub(old, new.float(), out=change)
            else:
                self.device.download(now, changes.tensors)
                self.device.finish()
                torch.sub(before.vector, changes.vector, out=changes.vector)

    def pull(self, memory: Memory, replica: Tensor, share: float) -> None:
        """Go on from a replica, moved towards the model by a share. One that is not finite starts over."""
        vector = self.views(memory).vector
        pulled = replica + share * (vector - replica)
        if not torch.isfinite(pulled).all():
            return
        self.copy_from(self.split(pulled))


def float_buffer(values: Tensor) -> "memoryview[float]":
    """Return the values of a tensor on a processor, as a buffer."""
    length = values.numel()
    memory = (ctypes.c_float * length).from_address(values.data_ptr())
    memory.tensor = values  # type: ignore[attr-defined] # keeps it alive
    return memoryview(memory).cast("B").cast("f")


def _statistics(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the buffers that training changes and checkpoints keep: running means and variances."""
    transient = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    return [
        (name, buffer) for name, buffer in model.named_buffers() if buffer.is_floating_point() and name not in transient
    ]


def _checksum(tensors: list[Tensor]) -> int:
    """Return a checksum of all bytes."""
    checksum = 0
    for tensor in tensors:
        values = tensor.detach().cpu().contiguous()
        size = values.numel() * values.element_size()
        if size:
            checksum = zlib.crc32((ctypes.c_char * size).from_address(values.data_ptr()), checksum)
    return checksum
