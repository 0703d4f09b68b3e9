"""Processes that stand still: a signal that was sent has not been obeyed yet."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

__all__ = ["stop"]

_LIMIT_S = 60.0


def stop(pid: int) -> None:
    """Stop a process, and wait until each of its threads stands still.

    One that runs on another processor goes on for a while, and may even answer somebody.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _LIMIT_S
    while running := [task for task in Path(f"/proc/{pid}/task").iterdir() if _runs(task)]:
        assert time.monotonic() < deadline, f"{running} of {pid} do not stop"
        select.select([], [], [], 0.005)


def _runs(task: Path) -> bool:
    return (task / "stat").read_text().rpartition(")")[2].split()[0] != "T"
