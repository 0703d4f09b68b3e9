"""`breakpoint()` in a worker, and a person at the terminal: the same under both launchers."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conformance.launchers import LIMIT_S, OURS, TORCHRUN, write

pytestmark = pytest.mark.slow

STOPS = """
import sys
x = 41
print("a terminal:", sys.stdin.isatty(), sys.stdout.isatty(), flush=True)
breakpoint()
print("x is", x)
"""
# What the person sees, and what they type then.
TALK = (("(Pdb) ", "p x\n"), ("41\r\n(Pdb) ", "x += 1\n"), ("(Pdb) ", "continue\n"))


def talk(folder: Path, words: Sequence[str], talk: Sequence[tuple[str, str]]) -> tuple[int, str]:
    """Run a command on a terminal of its own; return its exit code and all that was shown."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        words,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown, heard, waiting = b"", 0, list(talk)
    deadline = time.monotonic() + LIMIT_S
    try:
        while select.select([ours], [], [], max(deadline - time.monotonic(), 0))[0]:
            try:
                shown += os.read(ours, 4096)
            except OSError:
                break  # nobody has the terminal any more
            if waiting and waiting[0][0].encode() in shown[heard:]:
                heard = len(shown)
                os.write(ours, waiting.pop(0)[1].encode())
        return process.wait(max(deadline - time.monotonic(), 1)), shown.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize("launcher", [OURS, TORCHRUN], ids=["ours", "torchrun"])
def test_a_person_at_the_terminal_debugs_a_worker(
    launcher: tuple[str, ...], tmp_path: Path
) -> None:
    """What is typed reaches pdb, although workers are in a session of their own."""
    script = write(tmp_path / "stops.py", STOPS)
    code, shown = talk(tmp_path, [*launcher, "--standalone", "--nproc-per-node=1", script], TALK)
    assert code == 0, shown
    assert "a terminal: True True" in shown
    assert "x is 42" in shown
