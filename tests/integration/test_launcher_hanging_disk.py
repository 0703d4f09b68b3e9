"""A folder for logs on a file system that gives no answer any more, as NFS without its server.

Whoever touches a FUSE file system that nobody serves waits until its device is closed.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_elastic.events.codec import read_records
from pytest_elastic.events.model import RoundCommitted
from tests.conformance.launchers import OURS, Running, address
from tests.integration.test_launcher_drain import wait_until

_DETACH = 2
FAILS_ONCE = """
import os, pathlib, sys, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    (folder / f"{name} is up").touch()
    print("is up", flush=True)
    while not (folder / "fail").exists(): time.sleep(0.02)
    if name == "n2": sys.exit(3)
    time.sleep(600)
print("runs again", flush=True)
"""
NO_FOLDER = "the folder for logs of round 2 could not be made in time"


class HangingDisks:
    """Mounts what gives no answer, until `close`."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._mounted: list[tuple[Path, int]] = []

    def hide(self, folder: Path) -> None:
        """Put a file system that hangs in the place of a folder."""
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
        path = os.fsencode(folder)
        assert self._libc.mount(b"hangs", path, b"fuse", 0, options.encode()) == 0, os.strerror(
            ctypes.get_errno()
        )
        self._mounted.append((folder, device))

    def close(self) -> None:
        """Let all who wait go on, with an error, and take the file systems away."""
        while self._mounted:
            folder, device = self._mounted.pop()
            os.close(device)
            self._libc.umount2(os.fsencode(folder), _DETACH)


@pytest.fixture
def disks() -> Iterator[HangingDisks]:
    """File systems that are taken away behind the test."""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("takes root, and /dev/fuse")
    made = HangingDisks()
    yield made
    made.close()


@pytest.fixture
def start(tmp_path: Path, disks: HangingDisks) -> Iterator[Callable[..., Running]]:
    """Return what starts a node of a job; those whose name is n2 write logs."""
    started: list[Running] = []
    (tmp_path / "fails.py").write_text(FAILS_ONCE)
    (tmp_path / "logs").mkdir()

    def begin(name: str, *options: str) -> Running:
        logs = (f"--log-dir={tmp_path / 'logs'}",) if name == "n2" else ()
        words = (f"--node-name={name}", *logs, *options)
        program = ("fails.py", str(tmp_path), name)
        events = {"PYTEST_ELASTIC_EVENTS": f"file:{tmp_path / 'events'}"}
        command = (*OURS, "--worker-start=exec", *words, *program)
        started.append(Running(tmp_path, *command, environ=events))
        return started[-1]

    yield begin
    disks.close()
    for running in started:
        running.end()


def fail_with_hanging_logs(folder: Path, disks: HangingDisks) -> None:
    """Have the worker of n2 fail, when nothing in its folder for logs gives an answer."""
    (logs,) = (folder / "logs").iterdir()
    disks.hide(logs)
    (folder / "fail").touch()


def committed_rounds(folder: Path) -> list[int]:
    """Return the rounds that a node was told to start."""
    records = read_records((folder / "events").read_bytes().split(b"\n"))
    return [each.event.round for each in records if isinstance(each.event, RoundCommitted)]


def test_a_folder_for_logs_that_hangs_costs_a_node_neither_its_lease_nor_the_job(
    tmp_path: Path, start: Callable[..., Running], disks: HangingDisks
) -> None:
    """The lease is shorter than what the files are waited for; the workers then run without."""
    meeting = (
        "--max-restarts=1",
        "--nnodes=2",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={address(93)}",
    )
    pace = "--rdzv-conf=beat_interval=0.4,lease=1.2"
    nodes = [start(name, *meeting, pace) for name in ("n1", "n2")]
    for node in nodes:
        node.wait_for("is up")
    fail_with_hanging_logs(tmp_path, disks)
    for node in nodes:
        assert node.wait() == 0, node.printed
        assert "runs again" in node.printed
        assert "was lost" not in node.printed
    assert NO_FOLDER in nodes[1].printed


def test_a_signal_is_heard_while_a_folder_for_logs_hangs(
    tmp_path: Path, start: Callable[..., Running], disks: HangingDisks
) -> None:
    """Nobody waits for the folder of a round that is not to begin any more."""
    node = start("n2", "--standalone", "--max-restarts=1")
    node.wait_for("is up")
    fail_with_hanging_logs(tmp_path, disks)
    wait_until(lambda: committed_rounds(tmp_path) == [1, 2], "round 2 is to be started")
    node.process.send_signal(signal.SIGTERM)
    assert node.wait() == 128 + signal.SIGTERM, node.printed
    assert NO_FOLDER not in node.printed
    assert "runs again" not in node.printed


def test_an_error_file_that_hangs_is_not_waited_for(
    tmp_path: Path, start: Callable[..., Running], disks: HangingDisks
) -> None:
    """The job fails without what the worker said, and says why that is not known."""
    node = start("n2", "--standalone")
    node.wait_for("is up")
    fail_with_hanging_logs(tmp_path, disks)
    assert node.wait() == 1, node.printed
    assert "exit code 3" in node.printed
    assert "gave no answer within 3 s" in node.printed
