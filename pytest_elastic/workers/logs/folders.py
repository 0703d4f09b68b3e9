"""Where the output of workers goes: torchrun's folders and switches.

`<log_dir>/<run_id>_XXXX/attempt_<restart count>/<local rank>/{stdout.log,stderr.log,error.json}`.
A restart that costs nothing keeps the restart count (a node joined or left); torchrun then deletes
the logs of the round before, here its folder is `attempt_<count>.round_<round>`. The first round's
folder and those of the newest hundred are kept.

A folder that cannot be made before the job begins is the user's to change. One that cannot be made
later (a disk is full, the folder was removed) does not end a job that could go on: the
output of that round goes to the console, and its workers have no error file.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from string import Template

from pytest_elastic.errors import UsageError

__all__ = [
    "MAX_NEWEST_ROUNDS",
    "LogDirectory",
    "LogSettings",
    "Streams",
    "WorkerLogs",
    "full_disk_of",
    "line_prefix",
    "parse_streams",
]

_ONE = re.compile(r"[0123]")
_BY_RANK = re.compile(r"\d{1,9}:[0123](,\d{1,9}:[0123])*")
# Whose folders are kept, besides the first round's.
MAX_NEWEST_ROUNDS = 100
# Of the 255 bytes that a name may have; the rest makes it unique.
_MAX_NAME_BYTES = 200


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

    `tee_stdout` and `tee_stderr` are files that are shown on the console too, None where none is;
    those of their lines that the user has chosen go to `filtered_stdout` and `filtered_stderr` as
    well. `error_file` is None where nothing is written at all. `environ` is what a class of the
    user's has made of the worker's environment.
    """

    local_rank: int
    stdout: str | None
    stderr: str | None
    tee_stdout: str | None = None
    tee_stderr: str | None = None
    filtered_stdout: str | None = None
    filtered_stderr: str | None = None
    error_file: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


class LogDirectory:
    """The folder of one run on one node; `on_problem` gets a sentence about what cannot be made."""

    def __init__(
        self, settings: LogSettings, run_id: str, *, on_problem: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._run_id = run_id
        self._on_problem = on_problem
        self._redirects = parse_streams(settings.redirects, option="--redirects")
        self._tee = parse_streams(settings.tee, option="--tee")
        self.path: str | None = None
        self._newest: deque[str] = deque()  # folders of rounds, but for the first one's
        self._has_first = False

    def open(self, *, said: str) -> None:
        """Make the run's folder, before the node joins.

        Raises UsageError for a given `log_dir`; `said` is the option or variable that named it.
        """
        if self._settings.log_dir == os.devnull:
            return
        try:
            self.path = _make_run_folder(self._settings.log_dir, self._run_id)
        except OSError as error:
            self.refuse(error.strerror or str(error), error, said=said)

    def refuse(self, why: str, error: OSError | None = None, *, said: str) -> None:
        """Do without the run's folder, or raise what `open` does."""
        if self._settings.log_dir is not None:
            raise UsageError(
                f"{said}={self._settings.log_dir}: cannot make a folder for logs there: {why}",
                hint="Name a folder that this user may write to, with room on its disk.",
            ) from error
        # Files were not asked for: error files are useful, but no job needs them.
        self._on_problem(f"cannot make a temporary folder for error files: {why}")

    def prepare_round(self, round: int, restart_count: int, workers: int) -> Sequence[WorkerLogs]:
        """Make the folders of a round; without them its output goes to the console."""
        if self.path is None:
            return self.without_files(workers)
        try:
            attempt = self._make_attempt(self.path, round, restart_count)
            for local_rank in range(workers):
                os.makedirs(os.path.join(attempt, str(local_rank)), exist_ok=True)
        except OSError as error:
            self._on_problem(
                f"cannot make the folder for logs of round {round} in {self.path}: "
                f"{error.strerror}; its output goes to the console"
            )
            return self.without_files(workers)
        self._keep_newest(attempt)
        return [self._plan(local_rank, attempt) for local_rank in range(workers)]

    def _keep_newest(self, attempt: str) -> None:
        """Take an old round's folder away for a new one: a job may restart for a month."""
        if not self._has_first:
            self._has_first = True
            return
        self._newest.append(attempt)
        if len(self._newest) > MAX_NEWEST_ROUNDS:
            shutil.rmtree(self._newest.popleft(), ignore_errors=True)

    def without_files(self, workers: int) -> Sequence[WorkerLogs]:
        """Return where the output of a round goes if no file can be made for it."""
        return [self._plan(local_rank, None) for local_rank in range(workers)]

    def _make_attempt(self, path: str, round: int, restart_count: int) -> str:
        attempt = os.path.join(path, f"attempt_{restart_count}")
        try:
            os.mkdir(attempt)
        except FileExistsError:
            attempt = f"{attempt}.round_{round}"
            os.makedirs(attempt, exist_ok=True)
        return attempt

    def _plan(self, local_rank: int, attempt: str | None) -> WorkerLogs:
        """Return where a worker's output goes: to files below `attempt`, if there are any."""
        tee, redirect = _of_rank(self._tee, local_rank), _of_rank(self._redirects, local_rank)
        is_shown = not self._settings.local_ranks or local_rank in self._settings.local_ranks
        paths: dict[str, str | None] = {}
        for name in ("stdout", "stderr"):
            is_teed = getattr(tee, name)
            has_file = is_teed or getattr(redirect, name)
            if attempt is not None and has_file:
                paths[name] = os.path.join(attempt, str(local_rank), f"{name}.log")
                if is_teed and is_shown:
                    paths[f"tee_{name}"] = paths[name]
                    paths[f"filtered_{name}"] = os.path.join(attempt, f"filtered_{name}.log")
            else:
                is_dropped = has_file and self._settings.log_dir == os.devnull
                paths[name] = None if is_shown and not is_dropped else os.devnull
        if attempt is not None:
            paths["error_file"] = os.path.join(attempt, str(local_rank), "error.json")
        return WorkerLogs(local_rank=local_rank, **paths)  # type: ignore[arg-type]  # all are paths


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


def line_prefix(
    template: str | None, *, role: str, rank: int, local_rank: int, hostname: str
) -> str:
    """Return what each tee'd line begins with: `[role0]:`, or the user's template filled in."""
    if template is None:
        return f"[{role}{local_rank}]:"
    return Template(template).safe_substitute(
        role_name=role, rank=rank, local_rank=local_rank, hostname=hostname
    )


def full_disk_of(path: str) -> str | None:
    """Return the folder of `path` if its disk has no room for an ordinary user, else None."""
    folder = os.path.dirname(path)
    try:
        room = os.statvfs(folder)
    except OSError:
        return None
    is_full = (room.f_blocks and not room.f_bavail) or (room.f_files and not room.f_favail)
    return folder if is_full else None


def _streams(value: str) -> Streams:
    return Streams(stdout=bool(int(value) & 1), stderr=bool(int(value) & 2))


def _of_rank(choice: dict[int, Streams] | Streams, local_rank: int) -> Streams:
    if isinstance(choice, Streams):
        return choice
    return choice.get(local_rank, Streams(stdout=False, stderr=False))


def _make_run_folder(log_dir: str | None, run_id: str) -> str:
    base = log_dir or tempfile.mkdtemp(prefix="torchelastic_")
    if not os.path.exists(base):
        os.makedirs(base, exist_ok=True)
    return tempfile.mkdtemp(prefix=f"{_folder_name(run_id)}_", dir=base)


def _folder_name(run_id: str) -> str:
    """Return what of a run's name can be the name of a folder."""
    plain = "".join(c if c.isprintable() and c != os.sep else "_" for c in run_id)
    return plain.encode()[:_MAX_NAME_BYTES].decode(errors="ignore")
