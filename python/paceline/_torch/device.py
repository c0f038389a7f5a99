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
        #: Address and version of the gradients that are being copied, as they were then.
        self._copied: dict[int, tuple[int, int]] = {}
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

    def begin_gradient(self, index: int, gradient: Tensor, result: Tensor) -> None:
        """Begin to copy a gradient that the backward pass has just computed."""
        if self._copies_early:
            self._copied[index] = (gradient.data_ptr(), gradient._version)
            self.download([gradient], [result])

    def finish_gradients(self, gradients: Sequence[Tensor | None], results: Sequence[Tensor]) -> None:
        """Copy the gradients that were not copied yet or have changed since. Write zeros where there are none."""
        copied, self._copied = self._copied, {}
        late: list[tuple[Tensor, Tensor]] = []
        missing: list[Tensor] = []
        for index, (gradient, result) in enumerate(zip(gradients, results, strict=True)):
            if gradient is None:
                missing.append(result)
            elif copied.get(index) != (gradient.data_ptr(), gradient._version):
                self._copies_early = self._copies_early and index not in copied
                late.append((gradient, result))
        self.download([gradient for gradient, _ in late], [result for _, result in late])
        if missing:
            # The copy of one that was dropped may be under way.
            self.finish()
            for result in missing:
                result.zero_()

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
