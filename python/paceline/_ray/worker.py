"""What the process of a worker does on Ray."""

import os

from paceline._launch.launched import host_identity
from paceline._launch.server import write_keys
from paceline._ray.server import ServerPlace
from paceline.run import RUN_IS_OVER


def miss_run() -> None:
    """Tell this process that its run is over."""
    os.environ[RUN_IS_OVER] = "1"


def take_part(place: ServerPlace, rank: int | None, workers: int, keys: dict[str, str]) -> None:
    """Tell this process which run `paceline.join` joins, to train or, without a rank, to evaluate.

    It shares memory with the server if they are on one host.
    """
    is_near = place.identity == host_identity()
    environment = {
        "PACELINE_SERVER": place.local_address if is_near else f"{place.host}:{place.port}",
        "PACELINE_WORKERS": str(workers),
        "PACELINE_SEED": str(place.seed),
    }
    environment |= {"PACELINE_ROLE": "evaluator"} if rank is None else {"PACELINE_RANK": str(rank)}
    # Another host has it only if they share a file system.
    if is_near or place.folder.exists():
        environment["PACELINE_FOLDER"] = str(place.folder)
    if not is_near:
        environment["PACELINE_KEYS"] = str(write_keys(keys))
    os.environ.update(environment)
