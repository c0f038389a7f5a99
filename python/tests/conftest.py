"""Scripts as users write them, and how the tests run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest


@dataclass
class Trained:
    """What a script printed, by rank, and how it ended."""

    code: int
    output: str
    errors: str

    def __str__(self) -> str:
        """Everything that was printed, for messages."""
        return f"exit code {self.code}\n{self.output}\n{self.errors}"

    def records(self, rank: int | None = None) -> list[dict[str, Any]]:
        """The JSON objects that a worker printed; None for a script that ran alone."""
        prefix = "" if rank is None else f"[{rank}] "
        lines = (line for line in self.output.splitlines() if line.startswith(prefix + "{"))
        return [json.loads(line.removeprefix(prefix)) for line in lines]

    def losses(self, rank: int | None = None) -> list[float]:
        """The losses that a worker printed."""
        return [record["loss"] for record in self.records(rank) if "loss" in record]


class Scripts:
    """Runs scripts in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        """Use this folder."""
        self.folder = folder
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def write(self, text: str) -> Path:
        """Write a script."""
        path = self.folder / "script.py"
        path.write_text(dedent(text))
        return path

    def alone(self, script: Path, *arguments: str) -> Trained:
        """Run a script without Paceline."""
        return self._run([sys.executable, str(script), *arguments])

    def command(self, *options: str, script: Path, arguments: tuple[str, ...] = ()) -> list[str]:
        """The command that trains a script."""
        return [sys.executable, "-m", "paceline", "train", *options, "--", sys.executable, str(script), *arguments]

    def train(self, *options: str, script: Path, arguments: tuple[str, ...] = ()) -> Trained:
        """Train a script under a scheme. Its run folder is `run` unless it resumes one."""
        folder = () if "--resume" in options else ("--out", "run")
        return self._run(self.command(*options, *folder, script=script, arguments=arguments))

    def _run(self, command: list[str]) -> Trained:
        done = subprocess.run(
            command, check=False, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=200
        )
        return Trained(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    """Scripts in a folder of the test's own."""
    return Scripts(tmp_path)
