"""pytest, as `pytest-elastic chaos FILE` becomes it: its exit codes are those of a check-up."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import pytest

from pytest_elastic.unread import until_unread

__all__ = ["main"]

_INVALID: Final = 1
_WRONG_USAGE: Final = 2
_UNKNOWN: Final = 3
_EXIT_CODES: Final[Mapping[int, int]] = {
    pytest.ExitCode.USAGE_ERROR: _WRONG_USAGE,
    pytest.ExitCode.NO_TESTS_COLLECTED: _WRONG_USAGE,
}
# This very module has imported the package before pytest could.
_NO_REMARK: Final = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"


class _Failures:
    """What has failed in a session, as exit codes; with pytest-xdist in all of its processes."""

    def __init__(self) -> None:
        self.codes: set[int] = set()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Take a file that cannot be read for wrong usage."""
        if report.failed:
            self.codes.add(_WRONG_USAGE)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a failed test for unknown if that is what is said of its runs, and nothing worse."""
        if report.failed:
            properties = report.user_properties if report.when != "teardown" else ()
            outcomes = {value for name, value in properties if name == "elastic_outcome"}
            is_unknown = "unknown" in outcomes and "invalid" not in outcomes
            self.codes.add(_UNKNOWN if is_unknown else _INVALID)


def main(arguments: Sequence[str]) -> int:
    """Run pytest; returns 0 valid, 1 invalid, 3 unknown, 2 where there was nothing to run."""
    failures = _Failures()
    code = int(pytest.main([*arguments, f"-W{_NO_REMARK}"], plugins=[failures]))
    if code == pytest.ExitCode.TESTS_FAILED and failures.codes:
        return next(each for each in (_INVALID, _WRONG_USAGE, _UNKNOWN) if each in failures.codes)
    if code == pytest.ExitCode.INTERRUPTED and _WRONG_USAGE not in failures.codes:
        return 128 + signal.SIGINT
    return _EXIT_CODES.get(code, code)


if __name__ == "__main__":
    sys.exit(until_unread(lambda: main(sys.argv[1:])))
