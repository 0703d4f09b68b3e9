from __future__ import annotations

import os
import subprocess
import sys

from elastic_harness.cluster.process_table import (
    ancestors,
    command_of,
    descendants,
    environ_of,
    processes,
    row_of,
)


def test_this_process_is_found_with_its_parent_and_its_place_in_time() -> None:
    """A pid with its start time names one process for good."""
    found = row_of(os.getpid())
    assert found is not None
    assert (found.ppid, found.is_alive) == (os.getppid(), True)
    assert ancestors(os.getpid())[0] == os.getppid()
    assert os.getpid() in set(processes())


def test_a_name_may_hold_parentheses_and_spaces() -> None:
    """The kernel escapes nothing: the name ends at the last parenthesis."""
    with open("/proc/self/comm") as file:
        name = file.read()
    try:
        with open("/proc/self/comm", "w") as file:
            file.write("a) b (c")
        found = row_of(os.getpid())
    finally:
        with open("/proc/self/comm", "w") as file:
            file.write(name)
    assert found is not None
    assert (found.ppid, found.is_alive) == (os.getppid(), True)


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
    assert row_of(child.pid) is None
    assert command_of(child.pid) == ()
    assert environ_of(child.pid) == {}
    assert ancestors(child.pid) == []


def test_a_zombie_is_not_alive() -> None:
    """Dead is dead, whether or not its parent has looked."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    found = row_of(pid)
    assert found is not None
    assert not found.is_alive
    os.waitpid(pid, 0)
