"""Whose line a line of output is.

Launchers and workers write into one file, as they do on a terminal. There a launcher is told by
how its own lines begin, where that is known. Exactly, and which worker it was, is only known of
runs that ask for it: there the launcher is told to keep a file for each worker as well (`--tee`).
"""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "ANY",
    "LAUNCHER",
    "WORKER",
    "WORKER_LOGS",
    "is_by",
    "log_source_of",
    "parse_log_source",
    "rank_of",
]

LAUNCHER: Final = "launcher"
WORKER: Final = "worker"
ANY: Final = "any"
# The folder, below a node's, in which a launcher keeps the files of its workers.
WORKER_LOGS: Final = "workers"

# How both torchrun and our launcher mark what they pass on: role and local rank.
_PASSED_ON = re.compile(r"\[[^\]\s]*\d+\]:")
_RANK = re.compile(r"rank (\d+)")


def parse_log_source(text: str) -> str:
    """Return `text` if it says whose lines are meant; raises ValueError."""
    if text in {LAUNCHER, WORKER, ANY} or _RANK.fullmatch(text):
        return text
    raise ValueError(f"{text!r} has no log: expected launcher, worker, any, or for example rank 1")


def rank_of(text: str | None) -> int | None:
    """Return the rank whose lines are meant, if it is one's."""
    found = _RANK.fullmatch(text or "")
    return int(found[1]) if found else None


def log_source_of(
    file: str, line: str, *, own_lines: re.Pattern[str] | None, are_apart: bool
) -> str | int | None:
    """Return whose line it is: a worker's (by its local rank, if known), the launcher's, or None.

    `file` is relative to the node's folder of logs. `own_lines` is how the launcher's own lines
    begin; `are_apart`: workers have files of their own. None: a line that is there twice, or that
    a command of the scenario has printed.
    """
    parts = file.split("/")
    if parts[0] == WORKER_LOGS:
        folder = parts[-2] if len(parts) > 1 else ""
        return int(folder) if folder.isdigit() else None
    if file != "launcher.log":
        return None
    if are_apart:
        return None if _PASSED_ON.match(line) else LAUNCHER
    return LAUNCHER if own_lines is not None and own_lines.match(line) else WORKER


def is_by(found: str, asked: str | None) -> bool:
    """Tell whether a line by `found` ("launcher", "worker", "rank 3", "") is meant by `asked`.

    Without a source, lines of any process but the launcher are meant.
    """
    match asked:
        case None:
            return found != LAUNCHER
        case "any":
            return True
        case "worker":
            return found == WORKER or found.startswith("rank ")
        case _:
            return found == asked
