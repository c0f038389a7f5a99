"""Runs scripts that train with the trainers of other frameworks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any


def printed(folder: Path, command: list[str]) -> list[dict[str, Any]]:
    """What the processes of a command print at the end."""
    ended = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in re.findall(r"^(?:\[\d+\] )?({.*\"sum\".*})$", ended.stdout, re.MULTILINE)]


def train(folder: Path, workers: int, script: list[str], *options: str) -> list[dict[str, Any]]:
    settings = ["--workers", str(workers), "--until", "iterations=100000", "--out", str(folder / "run"), *options]
    results = printed(folder, [sys.executable, "-m", "paceline", "train", *settings, "--", *script])
    assert len(results) == workers
    return results
