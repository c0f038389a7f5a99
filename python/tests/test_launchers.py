"""Scripts that torchrun, srun and mpirun start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from test_training import LOOP

import paceline
from paceline._launch.launchers import Launch, find_launch
from paceline._launch.rendezvous import Rendezvous, private_folder
from paceline.errors import InputError, RunError

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "pytorch" / "classifier.py"
TINY = ["--epochs", "2", "--samples", "480", "--batch", "20"]
HOSTS = Path(__file__).parents[2] / "experiments" / "network" / "hosts"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
#: Nothing hangs: a test that takes this long has failed, in seconds.
LIMIT = 200


class Launched:
    """Processes that a test starts, with their output in a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.groups: list[subprocess.Popen[bytes]] = []
        #: Nothing of a launcher that may have started the tests.
        kept = ("PATH", "HOME", "LANG", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
        self.environment = {name: os.environ[name] for name in kept if name in os.environ}
        self.environment |= {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}

    def start(self, command: list[str], **variables: str) -> subprocess.Popen[bytes]:
        with (self.folder / "output").open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.groups.append(process)
        return process

    def run(self, command: list[str], **variables: str) -> int:
        """Run it to its end."""
        return self.end(self.start(command, **variables))

    def end(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for its end."""
        try:
            return process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it has not ended in {LIMIT} s: {self.output}")

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def summary(self, folder: str = "run") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / folder / "summary.json").read_text())
        return found

    def await_file(self, pattern: str) -> Path:
        """Wait for a file."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            for path in self.folder.glob(pattern):
                return path
            time.sleep(0.05)
        pytest.fail(f"no {pattern}: {self.output}")

    def processes(self) -> dict[int, str]:
        """The processes whose working directory is the folder of the test, with their command lines."""
        found = {}
        for process in Path("/proc").iterdir():
            try:
                if (process / "cwd").resolve() == self.folder and (line := (process / "cmdline").read_bytes()):
                    found[int(process.name)] = line.replace(b"\0", b" ").decode()
            except (OSError, ValueError):
                continue
        return found

    def await_nobody(self) -> None:
        """Wait until all processes have ended."""
        deadline = time.monotonic() + LIMIT
        while found := self.processes():
            if time.monotonic() > deadline:
                pytest.fail(f"still there: {found}\n{self.output}")
            time.sleep(0.05)

    def close(self) -> None:
        for process in self.groups:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for number in self.processes():
            os.kill(number, signal.SIGKILL)


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    """Processes that end with the test."""
    found = Launched(tmp_path.resolve())
    try:
        yield found
    finally:
        found.close()


def script(launched: Launched, text: str = LOOP) -> list[str]:
    """Write a script, and return the command that runs it."""
    lines = text.splitlines()
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    (launched.folder / "script.py").write_text("\n".join(line[indent:] for line in lines))
    return [sys.executable, "script.py"]


def losses(folder: Path) -> list[float]:
    """The losses of all iterations."""
    rows = paceline.read_run(folder).metrics
    found: list[float] = rows["loss"].tolist()
    return found


SLURM = {
    "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NNODES": "1",
    "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_STEP_NODELIST": "node7",
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
}  # fmt: skip
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "prterun-node7-4711@1"}
HYDRA = {"PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}
#: What launchers set for all processes, and the variable of the rank.
EMULATED = {
    "srun": (SLURM, "SLURM_PROCID"),
    "Open MPI": (OPEN_MPI, "OMPI_COMM_WORLD_RANK"),
    "MPICH": (HYDRA, "PMI_RANK"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of the example with four workers of `paceline train`."""
    launched = Launched(tmp_path_factory.mktemp("train").resolve())
    try:
        command = [sys.executable, "-m", "paceline", "train", "--workers", "4", "--out", "run", "--"]
        assert launched.run([*command, sys.executable, str(EXAMPLE), *TINY]) == 0, launched.output
    finally:
        launched.close()
    return launched.folder / "run"


def check_same(run: Path, trained: Path, output: str) -> None:
    """Whether two runs have computed the same."""
    assert losses(run) == losses(trained), output
    assert len(losses(run)) == 12
    assert (run / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()


def test_torchrun_gives_what_train_gives_to_the_last_bit(launched: Launched, trained: Path) -> None:
    command = [*TORCHRUN, "--nproc-per-node", "4", str(EXAMPLE), *TINY]
    assert launched.run(command, PACELINE_OPTIONS="--out run") == 0, launched.output
    check_same(launched.folder / "run", trained, launched.output)
    assert "held-out accuracy" in launched.output
    launched.await_nobody()


@pytest.mark.parametrize("launcher", EMULATED)
def test_srun_and_mpirun_give_what_train_gives_to_the_last_bit(
    launched: Launched, trained: Path, launcher: str
) -> None:
    variables, rank_variable = EMULATED[launcher]
    given = {**variables, "PACELINE_OPTIONS": "--out run"}
    command = [sys.executable, str(EXAMPLE), *TINY]
    processes = [launched.start(command, **given, **{rank_variable: str(rank)}) for rank in range(4)]
    assert [launched.end(process) for process in processes] == [0] * 4, launched.output
    check_same(launched.folder / "run", trained, launched.output)
    launched.await_nobody()


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_the_mpirun_of_this_machine_gives_what_train_gives_to_the_last_bit(launched: Launched, trained: Path) -> None:
    named = subprocess.run(["mpirun", "--version"], check=False, capture_output=True, text=True).stdout
    own = ["--oversubscribe", "--allow-run-as-root"] if "Open MPI" in named or "PRRTE" in named else []
    command = ["mpirun", *own, "-np", "4", sys.executable, str(EXAMPLE), *TINY]
    assert launched.run(command, PACELINE_OPTIONS="--out run") == 0, launched.output
    check_same(launched.folder / "run", trained, launched.output)
    launched.await_nobody()


def test_variables_that_many_launchers_set_are_enough(launched: Launched, trained: Path) -> None:
    with free_port() as port:
        given = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, str(EXAMPLE), *TINY]
    given["PACELINE_OPTIONS"] = "--out run"
    processes = [launched.start(command, **given, RANK=str(rank)) for rank in range(4)]
    assert [launched.end(process) for process in processes] == [0] * 4, launched.output
    check_same(launched.folder / "run", trained, launched.output)


@contextmanager
def free_port() -> Iterator[int]:
    """A port that is free, for a moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener.getsockname()[1]


GROUP = """
    import torch
    import torch.distributed
    import paceline

    run = paceline.join()
    torch.distributed.init_process_group("gloo")
    total = torch.tensor([run.rank + 1.0])
    torch.distributed.all_reduce(total)
    assert total.item() == 10, total
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(160, 4), torch.zeros(160, dtype=torch.long))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for inputs, labels in loader:
        optimizer.zero_grad()
        run.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
        optimizer.step()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("launcher", ["torchrun", "variables"])
def test_a_script_may_make_a_process_group_of_its_own(launched: Launched, launcher: str) -> None:
    command = script(launched, GROUP)
    if launcher == "torchrun":
        codes = [launched.run([*TORCHRUN, "--nproc-per-node", "4", "script.py"], PACELINE_OPTIONS="--out run")]
    else:
        with free_port() as port:
            given = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        given["PACELINE_OPTIONS"] = "--out run"
        processes = [launched.start(command, **given, RANK=str(rank)) for rank in range(4)]
        codes = [launched.end(process) for process in processes]
    assert set(codes) == {0}, launched.output
    assert launched.summary()["samples_used"] == 160


def test_two_agents_with_shards_use_keys_of_the_run(launched: Launched) -> None:
    wide = LOOP.replace("32)", "12000)").replace("(32,", "(12000,")
    command = script(launched, wide)[1:]
    with free_port() as port:
        endpoint = f"127.0.0.1:{port}"
    both = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
    both += ["--rdzv-id", "two", "--local-addr", "127.0.0.1"]
    given = {"PACELINE_OPTIONS": "--out run --shards 2 --until iterations=5"}
    processes = [launched.start([*TORCHRUN, *both, *command, "epochs=100"], **given) for _ in range(2)]
    assert [launched.end(process) for process in processes] == [0, 0], launched.output
    assert "the parameters are in 2 shards" in launched.output
    assert launched.summary()["iterations"] == 5
    assert not list(launched.folder.glob("paceline-keys-*")), "the keys are removed"


#: Four processes on two hosts, whose addresses are 10.0.0.1 and 10.0.0.2.
ON_HOSTS = """
    for rank in 0 1 2 3; do
        SLURM_PROCID=$rank "$HOSTS_SCRIPT" on $((rank / 2 + 1)) "$@" &
        processes="$processes $!"
    done
    for process in $processes; do wait "$process" || exit 1; done
"""


@pytest.mark.parametrize("keys", [None, "keys"])
def test_processes_on_several_hosts_use_tcp_and_give_the_same(
    launched: Launched, trained: Path, keys: str | None
) -> None:
    given = {**SLURM, "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "node[1-2]", "PACELINE_OPTIONS": "--out run"}
    if keys is not None:
        assert launched.run([sys.executable, "-m", "paceline", "keys", keys]) == 0, launched.output
        given["PACELINE_KEYS"] = keys
    command = [str(HOSTS), "2", "--", "bash", "-c", ON_HOSTS, "bash", sys.executable, str(EXAMPLE), *TINY]
    code = launched.run(command, **given, HOSTS_SCRIPT=str(HOSTS))
    if code == 77:
        pytest.skip(launched.output)
    assert code == 0, launched.output
    check_same(launched.folder / "run", trained, launched.output)
    assert launched.output.count(" from 10.0.0.2:") == launched.output.count(" from process ") == 2
    assert not list(launched.folder.glob("paceline-keys-*")), "the keys are removed"


def test_an_accuracy_ends_the_run_and_options_reach_the_server(launched: Launched) -> None:
    options = "--scheme lb-bsp --until 'accuracy>0.5' --evaluate-every 480 --seed 3 --out run"
    command = [*TORCHRUN, "--nproc-per-node", "2", str(EXAMPLE), "--epochs", "1000", "--samples", "960"]
    assert launched.run(command, PACELINE_OPTIONS=options) == 0, launched.output
    summary = launched.summary()
    assert (summary["ending"], summary["scheme"], summary["seed"]) == ("reached", "lb-bsp", 3)
    assert summary["accuracy"] > 0.5
    launched.await_nobody()


def test_the_exit_code_of_the_run_is_that_of_the_launch(launched: Launched) -> None:
    command = [sys.executable, str(EXAMPLE), *TINY]
    given = {**OPEN_MPI, "PACELINE_OPTIONS": "--until 'loss<0.0001,iterations=3' --out run"}
    processes = [launched.start(command, **given, OMPI_COMM_WORLD_RANK=str(rank)) for rank in range(4)]
    assert [launched.end(process) for process in processes] == [3, 0, 0, 0], launched.output
    assert launched.summary()["ending"] == "target-missed"


FOREVER = (*TORCHRUN, "--nproc-per-node", "3", "script.py", "epochs=1000000")


@pytest.mark.parametrize("rank", [0, 2])
def test_a_killed_rank_leaves_nobody_behind(launched: Launched, rank: int) -> None:
    script(launched)
    process = launched.start(list(FOREVER), PACELINE_OPTIONS="--checkpoint-every 0.2 --out run")
    launched.await_file("run/workers/0.state.*")
    os.kill(process_of(launched, rank), signal.SIGKILL)
    assert launched.end(process) == 1, launched.output
    launched.await_nobody()
    assert launched.summary()["ending"] == "interrupted"


def process_of(launched: Launched, rank: int) -> int:
    """The process with a rank."""
    for number, line in launched.processes().items():
        variables = (Path("/proc") / str(number) / "environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in variables and "script.py" in line and "serve" not in line:
            return number
    pytest.fail(f"no rank {rank}: {launched.processes()}")


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_launch_ends_with_its_result(launched: Launched, which: signal.Signals) -> None:
    script(launched)
    process = launched.start(list(FOREVER), PACELINE_OPTIONS="--checkpoint-every 0.2 --out run")
    launched.await_file("run/workers/0.state.*")
    process.send_signal(which)
    assert launched.end(process) != 0
    launched.await_nobody()
    assert launched.summary()["ending"] == "interrupted"
    assert (launched.folder / "run" / "model.safetensors").exists()


RESTARTED = LOOP.replace(
    "for epoch in range",
    """import os
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    print(json.dumps({"rank": run.rank, "attempt": attempt}), flush=True)
    for epoch in range""",
).replace(
    "            print(json",
    """            if attempt == 0 and run.version >= 40 and run.rank == int(sys.argv[1]):
                import pathlib, time
                while not list(pathlib.Path("run/workers").glob("0.state.*")):
                    time.sleep(0.05)
                os.kill(os.getpid(), 9)
            print(json""",
)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_restarted_launch_goes_on_with_its_run(launched: Launched, rank: int) -> None:
    script(launched, RESTARTED)
    command = [*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1", "script.py", str(rank), "epochs=10"]
    code = launched.run(command, PACELINE_OPTIONS="--checkpoint-every 0.1 --out run")
    assert code == 0, launched.output
    assert "paceline: run goes on: torchrun " in launched.output
    assert launched.output.count('"attempt": 1') == 2
    summary = launched.summary()
    assert summary["ending"] == "reached"
    # A worker may have been ahead when the other one was killed.
    assert summary["samples_used"] == pytest.approx(10 * 600, abs=2 * 32)


def test_a_bad_option_ends_all_ranks_and_is_said_once(launched: Launched) -> None:
    command = script(launched)
    given = {**OPEN_MPI, "PACELINE_OPTIONS": "--scheme nonsense"}
    processes = [launched.start(command, **given, OMPI_COMM_WORLD_RANK=str(rank)) for rank in range(4)]
    assert [launched.end(process) for process in processes] == [2] * 4, launched.output
    assert launched.output.count("error: ") == 1, launched.output
    assert "nonsense" in launched.output
    assert launched.output.count("paceline: rank 0 can't serve, and says why") == 3
    assert "Traceback" not in launched.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--workers 3", "PACELINE_OPTIONS has --workers, which follows from mpirun: leave it out"),
        ("--listen=0.0.0.0:7", "PACELINE_OPTIONS has --listen, which follows from mpirun: leave it out"),
        ("--until 'loss<1", 'PACELINE_OPTIONS is "--until \'loss<1": no closing quotation'),
    ],
)
def test_options_that_can_t_be_read_are_named(launched: Launched, options: str, message: str) -> None:
    given = {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}
    assert launched.run(script(launched), **given, PACELINE_OPTIONS=options) == 2
    assert f"InputError: {message}" in launched.output


def test_a_rank_that_does_not_come_ends_the_others(launched: Launched) -> None:
    command = script(launched)
    given = {**OPEN_MPI, "PACELINE_JOIN_TIMEOUT": "10"}
    processes = [launched.start(command, **given, OMPI_COMM_WORLD_RANK=str(rank)) for rank in (0, 1)]
    first, second = [launched.end(process) for process in processes]
    assert first == 1, launched.output
    # It was told where the server is, if it came in time.
    assert second in (1, 130), launched.output
    assert "2, 3 of mpirun did not call paceline.join() within 10 s; PACELINE_JOIN_TIMEOUT=SECONDS" in launched.output
    launched.await_nobody()


def test_without_rank_0_the_others_end(launched: Launched) -> None:
    given = {**OPEN_MPI, "PACELINE_JOIN_TIMEOUT": "1", "OMPI_COMM_WORLD_RANK": "2"}
    assert launched.run(script(launched), **given) == 1
    assert "rank 0 of mpirun has not answered for 1 s: did it call paceline.join()?" in launched.output


def test_the_only_process_of_a_launcher_is_alone_unless_it_has_options(launched: Launched) -> None:
    given = {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}
    command = script(launched)
    assert launched.run([*command, "epochs=1"], **given) == 0, launched.output
    alone = launched.output
    assert not (launched.folder / "runs").exists()
    (launched.folder / "output").unlink()
    assert launched.run([*command, "epochs=1"], **given, PACELINE_OPTIONS="--out run") == 0, launched.output
    one = [json.loads(line)["loss"] for line in launched.output.splitlines() if '"loss"' in line]
    assert one == [json.loads(line)["loss"] for line in alone.splitlines() if '"loss"' in line]


def test_a_run_whose_workers_are_gone_ends(launched: Launched) -> None:
    command = script(launched)
    options = "--scheme asp --out run --checkpoint-every 0.1 --empty-timeout 1"
    given = {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PACELINE_OPTIONS": options}
    ended = launched.start([*command, "samples=64"], **given, OMPI_COMM_WORLD_RANK="0")
    killed = launched.start([*command, "epochs=1000000"], **given, OMPI_COMM_WORLD_RANK="1")
    launched.await_file("run/workers/1.state.*")
    deadline = time.monotonic() + LIMIT
    while "worker 0 left" not in launched.output and time.monotonic() < deadline:
        time.sleep(0.05)
    killed.kill()
    assert launched.end(ended) == 5, launched.output
    assert "no worker left; none came back within 1 s" in launched.summary()["stopped_by"]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {**SLURM, "SLURM_PROCID": "2", "SLURM_STEP_NODELIST": "gpu[07-09,12]-ib,cpu1"},
            ("srun", 2, 4, True, "gpu07-ib", 27_110),
        ),
        ({**SLURM, "SLURM_PROCID": "1", "MASTER_ADDR": "a", "MASTER_PORT": "7"}, ("srun", 1, 4, True, "a", 7)),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "3"}, ("mpirun", 3, 4, True, None, None)),
        # An mpirun inside an allocation of Slurm, which starts a process of its own on every host.
        (
            {**SLURM, **HYDRA, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "3"},
            ("mpirun", 3, 4, True, None, None),
        ),
        ({**SLURM, **HYDRA, "SLURM_PROCID": "3", "PMI_RANK": "3"}, ("srun", 3, 4, True, "node7", 27_110)),
        ({**SLURM, **OPEN_MPI, "SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "3"}, ("mpirun", 3, 4, True, None, None)),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "7"},
            ("the launcher", 1, 2, False, "a", 7),
        ),
    ],
)
def test_launchers_are_recognized(environment: dict[str, str], expected: tuple[Any, ...]) -> None:
    launch = find_launch(environment)
    assert launch is not None
    assert (launch.launcher, launch.rank, launch.size, launch.on_one_host, launch.host, launch.port) == expected


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "2"},
        # A batch script, which is no step.
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},
    ],
)
def test_other_environments_are_no_launch(environment: dict[str, str]) -> None:
    assert find_launch(environment) is None


def test_wrong_numbers_of_a_launcher_are_named() -> None:
    with pytest.raises(InputError, match="OMPI_COMM_WORLD_RANK is 'x': expected a whole number"):
        find_launch({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "x"})
    with pytest.raises(InputError, match="mpirun gives this process rank 4 of 4: expected a lower rank"):
        find_launch({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "4"})


def launch_of_rank(rank: int, size: int = 3) -> Launch:
    return Launch(launcher="mpirun", rank=rank, size=size, on_one_host=True, name="test@launch/1")


def test_an_ask_of_an_earlier_attempt_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", None)
    # They ask, but rank 0 never came.
    for rank in (1, 2):
        with pytest.raises(RunError, match="rank 0 of mpirun has not answered for 0 s"):
            Rendezvous(launch_of_rank(rank), 0).ask()
    assert Rendezvous(launch_of_rank(0), 0.2).answer({"of": "nobody"}) == [1, 2]
    answers: list[Any] = []
    asking = [
        threading.Thread(target=lambda rank=rank: answers.append(Rendezvous(launch_of_rank(rank), LIMIT).ask()))
        for rank in (1, 2)
    ]
    for thread in asking:
        thread.start()
    assert Rendezvous(launch_of_rank(0), LIMIT).answer({"of": "this attempt"}) == []
    for thread in asking:
        thread.join()
    assert answers == [{"of": "this attempt"}] * 2


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = private_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert private_folder() == folder
    folder.chmod(0o750)
    with pytest.raises(InputError, match="can be used by others: expected a folder of user"):
        private_folder()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(InputError, match="can be used by others"):
        private_folder()


def test_several_hosts_need_an_address() -> None:
    launch = Launch(launcher="mpirun", rank=0, size=4, on_one_host=False)
    with pytest.raises(InputError, match="nothing says where rank 0 is: set MASTER_ADDR to its host and MASTER_PORT"):
        Rendezvous(launch, 1)


def test_a_store_that_is_not_there_is_named() -> None:
    with free_port() as port:
        pass
    launch = Launch(launcher="srun", rank=1, size=4, on_one_host=False, host="127.0.0.1", port=port)
    with pytest.raises(RunError, match=f"the store of srun at 127.0.0.1:{port} can't be used: "):
        Rendezvous(launch, 1)
