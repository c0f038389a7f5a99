"""Sums over several processes, by torch.distributed. No other file knows it."""

import ctypes
import io
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from paceline._paceline import Group

#: How long processes may take to connect to each other once all are ready to.
_CONNECT_TIMEOUT = timedelta(seconds=10)
#: How long an operation may wait: for the slowest worker. Whoever is gone ends it, by another group.
_WAIT_TIMEOUT = timedelta(days=30)
#: What the members of a group may agree on.
_CONNECT, _GIVE_UP = "connect", "give up"
#: How long to wait before looking again whether all are there, in seconds.
_PAUSE = 0.002


class CollectiveError(Exception):
    """The processes of a group can't reach each other."""


class Collective:
    """The group that this process is a member of.

    A group whose member is gone can't be stopped: operations of the others may wait for its part for ever. So it is
    left as it is, with what it waits for, and the next one is formed beside it.
    """

    def __init__(self, host: str, port: int, listener: int, device: torch.device) -> None:
        """Let others find this process at this address, where the file descriptor listens."""
        self._host = host
        self._device = device
        self._own = (host, port)
        self._stores = {
            self._own: TCPStore(
                host,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=_CONNECT_TIMEOUT,
                master_listen_fd=listener,
                use_libuv=True,
            )
        }
        self._group: Any = None
        self._uses_nccl = False
        #: The operation that was begun last, and whether it is over and nobody uses its values any more.
        self._work: dist.Work | None = None
        self._is_over = threading.Event()

    def leave(self) -> bool:
        """Leave the group. Return whether an operation still has its values, and may change them."""
        group, work = self._group, self._work
        self._group, self._work = None, None
        if group is None or work is None:
            return False
        if not work.is_completed() and self._uses_nccl:
            group.abort()
        elif not work.is_completed():
            # Its end would wait for the operation.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
        return not self._is_over.is_set()

    def form(self, group: Group, proposal: float, is_outdated: Callable[[float], bool]) -> float | None:
        """Meet the other members, and form the group with them. Return the proposal of the first one.

        `is_outdated` waits for some seconds and says whether another group is to be formed. If that is so for one of
        them before all are ready, there is no group and no answer.
        """
        if group.size > 1:
            try:
                store = PrefixStore(str(group.number), self._store(*group.meeting))
                if group.position == 0:
                    store.set("proposal", repr(proposal))
                store.set(f"place {group.position}", self._place())
                places = [f"place {position}" for position in range(group.size)]
                outcome = _CONNECT
                while not store.check(places) and outcome == _CONNECT:
                    outcome = _GIVE_UP if is_outdated(_PAUSE) else _CONNECT
                # All connect, or none: one alone would wait for the others.
                if store.compare_set("outcome", "", outcome).decode() == _GIVE_UP:
                    return None
                proposal = float(store.get("proposal"))
                self._connect(store, group, [store.get(place).decode() for place in places])
            except RuntimeError as error:
                raise CollectiveError(str(error)) from error
        return proposal

    def _store(self, host: str, port: int) -> Store:
        """Return the store of the process that is reached at this address."""
        if (host, port) not in self._stores:
            self._stores = {
                self._own: self._stores[self._own],
                (host, port): TCPStore(
                    host, port, is_master=False, wait_for_workers=False, timeout=_CONNECT_TIMEOUT, use_libuv=True
                ),
            }
        return self._stores[(host, port)]

    def _place(self) -> str:
        """Say which device this process has, if NCCL can use it."""
        if self._device.type != "cuda" or not dist.is_nccl_available():
            return ""
        return f"{self._host} {torch.cuda.get_device_properties(self._device).uuid}"

    def _connect(self, store: Store, group: Group, places: list[str]) -> None:
        # NCCL takes one process per card, and nothing else.
        self._uses_nccl = all(places) and len(set(places)) == len(places)
        if self._uses_nccl:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = _WAIT_TIMEOUT
            self._group = dist.ProcessGroupNCCL(store, group.position, group.size, options)
            return
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = _CONNECT_TIMEOUT
        options._threads = 2
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._host)]
        self._group = dist.ProcessGroupGloo(store, group.position, group.size, options)

    def sum(self, values: Tensor, then: Callable[[str | None], None]) -> None:
        """Begin to add up the values of all members, in place.

        `then` is called at the end, in any thread, with what went wrong if something did.
        """
        if self._group is None:
            then(None)
            return
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM
        options.timeout = _WAIT_TIMEOUT
        copy = values.cpu() if values.is_cuda and not self._uses_nccl else values
        is_over = self._is_over = threading.Event()

        def finish(future: "torch.futures.Future[object]") -> None:
            reason = None
            try:
                future.value()
                if copy is not values:
                    values.copy_(copy)
            except RuntimeError as error:
                reason = str(error)
            then(reason)
            is_over.set()

        try:
            self._work = self._group.allreduce([copy], options)
            self._work.get_future().add_done_callback(finish)
        except RuntimeError as error:
            then(str(error))

    def share(self, state: Any, group: Group, is_outdated: Callable[[float], bool]) -> Any:  # noqa: ANN401 any state
        """Send a state to all members, or receive that of `group.source`. `is_outdated` is as for `form`."""
        assert group.source is not None
        is_source = group.position == group.source
        content = torch.empty(0, dtype=torch.uint8)
        if is_source:
            written = io.BytesIO()
            torch.save(state, written)
            content = torch.frombuffer(written.getbuffer(), dtype=torch.uint8)
        length = torch.tensor([len(content)])
        self._broadcast(length, group.source, is_outdated)
        content = content if is_source else torch.empty(int(length), dtype=torch.uint8)
        self._broadcast(content, group.source, is_outdated)
        if is_source:
            return state
        return torch.load(io.BytesIO(ctypes.string_at(content.data_ptr(), len(content))), weights_only=True)

    def _broadcast(self, values: Tensor, source: int, is_outdated: Callable[[float], bool]) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = source
        on_device = values.to(self._device) if self._uses_nccl else values
        try:
            self._work = self._group.broadcast([on_device], options)
            while not self._work.is_completed():
                if is_outdated(_PAUSE):
                    raise CollectiveError("another group is formed")
            self._work.wait()
        except RuntimeError as error:
            raise CollectiveError(str(error)) from error
        if on_device is not values:
            values.copy_(on_device)
