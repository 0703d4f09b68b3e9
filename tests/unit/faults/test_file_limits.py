"""Limits on open files of a real process: several owners, and each gives back its own."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator

import pytest
from elastic_harness.cluster.client import ProcessCluster
from elastic_harness.cluster.cluster import Capabilities
from elastic_harness.cluster.process import ProcessRef
from elastic_harness.faults.layers import LimitLayers

from pytest_elastic.loop import Loop


@pytest.fixture
def layers() -> Iterator[LimitLayers]:
    """Limits of a cluster that is not started: files of a process are limited without it."""
    loop = Loop()
    cluster = ProcessCluster(loop, on_event=lambda _: None, capabilities=Capabilities(()))
    yield LimitLayers(cluster)
    loop.close()


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
        yield ProcessRef(node="n1", pid=cat.pid)
        cat.stdin.close()


def soft(process: ProcessRef) -> int:
    """Return the limit that a process has now."""
    return resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0]


@pytest.mark.parametrize("first", ["wide", "narrow"])
def test_several_limits_are_given_back_in_any_order(
    layers: LimitLayers, process: ProcessRef, first: str
) -> None:
    """The narrowest of those left holds; after the last it is as before. Twice is harmless."""
    before = soft(process)
    wide = layers.limit_files("wide", process, free=9).result()
    narrow = layers.limit_files("narrow", process, free=2).result()
    again = layers.limit_files("wide", process, free=9).result()
    assert wide is not None
    assert narrow is not None
    assert again is not None
    assert again.limit == narrow.limit, "the narrowest holds, whichever came last"
    assert soft(process) == narrow.limit < wide.limit < before
    last = "narrow" if first == "wide" else "wide"
    for _ in range(2):
        layers.unlimit_files(first)
        assert soft(process) == (narrow if last == "narrow" else wide).limit
    for _ in range(2):
        layers.unlimit_files(last)
        assert soft(process) == before


def test_a_process_that_has_ended_is_not_limited_and_gives_nothing_back(
    layers: LimitLayers,
) -> None:
    """Between the choice and the limit, and between the limit and the heal."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as cat:
        process = ProcessRef(node="n1", pid=cat.pid)
        assert layers.limit_files("x", process, free=1).result() is not None
        assert cat.stdin is not None
        cat.stdin.close()
        cat.wait()
    assert layers.limit_files("y", process, free=1).result() is None
    layers.unlimit_files("x")
    layers.unlimit_files("x")
