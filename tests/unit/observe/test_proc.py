from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from elastic_harness.observe.proc import (
    ancestors,
    command_of,
    descendants,
    environ_of,
    is_same_process,
    processes,
    read_process,
)


def test_this_process_is_found_with_its_parent_and_its_place_in_time() -> None:
    """A pid with its start time names one process for good."""
    found = read_process(os.getpid())
    assert found is not None
    assert (found.ppid, found.is_alive) == (os.getppid(), True)
    assert is_same_process(os.getpid(), found.start_time)
    assert not is_same_process(os.getpid(), found.start_time + 1)
    assert ancestors(os.getpid())[0] == os.getppid()
    assert os.getpid() in {each.pid for each in processes()}


def test_a_name_may_hold_parentheses_and_spaces(tmp_path: Path) -> None:
    """The kernel escapes nothing: the name ends at the last parenthesis."""
    (tmp_path / "42").mkdir()
    fields = "S 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 99"
    (tmp_path / "42" / "stat").write_text(f"42 (a) b (c) {fields}\n")
    found = read_process(42, proc=str(tmp_path))
    assert found is not None
    assert (found.name, found.state, found.ppid) == ("a) b (c", "S", 7)
    assert (found.process_group, found.session, found.start_time) == (8, 9, 12345)


def test_descendants_are_found_with_their_command_and_environment() -> None:
    """Parents before children; the dead are left out."""
    inner = "import sys; print(1, flush=True); sys.stdin.read()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    child = subprocess.Popen(
        [sys.executable, "-c", outer],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"MARK": "x=y"},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == b"1\n"
    below = descendants(child.pid)
    assert len(below) == 1
    assert ancestors(below[0].pid)[:2] == [child.pid, os.getpid()]
    assert command_of(child.pid) == (sys.executable, "-c", outer)
    assert environ_of(child.pid) == {"MARK": "x=y"}
    child.communicate(b"", timeout=30)
    assert descendants(child.pid) == []


def test_a_process_that_is_gone_is_none_and_never_an_error() -> None:
    """Any process may end between two reads."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait(30)
    assert read_process(child.pid) is None
    assert command_of(child.pid) == ()
    assert environ_of(child.pid) == {}
    assert ancestors(child.pid) == []


def test_a_zombie_is_not_alive() -> None:
    """Dead is dead, whether or not its parent has looked."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    found = read_process(pid)
    assert found is not None
    assert not found.is_alive
    assert not is_same_process(pid, found.start_time)
    os.waitpid(pid, 0)
