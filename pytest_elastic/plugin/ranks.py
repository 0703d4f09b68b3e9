"""Tests marked `ranks(4)`: set up, called and torn down on every rank, and told as one test.

For pytest and its other plugins the test runs here, as one call: its fixtures are not set up in
this process, and what the ranks have told becomes its report.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from _pytest._code.code import Traceback
from _pytest.runner import runtestprotocol

from pytest_elastic.plugin.ranks_records import (
    give_coverage,
    give_warnings,
    own_coverage,
    own_hook,
    plain_warning,
)

if TYPE_CHECKING:
    from elastic_harness.ranks.chaos import RankChaos
    from elastic_harness.ranks.rank_server import RankServer
    from elastic_harness.ranks.task import RankTask, ServerLink

    from pytest_elastic.plugin.ranks_report import MergedReport


__all__ = [
    "MARKER",
    "await_server",
    "begin",
    "chaos_of_rank",
    "end",
    "merge_into",
    "rank",
    "set_timer",
    "world_size",
]

MARKER = (
    "ranks(4, limit='60s', backend='gloo'): run the test on so many ranks of a process group; the "
    "fixtures rank and world_size tell which one this is"
)
_LIMIT = "60s"
_MOST = 256
# The server needs up to two seconds for the stacks of overdue ranks, and five to collect the ranks.
_TIMEOUT_LATER_S = 15.0
_OF_JOBS = ("elastic_job", "elastic_history", "elastic_jobs", "elastic_cluster")

_server_key: pytest.StashKey[RankServer] = pytest.StashKey()
_merged_key: pytest.StashKey[MergedReport] = pytest.StashKey()
# Fixtures of a wider scope than a test that took long: for how many tests.
_slow_key: pytest.StashKey[dict[str, int]] = pytest.StashKey()
_SLOW_FIXTURE_S = 1.0
# For how many seconds a test has waited for the server to start, before it was timed.
_waited_key: pytest.StashKey[float] = pytest.StashKey()
# When pytest-timeout would end the test, on this process's monotonic clock; and after how long.
_timeout_key: pytest.StashKey[tuple[float, float]] = pytest.StashKey()


@pytest.fixture
def rank() -> int:
    """The number of this process, 0 to 3 in a test that is marked `@pytest.mark.ranks(4)`."""
    return _of_environment("RANK")


@pytest.fixture
def world_size() -> int:
    """How many processes the test runs on: 4 where it is marked `@pytest.mark.ranks(4)`."""
    return _of_environment("WORLD_SIZE")


def _of_environment(name: str) -> int:
    if _link is None:
        pytest.fail(
            "this test runs on no rank: @pytest.mark.ranks(4) would run it on four", pytrace=False
        )
    return int(os.environ[name])


_link: ServerLink | None = None  # on a rank, to its server


def chaos_of_rank() -> RankChaos | None:
    """Return what the fixture `elastic_chaos` is on a rank; None where this process is none."""
    if _link is None:
        return None
    from elastic_harness.ranks.chaos import RankChaos

    return RankChaos(_link.send_order)


def begin(session: pytest.Session) -> None:
    """Prepare the tests that are marked, and fork their server, if there are any."""
    items = {item.nodeid: item for item in session.items if item.get_closest_marker("ranks")}
    if not items or session.config.option.collectonly:
        return
    from elastic_harness.ranks.rank_server import RankServer

    config = session.config
    with contextlib.suppress(AttributeError):  # the plugin tmpdir may be off
        config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # noqa: SLF001
    has_chaos = any("elastic_chaos" in getattr(each, "fixturenames", ()) for each in items.values())
    prepare = functools.partial(_prepare, config, has_chaos=has_chaos)
    server = RankServer(functools.partial(_work, items), prepare=prepare)
    config.stash[_server_key] = server
    for item in items.values():
        item.setup = item.teardown = _nothing  # type: ignore[method-assign]  # the ranks do it
        item.runtest = functools.partial(_run, item, server)  # type: ignore[method-assign]


def end(config: pytest.Config) -> None:
    """End the server, if there is one."""
    if (server := config.stash.get(_server_key, None)) is not None:
        server.close()
        del config.stash[_server_key]


def await_server(item: pytest.Item) -> None:
    """Before a test on ranks begins, and is timed: wait for the server to have imported torch."""
    server = item.config.stash.get(_server_key, None)
    if server is None or item.get_closest_marker("ranks") is None:
        return
    from pytest_elastic.errors import InternalError

    with contextlib.suppress(InternalError):  # the test itself meets it again, and fails by it
        item.stash[_waited_key] = server.wait_until_ready()


def _nothing() -> None:
    """Set nothing up."""


# --- in pytest ---


def _run(item: pytest.Item, server: RankServer) -> None:
    """Run a test on its ranks; what they told is kept for the report."""
    from elastic_harness.ranks.task import RankTask

    from pytest_elastic.errors import Unavailable
    from pytest_elastic.plugin.ranks_report import merge

    size, limit_s, backend = _settings(item)
    limit_of = ""
    if (timeout := item.stash.get(_timeout_key, None)) is not None:
        ends_at, timeout_s = timeout
        if (left_s := ends_at - time.monotonic()) < limit_s:
            limit_s, limit_of = left_s, f"the {timeout_s:g} s of pytest-timeout are over"
    folder = _folder(item)
    task = RankTask(
        size=size,
        limit_s=limit_s,
        limit_of=limit_of,
        backend=backend,
        payload=(item.nodeid, folder, secrets.randbits(64)),
    )
    try:
        ends = server.run(task)
    except Unavailable as problem:
        raise pytest.fail.Exception(str(problem), pytrace=False) from None
    merged = merge(item, size, ends)
    records = [end.result for end in ends if end.result is not None]
    give_warnings(item, [each for record in records for each in record["warnings"]])
    give_coverage([record["coverage"] for record in records if record["coverage"]])
    _warn_of_slow_fixtures(item, records)
    item.stash[_merged_key] = merged
    merged.raise_as_outcome()


def _warn_of_slow_fixtures(item: pytest.Item, records: Sequence[dict[str, Any]]) -> None:
    """Warn once of each fixture of a wider scope that is set up for the second time, slowly."""
    seen = item.config.stash.setdefault(_slow_key, {})
    for name in sorted({name for record in records for name in record["slow"]}):
        seen[name] = seen.get(name, 0) + 1
        if seen[name] == 2:
            item.warn(
                pytest.PytestWarning(
                    f"the fixture {name} takes more than {_SLOW_FIXTURE_S:g} s, and tests on ranks "
                    "set it up anew on each rank, for each test: make what needs no process group "
                    "at the top level of the test file or conftest.py, where it is made once"
                )
            )


def set_timer(item: pytest.Item, settings: Any) -> bool | None:  # noqa: ANN401 (pytest-timeout's)
    """Have the ranks' server keep pytest-timeout's time, which can show where the ranks are.

    pytest-timeout's own timer, by signal or thread, is set for later: it ends a server that hangs.
    """
    timeout: Any = item.config.pluginmanager.getplugin("timeout")
    if item.get_closest_marker("ranks") is None or settings.timeout <= 0:
        return None
    item.stash[_timeout_key] = (time.monotonic() + settings.timeout, settings.timeout)
    later = settings._replace(timeout=settings.timeout + _TIMEOUT_LATER_S)
    timeout.pytest_timeout_set_timer(item, later)
    return True


def _settings(item: pytest.Item) -> tuple[int, float, str]:
    """Return the size, the limit in seconds and the backend; a mistake fails the test."""
    from elastic_harness.scenario.fields import parse_duration

    marker = item.get_closest_marker("ranks")
    assert marker is not None
    settings: dict[str, Any] = {"limit": _LIMIT, "backend": "", **marker.kwargs}
    (size,) = marker.args if len(marker.args) == 1 else (None,)
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= _MOST:
        _refuse(f"on how many ranks? Write @pytest.mark.ranks(4); 1 to {_MOST} are possible")
    used = getattr(item, "fixturenames", ())
    if jobs := [name for name in _OF_JOBS if name in used]:
        _refuse(
            f"the fixture {jobs[0]} starts a job, which has ranks of its own: take the marker away,"
            " or the fixture"
        )
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
        report.elastic_ranks_waited = item.stash.get(_waited_key, 0.0)  # type: ignore[attr-defined]
        del item.stash[_merged_key]


# --- in the server, and on a rank ---


def _with_short_frames_of_torch(
    own_filter: Callable[[pytest.ExceptionInfo[BaseException]], Traceback],
    excinfo: pytest.ExceptionInfo[BaseException],
) -> Traceback:
    """Show one line of each function of torch, the last one too: some would fill two screens."""
    torch = os.path.join(os.path.dirname(sys.modules["torch"].__file__ or ""), "")
    return Traceback(
        entry.with_repr_style("short") if str(entry.path).startswith(torch) else entry
        for entry in own_filter(excinfo)
    )


def _prepare(config: pytest.Config, *, has_chaos: bool) -> None:
    """Import what many ranks would else import, each for itself.

    That is what a fixture of every test needs (faker's, where it is), and what shows a mistake in
    the use of `elastic_chaos`.
    """
    if config.pluginmanager.hasplugin("faker"):
        from faker import Faker

        Faker()
    if has_chaos:
        importlib.import_module("pytest_elastic.plugin.frames")


def _work(
    items: dict[str, pytest.Item], _number: int, task: RankTask, link: ServerLink
) -> tuple[Any, bool]:
    """Run a test natively, in a fork of the server; return its reports as plain values."""
    global _link  # noqa: PLW0603 (one process, one rank)
    _link = link
    nodeid, folder, seed = task.payload
    item = items[nodeid]
    _draw_alike(item, seed)
    config = item.config
    if config.option.tbstyle == "auto":
        item._traceback_filter = functools.partial(  # type: ignore[method-assign]  # noqa: SLF001
            _with_short_frames_of_torch,
            item._traceback_filter,  # noqa: SLF001
        )
    _capture_anew(config)
    if folder:
        _share(config, folder)
    own_hook(config)
    collector = _Collector(link)
    config.pluginmanager.register(collector, "elastic-rank")
    # What a subtest reports is told with all else, and not printed by each rank.
    with contextlib.suppress(AttributeError, ValueError):
        printer = config.pluginmanager.get_plugin("terminalreporter")
        config.hook.pytest_runtest_logreport._remove_plugin(printer)  # noqa: SLF001
    coverage = own_coverage()
    try:
        config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    except (pytest.exit.Exception, KeyboardInterrupt) as error:
        return {"exit": str(error) or type(error).__name__}, True
    reports = [*collector.failed_subtests, *collector.reports]
    told = [config.hook.pytest_report_to_serializable(config=config, report=r) for r in reports]
    records = {
        "warnings": collector.warnings,
        "slow": collector.slow_fixtures,
        "coverage": coverage.end(),
    }
    return {"reports": told, **records}, any(report.failed for report in reports)


def _draw_alike(item: pytest.Item, seed: int) -> None:
    """Have hypothesis give all ranks the same examples, slow ones and those that remember too.

    A seed that the test or the command line names stays.
    """
    test: Any = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    if not hasattr(test, "hypothesis"):
        return
    import hypothesis

    given = test._hypothesis_internal_use_settings  # noqa: SLF001 (nothing else tells)
    if not given.derandomize and test._hypothesis_internal_use_seed is None:  # noqa: SLF001
        hypothesis.seed(item.config.getoption("hypothesis_seed", None) or seed)(test)
        given = test._hypothesis_internal_use_settings  # noqa: SLF001
    test._hypothesis_internal_use_settings = hypothesis.settings(given, deadline=None)  # noqa: SLF001


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

    def __init__(self, link: ServerLink) -> None:
        self._link = link
        self.reports: list[pytest.TestReport] = []
        self.failed_subtests: list[pytest.TestReport] = []
        self.warnings: list[dict[str, Any]] = []
        self._has_begun = False
        self.slow_fixtures: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        """Note a fixture of a wider scope that takes long: the next test sets it up again."""
        began = time.monotonic()
        value = yield
        if fixturedef.scope != "function" and time.monotonic() - began > _SLOW_FIXTURE_S:
            self.slow_fixtures.append(f"{fixturedef.argname!r} (scope {fixturedef.scope})")
        return value

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        """Run the test as pytest would, and print nothing."""
        self._has_begun = True
        self.reports = runtestprotocol(item, log=False, nextitem=None)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a subtest that has failed, which the report of its test does not tell."""
        if report.failed:
            self.failed_subtests.append(report)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        """Note a warning of this test; pytest repeats earlier ones to each new plugin."""
        if self._has_begun:
            self.warnings.append(plain_warning(warning_message))

    def pytest_enter_pdb(self) -> None:
        self._link.pause_limit(is_paused=True)

    def pytest_leave_pdb(self) -> None:
        self._link.pause_limit(is_paused=False)
