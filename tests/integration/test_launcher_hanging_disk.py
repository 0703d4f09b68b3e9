"""Files of a launcher on a file system that gives no answer any more, as NFS without its server.

The lease of the nodes is shorter than what any file is waited for.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_elastic.events.codec import read_records
from pytest_elastic.events.model import AgentStarted, CoordinatorStarted, Event, RoundCommitted
from tests.conformance.launchers import OURS, Running, address
from tests.integration.hanging_disks import HangingDisks
from tests.integration.test_launcher_drain import wait_until

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
# The worker of n2 prints until it is ended; that of n1 fails when it is told to.
PRINTS = """
import os, pathlib, sys, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    print("is up", flush=True)
    while name == "n2" or not (folder / "fail").exists():
        if name == "n2": print("the loss is 1", flush=True)
        time.sleep(0.005)
    sys.exit(3)
print("runs again", flush=True)
"""
NO_FOLDER = "the folder for logs of round 2 could not be made in time"
NOT_TOLD = "its file system gave no answer in time"


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
    (tmp_path / "prints.py").write_text(PRINTS)
    for name in ("logs", "files"):
        (tmp_path / name).mkdir()

    def begin(
        name: str,
        *options: str,
        program: str = "fails.py",
        environ: Mapping[str, str] | None = None,
        console: Path | None = None,
    ) -> Running:
        logs = (f"--log-dir={tmp_path / 'logs'}",) if name == "n2" else ()
        words = (f"--node-name={name}", *logs, *options)
        command = (*OURS, "--worker-start=exec", *words, program, str(tmp_path), name)
        if console is not None:
            command = ("sh", "-c", f'exec "$@" >{console} 2>&1', "sh", *command)
        events = {"PYTEST_ELASTIC_EVENTS": f"file:{tmp_path / 'events'}"}
        started.append(Running(tmp_path, *command, environ={**events, **(environ or {})}))
        return started[-1]

    yield begin
    disks.close()
    for running in started:
        running.end()


def meeting(number: int) -> tuple[str, ...]:
    """Return what two nodes are told of each other, at an address that is theirs alone."""
    return (
        "--max-restarts=1",
        "--nnodes=2",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={address(number)}",
        "--rdzv-conf=beat_interval=0.4,lease=1.2",
    )


def expect_restart(nodes: Sequence[Running]) -> None:
    """Wait for the end of a job that went on with both nodes in its second round."""
    for node in nodes:
        assert node.wait() == 0, node.printed
        assert "runs again" in node.printed
        assert "was lost" not in node.printed


def fail_with_hanging_logs(folder: Path, disks: HangingDisks) -> None:
    """Have the worker of n2 fail, when nothing in its folder for logs gives an answer."""
    (logs,) = (folder / "logs").iterdir()
    disks.hide(logs)
    (folder / "fail").touch()


def told(folder: Path) -> list[Event]:
    """Return the events so far."""
    path = folder / "events"
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    return [record.event for record in read_records(lines)]


def committed_rounds(folder: Path) -> list[int]:
    """Return the rounds that a node was told to start."""
    return [event.round for event in told(folder) if isinstance(event, RoundCommitted)]


def test_a_folder_for_logs_that_hangs_costs_a_node_neither_its_lease_nor_the_job(
    tmp_path: Path, start: Callable[..., Running], disks: HangingDisks
) -> None:
    """Its workers then run without."""
    nodes = [start(name, *meeting(93)) for name in ("n1", "n2")]
    for node in nodes:
        node.wait_for("is up")
    fail_with_hanging_logs(tmp_path, disks)
    expect_restart(nodes)
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


def hang_while_it_prints(folder: Path, disks: HangingDisks, what: str) -> str:
    """Have the folder for logs of n2 hang, for files that are open too; return the log's path."""
    (log,) = (folder / "logs").rglob("stdout.log")
    if what == "logs":
        disks.hang()
    else:
        disks.hide(log.parent.parent)
    return str(log)


TEE = ("--tee=3", "--duplicate-stdout-filters=nothing,loss")


@pytest.mark.parametrize("what", ["logs", "filtered logs"])
def test_output_that_cannot_be_read_costs_a_node_neither_its_lease_nor_the_job(
    tmp_path: Path, start: Callable[..., Running], disks: HangingDisks, what: str
) -> None:
    """What could not be shown of it is said, with its file."""
    if what == "logs":
        disks.cover(tmp_path / "logs")
    nodes = [
        start("n1", *meeting(94), program="prints.py"),
        start("n2", *meeting(94), *TEE, program="prints.py"),
    ]
    nodes[0].wait_for("is up")
    nodes[1].wait_for("the loss is 1", times=20)
    log = hang_while_it_prints(tmp_path, disks, what)
    (tmp_path / "fail").touch()
    expect_restart(nodes)
    assert f"gave no answer within 3 s: see {log}" in nodes[1].printed


def test_a_signal_is_heard_while_output_cannot_be_read(
    tmp_path: Path, start: Callable[..., Running], disks: HangingDisks
) -> None:
    """The workers are told, and the launcher ends as it would."""
    disks.cover(tmp_path / "logs")
    node = start("n2", "--standalone", *TEE, program="prints.py")
    node.wait_for("the loss is 1", times=20)
    log = hang_while_it_prints(tmp_path, disks, "logs")
    node.process.send_signal(signal.SIGTERM)
    assert node.wait() == 128 + signal.SIGTERM, node.printed
    assert f"gave no answer within 3 s: see {log}" in node.printed


def test_events_that_cannot_be_written_cost_a_node_neither_its_lease_nor_the_job(
    tmp_path: Path, start: Callable[..., Running], disks: HangingDisks
) -> None:
    """How many they are is said at the end, and those before are there."""
    disks.cover(tmp_path / "files")
    path = tmp_path / "files" / "events"
    environ = {"PYTEST_ELASTIC_EVENTS": f"file:{path}"}
    nodes = [start("n1", *meeting(95)), start("n2", *meeting(95), environ=environ)]
    for node in nodes:
        node.wait_for("is up")
    disks.hang()
    (tmp_path / "fail").touch()
    expect_restart(nodes)
    assert NOT_TOLD in nodes[1].printed
    disks.close()
    assert AgentStarted in map(type, told(path.parent)), "what was written before is there"


def test_a_console_on_a_file_system_that_hangs_costs_no_lease_and_keeps_no_signal_away(
    tmp_path: Path, start: Callable[..., Running], disks: HangingDisks
) -> None:
    """As under a scheduler that writes what a node says to NFS."""
    disks.cover(tmp_path / "files")
    console = tmp_path / "files" / "out"
    nodes = [start("n1", *meeting(96)), start("n2", *meeting(96), "--redirects=3", console=console)]
    for node in ("n1", "n2"):
        wait_until((tmp_path / f"{node} is up").exists, f"{node} is up")
    disks.hang()
    (tmp_path / "fail").touch()
    nodes[0].wait_for("runs again")
    assert [node.wait() for node in nodes] == [0, 0], nodes[0].printed
    assert "was lost" not in nodes[0].printed
    disks.close()
    assert "[pytest-elastic n2]" in console.read_text(), "what was written before is there"


def test_a_signal_is_heard_while_the_console_hangs(
    tmp_path: Path, start: Callable[..., Running], disks: HangingDisks
) -> None:
    """The workers are told, and the launcher ends as it would."""
    disks.cover(tmp_path / "files")
    console = tmp_path / "files" / "out"
    node = start("n2", "--standalone", "--redirects=3", console=console)
    wait_until((tmp_path / "n2 is up").exists, "n2 is up")
    disks.hang()
    node.process.send_signal(signal.SIGTERM)
    assert node.wait() == 128 + signal.SIGTERM


@pytest.mark.parametrize("since", ["the start", "the file is full"])
def test_a_file_of_events_that_hangs_ends_no_job_and_keeps_no_signal_away(
    tmp_path: Path, start: Callable[..., Running], disks: HangingDisks, since: str
) -> None:
    """It may hang from the beginning, or when a new file is to be begun."""
    folder = tmp_path / "files"
    environ = {"PYTEST_ELASTIC_EVENTS": f"file:{folder / 'events'}"}
    if since == "the start":
        disks.hide(folder)
    node = start("n2", "--standalone", "--max-restarts=1", environ=environ)
    node.wait_for("is up")
    if since != "the start":
        os.truncate(folder / "events", 1 << 26)
        disks.hide(folder)
    node.process.send_signal(signal.SIGTERM)
    assert node.wait() == 128 + signal.SIGTERM, node.printed
    assert NOT_TOLD in node.printed


def test_the_reason_that_cannot_be_left_keeps_no_agent_from_ending(
    tmp_path: Path, start: Callable[..., Running], disks: HangingDisks
) -> None:
    """The folder of TORCHELASTIC_ERROR_FILE hangs; the exit code is still that of the job."""
    target = tmp_path / "files" / "error.json"
    disks.hide(target.parent)
    node = start("n2", "--standalone", environ={"TORCHELASTIC_ERROR_FILE": str(target)})
    node.wait_for("is up")
    (tmp_path / "fail").touch()
    assert node.wait() == 1, node.printed
    assert "exit code 3" in node.printed
    assert f"cannot write the reason to {target}: its file system gave no answer" in node.printed


def test_a_temporary_folder_that_hangs_costs_the_host_of_the_endpoint_no_lease(
    tmp_path: Path, start: Callable[..., Running], disks: HangingDisks
) -> None:
    """It renews the mark of the job there once a beat, and takes it away at the end.

    The nodes share a machine, so that any of them may be the host.
    """
    environ = {"TMPDIR": str(tmp_path / "files")}
    meet = tuple(word.replace("--nnodes=2", "--nnodes=3") for word in meeting(86))
    nodes = [start("n2", *meet, environ=environ)]
    nodes += [start(name, *meet, "--log-dir=/dev/null", environ=environ) for name in ("n1", "n3")]
    for node in nodes:
        node.wait_for("is up")
    wait_until(lambda: any((tmp_path / "files").glob("*/*.mark")), "the mark is written")
    disks.hide(tmp_path / "files")
    (tmp_path / "fail").touch()
    expect_restart(nodes)


def test_a_temporary_folder_that_hangs_from_the_start_keeps_no_node_from_its_job(
    tmp_path: Path, start: Callable[..., Running], disks: HangingDisks
) -> None:
    """Which one it is, is found out on a thread too."""
    disks.hide(tmp_path / "files")
    environ = {"TMPDIR": str(tmp_path / "files")}
    options = ("--nnodes=1:3", "--rdzv-backend=c10d", f"--rdzv-endpoint={address(80)}")
    node = start("n2", *options, "--rdzv-conf=last_call_timeout=0.1", environ=environ)
    node.wait_for("is up")
    node.process.send_signal(signal.SIGTERM)
    assert node.wait() == 128 + signal.SIGTERM, node.printed


def test_a_signal_is_heard_while_a_mark_is_read_that_hangs(
    tmp_path: Path, start: Callable[..., Running], disks: HangingDisks
) -> None:
    """Who hosts the endpoint looks for a mark there, and has begun no job until then."""
    disks.hide(tmp_path / "files")
    environ = {"TMPDIR": str(tmp_path / "files")}
    options = ("--nnodes=3", "--rdzv-backend=c10d", f"--rdzv-endpoint={address(81)}")
    node = start("n2", *options, environ=environ)
    wait_until(lambda: waits_for_fuse(node.process.pid), "the mark is read")
    node.process.send_signal(signal.SIGTERM)
    assert node.wait() == 128 + signal.SIGTERM, node.printed
    assert CoordinatorStarted not in map(type, told(tmp_path))


def waits_for_fuse(pid: int) -> bool:
    """Tell whether a thread of a process waits for a file system that a process should serve."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    for task in tasks:
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            if "fuse" in (task / "wchan").read_text():
                return True
    return False


WATCHDOG = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}


def first_files(folder: Path) -> dict[str, tuple[tuple[str, ...], dict[str, str]]]:
    """Return options and variables that ask for a file in a folder before a node joins."""
    meets = ("--rdzv-backend=c10d", "--rdzv-conf=store_type=file", "--nnodes=2")
    return {
        "log folder": (("--standalone", f"--log-dir={folder}"), {}),
        "watchdog": (
            ("--standalone",),
            {**WATCHDOG, "TORCHELASTIC_TIMER_FILE": f"{folder / 'pipe'}"},
        ),
        "watchdog of no name": (("--standalone",), {**WATCHDOG, "TMPDIR": str(folder)}),
        "registry": ((*meets, f"--rdzv-endpoint={folder / 'registry'}"), {}),
    }


def test_a_first_file_that_hangs_is_an_error_of_whoever_named_it(
    tmp_path: Path, start: Callable[..., Running], disks: HangingDisks
) -> None:
    """No node joins a job without the files that it was told to write."""
    folder = tmp_path / "files"
    disks.hide(folder)
    nodes = {
        what: start("n1", *options, environ=environ)
        for what, (options, environ) in first_files(folder).items()
    }
    said = {
        "log folder": f"--log-dir={folder}: cannot make a folder for logs there",
        "watchdog": f"TORCHELASTIC_TIMER_FILE={folder / 'pipe'}: cannot make a pipe",
        "watchdog of no name": "TORCHELASTIC_TIMER_FILE=: cannot make a pipe",
        "registry": f"--rdzv-endpoint={folder / 'registry'}",
    }
    for what, node in nodes.items():
        assert node.wait() == 2, node.printed
        assert node.printed.count(f"{said[what]}: its file system gave no answer within 10 s") == 1
        assert "Traceback" not in node.printed
        assert "is up" not in node.printed


@pytest.mark.parametrize("what", ["log folder", "watchdog", "registry"])
def test_a_signal_is_heard_while_a_first_file_hangs(
    tmp_path: Path, start: Callable[..., Running], disks: HangingDisks, what: str
) -> None:
    """The node has not joined, and leaves."""
    disks.hide(tmp_path / "files")
    options, environ = first_files(tmp_path / "files")[what]
    node = start("n1", *options, environ=environ)
    wait_until(lambda: AgentStarted in map(type, told(tmp_path)), "the agent runs")
    node.process.send_signal(signal.SIGTERM)
    assert node.wait() == 128 + signal.SIGTERM, node.printed
    assert "gave no answer" not in node.printed
