"""Simulations, comparisons, run folders, schemes in Python, and recorded times."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.analysis import SimulateOptions

UNTIL = "iterations=30"
TIMES_ONLY: SimulateOptions = {"model": "none", "until": UNTIL}


class Backup(paceline.Scheme):
    """`backup:dispatch=push-wait`, in Python."""

    name = "python-backup"
    k = 3

    def __init__(self, setup: paceline.Setup) -> None:
        super().__init__(setup)
        self.arrived: list[tuple[int, int]] = []

    def on_joined(self, turn: paceline.Turn, worker: int) -> None:
        turn.assign(worker, self.setup.batch, "joined")

    def on_reported(self, turn: paceline.Turn, update: paceline.Update) -> None:
        if update.version == turn.version:
            self.arrived.append(update.task)
        else:
            turn.discard(update.task, "stale", value=turn.version - update.version)
        if len(self.arrived) >= self.k:
            turn.commit(self.arrived, "quorum")
            self.arrived = []
            for worker in turn.workers:
                turn.assign(worker, self.setup.batch, "new version")
        while (idle := turn.next_unsettled()) is not None:
            turn.hold(idle, "contributed")


class Broken(paceline.Scheme):
    def on_joined(self, turn: paceline.Turn, worker: int) -> None:
        turn.assign(worker, self.setup.batch, "joined")

    def on_reported(self, turn: paceline.Turn, update: paceline.Update) -> None:
        raise LookupError(f"worker {update.worker}")


def events(folder: Path) -> list[object]:
    """The event log without its header, and the decisions without their reasons."""
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()[1:]]

    def without_reasons(value: object) -> object:
        if isinstance(value, dict):
            return {key: without_reasons(part) for key, part in value.items() if key != "reason"}
        return [without_reasons(part) for part in value] if isinstance(value, list) else value

    return [without_reasons(line) for line in lines]


def test_a_simulation_returns_summary_metrics_and_worker_times() -> None:
    run = paceline.simulate(
        "backup:k=6", slow={0: 3}, data="digits:600,200", until="iterations=50", evaluate_every=6400
    )
    assert run.summary is not None
    assert (run.summary.scheme, run.summary.workers, run.summary.iterations) == ("backup:k=6", 8, 50)
    assert run.summary.reached
    assert isinstance(run.metrics["loss"], np.ndarray)
    assert list(run.metrics["iteration"]) == list(range(1, 51))
    assert set(run.metrics["waited_for"]) == {6}
    assert 0 < np.count_nonzero(~np.isnan(run.metrics["accuracy"])) < 50
    assert run.metrics["time"][-1] == run.summary.time
    assert run.reasons[0] == "6 of 8 gradients are in"
    assert list(run.worker_times["worker"]) == list(range(8))
    assert run.metrics.to_pandas().shape == (50, 8)
    assert run.folder is None


def test_the_seed_decides() -> None:
    first, second, other = (paceline.simulate("asp", seed=seed, **TIMES_ONLY) for seed in (1, 1, 2))
    assert first.summary == second.summary
    assert first.summary != other.summary


def test_a_missed_target_is_no_error() -> None:
    run = paceline.simulate(data="digits:600,200", until=["loss<0.001", "iterations=3"])
    assert run.summary is not None
    assert (run.summary.reached, run.summary.ending) == (False, "target-missed")


def test_a_run_folder_is_read_as_it_was_simulated(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = paceline.simulate("dbw", data="digits:600,200", until="iterations=20", out=out)
    read = paceline.read_run(out)
    assert read.summary == run.summary
    assert read.reasons == run.reasons
    for name, column in run.metrics.items():
        assert np.array_equal(read.metrics[name], column, equal_nan=True), name
    assert paceline.read_run(str(out)).folder == out


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(paceline.InputError, match="is not a run folder"):
        paceline.read_run(tmp_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"scheme": "bps"}, "unknown scheme 'bps'"),
        ({"workers": 0}, "invalid value '0' for '--workers"),
        ({"model": "none", "until": "loss<1"}, "--until loss<1 needs a model, but --model is none"),
        ({"bathc": 3}, "unexpected argument '--bathc"),
        ({"seed": "1..3"}, "--seeds gives 3 runs; expected one seed"),
    ],
)
def test_errors_are_the_command_lines_own(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        paceline.simulate(**options)
    assert isinstance(caught.value, paceline.InputError)
    assert isinstance(caught.value, paceline.Error)


def test_the_options_are_those_of_the_command() -> None:
    command = [sys.executable, "-m", "paceline", "simulate", "--help"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    flags = set(re.findall(r"^ +(?:-\w, )?--([a-z-]+)", text, re.MULTILINE))
    keywords = {key.replace("_", "-") for key in SimulateOptions.__annotations__}
    assert keywords == flags - {"scheme", "workers", "seeds", "json", "trace", "help"}


def test_whatif_recommends_and_explains(tmp_path: Path) -> None:
    times = tmp_path / "times.csv"
    paceline.simulate(workers=4, slow={0: 2.3}, times="uniform:0.9,1.1", record=times, model="none", until=UNTIL)
    found = paceline.whatif(times, ["bsp", "backup:k=3"], seeds=[1, 2, 3])
    assert found.recommended == "backup:k=3"
    assert found.why.startswith("backup:k=3 wins")
    assert [worker.straggling for worker in found.workers] == ["persistent", "steady", "steady", "steady"]
    assert [scheme.scheme for scheme in found.schemes] == ["backup:k=3", "bsp"]
    assert found.schemes[0].speedup is not None
    assert found.schemes[0].speedup > 1.3
    assert found.to_pandas()["scheme"].tolist() == ["backup:k=3", "bsp"]
    with pytest.raises(paceline.InputError, match="the number of workers follows from the trace"):
        paceline.whatif(times, workers=3)  # type: ignore[call-arg]


def test_whatif_takes_a_run_and_a_scheme_in_python(tmp_path: Path) -> None:
    run = paceline.simulate(workers=4, slow={0: 5}, out=tmp_path / "run", model="none", until=UNTIL)
    found = paceline.whatif(run, ["bsp", Backup], seeds=1)
    assert {scheme.scheme for scheme in found.schemes} == {"bsp", "python-backup"}
    with pytest.raises(paceline.InputError, match="the run has no folder"):
        paceline.whatif(paceline.simulate(**TIMES_ONLY))


@pytest.mark.parametrize("model", ["none", "softmax"])
def test_a_scheme_in_python_decides_as_the_built_in_one(tmp_path: Path, model: str) -> None:
    def simulate(scheme: str | type[Backup], out: str) -> paceline.Summary:
        run = paceline.simulate(
            scheme, 5, model=model, data="digits:600,200", until=UNTIL, slow={0: 4}, out=tmp_path / out
        )
        assert run.summary is not None
        return run.summary

    own, ours = simulate(Backup, "own"), simulate("backup:k=3,dispatch=push-wait", "ours")
    assert events(tmp_path / "own") == events(tmp_path / "ours")
    assert (own.scheme, own.loss) == ("python-backup", ours.loss)
    assert own.updates_discarded > 0
    assert (tmp_path / "own" / "report.html").exists()


def test_an_exception_in_a_scheme_is_raised() -> None:
    with pytest.raises(LookupError, match=r"worker \d"):
        paceline.simulate(Broken, **TIMES_ONLY)

    def refusing(setup: paceline.Setup) -> paceline.Scheme:
        raise TypeError(f"{setup.workers} workers")

    with pytest.raises(TypeError, match="8 workers"):
        paceline.simulate(refusing, **TIMES_ONLY)


def test_a_law_that_a_scheme_breaks_is_named() -> None:
    class Idle(Broken):
        def on_reported(self, turn: paceline.Turn, update: paceline.Update) -> None:
            turn.discard(update.task, "no use")

    with pytest.raises(paceline.RunError, match="was left idle, with neither work nor something to wait for"):
        paceline.simulate(Idle, **TIMES_ONLY)


def test_a_turn_ends() -> None:
    class Keeping(Backup):
        name = "keeping"
        turns: list[paceline.Turn] = []  # noqa: RUF012

        def on_joined(self, turn: paceline.Turn, worker: int) -> None:
            super().on_joined(turn, worker)
            self.turns.append(turn)

    paceline.simulate(Keeping, **TIMES_ONLY)
    with pytest.raises(RuntimeError, match="the turn is over"):
        Keeping.turns[0].assign(0, 1, "late")


def test_local_iterations_timers_and_questions_reach_a_scheme() -> None:
    class Asking(paceline.Scheme):
        timers = 0

        def on_joined(self, turn: paceline.Turn, worker: int) -> None:
            turn.assign(worker, self.setup.batch, "joined", ask="wait")
            turn.wake(0.5, "look again")

        def on_timer(self, turn: paceline.Turn) -> None:
            type(self).timers += 1

        def on_asked(self, turn: paceline.Turn, question: paceline.Question) -> None:
            running = turn.running(question.worker)
            assert running is not None
            assert running.task == question.task
            if question.iterations < 3:
                turn.continue_task(question.worker, "more")
            else:
                turn.collect(question.worker, "enough")

        def on_reported(self, turn: paceline.Turn, update: paceline.Update) -> None:
            assert update.iterations == 3
            turn.commit([update.task], "average", average=0.5)
            turn.assign(update.worker, self.setup.batch, "new version", ask="wait")

        def on_committed(self, turn: paceline.Turn, aggregate: paceline.Aggregate | None) -> None:
            assert aggregate is not None
            assert aggregate.loss > 0
            assert len(aggregate.norms) == 1

    paceline.simulate(Asking, workers=2, data="digits:600,200", until="iterations=5")
    assert Asking.timers >= 1


def test_the_name_of_a_built_in_scheme_is_taken() -> None:
    class Bsp(Broken):
        pass

    with pytest.raises(paceline.InputError, match="a scheme named 'bsp' exists already"):
        paceline.simulate(Bsp, **TIMES_ONLY)


@pytest.mark.parametrize("scheme", ["bsp", Backup])
def test_ctrl_c_ends_a_simulation(scheme: str | type[Backup]) -> None:
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        paceline.simulate(scheme, model="none", until="iterations=1000000000")
    assert time.monotonic() - start < 30
    # The next one is not interrupted.
    assert paceline.simulate(**TIMES_ONLY).summary is not None


def test_other_threads_run_during_a_simulation() -> None:
    counts: list[int] = []
    thread = threading.Thread(target=lambda: counts.extend(range(3)))

    class Starting(Backup):
        name = "starting"

        def on_joined(self, turn: paceline.Turn, worker: int) -> None:
            if worker == 0:
                thread.start()
            super().on_joined(turn, worker)

    paceline.simulate(Starting, **TIMES_ONLY)
    thread.join()
    assert counts == [0, 1, 2]


def test_each_rank_records_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, seconds in enumerate((3.0, 1.0, 1.0)):
        monkeypatch.setenv("RANK", str(rank))
        with paceline.trace.start(tmp_path) as tracer:
            for _ in range(20):
                tracer.add(seconds)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"rank-0000{rank}.csv" for rank in range(3)]
    found = paceline.whatif(tmp_path, ["bsp", "lb-bsp"], seeds=1)
    assert [worker.straggling for worker in found.workers] == ["persistent", "steady", "steady"]
    assert found.steps == 20


def test_a_tracer_times_steps_and_saves_at_exit(tmp_path: Path) -> None:
    script = """
import paceline, time
tracer = paceline.trace.start("times", rank=7)
for _ in range(3):
    with tracer.step():
        time.sleep(0.01)
try:
    with tracer.step():
        raise ValueError
except ValueError:
    pass
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
    head, *rows = (tmp_path / "times" / "rank-00007.csv").read_text().splitlines()
    assert head == "step,worker7"
    assert [row.split(",")[0] for row in rows] == ["0", "1", "2"]
    assert all(float(row.split(",")[1]) >= 0.01 for row in rows)


def test_a_rank_or_a_time_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(paceline.InputError, match="RANK=first: expected a rank"):
        paceline.trace.start(tmp_path)
    with pytest.raises(paceline.InputError, match="expected a finite number above 0"):
        paceline.trace.start(tmp_path, rank=0).add(math.nan)
