"""A backend for Ray Train, whose workers have equal resources and are replaced one by one."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.execution.worker_group import ReplicaGroup

from paceline._ray.actors import spec_of
from paceline._ray.server import ServerPlace, ServerSpec, start_server
from paceline._ray.worker import miss_run, take_part
from paceline.errors import InputError
from paceline.run import leaving

#: How long a run may take to end when its workers have, in seconds.
_END_TIMEOUT = 30.0


@dataclass
class Config(BackendConfig):  # type: ignore[misc] # Ray has no types
    """A run of Paceline as the backend of a `DataParallelTrainer`.

    Example:
        trainer = DataParallelTrainer(train, backend_config=paceline.ray.Config(scheme="lb-bsp"), scaling_config=…)

    """

    scheme: str = "bsp"
    #: More options of `paceline serve`.
    options: str = ""
    #: The run folder, on the node of Ray Train's controller; by default a new one in runs/.
    folder: Path | None = None
    #: What the folder is relative to.
    base: Path = field(default_factory=Path.cwd)

    @property
    def backend_cls(self) -> "type[_Backend]":
        """What Ray Train calls."""
        return _Backend

    @property
    def train_func_context(self) -> "Callable[[], AbstractContextManager[None]]":
        """What Ray Train puts around the function of a worker."""
        return leaving


def _take_part(place: ServerPlace, workers: int, keys: dict[str, str]) -> None:
    take_part(place, ray.train.get_context().get_world_rank(), workers, keys)


class _Backend(Backend):  # type: ignore[misc] # Ray has no types
    #: Every worker is replaced alone.
    has_replica_groups = True

    def __init__(self) -> None:
        self._server: Any = None
        self._served: Any = None
        self._place: ServerPlace | None = None
        self._spec: ServerSpec | None = None

    def on_training_start(self, worker_group: Any, backend_config: BackendConfig) -> None:  # noqa: ANN401 Ray's
        """Let the workers of a group join the run."""
        assert isinstance(backend_config, Config)
        if not isinstance(worker_group, ReplicaGroup):
            self._serve(backend_config, len(worker_group))
        elif ray.wait([self._served], timeout=0)[0]:
            worker_group.execute(miss_run)
            return
        assert self._spec is not None
        worker_group.execute(_take_part, self._place, self._spec.launch.size, self._spec.keys)

    def _serve(self, config: Config, workers: int) -> None:
        if self._spec is None:
            spec = spec_of(config.scheme, config.options, workers, config.folder, config.base)
        else:
            # All workers were replaced: the run goes on.
            spec = replace(self._spec, launch=replace(self._spec.launch, size=workers, restarts=1))
        self._server, self._place = start_server(spec)
        if self._place.takes_evaluator:
            ray.get(self._server.end.remote())
            message = "Ray Train has no process that evaluates: expected no --evaluate-every and no goal of accuracy"
            raise InputError(message)
        self._spec, self._served = replace(spec, port=self._place.port), self._server.wait.remote()
        print(f"paceline: run folder: {self._place.folder}")

    def on_shutdown(self, worker_group: Any, backend_config: BackendConfig) -> None:  # noqa: ANN401 Ray's
        """End the run with its workers."""
        if isinstance(worker_group, ReplicaGroup) or self._server is None:
            return
        ready, _ = ray.wait([self._served], timeout=_END_TIMEOUT)
        if not ready:
            ray.get(self._server.end.remote())
        ray.kill(self._server)
        self._server = None
