"""Controllers of version 2 that nobody hands down, on a real kernel: in a container, in a service.

Skipped where version 1 has the controllers; `python -m tests.machine` boots a kernel that has them
in version 2 (see CONTRIBUTING.md).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_PROGRAM = Path(__file__).with_name("handing_down_program.py")
_LIMIT_S = 30.0
_NOBODY = 65534
_ALL = "able: cpu memory process"
_WANTED = ("cpu", "memory", "pids")


class Session:
    """A process that takes part in handing down, step by step."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, *words: object) -> str:
        """Order one step; returns what can be limited after it."""
        assert self.process.stdin is not None, "it is a pipe"
        assert self.process.stdout is not None, "it is a pipe"
        print(*words, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def top() -> Path:
    """The mounted root of version 2, if it has what can be limited; skips where it has not."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        folder = Path(before.split()[4])
        if after.startswith("cgroup2 ") and os.access(folder, os.W_OK) and os.geteuid() == 0:
            there = (folder / "cgroup.controllers").read_text().split()
            if set(_WANTED) <= set(there) and not (folder / "cgroup.type").exists():
                return folder
    pytest.skip("takes root, and the controllers in version 2: see python -m tests.machine")


@pytest.fixture
def group(top: Path) -> Iterator[Path]:
    """A group that has the controllers, and hands none down."""
    before = (top / "cgroup.subtree_control").read_text().split()
    (top / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _WANTED))
    group = top / f"pytest-elastic-test-{os.getpid()}"
    group.mkdir()
    yield group
    _wait_for(lambda: _is_removed(group), f"{group} to have no processes and groups left")
    for name in sorted(set(_WANTED) - set(before)):
        (top / "cgroup.subtree_control").write_text(f"-{name}")


@pytest.fixture
def start() -> Iterator[Callable[[], Session]]:
    """Start sessions; they are gone afterwards."""
    sessions: list[Session] = []

    def start_one() -> Session:
        sessions.append(Session())
        return sessions[-1]

    yield start_one
    for session in sessions:
        session.kill()


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def _wait_for(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"not in time: {what}"
        os.sched_yield()


def _is_as_before(group: Path, *sessions: Session) -> bool:
    """Tell whether a group has its processes, hands nothing down and has no groups."""
    pids = sorted(map(int, (group / "cgroup.procs").read_text().split()))
    return (
        pids == sorted(session.process.pid for session in sessions)
        and (group / "cgroup.subtree_control").read_text().split() == []
        and not [each for each in group.iterdir() if each.is_dir()]
    )


def test_a_containers_processes_move_aside_and_come_back(
    top: Path, group: Path, start: Callable[[], Session]
) -> None:
    """The one that asks, and those that know nothing of it."""
    session, other = start(), start()
    other.do("join", group)
    session.do("join", group)
    assert session.do("container", top) == "able:", "version 2 lets no group with processes"
    assert session.do("hold") == _ALL
    assert (group / "cgroup.procs").read_text() == ""
    session.do("release")
    assert _is_as_before(group, session, other)


def test_sessions_beside_each_other_share_it_until_the_last_one_ends(
    top: Path, group: Path, start: Callable[[], Session]
) -> None:
    """Whichever came first; and twice is harmless."""
    first, second = start(), start()
    for session in (first, second):
        session.do("join", group)
        session.do("container", top)
    assert first.do("hold") == second.do("hold") == _ALL
    first.do("release")
    assert not _is_as_before(group, first, second), "the second one still needs it"
    second.do("release")
    assert _is_as_before(group, first, second)
    assert first.do("release") == "able:"


def test_what_a_killed_session_has_left_the_next_one_takes_back(
    top: Path, group: Path, start: Callable[[], Session]
) -> None:
    """Its lock went with it, and the name of the shelter says what there is to be done."""
    killed, session = start(), start()
    for each in (killed, session):
        each.do("join", group)
        each.do("container", top)
    assert killed.do("hold") == _ALL
    killed.kill()
    assert session.do("hold") == _ALL
    session.do("release")
    assert _is_as_before(group, session)


def test_an_ordinary_user_has_what_was_delegated_and_no_more(
    group: Path, start: Callable[[], Session]
) -> None:
    """As systemd delegates: the folder and three of its files, with our processes in it."""
    session = start()
    session.do("join", group)
    assert session.do("user", _NOBODY) == "able:"
    assert session.do("hold") == "able:", "nothing was delegated"
    os.chown(group, _NOBODY, -1)
    for name in ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
        os.chown(group / name, _NOBODY, -1)
    assert session.do("hold") == _ALL
    session.do("release")
    assert _is_as_before(group, session)


def test_what_may_be_handed_down_beside_processes_is_not(
    top: Path, group: Path, start: Callable[[], Session]
) -> None:
    """Processor and processes may: that makes groups of threads, which take no process of ours."""
    (group / "cgroup.subtree_control").write_text("+cpu +pids")
    inner = group / "inner"
    inner.mkdir()
    session = start()
    session.do("join", inner)
    session.do("container", top)
    assert session.do("hold") == "able: cpu process"
    assert (inner / "cgroup.type").read_text() == "domain\n"
    assert (inner / "cgroup.procs").read_text() == ""
    session.do("release")
    assert _is_as_before(inner, session)
    session.kill()
    _wait_for(lambda: _is_removed(inner), f"{inner} to have no processes left")
    (group / "cgroup.subtree_control").write_text("-cpu -pids")


def test_the_machines_root_hands_down_what_root_lacks_and_only_for_so_long(
    top: Path, start: Callable[[], Session]
) -> None:
    """Nothing moves: it may have processes."""
    table = top / "cgroup.subtree_control"
    if table.read_text().split():
        pytest.skip(f"{top} hands controllers down already")
    session = start()
    session.do("join", top)
    assert session.do("hold") == _ALL
    assert str(session.process.pid) in (top / "cgroup.procs").read_text().split()
    session.do("release")
    assert table.read_text().split() == []
    assert not [each for each in top.iterdir() if each.name.startswith("pytest-elastic-shelter")]
