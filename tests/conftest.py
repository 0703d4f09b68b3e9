"""What every test of this repository gets: pytester, bounded Hypothesis, and the leak check."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from fnmatch import fnmatch

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]

PASSED = pytest.StashKey[bool]()
# What is going away takes milliseconds, and seconds where the processor is shared with many others.
GONE_WITHIN_S = 20.0
# Followed by the number of the pytest that it belongs to.
_PRIVATE = "pe-"
# Ctrl-C and Ctrl-\, and what a Python that was started in a terminal does with them.
_OF_A_TERMINAL = (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
)

# Set by `.ci/run`: the moment, in seconds since the epoch, from which no test is begun.
_UNTIL = "ELASTIC_CI_UNTIL"

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


# What a test may leave in the folder of temporary files, and why.
MAY_STAY = {
    "pytest-of-*": "where a pytest that a test calls keeps the folders of its own tests",
    "pymp-*": "a folder of Python's multiprocessing, in a process that was killed",
    "torchelastic_*": "logs of a launcher that was killed, or whose job failed; torchrun's always",
    "torchinductor_*": "a cache that torch makes for a user at its first import, and keeps",
}


def pytest_configure(config: pytest.Config) -> None:
    """Give this pytest, and all that it starts, the keys of a terminal and a temporary folder.

    The folder is its own, so that whatever is new in it is a leak of a test, also while other
    pytests run. Its name is short, because paths of sockets are; what a pytest that was killed has
    left goes with the next.
    """
    # A shell without job control has what it puts in the background ignore these. Programs that
    # tests start would inherit it, and be deaf to the signals that are to be tested.
    for number, usual in _OF_A_TERMINAL:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    # Without caches, each of some hundred pytests that tests start compiles our plugin anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    outside = tempfile.gettempdir()
    for name in os.listdir(outside):
        pid = name.removeprefix(_PRIVATE)
        if name != pid and pid.isdecimal() and not os.path.exists(f"/proc/{pid}"):
            shutil.rmtree(os.path.join(outside, name), ignore_errors=True)
    folder = os.path.join(outside, f"{_PRIVATE}{os.getpid()}")
    os.mkdir(folder)
    os.chmod(folder, 0o1777)  # some tests change the user
    # Folders of tests stay where they were, to be looked at.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", outside)
    os.environ["TMPDIR"] = tempfile.tempdir = folder

    def restore() -> None:
        os.environ["TMPDIR"] = tempfile.tempdir = outside
        shutil.rmtree(folder, ignore_errors=True)

    config.add_cleanup(restore)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are imported, nor later for what was imported: it is none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def launch_server() -> Iterator[None]:
    """Have one interpreter from which launchers are forked."""
    from tests import launch_server

    with launch_server.serving():
        yield


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test ends with the processes, namespaces, files and threads that it began with.

    What a module or the session shares was there before, because pytest sets up wider scopes first.
    A test that failed or was interrupted is not checked on top: its leftovers are part of that.
    """
    from elastic_harness import leaks

    before, files = leaks.snapshot(), _temporary()
    # A cluster of a wider scope may make the group of control groups that all its nodes share.
    spared = leaks.Spared(pids=frozenset(before.pids))
    yield
    if not request.node.stash.get(PASSED, False):
        return
    spared = replace(spared, fds=_fds_of_shared_clusters())
    left = leaks.leaks_since(before, within_s=0, spared=spared)
    if left or _temporary() - files:
        gc.collect()  # what only waits to be collected is not left behind
        left = leaks.leaks_since(before, within_s=GONE_WITHIN_S, spared=spared)
        still = leaks.names_since(files, _temporary, within_s=GONE_WITHIN_S)
        left += [f"temporary file left: {name}" for name in still]
    if left:
        pytest.fail("\n".join(["left behind:", *left]), pytrace=False)


def _fds_of_shared_clusters() -> frozenset[int]:
    """Return the descriptors of clusters of a wider scope, which may have opened others meanwhile.

    An agent on another machine that heard nothing for seconds calls again.
    """
    found = sys.modules.get("tests.cluster_bench")
    benches = () if found is None else found.OPEN
    return frozenset(fd for bench in benches for fd in bench.cluster.own_fds)


def _temporary() -> set[str]:
    """Return what is in our folder of temporary files, and may not stay there.

    The folders of clusters are the snapshot's business, which knows whose they are.
    """
    from elastic_harness.cluster.limits import cgroups

    return {
        name
        for name in os.listdir(tempfile.gettempdir())
        if cgroups.owner_of(name) is None and not any(fnmatch(name, each) for each in MAY_STAY)
    }


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember that the test itself passed, for the check after it."""
    report = yield
    if call.when == "call" and report.passed:
        item.stash[PASSED] = True
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what continuous integration has no time left for."""
    del item
    until = os.environ.get(_UNTIL)
    if until is not None and time.time() > float(until):
        pytest.skip("continuous integration has no time left for it")
