"""What a test leaves behind is said, and what was there before is not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from elastic_harness import leaks


def ours(lines: list[str], *names: object) -> list[str]:
    """Return the lines that name what a test has made: others on this machine make things too."""
    return [line for line in lines if any(str(name) in line for name in names)]


def test_nothing_done_is_nothing_left() -> None:
    """Looking leaves nothing itself."""
    before = leaks.snapshot()
    assert leaks.leaks_since(before, within_s=20.0) == []


def test_a_process_is_named_with_its_command_until_it_is_reaped() -> None:
    """A child counts as left while it runs and while it waits to be collected."""
    before = leaks.snapshot()
    child = subprocess.Popen(["sleep", "1000"])
    try:
        (line,) = ours(leaks.compare(before, leaks.snapshot()), child.pid)
        assert line.startswith(f"process left: {child.pid} (state ")
        assert "sleep 1000" in line or "no command line" in line
        spared = leaks.snapshot(spared=leaks.Spared(pids=frozenset({child.pid})))
        assert ours(leaks.compare(before, spared), child.pid) == []
    finally:
        child.kill()
        child.wait()
    assert ours(leaks.compare(before, leaks.snapshot()), child.pid) == []


def test_a_descriptor_is_named_with_what_it_leads_to(tmp_path: Path) -> None:
    """An open file is a leak; a spared one is not."""
    before = leaks.snapshot()
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert ours(leaks.compare(before, leaks.snapshot()), tmp_path) == [
            f"open descriptor left: {fd} ({tmp_path})"
        ]
        spared = leaks.snapshot(spared=leaks.Spared(fds=frozenset({fd})))
        assert ours(leaks.compare(before, spared), tmp_path) == []
    finally:
        os.close(fd)


def test_a_thread_is_named() -> None:
    """A thread that still runs is left behind."""
    before = leaks.snapshot()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="straggler")
    thread.start()
    try:
        found = ours(leaks.compare(before, leaks.snapshot()), "thread")
        assert found == ["thread left: straggler"]
    finally:
        stop.set()
        thread.join()


def test_socket_files_and_shared_memory_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket in the directory of temporary files is left, and so is a shared memory file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = leaks.snapshot()
    name = f"/dev/shm/leak-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "service"))
    Path(name).touch()
    try:
        lines = ours(leaks.compare(before, leaks.snapshot()), name, tmp_path)
    finally:
        Path(name).unlink()
    assert lines == [f"shared memory file left: {name}", f"socket file left: {tmp_path}/service"]


def test_shared_memory_that_a_process_beside_us_uses_is_not_ours() -> None:
    """Sessions run side by side; what nobody uses has been left by somebody, and is said."""
    before = leaks.snapshot()
    name = f"/dev/shm/leak-test-{os.getpid()}-beside"
    Path(name).write_bytes(bytes(4096))
    code = (
        f"import mmap; file = open('{name}', 'r+b'); held = mmap.mmap(file.fileno(), 0); "
        "print(1, flush=True); input()"
    )
    # Not a child of ours: its parent ends at once.
    shell = f'exec 3<&0; "$0" -c "{code}" <&3 &'
    try:
        left = ours(leaks.leaks_since(before, within_s=0), name)
        assert left == [f"shared memory file left: {name}"]
        with subprocess.Popen(
            ["sh", "-c", shell, sys.executable], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as beside:
            assert beside.stdout is not None
            assert beside.stdout.readline() == b"1\n"
            left = leaks.leaks_since(before, within_s=0)
            assert not ours(left, name)
    finally:
        Path(name).unlink()


def test_what_is_about_to_go_is_waited_for() -> None:
    """A thing that goes within the time given was not left."""
    before = leaks.snapshot()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, args=(0.1,))
    thread.start()
    assert leaks.leaks_since(before, within_s=5.0) == []
    thread.join()
