"""The server of a run on Ray: an actor, whose child is `paceline serve`."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from paceline._launch.launched import host_identity
from paceline._launch.launchers import Launch
from paceline._launch.server import OPTIONS, LaunchedServer, ServerFailedError, make_keys, read_keys, write_keys
from paceline.errors import InputError, RunError


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """What a server is started with, and started again if its process dies."""

    launch: Launch
    #: Those of `paceline serve`, as the user writes them.
    options: str
    #: The contents of the files of the keys.
    keys: dict[str, str]
    timeout: float
    #: Where it listened before; 0 if it has not.
    port: int = 0


@dataclass(frozen=True, kw_only=True)
class ServerPlace:
    """Where a server is."""

    local_address: str
    host: str
    port: int
    folder: Path
    seed: int
    #: What only processes have that can share memory with it.
    identity: list[str]
    #: Whether one more process is to evaluate the model.
    takes_evaluator: bool


def new_keys() -> dict[str, str]:
    """Make keys for a run."""
    folder = make_keys()
    try:
        return read_keys(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How a run has ended."""

    #: The exit code of `paceline serve`.
    code: int
    #: The summary of the run; None if it has none.
    summary: dict[str, Any] | None
    folder: Path


@ray.remote(num_cpus=0, max_concurrency=4)
class ServerActor:
    """Holds the server. Methods run beside one another."""

    def __init__(self, spec: ServerSpec) -> None:
        """Start the server, and wait until it listens."""
        os.environ[OPTIONS] = spec.options
        self._keys = write_keys(spec.keys)
        try:
            # Its workers find it there again if it is started once more.
            name = f"paceline-{spec.launch.name}"
            self._server = LaunchedServer(spec.launch, self._keys, spec.timeout, name, spec.port)
        except ServerFailedError as error:
            message = f"paceline serve has ended with exit code {error.code}; its output says why"
            raise InputError(message) from None

    def place(self) -> ServerPlace:
        """Say where the server is."""
        assert self._server.port is not None
        return ServerPlace(
            local_address=self._server.local_address,
            host=ray.util.get_node_ip_address(),
            port=self._server.port,
            folder=Path(self._server.announced["folder"]),
            seed=self._server.announced["seed"],
            identity=host_identity(),
            takes_evaluator=self._server.announced["takes_evaluator"],
        )

    def wait(self) -> RunEnd:
        """Wait for the end of the run."""
        return self._ended(self._server.wait())

    def end(self) -> RunEnd:
        """End the run."""
        return self._ended(self._server.end())

    def _ended(self, code: int) -> RunEnd:
        shutil.rmtree(self._keys, ignore_errors=True)
        folder = Path(self._server.announced["folder"])
        try:
            summary = json.loads((folder / "summary.json").read_text())
        except (OSError, ValueError):
            summary = None
        return RunEnd(code=code, summary=summary, folder=folder)


def start_server(spec: ServerSpec) -> "tuple[Any, ServerPlace]":
    """Start a server on this node, where its folder is. Return its actor and its place."""
    here = NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)
    actor = ServerActor.options(scheduling_strategy=here).remote(spec)  # type: ignore[attr-defined] # as Ray makes it
    try:
        return actor, ray.get(actor.place.remote())
    except ray.exceptions.RayActorError as error:
        message = str(error).strip().splitlines()[-1]
        raise RunError(f"the server of the run can't start: {message}") from None
