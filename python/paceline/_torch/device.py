"""A device that a worker computes on: copies to and from it that do not wait, and its memory."""

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from paceline._paceline import Memory

#: cudaHostRegisterReadOnly: the device only reads the memory.
_READ_ONLY = 8


class Device:
    """Copies between the device and the memory that is shared with the server.

    On CUDA, that memory is registered, so that copies are fast and do not keep the processor waiting. Copies to the
    server have a stream of their own, beside the backward pass. On other devices copies wait.
    """

    def __init__(self, device: torch.device) -> None:
        """Use this device."""
        self.device = device
        self._is_cuda = device.type == "cuda"
        self._copies = torch.cuda.Stream(device) if self._is_cuda else None  # type: ignore[no-untyped-call]
        self._registered: dict[int, Memory] = {}
        #: The gradients that are being copied, as the backward pass made them.
        self._copied: dict[int, Tensor] = {}
        #: Whether gradients are copied as soon as they are there. That is in vain if the loop changes them, e.g. clips.
        self._copies_early = True

    def register(self, memory: Memory) -> None:
        """Let the device copy from and to a memory by itself. Where that is not possible, copies are slower."""
        if not self._is_cuda or memory.address in self._registered or len(memory) == 0:
            return
        # It stays mapped as long as it is registered.
        self._registered[memory.address] = memory
        flags = _READ_ONLY if memory.is_read_only else 0
        error = torch.cuda.cudart().cudaHostRegister(memory.address, 4 * len(memory), flags)  # type: ignore[no-untyped-call]
        if int(error) != 0:
            print(f"paceline: shared memory can't be registered with {self.device}: {error}", file=sys.stderr)
            self._forget_error()

    def _forget_error(self) -> None:
        """Let the next operation on the device find no error of an earlier one."""
        try:
            torch.zeros(1, device=self.device)
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            pass

    def upload(self, source: Tensor, target: Tensor) -> None:
        """Copy to the device. It is done when `finish` returns, if not before."""
        target.copy_(source, non_blocking=self._is_cuda)

    def download(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """Copy from the device what is computed by now. It is done when `finish` returns."""
        if self._copies is None:
            for source, target in zip(sources, targets, strict=True):
                target.copy_(source)
            return
        self._copies.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._copies):
            for source, target in zip(sources, targets, strict=True):
                target.copy_(source, non_blocking=True)

    def finish(self) -> None:
        """Wait until everything is copied: the server may have the memory."""
        if self._copies is not None:
            self._copies.wait_stream(torch.cuda.current_stream(self.device))
            self._copies.synchronize()
        self._copied.clear()

    def begin_gradient(self, index: int, gradient: Tensor, result: Tensor) -> None:
        """Begin to copy a gradient that the backward pass has just computed."""
        if self._copies_early:
            made = self._copied[index] = gradient.clone()
            self.download([made], [result])

    def finish_gradients(self, gradients: Sequence[Tensor | None], results: Sequence[Tensor]) -> None:
        """Copy the gradients that were not copied yet or have changed since. Write zeros where there are none."""
        there = {index: gradient for index, gradient in enumerate(gradients) if gradient is not None}
        early = {index: gradient for index, gradient in there.items() if index in self._copied}
        if self._are_changed(early):
            self._copies_early = False
            early = {}
        late = there.keys() - early.keys()
        self.download([there[index] for index in late], [results[index] for index in late])
        if len(there) < len(results):
            # The copy of one that was dropped may be under way.
            self.finish()
            for index, result in enumerate(results):
                if index not in there:
                    result.zero_()

    def _are_changed(self, gradients: dict[int, Tensor]) -> bool:
        """Whether the loop has changed gradients since the backward pass made them.

        The versions of the tensors don't tell: a change of `parameter.grad.data` does not count there.
        """
        if not gradients:
            return False
        now = torch.cat([gradient.detach().reshape(-1) for gradient in gradients.values()])
        made = torch.cat([self._copied[index].reshape(-1) for index in gradients])
        # By bytes, so that a value that is not a number equals itself.
        return not torch.equal(now.view(torch.uint8), made.view(torch.uint8))

    # --- memory ---

    def begin_measuring(self) -> None:
        """Measure from now on how much of its memory is needed."""
        if self._is_cuda:
            torch.cuda.reset_peak_memory_stats(self.device)

    def needed_memory(self) -> float | None:
        """Return the share of its memory that was needed at most, with what others have, 0 to 1."""
        if not self._is_cuda:
            return None
        free, total = torch.cuda.mem_get_info(self.device)
        of_others = total - free - torch.cuda.memory_reserved(self.device)
        return min(max((of_others + torch.cuda.max_memory_allocated(self.device)) / total, 0.0), 1.0)


def is_host(device: torch.device) -> bool:
    """Whether tensors on it can be in memory that the server shares."""
    return device.type == "cpu"
