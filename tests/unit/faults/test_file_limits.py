"""Limits on open files of a real process: several owners, and each gives back its own."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from typing import cast

import pytest
from elastic_harness.cluster.cluster import Cluster
from elastic_harness.faults.nodes.node_resources import NodeResources
from elastic_harness.scenario.engine.situation import ProcessRef

# Files of a process are limited without the cluster that it runs on.
NO_CLUSTER = cast("Cluster", None)


@pytest.fixture
def process() -> Iterator[ProcessRef]:
    """A process that waits for the end of its input.

    It has begun to: while a program is being loaded, its libraries are open for a moment each.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(["cat"], stdin=pipe, stdout=pipe, bufsize=0) as cat:
        assert cat.stdin is not None
        assert cat.stdout is not None
        cat.stdin.write(b"loaded\n")
        assert cat.stdout.readline() == b"loaded\n"
        yield ProcessRef(pid=cat.pid)
        cat.stdin.close()


def soft(process: ProcessRef) -> int:
    """Return the limit that a process has now."""
    return resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0]


@pytest.mark.parametrize("first", ["wide", "narrow"])
def test_several_limits_are_given_back_in_any_order(process: ProcessRef, first: str) -> None:
    """The narrowest of those left holds; after the last it is as before. Twice is harmless."""
    before = soft(process)
    resources = NodeResources(NO_CLUSTER)
    wide = resources.limit_files("wide", process, free=9)
    narrow = resources.limit_files("narrow", process, free=2)
    again = resources.limit_files("wide", process, free=9)
    assert wide is not None
    assert narrow is not None
    assert again == narrow, "the narrowest holds, whichever came last"
    assert soft(process) == narrow.limit < wide.limit < before
    last = "narrow" if first == "wide" else "wide"
    for _ in range(2):
        resources.unlimit_files(first)
        assert soft(process) == (narrow if last == "narrow" else wide).limit
    for _ in range(2):
        resources.unlimit_files(last)
        assert soft(process) == before


def test_a_process_that_has_ended_is_not_limited_and_gives_nothing_back() -> None:
    """Between the choice and the limit, and between the limit and the heal."""
    resources = NodeResources(NO_CLUSTER)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as cat:
        process = ProcessRef(pid=cat.pid)
        assert resources.limit_files("x", process, free=1) is not None
        assert cat.stdin is not None
        cat.stdin.close()
        cat.wait()
    assert resources.limit_files("y", process, free=1) is None
    resources.unlimit_files("x")
    resources.unlimit_files("x")
