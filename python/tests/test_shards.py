"""Scripts on a server whose parameters are in shards, in the processes of the scripts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from test_training import LOOP

pytest.importorskip("torch")

if TYPE_CHECKING:
    from conftest import Scripts

#: A loop over a model of which every process of two holds two parts. Such a part has at least 65,536 values.
WIDE = (
    LOOP.replace("32)", "12000)").replace("(32,", "(12000,").replace("weight.flatten()[:4]", "weight.flatten()[::1000]")
)


def served(scripts: Scripts, *options: str, arguments: tuple[str, ...], workers: int = 2) -> list[list[dict[str, Any]]]:
    """What the workers of a script print that join a server by themselves."""
    script = scripts.write(WIDE)
    python = [sys.executable, "-m", "paceline"]
    serve = [*python, "serve", "--script", "--listen", "127.0.0.1:0", "--workers", str(workers), "--out", "run"]

    def start(command: list[str]) -> subprocess.Popen[str]:
        pipe, environment = subprocess.PIPE, scripts.environment
        return subprocess.Popen(command, cwd=scripts.folder, env=environment, text=True, stdout=pipe, stderr=pipe)

    with start([*serve, *options]) as server:
        assert server.stderr is not None
        found = re.search(r"waiting for workers with a model on (\S+)", server.stderr.readline())
        assert found is not None
        join = [*python, "work", "--join", found[1], "--workers", str(workers)]
        commands = [
            [*join, "--rank", str(rank), "--", sys.executable, str(script), *arguments] for rank in range(workers)
        ]
        processes = [start(command) for command in commands]
        try:
            ends = [process.communicate(timeout=200) for process in processes]
            errors = server.communicate(timeout=60)[1]
        finally:
            for process in (server, *processes):
                process.kill()
    assert [process.returncode for process in (server, *processes)] == [0] * (workers + 1), (errors, ends)
    if "--shards" in options:
        assert "the parameters are in 2 shards" in errors
    return [[json.loads(line) for line in output.splitlines() if line.startswith("{")] for output, _ in ends]


@pytest.mark.parametrize(
    "arguments", [("clip=1e9",), ("clip=0.1",), ("accumulate=3", "clip=1e9"), ("norm", "clip=1e9")]
)
def test_shards_give_what_one_server_gives_to_the_last_bit(scripts: Scripts, arguments: tuple[str, ...]) -> None:
    arguments = ("samples=640", "epochs=3", *arguments)
    trained = scripts.train("--workers", "2", script=scripts.write(WIDE), arguments=arguments)
    assert trained.code == 0, str(trained)
    (scripts.folder / "run").rename(scripts.folder / "one")
    sharded = served(scripts, "--shards", "2", arguments=arguments)
    assert sharded == [trained.records(rank) for rank in range(2)]
