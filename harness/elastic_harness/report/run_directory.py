"""Where everything about one run lies.

    <artifacts>/<run name>/
        history.jsonl     every record, in order, written as it came
        plan.json         the faults as they were drawn: what a replay needs
        scenario.yaml     what was run
        logs/<node>/...   the output of launchers and workers
        log-times.jsonl   when those had grown to which size
        timeline.html     the run at a glance, self-contained
        trace.json        the same for Perfetto and chrome://tracing

A run whose name is taken gets a number. Only `remove_old_runs` deletes anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from elastic_harness.history.history import History, unwritable
from elastic_harness.history.judge import Judgement
from elastic_harness.report.noted_times import (
    LinkUse,
    LogLine,
    read_link_uses,
    read_marks,
    timed_lines,
)
from elastic_harness.report.timeline import timeline_html
from elastic_harness.report.trace import trace_json
from elastic_harness.scenario.stage.clocks import LINK_COUNTS, LOG_TIMES
from pytest_elastic.errors import UsageError
from pytest_elastic.whole_file import replace_file

__all__ = [
    "RunDirectory",
    "create_run_directory",
    "earlier_runs",
    "remove_old_runs",
    "safe_name",
]

# File systems allow 255 bytes; the rest is for a number and for suffixes.
_MAX_NAME = 120
_MAX_TRIES = 10_000
# Another session may still write into a run, or show it.
_SAFE_S = 3600.0
# The end of a log is where a failure stands; a job may have printed a gigabyte before.
_TAIL = 64 * 1024
# What the logs of many ranks may add to the page.
_ALL_TAILS = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDirectory:
    """The paths of one run. Only `create_run_directory` and the `write_` methods touch the disk."""

    path: str

    @property
    def history(self) -> str:
        """The file that `History` writes."""
        return os.path.join(self.path, "history.jsonl")

    @property
    def plan(self) -> str:
        """The plan, as JSON."""
        return os.path.join(self.path, "plan.json")

    @property
    def scenario(self) -> str:
        """The scenario, as YAML."""
        return os.path.join(self.path, "scenario.yaml")

    @property
    def timeline(self) -> str:
        """The page that shows the run."""
        return os.path.join(self.path, "timeline.html")

    @property
    def trace(self) -> str:
        """The trace for Perfetto."""
        return os.path.join(self.path, "trace.json")

    @property
    def logs(self) -> str:
        """The folder with one folder for each node."""
        return os.path.join(self.path, "logs")

    def end_of_log(self, node: str) -> str:
        """Return the end of what a node's launcher and workers have printed; "" if nothing."""
        path = os.path.join(self.logs, safe_name(node), "launcher.log")
        return _end_of_file(path, _TAIL)[0].decode("utf-8", "replace")

    def write_plan(self, text: str) -> None:
        """Write the plan of a run; raises UsageError, as all of these do, if that cannot be."""
        _write(self.plan, text)

    def write_scenario(self, text: str) -> None:
        """Write the scenario as it was run."""
        _write(self.scenario, text)

    def write_reports(
        self, history: History, judgements: Sequence[Judgement] = (), *, command: str = ""
    ) -> None:
        """Write the timeline and the trace."""
        page = timeline_html(
            history,
            judgements,
            logs=self._log_files(),
            lines=self._log_lines(),
            links=self._link_uses(),
            command=command,
        )
        _write(self.timeline, page)
        _write(self.trace, trace_json(history))

    def _log_lines(self) -> list[LogLine]:
        """Return the ends of all logs with the times of their lines, as far as those are known."""
        try:
            with open(os.path.join(self.path, LOG_TIMES), encoding="utf-8") as file:
                marks = read_marks(file)
        except OSError:
            return []
        found: list[LogLine] = []
        tail = min(_TAIL, _ALL_TAILS // max(1, len(marks)))
        for name, grown in sorted(marks.items()):
            node, _, rest = name.partition(os.sep)
            who = node if rest == "launcher.log" else f"{node} {rest}"
            content, offset = _end_of_file(os.path.join(self.logs, name), tail)
            found += timed_lines(content, grown, who=who, offset=offset)
        return found

    def _link_uses(self) -> list[LinkUse]:
        """Return what links have delivered and dropped, where that was counted."""
        try:
            with open(os.path.join(self.path, LINK_COUNTS), encoding="utf-8") as file:
                return read_link_uses(file)
        except OSError:
            return []

    def _log_files(self) -> list[str]:
        """Return the logs' paths relative to the run directory, sorted."""
        found: list[str] = []
        for folder, folders, names in os.walk(self.logs):
            folders.sort()
            inside = os.path.relpath(folder, self.path)
            found += [os.path.join(inside, name) for name in sorted(names)]
        return found


def _write(path: str, text: str) -> None:
    # The name of a file need not be UTF-8; for JSON, that is how such a character is written.
    data = text.encode("utf-8", "backslashreplace")
    try:
        replace_file(path, data)
    except OSError as error:
        raise unwritable(path, error) from error


def create_run_directory(artifacts: str, name: str) -> RunDirectory:
    """Make a new, empty directory for a run below `artifacts`.

    Safe among several processes: making the directory is what takes the name. Raises UsageError
    when `artifacts` cannot be written to.
    """
    base = safe_name(name)
    try:
        if not os.path.isdir(artifacts):
            os.makedirs(artifacts, exist_ok=True)
            _write(os.path.join(artifacts, ".gitignore"), "*\n")  # as pytest does with its cache
        for number in range(1, _MAX_TRIES):
            path = os.path.join(artifacts, base if number == 1 else f"{base}-{number}")
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
                return RunDirectory(path=os.path.abspath(path))
    except OSError as error:
        raise UsageError(
            f"cannot keep the run {name!r} in {artifacts!r}: {error.strerror}",
            hint="Choose another folder (pytest: --elastic-artifacts, "
            "pytest-elastic chaos: --artifacts).",
        ) from error
    raise UsageError(f"cannot keep the run {name!r}: {artifacts!r} holds {_MAX_TRIES} of them")


def earlier_runs(artifacts: str, *, without: Collection[str] = ()) -> list[tuple[str, float]]:
    """Return the runs below `artifacts` that have a page, and when it was written: newest first.

    `without` are absolute paths of runs that are not listed; links are no runs.
    """
    found = []
    for run in _folders_in(artifacts):
        with contextlib.suppress(OSError):  # another session has just removed it
            if run.path not in without:
                found.append((run.path, os.stat(run.timeline).st_mtime))
    return sorted(found, key=lambda run: (-run[1], run[0]))


def remove_old_runs(
    artifacts: str, *, now: float, newest: int, max_bytes: int, spared: Collection[str] = ()
) -> int:
    """Remove all but the newest runs below `artifacts`; return how many were removed.

    `newest` runs stay at most, and so many of them as have `max_bytes` together; 0 means no limit.
    `spared` (absolute paths), what was written in the last hour before `now` (seconds since 1970),
    links, and folders that are no runs are counted or ignored, and never removed.
    """
    runs = []
    for run in _folders_in(artifacts):
        with contextlib.suppress(OSError):  # no run, or another session has just removed it
            written_at = max(os.stat(mark).st_mtime for mark in (run.plan, run.history))
            runs.append((written_at, _bytes_in(run.path), run.path))
    removed = total = 0
    for number, (written_at, size, path) in enumerate(sorted(runs, reverse=True), 1):
        total += size
        is_too_much = bool(newest and number > newest) or bool(max_bytes and total > max_bytes)
        if is_too_much and path not in spared and now - written_at > _SAFE_S:
            shutil.rmtree(path, ignore_errors=True)
            removed += not os.path.lexists(path)
    return removed


def _folders_in(artifacts: str) -> list[RunDirectory]:
    with contextlib.suppress(OSError), os.scandir(artifacts) as entries:
        return [
            RunDirectory(path=os.path.abspath(entry.path))
            for entry in entries
            if entry.is_dir(follow_symlinks=False)
        ]
    return []


def _bytes_in(path: str) -> int:
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(folder, name)).st_size
    return size


def safe_name(name: str) -> str:
    """Return a name that can be a folder's: two names that differ stay different."""
    clean = re.sub(r"[^A-Za-z0-9._=,@+-]+", "-", name).strip("-.") or "run"
    if clean == name and len(clean) <= _MAX_NAME:
        return clean
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:6]
    return f"{clean[:_MAX_NAME]}-{digest}"


def _end_of_file(path: str, at_most: int) -> tuple[bytes, int]:
    """Return the end of a file, and where in the file it begins; nothing if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            start = max(0, file.tell() - at_most)
            file.seek(start)
            return file.read(at_most), start
    except OSError:
        return b"", 0
