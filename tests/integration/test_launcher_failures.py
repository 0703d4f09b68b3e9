"""What is said of a failure, on every node, whatever the worker said or could not say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.launchers import LIMIT_S, PLAIN, Running, address
from tests.integration.memory_group import limited_memory

# --- the root cause --------------------------------------------------------------------------

# First the last rank of the last node ends by a signal, then it says in its error file why it ends.
FAILS = """
import json, os, signal, sys, time
if os.environ["RANK"] != "1":
    while True: signal.pause()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGSEGV)
callstack = "Traceback (most recent call last):\\n  in train\\nValueError: sample 17"
extra = {"py_callstack": callstack, "timestamp": "1"}
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump({"message": {"message": "ValueError: sample 17", "extraInfo": extra}}, file)
sys.stdout.write(f"ends {os.getpid()}\\n")
sys.stdout.flush()
sys.exit(3)
"""


def test_every_node_names_the_jobs_first_failure(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    """Rank, node, pid, how it ended, message and traceback; signals by their names."""
    (tmp_path / "fails.py").write_text(FAILS)
    words = (
        *(*PLAIN, "--nnodes=2", "--max-restarts=1", "--rdzv-backend=c10d"),
        *(f"--rdzv-endpoint={address(91)}", "--rdzv-conf=min_round=0.1"),
    )
    nodes = [start(*words, f"--node-name=n{i}", "fails.py") for i in (0, 1)]
    assert [node.wait() for node in nodes] == [1, 1]
    pid = "".join(re.findall(r"ends (\d+)", nodes[0].printed + nodes[1].printed))
    for node in nodes:
        summary = node.printed.partition("the job failed: ")[2].splitlines()
        assert summary[2:7] == [
            f"first failure: rank 1 (node n1, local rank 0, pid {pid}) in round 2: exit code 3",
            "  ValueError: sample 17",
            "  Traceback (most recent call last):",
            "    in train",
            "  ValueError: sample 17",
        ]
    host = next(node for node in nodes if "hosting the rendezvous" in node.printed)
    assert "round 1 ended: rank 1 on n1 failed (SIGSEGV) (restarts used: 1)" in host.printed


# Each attempt leaves another thing where its error is to be; the last one speaks, and shouts.
MUMBLES = r"""
import json, os, sys
path = os.environ["TORCHELASTIC_ERROR_FILE"]
deep = "[" * 100_000 + "]" * 100_000
files = [b"", b"\0\xff\xfe" * 1000, b'{"message": {"mess', b"[1, 2]", b'{"message": 7}',
         deep.encode(), b" " * (5 << 20) + b'{"message": "huge"}']
others = [os.mkfifo, os.mkdir, lambda p: os.symlink(p, p), lambda p: None]
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if attempt < len(files):
    with open(path, "wb") as file: file.write(files[attempt])
elif attempt < len(files) + len(others):
    others[attempt - len(files)](path)
else:
    said = "\x1b[31mred\x1b[0m\nno file caf\udce9 " + "x" * 1_000_000
    with open(path, "w") as file: json.dump({"message": said, "timestamp": "soon"}, file)
sys.exit(3)
"""


def test_an_error_file_of_any_kind_harms_nothing(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    """Empty, binary, cut, of other types, too deep, huge, none, no text: the job takes its way."""
    (tmp_path / "mumbles.py").write_text(MUMBLES)
    options = ("--standalone", "--max-restarts=11", "--rdzv-conf=min_round=0.001")
    events = tmp_path / "events.jsonl"
    job = start(
        *PLAIN, *options, "--log-dir=logs", "mumbles.py", PYTEST_ELASTIC_EVENTS=f"file:{events}"
    )
    assert job.wait() == 1, job.printed[-3000:]
    assert r"no file caf\\udce9" in events.read_text()
    assert len(re.findall("round .* ended: rank 0 on", job.printed)) == 12
    assert "in round 12: exit code 3" in job.printed
    assert r"  \x1b[31mred\x1b[0m" in job.printed, "it does not colour the console"
    assert r"  no file caf\udce9 xxx" in job.printed
    assert len(job.printed) < 20_000
    assert "Traceback" not in job.printed


HUNGRY = """
import sys
eaten = []
while True: eaten.append(bytearray(1 << 20))
"""


@pytest.mark.slow
def test_a_worker_that_the_kernel_killed_for_memory_is_told_from_one_that_was_killed(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    """By what the control group has counted; the launcher lives in the same group."""
    (tmp_path / "hungry.py").write_text(HUNGRY)
    (tmp_path / "killed.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with limited_memory(1 << 30) as group:
        joins = ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
        hungry = start(*joins, *PLAIN, "--standalone", "hungry.py")
        assert hungry.wait() == 1, hungry.printed
        killed = start(*joins, *PLAIN, "--standalone", "killed.py")
        assert killed.wait() == 1, killed.printed
    for job in (hungry, killed):
        assert "killed by SIGKILL" in job.printed
    assert "  killed by the kernel: out of memory" in hungry.printed
    assert "out of memory" not in killed.printed


# --- what is written, and where there is no room for it --------------------------------------


def on_a_disk_of(size: str, folder: Path, *words: str) -> list[str]:
    """Return a command that runs another with a small disk of its own at a folder."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("no file system can be mounted here")
    folder.mkdir()
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", str(folder)]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    mount = f'mount -t tmpfs -o {size} none {folder} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, "sh", *words]


def test_a_disk_without_room_for_a_folder_is_told_before_anything_starts(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    """Exit code 2, the folder, and the system's words."""
    words = ("--standalone", "--log-dir=logs", "--no-python", "true")
    job = start(*on_a_disk_of("nr_inodes=1", tmp_path / "logs", *PLAIN, *words))
    assert job.wait() == 2, job.printed
    said = "pytest-elastic run: --log-dir=logs: cannot make a folder for logs there: No space left"
    assert job.printed.startswith(said)
    assert len(job.printed.splitlines()) == 2


# The first attempt fills the disk: with output until it ends of it, or with files.
FILLS = """
import os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    print("the second attempt", flush=True)
elif sys.argv[1] == "bytes":
    for _ in range(10_000): print("match", "x" * 1000, flush=True)
else:
    try:
        for name in range(1000): open(f"logs/{name}", "w").close()
    except OSError:
        sys.exit(3)
"""


@pytest.mark.parametrize(
    ("fills", "size", "said"),
    [
        ("bytes", "size=256k", "[cannot write "),
        ("files", "nr_inodes=12", "cannot make the folder for logs of round 2 in "),
    ],
)
def test_a_disk_that_becomes_full_does_not_end_a_job_that_can_go_on(
    tmp_path: Path, start: Callable[..., Running], fills: str, size: str, said: str
) -> None:
    """What cannot be kept is said; the program's own failure is its own, and names the disk."""
    (tmp_path / "fills.py").write_text(FILLS)
    words = (
        *("--standalone", "--max-restarts=1", "--tee=3", "--log-dir=logs"),
        *("--duplicate-stdout-filters=match", "--event-log-handler=console", "fills.py", fills),
    )
    job = start(*on_a_disk_of(size, tmp_path / "logs", *PLAIN, *words))
    code = job.wait()
    assert said in job.printed, job.printed[-3000:]
    assert "the disk for its output is full: " in job.printed
    assert ": No space left on device" in job.printed
    assert "pytest-elastic run: " not in job.printed, "the agent has no error of its own"
    assert "/pytest_elastic/" not in job.printed
    # With no room for a single byte the second attempt fails as well, by its own print.
    assert code == (1 if fills == "bytes" else 0), job.printed[-3000:]
    if code == 0:
        assert "the second attempt" in job.printed


@pytest.mark.parametrize("console", ["/dev/full", "closed"])
def test_a_console_that_takes_nothing_changes_no_exit_code(tmp_path: Path, console: str) -> None:
    """A reader that has gone, a log on a full disk: the job is not theirs."""
    (tmp_path / "exits.py").write_text("open('ran', 'w').close()\n")
    command = [*PLAIN, "--standalone", str(tmp_path / "exits.py")]
    if console == "closed":
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open(console, os.O_WRONLY)
    try:
        codes = [
            subprocess.run(
                words, cwd=tmp_path, stderr=writing, timeout=LIMIT_S, check=False
            ).returncode
            for words in (command, [*PLAIN, "--nnodes=0", "exits.py"])
        ]
    finally:
        os.close(writing)
    assert codes == [0, 2]
    assert (tmp_path / "ran").exists()


# --- how it is run ---------------------------------------------------------------------------


def test_another_interpreter_and_the_local_rank_in_the_scripts_name(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    """PYTHON_EXEC is what runs the script; `${local_rank}` is filled in wherever it stands."""
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nWRAPPED=yes exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    for rank in "01":
        (tmp_path / f"rank{rank}.py").write_text(
            f"import os, sys\nsys.stdout.write(f\"{rank} {{os.environ['WRAPPED']}} "
            '{sys.argv[1:]}\\n")\n'
        )
    job = start(
        *(*PLAIN, "--standalone", "--nproc-per-node=2", "--start-method=fork"),
        *("rank${local_rank}.py", "--gpu=${local_rank}", "$HOME"),
        PYTHON_EXEC=str(wrapper),
    )
    assert job.wait() == 0, job.printed
    lines = [line for line in job.printed.splitlines() if "yes" in line]
    assert sorted(lines) == ["0 yes ['--gpu=0', '$HOME']", "1 yes ['--gpu=1', '$HOME']"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_script_that_this_user_may_not_read_is_refused() -> None:
    """Before anything starts, with what to try."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        script = Path(folder, "secret.py")
        script.touch(mode=0o600)
        # Everything is imported while it may be read.
        code = (
            "import os, sys, pytest_elastic.cli.run; from pytest_elastic.cli.main import main\n"
            f"os.setuid(65534); sys.exit(main(['run', {str(script)!r}]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 2, done.stderr
    assert "secret.py' cannot be read: no permission" in done.stderr
    assert "(this is user 65534)" in done.stderr
    assert "Traceback" not in done.stderr
