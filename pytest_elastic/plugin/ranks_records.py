"""What a rank has to tell beside its reports: the warnings it met, and the lines that it measured.

Both are collected on the rank, where pytest's and coverage's own collecting would be lost or mixed
up with that of the process it was forked from, and are given to pytest's and coverage's of the
process that reports.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import warnings
from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["give_coverage", "give_warnings", "own_coverage", "own_hook", "plain_warning"]


# --- on a rank ---


def own_hook(config: pytest.Config) -> None:
    """Take the listeners of warnings away: xdist's would write into a pipe that is not ours."""
    hook: Any = config.hook.pytest_warning_recorded
    for listener in hook.get_hookimpls():
        hook._remove_plugin(listener.plugin)  # noqa: SLF001 (unregistering would tell the plugin)


def plain_warning(message: warnings.WarningMessage) -> dict[str, Any]:
    """Return a warning as values that any process can read."""
    category = message.category
    plain = {
        "text": str(message.message),
        "name": f"{category.__module__}.{category.__qualname__}",
        "filename": message.filename,
        "lineno": message.lineno,
        "line": message.line,
        "pickled": b"",
    }
    with contextlib.suppress(Exception):  # whatever a class's own pickling raises
        plain["pickled"] = pickle.dumps((message.message, category))
    return plain


class own_coverage:  # noqa: N801 (a function to its user)
    """Measure in memory from now on, if coverage measures at all; `end` returns what it saw."""

    def __init__(self) -> None:
        self._measuring = _measuring()
        if self._measuring is None:
            return
        from coverage import CoverageData

        data = CoverageData(no_disk=True)
        # Its file is that of the process which this one was forked from.
        self._measuring._data = data  # noqa: SLF001
        self._measuring._collector.use_data(data, self._measuring.config.context)  # noqa: SLF001

    def end(self) -> bytes:
        """Stop measuring; return what `give_coverage` takes, b"" if nothing was measured."""
        if self._measuring is None:
            return b""
        self._measuring.stop()
        told: bytes = self._measuring.get_data().dumps()
        return told


# --- in the process that reports ---


def give_warnings(item: pytest.Item, told: Iterable[dict[str, Any]]) -> None:
    """Record the warnings of all ranks for pytest's summary, each once."""
    each = {(one["name"], one["text"], one["filename"], one["lineno"]): one for one in told}
    for one in each.values():
        try:
            message, category = pickle.loads(one["pickled"])  # noqa: S301 (our own rank's)
        except Exception:  # noqa: BLE001 (a class that is not there, or that cannot be pickled)
            message, category = Warning(f"{one['name']}: {one['text']}"), Warning
        item.ihook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": warnings.WarningMessage(
                    message, category, one["filename"], one["lineno"], line=one["line"]
                ),
                "nodeid": item.nodeid,
                "when": "runtest",
                "location": None,
            }
        )


def give_coverage(told: Iterable[bytes]) -> None:
    """Add what ranks have measured to what is measured here, in the present context.

    Not by `CoverageData.update`: what comes in by that does not count for the hash in the name of
    its file, and where pytest-xdist's workers have measured the same else, one file is dropped.
    """
    measuring = _measuring()
    for data in told if measuring is not None else ():
        from coverage import CoverageData

        there, here = CoverageData(no_disk=True), measuring.get_data()
        there.loads(data)
        files = there.measured_files()
        if there.has_arcs():
            here.add_arcs({file: there.arcs(file) or () for file in files})
        else:
            here.add_lines({file: there.lines(file) or () for file in files})
        here.add_file_tracers(
            {file: tracer for file in files if (tracer := there.file_tracer(file))}
        )


def _measuring() -> Any:  # noqa: ANN401 (coverage need not be there)
    coverage = sys.modules.get("coverage")
    return None if coverage is None else coverage.Coverage.current()
