"""What is to be run: one value per worker, complete enough that a keeper needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_elastic.wire import Value

__all__ = ["WorkerSpec"]


class WorkerSpec(Value):
    """One worker process.

    `command` is everything: `[python, "-u", "train.py", "--steps=3"]` or a binary with its
    arguments. `environ` is the complete environment. `stdout` and `stderr` are paths of files to
    append to, or None to inherit the agent's streams. `is_python` says that `command[0]` is the
    interpreter this launcher runs on, so that a warm start is possible at all.
    """

    local_rank: int
    rank: int
    command: Sequence[str]
    environ: Mapping[str, str]
    cwd: str
    stdout: str | None = None
    stderr: str | None = None
    error_file: str | None = None
    is_python: bool = True
    cpus: Sequence[int] | None = None
