"""Where the output of workers goes: torchrun's folders and switches, and nothing is ever wiped.

`<log_dir>/<run_id>_XXXX/attempt_<restart count>/<local rank>/{stdout.log,stderr.log,error.json}`.
A restart that costs nothing keeps the restart count (a node joined or left); torchrun then deletes
the logs of the round before, here its folder is `attempt_<count>.round_<round>`.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from string import Template

from pytest_elastic.errors import UsageError

__all__ = ["LogDirectory", "LogSettings", "Streams", "WorkerLogs", "line_prefix", "parse_streams"]

_ONE = re.compile(r"[0123]")
_BY_RANK = re.compile(r"\d+:[0123](,\d+:[0123])*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Which of a worker's two streams are meant."""

    stdout: bool
    stderr: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What the command line says about output; `redirects` and `tee` as in `parse_streams`.

    `log_dir` is None for a folder of our own under the temporary one. With `os.devnull` nothing is
    written: no logs, no error files. `local_ranks` are those shown on the console (empty: all).
    `stdout_filters` and `stderr_filters`: lines of tee'd streams that contain one of these go to
    `filtered_stdout.log` and `filtered_stderr.log` as well.
    """

    log_dir: str | None = None
    redirects: str = "0"
    tee: str = "0"
    local_ranks: Sequence[int] = ()
    stdout_filters: Sequence[str] = ()
    stderr_filters: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLogs:
    """Where one worker's output goes. `stdout` and `stderr` are files, or None for the console.

    `tee` says which of the files are shown on the console too. `error_file` is None where nothing
    is written at all.
    """

    local_rank: int
    stdout: str | None
    stderr: str | None
    error_file: str | None
    tee: Streams


class LogDirectory:
    """The folder of one run on one node; made when the first round starts."""

    def __init__(self, settings: LogSettings, run_id: str) -> None:
        self._settings = settings
        self._run_id = run_id
        self._redirects = parse_streams(settings.redirects, option="--redirects")
        self._tee = parse_streams(settings.tee, option="--tee")
        self.path: str | None = None

    def prepare_round(self, round: int, restart_count: int, workers: int) -> Sequence[WorkerLogs]:
        """Make the folders of a round; raises UsageError when they cannot be made."""
        if self._settings.log_dir == os.devnull:
            return [self._plan(local_rank, None) for local_rank in range(workers)]
        attempt = self._make_attempt(round, restart_count)
        plans = []
        for local_rank in range(workers):
            folder = os.path.join(attempt, str(local_rank))
            os.makedirs(folder, exist_ok=True)
            plans.append(self._plan(local_rank, folder))
        return plans

    def _make_attempt(self, round: int, restart_count: int) -> str:
        try:
            if self.path is None:
                self.path = _make_run_folder(self._settings.log_dir, self._run_id)
            attempt = os.path.join(self.path, f"attempt_{restart_count}")
            try:
                os.mkdir(attempt)
            except FileExistsError:
                attempt = f"{attempt}.round_{round}"
                os.makedirs(attempt, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot make the folder for logs in {self._settings.log_dir}: {error.strerror}"
            ) from error
        return attempt

    def _plan(self, local_rank: int, folder: str | None) -> WorkerLogs:
        tee = _of_rank(self._tee, local_rank)
        redirect = _of_rank(self._redirects, local_rank)
        is_shown = not self._settings.local_ranks or local_rank in self._settings.local_ranks
        files: list[str | None] = []
        for name in ("stdout", "stderr"):
            if getattr(tee, name) or getattr(redirect, name):
                files.append(os.devnull if folder is None else os.path.join(folder, f"{name}.log"))
            else:
                files.append(None if is_shown else os.devnull)
        return WorkerLogs(
            local_rank=local_rank,
            stdout=files[0],
            stderr=files[1],
            error_file=None if folder is None else os.path.join(folder, "error.json"),
            tee=tee if is_shown and folder is not None else Streams(stdout=False, stderr=False),
        )


def parse_streams(text: str, *, option: str) -> dict[int, Streams] | Streams:
    """Return what "3" or "0:1,1:3" means: 0 none, 1 stdout, 2 stderr, 3 both; raises UsageError."""
    if _ONE.fullmatch(text):
        return _streams(text)
    if not _BY_RANK.fullmatch(text):
        raise UsageError(
            f"{option}={text} names no streams: expected 0 (none), 1 (stdout), 2 (stderr) or"
            " 3 (both), or that by local rank, as in 0:1,1:3"
        )
    by_rank = {}
    for part in text.split(","):
        rank, _, value = part.partition(":")
        by_rank[int(rank)] = _streams(value)
    return by_rank


def line_prefix(template: str | None, *, role: str, rank: int, local_rank: int) -> str:
    """Return what each tee'd line begins with: `[role0]:`, or the user's template filled in."""
    if template is None:
        return f"[{role}{local_rank}]:"
    return Template(template).safe_substitute(role_name=role, rank=rank, local_rank=local_rank)


def _streams(value: str) -> Streams:
    return Streams(stdout=bool(int(value) & 1), stderr=bool(int(value) & 2))


def _of_rank(choice: dict[int, Streams] | Streams, local_rank: int) -> Streams:
    if isinstance(choice, Streams):
        return choice
    return choice.get(local_rank, Streams(stdout=False, stderr=False))


def _make_run_folder(log_dir: str | None, run_id: str) -> str:
    base = log_dir or tempfile.mkdtemp(prefix="torchelastic_")
    os.makedirs(base, exist_ok=True)
    return tempfile.mkdtemp(prefix=f"{run_id.replace(os.sep, '_')}_", dir=base)
