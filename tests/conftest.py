"""What every test of this repository gets: pytester, bounded Hypothesis, and the leak check."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]

FAILED = pytest.StashKey[bool]()

# A few dozen examples find what matters in a default run; `HYPOTHESIS_PROFILE=thorough` for a long
# look. No deadline: two shared cores make any single example slow now and then.
settings.register_profile(
    "default",
    max_examples=50,
    deadline=None,
    derandomize=True,  # a default run is the same run twice; the thorough one is not
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


# Whose tests are looked at before and after: those that start processes and share none of them. A
# look costs 7 ms, too much for each of a thousand tests with plain values. Tests that share a
# cluster come here when they say what of it is spared (`ClusterClient.own_pids`, `own_fds`).
LOOKED_AFTER = (
    "conformance/test_torchrun_behaviour.py",
    "conformance/test_torchrun_errors.py",
    "conformance/test_torchrun_failures.py",
    "conformance/test_torchrun_handlers.py",
    "conformance/test_torchrun_output.py",
    "gpu",
    "integration/test_etcd_bridge.py",
    "integration/test_etcd_v3.py",
    "integration/test_example_train.py",
    "integration/test_launcher.py",
    "integration/test_launcher_bad_input.py",
    "integration/test_launcher_drain.py",
    "integration/test_launcher_failures.py",
    "integration/test_launcher_functions.py",
    "integration/test_launcher_interrupted.py",
    "integration/test_no_survivors.py",
    "integration/test_session.py",
    "plugin",
)


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test ends with the processes, namespaces, files and threads that it began with.

    What a module or the session shares was there before, because pytest sets up wider scopes first.
    A test that fails is not checked on top: its leftovers are those of the failure.
    """
    here = request.path.relative_to(Path(__file__).parent)
    if not any(here.is_relative_to(looked_after) for looked_after in LOOKED_AFTER):
        yield
        return
    from elastic_harness import leaks

    before = leaks.snapshot()
    yield
    failed = request.node.stash.get(FAILED, False)
    if not failed and (left := leaks.leaks_since(before)):
        pytest.fail("\n".join(["left behind:", *left]), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember that the test itself failed, for the check after it."""
    report = yield
    if call.when == "call" and report.failed:
        item.stash[FAILED] = True
    return report
