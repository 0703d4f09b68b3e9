"""Commands without what they rely upon: /proc, localhost, their folder, room for output."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pytest_elastic.config import DEFAULT_PRELOAD
from tests.cluster_bench import ROOT
from tests.conformance.launchers import LEAN

NEEDS_UNSHARE = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs namespaces of its own"
)
COMMAND = (sys.executable, "-m", "pytest_elastic")
RUN = (*COMMAND, "run", "--standalone", "script.py")


def run(
    folder: Path, *words: str, stdout: int = subprocess.PIPE, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder with a script that says that it was run, and uses no torch."""
    (folder / "script.py").write_text('with open("was_run", "a") as file:\n    file.write("x")\n')
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **LEAN, **environ},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )


@NEEDS_UNSHARE
@pytest.mark.parametrize("command", [RUN, (*COMMAND, "doctor"), (*COMMAND, "chaos", "script.py")])
def test_processes_of_another_pid_namespace_are_left_alone(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Their numbers mean others here: a launcher ended strangers, and waited for them."""
    alone = ("unshare", "--pid", "--fork", "--kill-child")
    ended = run(tmp_path, *alone, *command)
    assert ended.returncode == 2, ended
    assert "/proc is that of another PID namespace" in ended.stderr
    assert "--mount-proc" in ended.stderr
    assert not (tmp_path / "was_run").exists()


@NEEDS_UNSHARE
def test_a_launcher_without_proc_says_so(tmp_path: Path) -> None:
    """It cannot tell whether a worker has left something."""
    words = ("unshare", "--mount", "sh", "-c", 'umount -l /proc; exec "$@"', "sh")
    ended = run(tmp_path, *words, *RUN)
    assert (ended.returncode, "/proc shows no processes" in ended.stderr) == (2, True), ended


@NEEDS_UNSHARE
def test_localhost_needs_no_entry(tmp_path: Path) -> None:
    """Minimal images have an empty /etc/hosts; torchrun waits for ever there."""
    hosts = tmp_path / "hosts"
    hosts.touch()
    words = ("unshare", "--mount", "--net", "sh", "-c")
    script = f'ip link set lo up; mount --bind {hosts} /etc/hosts; exec "$@"'
    ended = run(tmp_path, *words, script, "sh", *RUN)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "was_run").read_text() == "x"


@NEEDS_UNSHARE
def test_a_loopback_that_is_down_is_named_at_once(tmp_path: Path) -> None:
    """As in a new network namespace: each round would wait for a store that nobody reaches."""
    ended = run(tmp_path, "unshare", "--net", *RUN)
    assert (ended.returncode, "`ip link set lo up`" in ended.stderr) == (2, True), ended.stderr
    assert not (tmp_path / "was_run").exists()


@NEEDS_UNSHARE
def test_a_machine_that_has_no_loopback_but_that_of_ipv6_is_told_what_to_say(
    tmp_path: Path,
) -> None:
    """Its loopback interface is up, and what it has is said; with that the job runs."""
    script = 'ip link set lo up; ip address del 127.0.0.1/8 dev lo; exec "$@"'
    words = ("unshare", "--net", "sh", "-c", script, "sh")
    ended = run(tmp_path, *words, *RUN)
    said = "This machine has ::1 for itself: say --local-addr=::1"
    assert (ended.returncode, said in ended.stderr) == (2, True), ended.stderr
    ended = run(tmp_path, *words, *COMMAND, "run", "--local-addr=::1", "script.py")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "was_run").read_text() == "x"


def test_a_job_runs_where_a_module_of_the_users_hides_one_of_torchs(tmp_path: Path) -> None:
    """torch._dynamo is imported ahead of need, and cannot be here; a job need not import it."""
    (tmp_path / "hides").mkdir()
    (tmp_path / "hides" / "mpmath.py").touch()
    preload = ",".join(DEFAULT_PRELOAD)
    path = f"{ROOT}:{tmp_path / 'hides'}"
    ended = run(tmp_path, *RUN, PYTHONPATH=path, PET_PRELOAD=preload)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert (tmp_path / "was_run").read_text() == "x"


@pytest.mark.parametrize("text", ["", "raise ImportError('mine')"])
def test_a_file_that_hides_one_of_pythons_modules_is_named(tmp_path: Path, text: str) -> None:
    """That is no bug of ours, whether it fails by itself or lacks what Python's own has."""
    (tmp_path / "hides").mkdir()
    file = tmp_path / "hides" / "tempfile.py"
    file.write_text(text)
    ended = run(tmp_path, *RUN, PYTHONPATH=f"{ROOT}:{tmp_path / 'hides'}")
    assert ended.returncode == 2, ended.stderr
    assert f"{file} is found in place of Python's own module tempfile (" in ended.stderr
    assert "Traceback" not in ended.stderr


@NEEDS_UNSHARE
@pytest.mark.parametrize(
    "prepare",
    [
        "for each in /tmp /var/tmp; do mount -B $each $each; mount -o remount,bind,ro $each; done",
        "ulimit -f 0",
    ],
    ids=["read-only", "full"],
)
def test_a_job_runs_where_no_temporary_file_can_be_made(tmp_path: Path, prepare: str) -> None:
    """On file systems that are read-only, or have no room; error files lie where the user says."""
    script = f'{prepare}; exec "$@"'
    folder = tempfile.mkdtemp(dir="/dev/shm")
    program = os.path.join(folder, "script.py")
    Path(program).write_text("print('it ran')")
    start = (*COMMAND, "run", "--standalone", f"--log-dir={folder}", program)
    try:
        done = subprocess.run(
            ("unshare", "--mount", "sh", "-c", script, "sh", *start),
            cwd="/proc",  # where none can be made, either
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": ""},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    assert "it ran" in done.stdout


@pytest.mark.parametrize("name", ["run", "doctor"])
def test_a_folder_that_is_gone_is_named(tmp_path: Path, name: str) -> None:
    """A job's folder on a scratch disk that was cleared, for example."""
    folder = tmp_path / "gone"
    folder.mkdir()
    words = ("sh", "-c", f'rmdir {folder}; exec "$@"', "sh", *COMMAND, name)
    ended = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    said = f"pytest-elastic {name}: the folder that this was called in is gone\n"
    assert (ended.returncode, ended.stderr) == (2, said)


def test_an_output_without_room_is_told(tmp_path: Path) -> None:
    """As of a program of Unix: EX_IOERR, and no traceback."""
    with open("/dev/full", "wb") as full:
        ended = run(tmp_path, *COMMAND, "schema", stdout=full.fileno())
    said = "cannot write the output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (74, said)


@pytest.mark.parametrize("start", ["auto", "exec"])
def test_a_launcher_leaves_no_socket_to_the_garbage_collector(tmp_path: Path, start: str) -> None:
    """With warnings as errors, Python prints each one that it collects."""
    words = (*RUN[:-1], f"--worker-start={start}", RUN[-1])
    ended = run(tmp_path, *words, PYTHONWARNINGS="error")
    assert (ended.returncode, "Warning" in ended.stderr) == (0, False), ended.stderr
