"""The scenarios in `long/` run only when they are named: `pytest scenarios/long`.

Where pytest-xdist is, a folder of scenarios runs several at a time: a job under test mostly waits.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

MOST_AT_A_TIME = 4
LONG = Path(__file__).resolve().parent / "long"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave `long/` out, unless an argument of the command line leads into it."""
    if collection_path != LONG:
        return None
    asked = [config.invocation_params.dir / arg.partition("::")[0] for arg in config.args]
    return None if any(LONG in (path, *path.parents) for path in map(Path.resolve, asked)) else True


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist, which reads the option in the same hook
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run as many at a time as there are processors, unless told otherwise, or to debug."""
    option = config.option
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # it calls this hook as well, and would have workers of its own, without end
    has_xdist = config.pluginmanager.hasplugin("xdist")
    is_said = has_xdist and (option.numprocesses is not None or option.dist != "no")
    is_watched = option.collectonly or option.usepdb or option.trace or option.capture == "no"
    if not has_xdist or is_said or is_watched or not all(map(os.path.isdir, config.args)):
        return
    if (processors := len(os.sched_getaffinity(0))) > 1:
        option.numprocesses = min(processors, MOST_AT_A_TIME)
