"""A warm worker shares with its host what it does not change: so many of them are cheap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pytest_elastic.boot import sharing
from tests.unit.boot.held import ROLE, hold

_OWN = """
import os
table = os.open("/proc/self/smaps_rollup", os.O_RDONLY)
rows = dict(line.split()[:2] for line in os.read(table, 1 << 16).decode().splitlines()[1:])
print(rows["Private_Dirty:"])
"""
_FORK = """
        if os.fork() == 0:
            return Program(argv=['-c', {code!r}], environ=os.environ.copy())
        os.wait()
        os._exit(0)
"""
# Measured: 5.0 MB with Python 3.11 and torch 2.13; 7.2 with gaps, 15 with all that is avoided.
_MAX_OWN_KB = 6000


def test_a_program_of_a_warm_host_begins_with_little_memory_of_its_own(tmp_path: Path) -> None:
    """What a program writes into before its first line: a small part of what torch is."""
    role = ROLE.format(body="pass") + _FORK.format(code=_OWN)
    done = hold(role, tmp_path, preload=("torch", "torch._dynamo"))
    assert done.stderr == ""
    assert 0 < int(done.stdout) < _MAX_OWN_KB


def test_new_objects_lie_together_after_freezing() -> None:
    """The places that garbage has left are taken, but for the few made by looking."""
    code = (
        "import sys\n"
        "kept = [[bytes(n % 400) for n in range(100_000)]]\n"
        "kept = kept[0][::7]\n"
        "from pytest_elastic.boot import sharing\n"
        "before = sum(sharing._free_places().values())\n"
        "sharing.freeze()\n"
        "print(before, sum(sharing._free_places().values()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    before, after = map(int, done.stdout.split())
    assert before > 50_000
    assert after < before / 10


def test_nothing_is_filled_where_cpython_does_not_tell_its_places(tmp_path: Path) -> None:
    """With another allocator there is no table to read: freezing is harmless, and stderr stays."""
    code = "from pytest_elastic.boot import sharing; sharing.freeze(); sharing.freeze(); print('x')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONMALLOC": "malloc"},
    )
    assert (done.stdout, done.stderr) == ("x\n", "")


def test_what_is_kept_is_never_freed() -> None:
    """Not even when nobody refers to it any more."""
    thing = object()
    before = sys.getrefcount(thing)
    sharing.keep(thing)
    assert sys.getrefcount(thing) == before + 1
