"""Workers as plain actors: each has resources of its own, and is replaced alone."""

import shlex
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from paceline._launch.launchers import Launch
from paceline._membership import join_timeout
from paceline._ray.server import RunEnd, ServerPlace, ServerSpec, new_keys, start_server
from paceline._ray.worker import take_part
from paceline.errors import InputError, RunError
from paceline.run import leaving

#: How long workers may take to end after their run, in seconds.
_END_TIMEOUT = 60.0

#: How long a server may take to end when no worker is left, in seconds.
_EMPTY_TIMEOUT = 10.0

#: How often the table of workers is looked at, in seconds: some may be added or removed meanwhile.
_LOOK = 0.5

Resources = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run has come to."""

    #: The run folder, on the node of the program that started the run.
    folder: Path
    #: The summary of the run, as in its summary.json.
    summary: dict[str, Any]
    #: What the function has returned, by the rank of the worker. Workers that were lost have returned nothing.
    returned: dict[int, Any]


@ray.remote
class WorkerActor:
    """One worker."""

    def train(
        self, train: Callable[[], Any], place: ServerPlace, rank: int | None, workers: int, keys: dict[str, str]
    ) -> Any:  # noqa: ANN401 the user's
        """Take part in the run with this function."""
        take_part(place, rank, workers, keys)
        with leaving():
            return train()


@dataclass
class _Worker:
    #: None for the one that evaluates the model.
    rank: int | None
    resources: Resources
    restarts: int
    actor: Any = None


def spec_of(scheme: str, options: str, workers: int, folder: Path | None, base: Path) -> ServerSpec:
    """Return what the server of a new run is started with. The folder is relative to `base`, by default a new one."""
    name = f"ray-{uuid.uuid4().hex[:8]}"
    launch = Launch(launcher="Ray", rank=0, size=workers, on_one_host=False, name=name, run=name)
    out = base / (folder or Path("runs") / name)
    # A server that is interrupted because its actor has died is started again.
    given = f"{shlex.join(['--scheme', scheme, '--out', str(out)])} --keep-workers {options}"
    return ServerSpec(launch=launch, options=given, keys=new_keys(), timeout=join_timeout())


class ActorRun:
    """A run whose workers are actors. `start` makes one."""

    def __init__(self, train: Callable[[], Any], spec: ServerSpec, workers: Sequence[Resources], restarts: int) -> None:
        """Use `paceline.ray.start`."""
        self._train, self._spec, self._restarts = train, spec, restarts
        self._returned: dict[int, Any] = {}
        #: Workers by what is awaited of them.
        self._running: dict[Any, _Worker] = {}
        self._planned = len(workers)
        self._next = 0
        self._serve()
        for resources in workers:
            self.add(resources)
        if self._place.takes_evaluator:
            self._start(_Worker(None, {}, restarts))

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._place.folder

    def add(self, resources: Resources) -> int:
        """Let one more worker join. Return its rank."""
        rank = self._next
        self._next += 1
        self._start(_Worker(rank, resources, self._restarts))
        return rank

    def remove(self, rank: int) -> None:
        """Let a worker go."""
        for awaited, worker in list(self._running.items()):
            if worker.rank == rank:
                del self._running[awaited]
                ray.kill(worker.actor)
                return
        ranks = sorted(one.rank for one in self._running.values() if one.rank is not None)
        message = f"no worker {rank} is running; expected one of {ranks}"
        raise InputError(message)

    def wait(self) -> Result:
        """Wait for the end of the run. A worker that dies is replaced, and so is the server."""
        end: RunEnd | None = None
        last = time.monotonic()
        try:
            while end is None:
                if any(worker.rank is not None for worker in self._running.values()):
                    last = time.monotonic()
                elif time.monotonic() > last + _EMPTY_TIMEOUT:
                    end = ray.get(self._server.end.remote())
                    break
                ready, _ = ray.wait([self._served, *self._running], timeout=_LOOK)
                for awaited in ready:
                    if awaited == self._served:
                        end = self._server_ended()
                    elif awaited in self._running:
                        self._worker_ended(awaited)
            running = list(self._running)
            if running:
                ray.wait(running, num_returns=len(running), timeout=_END_TIMEOUT)
            for awaited in running:
                self._worker_ended(awaited, is_over=True)
        finally:
            for worker in self._running.values():
                ray.kill(worker.actor)
            if end is None:
                ray.get(self._server.end.remote())
            ray.kill(self._server)
        if end.summary is None:
            message = f"the server of the run has ended with exit code {end.code}, and without a summary"
            raise RunError(message)
        return Result(folder=end.folder, summary=end.summary, returned=self._returned)

    def _serve(self) -> None:
        self._server, self._place = start_server(self._spec)
        # Workers find a server that is started again where it was.
        self._spec = replace(self._spec, port=self._place.port)
        self._served = self._server.wait.remote()

    def _start(self, worker: _Worker) -> None:
        worker.actor = WorkerActor.options(**worker.resources).remote()  # type: ignore[attr-defined] # as Ray makes it
        given = (self._train, self._place, worker.rank, self._planned, self._spec.keys)
        self._running[worker.actor.train.remote(*given)] = worker

    def _server_ended(self) -> RunEnd | None:
        try:
            ended: RunEnd = ray.get(self._served)
        except ray.exceptions.RayActorError:
            print("paceline: the server is lost; the run goes on from its last checkpoint", file=sys.stderr)
            self._serve()
            return None
        return ended

    def _worker_ended(self, awaited: Any, *, is_over: bool = False) -> None:  # noqa: ANN401 Ray's
        worker = self._running[awaited]
        try:
            returned = ray.get(awaited, timeout=0)
            if worker.rank is not None:
                self._returned[worker.rank] = returned
        except ray.exceptions.GetTimeoutError:
            # It stays in the table, and is killed.
            return
        except ray.exceptions.RayError as error:
            self._lost(worker, error, is_over=is_over)
        del self._running[awaited]
        ray.kill(worker.actor)

    def _lost(self, worker: _Worker, error: Exception, *, is_over: bool) -> None:
        name = "the evaluator" if worker.rank is None else f"worker {worker.rank}"
        cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else None
        reason = "its process has died" if cause is None else f"{type(cause).__name__}: {cause}".splitlines()[0]
        if is_over or isinstance(cause, InputError) or worker.restarts == 0:
            print(f"paceline: {name} is lost: {reason}", file=sys.stderr)
            return
        print(f"paceline: {name} is replaced: {reason}", file=sys.stderr)
        self._start(_Worker(worker.rank, worker.resources, worker.restarts - 1))
