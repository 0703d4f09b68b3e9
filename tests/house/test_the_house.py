"""Every rule, on the tree as it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.house import checks, rules
from tests.house.checks import Finding
from tests.house.source_tree import SourceTree, read_tree

ROOT = Path(__file__).parents[2]


@cache
def the_house() -> SourceTree:
    """Read the repository once."""
    return read_tree(ROOT)


def nothing_in(findings: list[Finding]) -> None:
    """Fail with one finding a line, so that an editor can jump to it."""
    if findings:
        pytest.fail("\n".join(["see tests/house/rules.py:", *map(str, findings)]), pytrace=False)


@pytest.mark.parametrize(
    "check",
    [
        checks.arrows,
        checks.impurities,
        checks.touched_processes,
        checks.expensive_imports,
        checks.exports,
        checks.sleeping_tests,
    ],
)
def test_the_house_keeps_its_rule(check: Callable[[SourceTree], list[Finding]]) -> None:
    """The tables in `rules.py` hold for every file."""
    nothing_in(check(the_house()))


@pytest.mark.parametrize("deferred", [False, True])
def test_no_modules_import_each_other(deferred: bool) -> None:  # noqa: FBT001 - a parameter
    """There are no circles, and those that hide inside functions are counted."""
    nothing_in(checks.circles(the_house(), deferred=deferred))


def test_every_exception_names_a_file_that_exists() -> None:
    """A reason for a file that is gone goes too: the lists shrink."""
    modules = the_house().sources
    assert [module for module, _ in rules.PURE_EXCEPT if module not in modules] == []
    assert [module for module in rules.PROCESSES_EXCEPT if module not in modules] == []
