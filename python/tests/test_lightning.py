"""Lightning's Trainer as a worker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from trainers import printed, train

pytest.importorskip("lightning", reason="needs `pip install lightning`")

SCRIPT = [sys.executable, str(Path(__file__).with_name("lightning_script.py"))]


def test_one_worker_trains_as_alone(tmp_path: Path) -> None:
    (alone,) = printed(tmp_path, SCRIPT)
    (worker,) = train(tmp_path, 1, SCRIPT)
    # 8 batches in each of 3 epochs, a validation after each, and one before.
    assert len(alone["losses"]) == 24
    assert alone["validations"] == 4
    assert worker == alone


def test_two_workers_share_epochs_and_schedules(tmp_path: Path) -> None:
    first, second = train(tmp_path, 2, SCRIPT)
    assert len(first["losses"]) == len(second["losses"]) == 12
    assert first["losses"] != second["losses"]
    assert first["rates"] == second["rates"]
    assert first["rates"][-1] < 0.01
    assert first["validations"] == second["validations"] == 4
    assert first["sum"] == second["sum"]
    # One worker writes.
    assert [folder.name for folder in (tmp_path / "lightning_logs").iterdir()] == ["version_0"]


def test_a_fast_worker_does_most_of_an_epoch(tmp_path: Path) -> None:
    results = train(tmp_path, 2, SCRIPT, "--scheme", "asp", "--emulate", "0=8")
    assert sum(len(worker["losses"]) for worker in results) * 8 >= 3 * 60
    assert max(len(worker["losses"]) for worker in results) > 12
