"""The Trainer of Hugging Face as a worker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from trainers import printed, train

pytest.importorskip("transformers", reason="needs `pip install transformers accelerate`")
pytest.importorskip("accelerate", reason="needs `pip install transformers accelerate`")

HERE = Path(__file__).parent


def script(optimizer: str, steps: int = -1) -> list[str]:
    return [sys.executable, str(HERE / "transformers_script.py"), optimizer, str(steps)]


def test_one_worker_trains_as_alone(tmp_path: Path) -> None:
    (alone,) = printed(tmp_path, script("sgd"))
    (worker,) = train(tmp_path, 1, script("sgd"))
    assert len(alone["losses"]) == len(worker["losses"]) == 16
    assert worker["rates"] == alone["rates"]
    assert worker["evaluations"] == alone["evaluations"] == 2
    # Later epochs are shuffled in another order.
    assert worker["losses"][:8] == alone["losses"][:8]


def test_two_workers_share_epochs_and_schedules(tmp_path: Path) -> None:
    first, second = train(tmp_path, 2, script("adamw_torch"))
    assert len(first["losses"]) == len(second["losses"]) == 8
    assert first["losses"] != second["losses"]
    assert first["rates"] == second["rates"]
    assert first["rates"][-1] < 0.002
    assert first["evaluations"] == second["evaluations"] == 2
    assert first["sum"] == second["sum"]
    # One worker saves.
    assert sorted(folder.name for folder in (tmp_path / "trained").iterdir()) == ["checkpoint-4", "checkpoint-8"]


def test_all_workers_together_make_the_steps(tmp_path: Path) -> None:
    results = train(tmp_path, 2, script("sgd", 20), "--scheme", "asp", "--emulate", "0=8")
    # Each may have one more in flight.
    assert 20 <= sum(len(worker["losses"]) for worker in results) <= 22
