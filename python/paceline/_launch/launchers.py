"""What launchers tell the processes that they start."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One process of a launcher, among all that it has started."""

    launcher: str
    rank: int
    size: int
    #: Whether all processes are known to be on one host.
    on_one_host: bool
    #: The host of rank 0, as the others reach it, and a port there for a store.
    host: str | None = None
    port: int | None = None
    #: Whether the launcher serves a store at that port.
    has_store: bool = False
    #: What no other launch on this host is called at the same time.
    name: str = ""
    #: What the launch is called when its processes are started again; None if they never are.
    run: str | None = None
    #: How often they were, as far as the launcher tells.
    restarts: int = 0


def find_launch(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """Find out whether this process was started by a launcher. The innermost one counts."""
    for read in (_torchrun, _mpirun, _srun, _variables):
        launch = read(environment)
        if launch is None:
            continue
        if not launch.rank < launch.size:
            message = f"{launch.launcher} gives this process rank {launch.rank} of {launch.size}: expected a lower rank"
            raise InputError(message)
        return launch
    return None


def _torchrun(environment: Mapping[str, str]) -> Launch | None:
    run = environment.get("TORCHELASTIC_RUN_ID")
    if run is None or not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
        return None
    size = _whole(environment, "WORLD_SIZE")
    # That of a run which the user has not named.
    if run in ("", "none"):
        run = f"{socket.gethostname()}-{_parent()}"
    return Launch(
        launcher="torchrun",
        rank=_whole(environment, "RANK"),
        size=size,
        on_one_host=environment.get("LOCAL_WORLD_SIZE") == str(size),
        host=environment["MASTER_ADDR"],
        port=_whole(environment, "MASTER_PORT"),
        has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        name=f"torchrun-{run}",
        run=f"torchrun {run}",
        restarts=_whole(environment, "TORCHELASTIC_RESTART_COUNT", 0),
    )


def _mpirun(environment: Mapping[str, str]) -> Launch | None:
    if "OMPI_COMM_WORLD_RANK" in environment:
        names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
    elif "PMI_RANK" in environment and not _is_pmi_of_slurm(environment):
        names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")
    else:
        return None
    rank, size, local = names
    return Launch(
        launcher="mpirun",
        rank=_whole(environment, rank),
        size=_whole(environment, size),
        on_one_host=environment.get(local) == environment.get(size),
        host=environment.get("MASTER_ADDR"),
        port=_whole(environment, "MASTER_PORT") if "MASTER_PORT" in environment else None,
        name=f"mpirun-{environment.get('PMIX_NAMESPACE') or _parent()}",
    )


def _is_pmi_of_slurm(environment: Mapping[str, str]) -> bool:
    """Whether srun has set the variables of PMI. An mpirun that srun starts on every host has other processes."""
    return "SLURM_STEP_ID" in environment and environment.get("PMI_SIZE") == _slurm_size(environment)


def _slurm_size(environment: Mapping[str, str]) -> str | None:
    return environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS"))


def _srun(environment: Mapping[str, str]) -> Launch | None:
    # A batch script has a rank too, but is no step.
    if not {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_JOB_ID"} <= environment.keys():
        return None
    size = _slurm_size(environment)
    if size is None:
        return None
    job, step = _whole(environment, "SLURM_JOB_ID"), _whole(environment, "SLURM_STEP_ID")
    hosts = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST", ""))
    host = environment.get("MASTER_ADDR") or _first_host(hosts) or environment.get("SLURM_LAUNCH_NODE_IPADDR")
    return Launch(
        launcher="srun",
        rank=_whole(environment, "SLURM_PROCID"),
        size=_whole({"SLURM_STEP_NUM_TASKS": size}, "SLURM_STEP_NUM_TASKS"),
        on_one_host=environment.get("SLURM_STEP_NUM_NODES", environment.get("SLURM_JOB_NUM_NODES")) == "1",
        host=host,
        # Below the ports that systems give to clients.
        port=_whole(environment, "MASTER_PORT", 20_000 + (job * 10 + step) % 10_000),
        name=f"srun-{job}.{step}",
        run=f"srun {environment.get('SLURM_CLUSTER_NAME', 'slurm')}-{job}.{step}",
        restarts=_whole(environment, "SLURM_RESTART_COUNT", 0),
    )


def _first_host(hosts: str) -> str | None:
    """Return the first host of a list such as `node[03-05,7],other`."""
    found = re.match(r"([^,\[]+)(?:\[(\w+)[^]]*\]([^,]*))?", hosts)
    return found and "".join(part or "" for part in found.groups())


def _variables(environment: Mapping[str, str]) -> Launch | None:
    """Read the variables that many launchers set, and PyTorch reads."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
        return None
    return Launch(
        launcher="the launcher",
        rank=_whole(environment, "RANK"),
        size=_whole(environment, "WORLD_SIZE"),
        on_one_host=False,
        host=environment["MASTER_ADDR"],
        port=_whole(environment, "MASTER_PORT"),
    )


def _whole(environment: Mapping[str, str], variable: str, default: int | None = None) -> int:
    """Read a whole number."""
    text = environment.get(variable)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdecimal()):
        what = "is not set" if text is None else f"is '{text}'"
        message = f"{variable} {what}: expected a whole number"
        raise InputError(message)
    return int(text)


def _parent() -> str:
    """Return what no other parent process of this host is called: its number and when it started."""
    number = os.getppid()
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return f"{number}-{fields[19]}"
