"""`--elastic-leak-check=on`, or the fixture of that name: a test leaves nothing behind.

Processes, namespaces, TUN devices, mounts, control groups, shared memory, sockets, our temporary
files, and this process's own descriptors and threads are looked at before and after a test. What
wider fixtures hold was there before, because pytest sets those up first.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_elastic.errors import ElasticError
from pytest_elastic.plugin.hub import FAILED_KEY

if TYPE_CHECKING:
    from elastic_harness.leaks import Snapshot

    from pytest_elastic.plugin.hub import Hub

__all__ = ["LeakCheckOfAll", "watch_for_leaks"]

# What has been told to end may take a moment, and a longer one on a machine that is busy.
_WITHIN_S = 3.0


class LeakCheckOfAll:
    """Registered as a plugin when every test is to be looked at."""

    @pytest.fixture(autouse=True)
    def _elastic_leak_check_of_all(self, elastic_leak_check: None) -> None:
        """Look at every test."""


def watch_for_leaks(item: pytest.Item, hub: Hub, *, is_elastic: bool) -> Iterator[None]:
    """Look before and after; fail the test's teardown if something is left."""
    from elastic_harness import leaks

    if is_elastic:
        _start_cluster(hub)
    before = leaks.snapshot()
    yield
    if item.stash.get(FAILED_KEY, False):
        return  # what it has left is a part of that failure, or of its interruption
    left = _left_since(before, hub, within_s=0.0)
    if left:
        gc.collect()  # what only waits to be collected is not left behind
        left = _left_since(before, hub, within_s=_WITHIN_S)
    if left:
        pytest.fail("\n".join([f"{item.name} has left behind:", *left]), pytrace=False)


def _start_cluster(hub: Hub) -> None:
    """Start what all runs of the session share, so that it is there before the first of them."""
    try:
        _ = hub.session.cluster
    except ElasticError:
        return  # the test says so itself, if it needs a cluster at all


def _left_since(before: Snapshot, hub: Hub, *, within_s: float) -> list[str]:
    from elastic_harness import leaks

    # A cluster that was lost in between is replaced, and the new one is as much the session's.
    return leaks.leaks_since(before, within_s=within_s, spared=hub.shared)
