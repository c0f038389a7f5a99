"""Takes part in a run whose processes a launcher has started: rank 0 serves, all others find it."""

import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from paceline._launch.launchers import Launch
from paceline._launch.rendezvous import Rendezvous
from paceline._launch.resumption import launch_of
from paceline._launch.server import LaunchedServer, ServerFailedError, read_keys, write_keys
from paceline._membership import Membership, join_timeout
from paceline.errors import InputError, RunError

#: A server on the same host that is lost does not come back.
_LOCAL_TIMEOUT = 5.0


def join_launch(launch: Launch) -> Membership:
    """Start the server, or find it."""
    given = os.environ.get("PACELINE_KEYS")
    keys = None if given is None else Path(given).absolute()
    return _serve(launch, keys) if launch.rank == 0 else _find(launch, keys)


def _serve(launch: Launch, keys: Path | None) -> Membership:
    if threading.current_thread() is not threading.main_thread():
        message = f"paceline.join() was called by a thread: under {launch.launcher}, the main thread of rank 0 calls it"
        raise InputError(message)
    timeout = join_timeout()
    rendezvous = Rendezvous(launch, timeout)
    try:
        server = LaunchedServer(launch, keys, timeout, f"paceline-{os.getpid()}")
    except (ServerFailedError, InputError, RunError) as error:
        code = error.code if isinstance(error, ServerFailedError) else 2 if isinstance(error, InputError) else 1
        rendezvous.answer({"failed": code})
        if isinstance(error, ServerFailedError):
            raise SystemExit(code) from None
        raise
    try:
        # The keys of the user are on every host already.
        own = server.keys if keys is None else None
        answer = {
            "local": server.local_address,
            "port": server.port,
            "host": host_identity(),
            "folder": server.announced["folder"],
            "seed": server.announced["seed"],
            "has_shards": server.announced["has_shards"],
            "keys": own and read_keys(own),
        }
        missing = rendezvous.answer(answer)
        if missing:
            ranks = "rank" + ("s " if missing[1:] else " ") + ", ".join(map(str, missing))
            message = (
                f"{ranks} of {launch.launcher} did not call paceline.join() within {timeout:g} s; "
                "PACELINE_JOIN_TIMEOUT=SECONDS waits longer"
            )
            raise RunError(message)
        # A shard in this process reads them later.
        if not answer["has_shards"]:
            server.remove_keys()
        if server.announced["takes_evaluator"]:
            server.start_evaluator(launch.size)
        return _membership(launch, answer, server.keys, rendezvous, server)
    except BaseException:
        server.end()
        raise


def _find(launch: Launch, keys: Path | None) -> Membership:
    rendezvous = Rendezvous(launch, join_timeout())
    answer = rendezvous.ask()
    if "failed" in answer:
        print("paceline: rank 0 can't serve, and says why", file=sys.stderr)
        raise SystemExit(answer["failed"])
    return _membership(launch, answer, keys, rendezvous)


def _membership(
    launch: Launch,
    answer: dict[str, Any],
    keys: Path | None,
    rendezvous: Rendezvous,
    server: LaunchedServer | None = None,
) -> Membership:
    is_near, port, folder = answer["host"] == host_identity(), answer["port"], Path(answer["folder"])
    # Other hosts reach a shard by the address by which its process reaches the server.
    is_local = port is None or (is_near and not answer["has_shards"])
    host = "127.0.0.1" if launch.on_one_host else launch.host or ""
    timeout = join_timeout()
    own_keys = None if is_local or keys is not None else write_keys(answer["keys"])

    def await_others() -> None:
        # A run that goes on would not wait for the last ones. Its server has not served before.
        rendezvous.await_others(f"joined/{answer['local']}")
        # A shard in this process reads them later.
        if own_keys is not None and not answer["has_shards"]:
            shutil.rmtree(own_keys, ignore_errors=True)

    return Membership(
        server=answer["local"] if is_local else f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        rank=launch.rank,
        workers=launch.size,
        seed=answer["seed"],
        join_timeout=min(timeout, _LOCAL_TIMEOUT) if is_local else timeout,
        keys=None if is_local else keys or own_keys,
        folder=folder,
        # Another host has it only if they share a file system.
        sees_folder=lambda: _is_own(folder) and (is_near or launch_of(folder) == (launch.run or "")),
        await_others=await_others,
        own_server=server,
    )


def _is_own(folder: Path) -> bool:
    """Whether a folder belongs to this user: states in it are loaded, and so are trusted."""
    try:
        return folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def host_identity() -> list[str]:
    """Return what only processes have that can share memory: the machine, its network, the user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return [boot, str(Path("/proc/self/ns/net").stat().st_ino), str(os.getuid())]
