"""The pytest plugin: loaded by every pytest run, so nothing here imports what costs.

`-p no:elastic` turns it off. What is used is imported when the first elastic test is collected.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_elastic.plugin import ranks
from pytest_elastic.plugin.fixtures import (
    JOBS_KEY,
    elastic_chaos,
    elastic_cluster,
    elastic_history,
    elastic_job,
    elastic_jobs,
    elastic_leak_check,
    elastic_seed,
)
from pytest_elastic.plugin.hub import FAILED_KEY, SUBTEST_KEY
from pytest_elastic.plugin.options import add_options, is_asked_for, options_of
from pytest_elastic.plugin.ranks import rank, world_size

__all__ = [
    "elastic_chaos",
    "elastic_cluster",
    "elastic_history",
    "elastic_job",
    "elastic_jobs",
    "elastic_leak_check",
    "elastic_seed",
    "rank",
    "world_size",
]

_SUFFIX = ".elastic.yaml"
_WORTH_SAYING_S = 0.5
_FIXTURES = frozenset(__all__) - {"elastic_leak_check", "rank", "world_size"}


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare options and ini settings."""
    add_options(parser, pluginmanager.hook)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that users may implement."""
    from pytest_elastic.plugin import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker; read the options if one was given, so that mistakes show early."""
    config.addinivalue_line(
        "markers",
        # pytest takes what stands before the first colon for the marker.
        "elastic(nodes=2, nproc=2, max_restarts=3, limit='60s', requires=[...], conf={...}): "
        "settings for the job of a test that uses the fixture elastic_job; what the call of "
        "elastic_job says beats the marker, and the marker beats the options --elastic-...",
    )
    config.addinivalue_line("markers", ranks.MARKER)
    config.pluginmanager.register(_Outermost(), "elastic-ranks")
    config.pluginmanager.register(_EndOfSession(), "elastic-end-of-session")
    if is_asked_for(config) and options_of(config).leak_check == "on":
        from pytest_elastic.plugin.leak_check import LeakCheckOfAll

        config.pluginmanager.register(LeakCheckOfAll(), "elastic-leak-check-of-all")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 (xdist's, and xdist need not be there)
    """Give every xdist worker the seed of this session, and leave the cluster to them."""
    from pytest_elastic.plugin.hub import close_hub

    node.workerinput["elastic_seed"] = options_of(node.config).seed
    close_hub(node.config)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what kind of cluster runs are made on, when it is known that there will be some."""
    if not is_asked_for(config):
        return []
    from pytest_elastic.plugin.reporting import header_lines

    return header_lines(config)


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Say the same once it has turned out that there are elastic tests to run."""
    is_said = is_asked_for(config) or config.option.collectonly
    if is_said or not any(_is_elastic(item) for item in items):
        return []
    from pytest_elastic.plugin.reporting import header_lines

    return header_lines(config)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect scenario files."""
    if not file_path.name.endswith(_SUFFIX):
        return None
    from pytest_elastic.plugin.scenario_items import ScenarioFile

    return ScenarioFile.from_parent(parent, path=file_path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what is to be replayed, if anything is."""
    if not is_asked_for(config) or not options_of(config).replay:
        return
    from pytest_elastic.plugin.replay import keep_replayed

    keep_replayed(config, items)


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:  # noqa: ANN401
    """Have the time of pytest-timeout end the ranks of a test, with their stacks."""
    return ranks.set_timer(item, settings)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fork the server of the tests on several ranks while nothing has run in this process yet."""
    ranks.begin(session)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: before any other plugin's time begins
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Charge no test with the start of the server of the tests on several ranks."""
    ranks.await_server(item)
    return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)  # innermost: what we say belongs to the test's setup
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Show what a test's jobs did if a fixture that has run them has failed."""
    with _explaining(item):
        return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Judge a test's jobs as part of the test, or show what they did if it has failed."""
    item.stash[SUBTEST_KEY] = None
    with _explaining(item):
        yield
    if (jobs := item.stash.get(JOBS_KEY, None)) is not None:
        # A unittest.TestCase lets nothing out of its methods, and has pytest keep it.
        if kept := getattr(item, "_excinfo", None):
            jobs.explain(kept[0].value)
        elif (error := item.stash[SUBTEST_KEY]) is not None:
            jobs.explain(error)
            pytest.fail("a subtest has failed", pytrace=False)
        else:
            jobs.judge()


@contextlib.contextmanager
def _explaining(item: pytest.Item) -> Iterator[None]:
    """Keep what the jobs of a test did if the block fails."""
    try:
        yield
    except BaseException as error:
        is_interrupted = isinstance(error, (KeyboardInterrupt, SystemExit))
        item.stash[FAILED_KEY] = is_interrupted
        if (jobs := item.stash.get(JOBS_KEY, None)) is not None:
            if is_interrupted:
                jobs.end()  # to be obeyed at once
            else:
                jobs.explain(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Let the user's own `faker` draw faults: `faker.fault_plan(nodes=3, seconds=10)`."""
    value = yield
    if fixturedef.argname == "faker" and type(value).__module__.startswith("faker."):
        from pytest_elastic.plugin.fixtures import teach_faults

        teach_faults(value, request.config)
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what an elastic test's run has left, where it failed."""
    if call.excinfo is not None and _uses_us(item):
        from pytest_elastic.plugin.frames import leave_out_ours

        leave_out_ours(call.excinfo.value)
    report = yield
    if report.failed and call.when == "call":
        item.stash[FAILED_KEY] = True
        # If the test goes on after this, it was a subtest that failed.
        item.stash[SUBTEST_KEY] = None if call.excinfo is None else call.excinfo.value
    if _is_elastic(item):
        from pytest_elastic.plugin.reporting import complete_report

        complete_report(item, call, report)
    return report


class _Outermost:
    """What has the last word on a report."""

    @staticmethod
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Tell of a test on several ranks what the ranks have told."""
        report = yield
        ranks.merge_into(item, call, report)
        return report


class _EndOfSession:
    """What reports tell, in other processes too, until the session's end says it."""

    def __init__(self) -> None:
        self._seeds: dict[int, dict[str, None]] = {}  # and on which workers of pytest-xdist
        self._runs: list[dict[str, object]] = []  # the judged ones, in plain fields
        self._page = ""  # where theirs is
        self._cold: dict[str, int] = {}  # how many workers of jobs were started so, by reason
        # For how many seconds tests on ranks have waited for the server in any process.
        self._waited_s = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what a report says: its runs, its worker's seed, cold starts."""
        for reason, count in getattr(report, "elastic_cold", {}).items():
            self._cold[reason] = self._cold.get(reason, 0) + count
        self._runs.extend(getattr(report, "elastic_runs", ()))
        self._waited_s = max(self._waited_s, getattr(report, "elastic_ranks_waited", 0.0))
        seed, worker = getattr(report, "elastic_seed", None), getattr(report, "worker_id", None)
        if seed is not None and worker is not None:
            self._seeds.setdefault(int(seed), {})[str(worker)] = None

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the page that lists all runs; with pytest-xdist the controller does."""
        if self._runs and not hasattr(session.config, "workerinput"):
            from pytest_elastic.plugin.reporting import write_session_page

            self._page = write_session_page(session.config, self._runs)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say the seeds of pytest-xdist's workers, which no header says, and what was slow."""
        lines = [
            f"seed {seed} on {', '.join(sorted(workers))}"
            for seed, workers in sorted(self._seeds.items())
        ]
        for reason, count in sorted(self._cold.items()):
            were = "1 worker was" if count == 1 else f"{count} workers were"
            lines.append(f"{were} started cold (slower): {reason}")
        if self._waited_s >= _WORTH_SAYING_S:
            lines.append(
                f"the first test on ranks waited {self._waited_s:.1f} s for torch's import, "
                "which its duration does not contain"
            )
        for line in filter(None, (*lines, self._page)):
            terminalreporter.write_line(f"elastic: {line}")


def pytest_enter_pdb(config: pytest.Config) -> None:
    """Stop the clocks of the current run: a test must not time out in a debugger."""
    from pytest_elastic.plugin.hub import hub_in_use

    if (hub := hub_in_use(config)) is not None:
        hub.pause_clock()


def pytest_leave_pdb(config: pytest.Config) -> None:
    """Let them go on."""
    from pytest_elastic.plugin.hub import hub_in_use

    if (hub := hub_in_use(config)) is not None:
        hub.resume_clock()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the cluster."""
    from pytest_elastic.plugin.hub import close_hub

    close_hub(config)
    ranks.end(config)


def _is_elastic(item: pytest.Item) -> bool:
    return item.get_closest_marker("ranks") is None and _uses_us(item)


def _uses_us(item: pytest.Item) -> bool:
    return not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
