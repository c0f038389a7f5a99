"""The server of a launch, a child of rank 0."""

import atexit
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from paceline._launch.launchers import Launch
from paceline._launch.resumption import names_of, resumption
from paceline.errors import InputError, RunError

#: The options of `paceline serve`, as the user gives them.
OPTIONS = "PACELINE_OPTIONS"

#: Options that follow from the launch.
_OWN = ("--script", "--workers", "--listen", "--keys", "--launch", "--parent", "--announce", "--standby")

#: The files of keys, which `paceline keys` makes.
_KEYS = ("certificate.pem", "token", "key.pem")

#: How long a server may take to end after it was told to, in seconds. It writes its last checkpoint.
_END_TIMEOUT = 60.0


class ServerFailedError(Exception):
    """The server has ended before it listened, and has said why."""

    def __init__(self, code: int) -> None:
        """Keep its exit code."""
        super().__init__(code)
        self.code = code


class LaunchedServer:
    """A process of `paceline serve --script`."""

    def __init__(self, launch: Launch, keys: Path | None, timeout: float, name: str, port: int = 0) -> None:
        """Start it, and wait until it listens. On one host without shards, only its own user can reach it.

        Processes on this host reach it by the name, others at the port; 0 takes a free one.
        """
        given = _given_options(launch)
        options = ["--workers", str(launch.size), "--listen", f"local:{name}"]
        if "--empty-timeout" not in names_of(given):
            options += ["--empty-timeout", f"{timeout:g}"]
        #: A folder with the keys of this run; None if there are none.
        self.keys: Path | None = None
        self._own_keys: Path | None = None
        #: Another process of the script, which evaluates the model.
        self._evaluator: subprocess.Popen[bytes] | None = None
        if not launch.on_one_host or "--shards" in names_of(given):
            host = "127.0.0.1" if launch.on_one_host else "[::]" if ":" in (launch.host or "") else "0.0.0.0"
            if keys is None:
                keys = self._own_keys = make_keys()
            self.keys = keys
            options += ["--listen", f"{host}:{port}", "--keys", str(keys)]
        if launch.run is not None:
            options += ["--launch", launch.run]
            options += resumption(launch, given, timeout)
        self._process, announced = _start([*options, *given], timeout)
        if announced is None:
            code = self.end()
            raise ServerFailedError(code if code > 0 else 1)
        #: What it has said of itself.
        self.announced = announced
        if announced["has_shards"] and self.keys is None:
            self.end()
            message = f"the run has shards: expected --shards in {OPTIONS} itself, not in its --config"
            raise InputError(message)

    @property
    def local_address(self) -> str:
        """Where processes on this host join, by shared memory."""
        return str(self.announced["addresses"][0])

    @property
    def port(self) -> int | None:
        """Where processes on all hosts join."""
        _, *others = self.announced["addresses"]
        return int(others[0].rpartition(":")[2]) if others else None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, if it has ended; 128 and the number of the signal that ended it."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def start_evaluator(self, workers: int) -> None:
        """Start this script once more, as the process that evaluates the model."""
        work = ["work", "--parent", str(os.getpid()), "--join", self.local_address, "--workers", str(workers)]
        command = [*_paceline(*work, "--seed", str(self.announced["seed"]), "--evaluate", "--"), *sys.orig_argv]
        environment = {**os.environ, "PACELINE_FOLDER": self.announced["folder"]}
        # No process group of the script counts it.
        for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            environment.pop(variable, None)
        self._evaluator = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, process_group=0)

    def remove_keys(self) -> None:
        """Remove the keys that were made for this run: the server has read them."""
        if self._own_keys is not None:
            shutil.rmtree(self._own_keys, ignore_errors=True)

    def wait(self) -> int:
        """Wait until the run has ended. Return the exit code."""
        try:
            self._process.wait()
        except KeyboardInterrupt:
            return self.end()
        return self._clean()

    def end(self) -> int:
        """End the run, and wait until its last checkpoint is written. Return the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        return self._clean()

    def _clean(self) -> int:
        if self._evaluator is not None:
            try:
                self._evaluator.wait(_END_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._evaluator.kill()
                self._evaluator.wait()
        self.remove_keys()
        code = self.exit_code
        assert code is not None
        return code


def make_keys() -> Path:
    """Make keys in a new folder that only this user can read."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-keys-"))
    made = subprocess.run(_paceline("keys", str(folder)), check=False, capture_output=True, text=True)
    if made.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        raise RunError(made.stderr.strip().removeprefix("error: "))
    return folder


def read_keys(folder: Path) -> dict[str, str]:
    """Read keys, to send them to other processes."""
    return {name: (folder / name).read_text() for name in _KEYS}


def write_keys(keys: dict[str, str]) -> Path:
    """Write keys to a new folder that only this user can read. It is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-keys-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, text in keys.items():
        (folder / name).write_text(text)
    return folder


def _paceline(*arguments: str) -> list[str]:
    # -P: a folder or file of the user that is called paceline is not this package.
    return [sys.executable, "-P", "-m", "paceline", *arguments]


def _given_options(launch: Launch) -> list[str]:
    """Read the user's options. The server checks those that it takes."""
    text = os.environ.get(OPTIONS, "")
    try:
        options = shlex.split(text)
    except ValueError as error:
        message = f"{OPTIONS} is {text!r}: {str(error).lower()}"
        raise InputError(message) from None
    for name in sorted(names_of(options) & set(_OWN)):
        message = f"{OPTIONS} has {name}, which follows from {launch.launcher}: leave it out"
        raise InputError(message)
    return options


def _start(options: list[str], timeout: float) -> tuple[subprocess.Popen[bytes], dict[str, Any] | None]:
    """Start the server, and return what it announces; None if it ends before."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as announcement:
        own = ("--parent", str(os.getpid()), "--announce", f"/dev/fd/{writer}")
        try:
            # Only rank 0 gets the signals of the launcher; the system ends the server with it.
            process = subprocess.Popen(
                _paceline("serve", "--script", *own, *options),
                stdin=subprocess.DEVNULL,
                pass_fds=[writer],
                process_group=0,
            )
        finally:
            os.close(writer)
        line = b""
        deadline = time.monotonic() + timeout
        while not line.endswith(b"\n"):
            if not select.select([announcement], [], [], max(0.0, deadline - time.monotonic()))[0]:
                process.kill()
                process.wait()
                message = f"the server has not listened for {timeout:g} s; PACELINE_JOIN_TIMEOUT=SECONDS waits longer"
                raise RunError(message)
            part = announcement.read(65_536)
            if not part:
                return process, None
            line += part
    announced: dict[str, Any] = json.loads(line)
    return process, announced
