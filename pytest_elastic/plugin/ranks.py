"""Tests marked `ranks(4)`: set up, called and torn down on every rank, and told as one test.

For pytest and its other plugins the test runs here, as one call: its fixtures are not set up in
this process, and what the ranks have told becomes its report.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from _pytest.runner import runtestprotocol

if TYPE_CHECKING:
    from elastic_harness.ranks.rank_server import RankServer
    from elastic_harness.ranks.task import RankTask

    from pytest_elastic.plugin.ranks_report import MergedReport


__all__ = ["MARKER", "begin", "end", "merge_into", "rank", "world_size"]

MARKER = (
    "ranks(4, limit='60s', backend='gloo'): run the test on so many ranks of a process group; the "
    "fixtures rank and world_size tell which one this is"
)
_LIMIT = "60s"
_MOST = 256

_server_key: pytest.StashKey[RankServer] = pytest.StashKey()
_merged_key: pytest.StashKey[MergedReport] = pytest.StashKey()


@pytest.fixture
def rank() -> int:
    """The number of this rank, in a test that is marked `ranks(4)`: 0 to 3."""
    return _of_environment("RANK")


@pytest.fixture
def world_size() -> int:
    """How many ranks a test that is marked `ranks(4)` runs on: 4."""
    return _of_environment("WORLD_SIZE")


def _of_environment(name: str) -> int:
    if not _is_rank:
        pytest.fail(
            "this test runs on no rank: @pytest.mark.ranks(4) would run it on four", pytrace=False
        )
    return int(os.environ[name])


_is_rank = False


def begin(session: pytest.Session) -> None:
    """Prepare the tests that are marked, and fork their server, if there are any."""
    items = {item.nodeid: item for item in session.items if item.get_closest_marker("ranks")}
    if not items or session.config.option.collectonly:
        return
    from elastic_harness.ranks.rank_server import RankServer

    config = session.config
    with contextlib.suppress(AttributeError):  # the plugin tmpdir may be off
        config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # noqa: SLF001
    server = RankServer(
        functools.partial(_work, items), prepare=functools.partial(_prepare, config)
    )
    config.stash[_server_key] = server
    for item in items.values():
        item.setup = _nothing  # type: ignore[method-assign]  # the ranks do it
        item.runtest = functools.partial(_run, item, server)  # type: ignore[method-assign]


def end(config: pytest.Config) -> None:
    """End the server, if there is one."""
    if (server := config.stash.get(_server_key, None)) is not None:
        server.close()
        del config.stash[_server_key]


def _nothing() -> None:
    """Set nothing up."""


# --- in pytest ---


def _run(item: pytest.Item, server: RankServer) -> None:
    """Run a test on its ranks; what they told is kept for the report."""
    from elastic_harness.ranks.task import RankTask

    from pytest_elastic.plugin.ranks_report import merge

    size, limit_s, backend = _settings(item)
    folder = _folder(item)
    ends = server.run(
        RankTask(size=size, limit_s=limit_s, backend=backend, payload=(item.nodeid, folder))
    )
    merged = merge(item, size, ends)
    item.stash[_merged_key] = merged
    merged.raise_as_outcome()


def _settings(item: pytest.Item) -> tuple[int, float, str]:
    """Return the size, the limit in seconds and the backend; a mistake fails the test."""
    from elastic_harness.scenario.fields import parse_duration

    marker = item.get_closest_marker("ranks")
    assert marker is not None
    settings: dict[str, Any] = {"limit": _LIMIT, "backend": "", **marker.kwargs}
    (size,) = marker.args if len(marker.args) == 1 else (None,)
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= _MOST:
        _refuse(f"on how many ranks? Write @pytest.mark.ranks(4); 1 to {_MOST} are possible")
    if unknown := sorted(set(settings) - {"limit", "backend"}):
        _refuse(f"there is no setting {unknown[0]!r}: known are limit and backend")
    try:
        limit_s = parse_duration(settings["limit"])
    except ValueError as error:
        _refuse(f"limit: {error}")
    return size, limit_s, str(settings["backend"])


def _refuse(sentence: str) -> NoReturn:
    raise pytest.fail.Exception(f"@pytest.mark.ranks: {sentence}", pytrace=False) from None


def _folder(item: pytest.Item) -> str:
    """Return the one folder that the ranks share as `tmp_path`, if the test has it."""
    if "tmp_path" not in getattr(item, "fixturenames", ()):
        return ""
    factory: Any = item.config._tmp_path_factory  # type: ignore[attr-defined]  # noqa: SLF001
    return str(factory.mktemp("".join(c if c.isalnum() else "_" for c in item.name)[:30]))


def merge_into(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Make the report of a test on ranks what its ranks have told."""
    merged = item.stash.get(_merged_key, None)
    if merged is not None and call.when == "call":
        merged.complete(report)
        del item.stash[_merged_key]


# --- in the server, and on a rank ---


def _prepare(config: pytest.Config) -> None:
    """Import what a fixture of every test needs: faker's, which is always there."""
    if config.pluginmanager.hasplugin("faker"):
        from faker import Faker

        Faker()


def _work(
    items: dict[str, pytest.Item], _number: int, task: RankTask, pause: Callable[[bool], None]
) -> tuple[Any, bool]:
    """Run a test natively, in a fork of the server; return its reports as plain values."""
    global _is_rank  # noqa: PLW0603 (one process, one rank)
    _is_rank = True
    nodeid, folder = task.payload
    item = items[nodeid]
    config = item.config
    _capture_anew(config)
    if folder:
        _share(config, folder)
    collector = _Collector(pause)
    config.pluginmanager.register(collector, "elastic-rank")
    try:
        config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    except (pytest.exit.Exception, KeyboardInterrupt) as error:
        return {"exit": str(error) or type(error).__name__}, True
    reports = collector.reports
    told = [config.hook.pytest_report_to_serializable(config=config, report=r) for r in reports]
    return {"reports": told}, any(report.failed for report in reports)


def _capture_anew(config: pytest.Config) -> None:
    """Give this process captures of its own: the files of pytest's are shared by a fork."""
    manager: Any = config.pluginmanager.getplugin("capturemanager")
    if manager is None or not manager.is_globally_capturing():
        return
    manager._global_capturing.stop_capturing()  # noqa: SLF001 (its own way prints what others wrote)
    manager._global_capturing = None  # noqa: SLF001
    manager.start_global_capturing()


def _share(config: pytest.Config, folder: str) -> None:
    """Have the fixture `tmp_path` be the folder that all ranks share."""
    factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]  # noqa: SLF001
    original = factory.mktemp

    def mktemp(basename: str, numbered: bool = True) -> Any:  # noqa: ANN401, FBT001, FBT002
        called_by = sys._getframe(1).f_code.co_name  # noqa: SLF001
        return (
            type(factory.getbasetemp())(folder)
            if called_by == "_mk_tmp"
            else original(basename, numbered=numbered)
        )

    factory.mktemp = mktemp
    factory._retention_policy = "all"  # noqa: SLF001 (pytest removes it when all have ended)


class _Collector:
    """Collects reports in the place of pytest's own runner; stops the clock for a debugger."""

    def __init__(self, pause: Callable[[bool], None]) -> None:
        self._pause = pause
        self.reports: list[pytest.TestReport] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        """Run the test as pytest would, and print nothing."""
        self.reports = runtestprotocol(item, log=False, nextitem=None)
        return True

    def pytest_enter_pdb(self) -> None:
        self._pause(True)

    def pytest_leave_pdb(self) -> None:
        self._pause(False)
