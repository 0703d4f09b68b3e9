"""Leaving and being stopped, with real processes: who is told first, how long, and what is left.

Durations are never compared with a clock of the test. Where a limit must hold, something else that
would happen first if it did not is waited for: an alarm of the worker's own, or a limit so large
that only the cause under test can have ended the wait.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.launchers import LIMIT_S, OURS, PLAIN, Running, address
from tests.integration.stopped import stop


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for something to be seen."""
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"not seen: {what}"
        select.select([], [], [], 0.02)


def marks(folder: Path, name: str) -> list[Path]:
    """Return the files that workers have left under a name."""
    return sorted(folder.glob(f"{name}.*"))


# --- who is told first -----------------------------------------------------------------------

CHECKPOINTS = """
import os, signal, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 1_000_000
    def __getitem__(self, index): return torch.tensor(index)

if __name__ == "__main__":
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    batches = iter(DataLoader(Numbers(), batch_size=4, num_workers=2))
    seen, after = 0, 0
    for batch in batches:
        seen += len(batch)
        if seen == 4: print("training", flush=True)
        # What was prefetched before the signal would be there without any child.
        after += bool(told)
        if after > 20: break
    torch.save({"seen": seen}, os.path.join(sys.argv[1], "checkpoint"))
    print(f"saved after {after} batches more", flush=True)
"""


@pytest.mark.slow
def test_a_worker_can_checkpoint_although_it_has_dataloader_children(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    """The leader is told, its children go on: it trains to the end of its step, saves, and ends."""
    (tmp_path / "train.py").write_text(CHECKPOINTS)
    words = ("--standalone", "--shutdown-timeout=600", "train.py", str(tmp_path))
    # Sockets of loaders lie there, whose paths have to be short.
    job = start(*OURS, *words, TMPDIR=tempfile.gettempdir())
    job.wait_for("training")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM, job.printed
    assert "saved after 21 batches more" in job.printed, job.printed
    assert (tmp_path / "checkpoint").stat().st_size > 0
    assert "Traceback" not in job.printed


STUCK = """
import ctypes, os, pathlib, signal, sys, time
pid, folder = str(os.getpid()), pathlib.Path(sys.argv[1])
if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0": sys.exit()
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, lambda *_: print("never printed", flush=True))
    (folder / "new").write_text(pid)
    (folder / "new").rename(folder / "pid")
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    while True: libc.pthread_mutex_lock(mutex)  # the second time for ever, whatever signals come
while not (folder / "pid").exists(): time.sleep(0.02)
stuck = pathlib.Path("/proc", (folder / "pid").read_text(), "wchan")
while "futex" not in stuck.read_text(): time.sleep(0.02)
sys.exit(3)
"""


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_peer_that_waits_in_c_for_a_failed_worker_costs_the_grace_of_a_failure(
    tmp_path: Path, start: Callable[..., Running], nodes: int
) -> None:
    """As a main thread in a collective of NCCL does: its handler of SIGTERM is never called."""
    (tmp_path / "stuck.py").write_text(STUCK)
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint={address(92)}")
    options = (f"--nnodes={nodes}", f"--nproc-per-node={3 - nodes}", *meeting, "--max-restarts=1")
    words = (*options, "--shutdown-timeout=6000", "stuck.py", str(tmp_path))
    jobs = [start(*PLAIN, *words) for _ in range(nodes)]
    for job in jobs:
        assert job.wait() == 0, job.printed
        assert "never printed" not in job.printed


STOPPED = """
import os, pathlib, signal, sys, time
saved = pathlib.Path(sys.argv[1], "saved")
def save(*_):
    saved.touch()
    sys.exit(0)
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, save)
    pathlib.Path(sys.argv[1], "pid").write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)
    while True: signal.pause()
pid = pathlib.Path(sys.argv[1], "pid")
while not pid.exists() or not pid.read_text(): time.sleep(0.02)
status = pathlib.Path("/proc", pid.read_text(), "stat")
while status.read_text().rpartition(")")[2].split()[0] != "T": time.sleep(0.02)
sys.exit(3)
"""


def test_a_stopped_sibling_of_a_failed_worker_can_save_and_costs_no_grace(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    """SIGTERM comes with SIGCONT. The grace is so long that nothing else can have ended it."""
    (tmp_path / "stops.py").write_text(STOPPED)
    options = ("--standalone", "--nproc-per-node=2", "--shutdown-timeout=6000")
    job = start(*PLAIN, *options, "stops.py", str(tmp_path))
    assert job.wait() == 1, job.printed
    assert (tmp_path / "saved").exists()
    assert "first failure: rank 1" in job.printed


# --- how long --------------------------------------------------------------------------------

# Told to end, it goes on, and would sign with "outlived" much later than it is to be killed.
TOLD = """
import os, pathlib, signal, sys
folder = pathlib.Path(sys.argv[1])
name = "{}.{}.{}".format(*(os.environ[v] for v in ("PYTEST_ELASTIC_ROUND", "GROUP_RANK", "RANK")))
def outlive(*_):
    (folder / f"outlived.{name}").touch()
def be_told(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, outlive)
    signal.alarm(25)
    (folder / f"told.{name}").touch()
signal.signal(signal.SIGTERM, be_told)
(folder / f"up.{name}").write_text(str(os.getpid()))
while True: signal.pause()
"""


def pids_of_round(folder: Path, number: int, count: int) -> list[int]:
    """Wait until so many workers of a round are up; return their pids."""

    def up() -> list[str]:
        return [path.read_text() for path in marks(folder, f"up.{number}")]

    wait_until(lambda: len([pid for pid in up() if pid]) == count, f"round {number} of {count}")
    return [int(pid) for pid in up()]


@pytest.mark.slow
def test_the_grace_is_the_users_on_every_path(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    """A worker fails, a node comes, a node leaves, the job ends: each time --shutdown-timeout.

    torchrun takes 30 s for the first two, whatever it is told: these workers would outlive that.
    """
    (tmp_path / "deaf.py").write_text(TOLD)
    words = (
        *(*PLAIN, "--nnodes=2:3", "--max-restarts=1", "--shutdown-timeout=1"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={address(87)}"),
        "--rdzv-conf=beat_interval=0.2,lease=5,last_call_timeout=0.1,min_round=0.1",
        *("deaf.py", str(tmp_path)),
    )
    host = start(*words)
    host.wait_for("hosting the rendezvous")
    other = start(*words)
    first = pids_of_round(tmp_path, 1, 2)
    os.kill(first[1], signal.SIGKILL)  # a worker fails
    pids_of_round(tmp_path, 2, 2)
    third = start(*words)  # a node comes
    pids_of_round(tmp_path, 3, 3)
    third.process.send_signal(signal.SIGTERM)  # a node leaves
    assert third.wait() == 128 + signal.SIGTERM, third.printed
    last = pids_of_round(tmp_path, 4, 2)
    os.kill(last[0], signal.SIGKILL)  # the budget is used up: the job ends
    assert (host.wait(), other.wait()) == (1, 1), host.printed + other.printed
    assert marks(tmp_path, "outlived") == []
    told = [path.name.split(".")[1] for path in marks(tmp_path, "told")]
    assert told == ["1", "2", "2", "3", "3", "3", "4"], "all but those that the test has killed"


# --- leaving ---------------------------------------------------------------------------------

STAYS = """
import os, sys, time
print(f"world {os.environ['WORLD_SIZE']}", flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
"""


def test_a_node_that_leaves_is_not_waited_for(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    """The others go on because it said so, and not because its lease ran out."""
    (tmp_path / "stays.py").write_text(STAYS)
    words = (
        *(*PLAIN, "--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint={address(88)}"),
        *("--rdzv-conf=lease=30,min_round=0.1", "stays.py", str(tmp_path / "done")),
    )
    agents = [start(*words), start(*words)]
    for agent in agents:
        agent.wait_for("world 2")
    (host,) = [agent for agent in agents if "hosting the rendezvous" in agent.printed]
    (other,) = [agent for agent in agents if agent is not host]
    other.process.send_signal(signal.SIGTERM)
    host.wait_for("world 1")
    assert "left: the agent received SIGTERM" in host.printed
    assert "lost node" not in host.printed
    assert other.wait() == 128 + signal.SIGTERM, other.printed
    (tmp_path / "done").touch()
    assert host.wait() == 0, host.printed


@contextlib.contextmanager
def silent_server() -> Iterator[tuple[socket.socket, int]]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT_S)
        yield listener, listener.getsockname()[1]


def test_a_signal_while_nobody_answers_at_the_endpoint_ends_the_node(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    """During the first rendezvous: the exit code of the first signal, and nothing to complain."""
    (tmp_path / "stays.py").write_text(STAYS)
    with silent_server() as (listener, port):
        endpoint = f"--rdzv-endpoint=127.0.0.1:{port}"
        conf = "--rdzv-conf=is_host=false"
        job = start(*PLAIN, "--nnodes=2", "--rdzv-backend=c10d", endpoint, conf, "stays.py", "x")
        listener.accept()[0].close()
        for number in (signal.SIGINT, signal.SIGTERM):
            job.process.send_signal(number)
            job.wait_for("leaving the job")
        assert job.wait() == 128 + signal.SIGINT, job.printed
    assert "Traceback" not in job.printed
    assert "world" not in job.printed


def test_a_signal_to_a_host_that_waits_for_others_ends_it(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    """It need not wait for nodes that have never come."""
    (tmp_path / "stays.py").write_text(STAYS)
    words = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={address(89)}")
    job = start(*PLAIN, *words, "stays.py", "x")
    job.wait_for("hosting the rendezvous")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM, job.printed
    assert "Traceback" not in job.printed
    assert "cannot go on" not in job.printed, "it left, and nobody is there to be told more"


def test_one_more_signal_ends_a_host_that_lingers_for_the_others(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    """Its workers are gone, and a member that hangs cannot hear how the job ended."""
    (tmp_path / "stays.py").write_text(STAYS)
    words = (
        *(*PLAIN, "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={address(90)}"),
        # So long a lease that only the signal can have ended the wait.
        *("--rdzv-conf=lease=600,linger=600", "stays.py", "x"),
    )
    agents = [start(*words), start(*words)]
    for agent in agents:
        agent.wait_for("world 2")
    (host,) = [agent for agent in agents if "hosting the rendezvous" in agent.printed]
    (other,) = [agent for agent in agents if agent is not host]
    stop(other.process.pid)
    host.process.send_signal(signal.SIGTERM)
    host.wait_for("leaving the job")
    # How many it takes depends on how far it has come; each is one more than it waits for.
    pidfd = os.pidfd_open(host.process.pid)
    deadline = time.monotonic() + LIMIT_S
    while not select.select([pidfd], [], [], 0.2)[0]:
        assert time.monotonic() < deadline, "it waits for somebody who hangs"
        host.process.send_signal(signal.SIGTERM)
    os.close(pidfd)
    assert host.wait() == 128 + signal.SIGTERM, host.printed
    assert "Traceback" not in host.printed
    other.process.send_signal(signal.SIGTERM)
    other.process.send_signal(signal.SIGCONT)
    assert other.wait() == 128 + signal.SIGTERM, other.printed


# At each of these moments, from inside: before the command has read its options, before and after
# its keeper is started, and when it listens.
MOMENTS = """
import os, signal, sys
def signalled(event, arguments, _moment={moment!r}):
    if event == _moment[0] and (len(_moment) < 2 or arguments[0] == _moment[1]):
        if sys.argv[1:2] == ["run"]: os.kill(os.getpid(), signal.SIGTERM)
sys.addaudithook(signalled)
"""


@pytest.mark.parametrize(
    "moment",
    [("import", "pytest_elastic.launch"), ("socket.bind",), ("os.fork",)],
    ids=lambda moment: moment[-1],
)
def test_a_signal_before_anything_listens_for_it_leaves_nothing(
    tmp_path: Path,
    start: Callable[..., Running],
    moment: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The default action: its parent sees that SIGTERM ended it, and no keeper is left."""
    early = tmp_path / "early"
    early.mkdir()
    (early / "sitecustomize.py").write_text(MOMENTS.format(moment=moment))
    monkeypatch.setenv("PYTHONPATH", str(early))
    job = start(*PLAIN, "--standalone", "--no-python", "sleep", "1000")
    assert job.wait() in (-signal.SIGTERM, 128 + signal.SIGTERM), job.printed
    assert "Traceback" not in job.printed
