"""Where no namespaces can be had: plain processes, which the header says and why."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin.place import Called, Place, as_user, scenario

NOBODY = 65534

CUT = "timeline: [{when: {event: worker_hello, rank: 0}, partition: {isolate: n1}, for: 1s}]"
KILLED = """
    timeline: [{when: {event: worker_hello, rank: 1}, kill: rank 1}]
    expect: {finally: [{job: succeeded}, {restarts: 1}]}
"""
TESTS = """
    import pytest

    def test_with_a_cut(elastic_job, elastic_chaos):
        elastic_job("hello.py")
        elastic_chaos.now().partition(isolate="n1")
        assert False, "not reached"

    def test_that_requires(elastic_job):
        elastic_job("hello.py", requires="private_disk")
        assert False, "not reached"

    def test_that_looks(elastic_cluster):
        assert elastic_cluster.kind == "process"
        assert not elastic_cluster.has("network")
"""


# Imports what a session imports, and torch's library, and says what it would have as nodes.
LOOK = """
import pytest
from pytest_elastic.workers import bare_torch
bare_torch.provide()
import torch
from elastic_harness.cluster.choose import choose_cluster
print(choose_cluster("auto").cluster.kind)
"""


@functools.cache
def kind_for(user: int) -> str:
    """Return the kind of cluster that a user has; skips where it cannot run our packages at all."""
    command = as_user(user, [sys.executable, "-c", LOOK])
    done = subprocess.run(
        command, cwd="/", capture_output=True, text=True, timeout=240, check=False
    )
    if done.returncode:
        why = done.stderr.strip().rpartition("\n")[2]
        pytest.skip(f"user {user} may not run an interpreter that has our packages: {why}")
    return done.stdout.strip()


@pytest.fixture(scope="module")
def called() -> Iterator[Called]:
    """Call pytest as nobody, if we are root and nobody can; else as we are.

    Where even nobody can have namespaces, plain processes have to be asked for.
    """
    folder = Path(tempfile.mkdtemp(prefix="plugin-test-"))  # tmp_path is closed to others
    arguments = ["-rfEps"]
    try:
        if os.getuid() == 0:
            kind = kind_for(NOBODY)
            place = Place(folder, {"HOME": str(folder)}, user=NOBODY)
        else:
            kind = "namespace"
            place = Place(folder)
        if kind == "namespace":
            arguments.append("--elastic-cluster=process")
        place.add_ini()
        place.add_scripts()
        killed = scenario("killed", KILLED, script="second_try.py", max_restarts=1)
        place.add("some.elastic.yaml", f"{killed}---\n{scenario('cut', CUT)}")
        place.add("test_some.py", TESTS)
        for path_ in (folder, *folder.rglob("*")):
            os.chown(path_, place.user or -1, place.user or -1)
        yield place.pytest(*arguments)
    finally:
        shutil.rmtree(folder)


def test_the_header_says_what_nodes_are_and_why(called: Called) -> None:
    """And what cannot be done, with the reason."""
    lines = [line for line in called.out.splitlines() if line.startswith("elastic: ")]
    assert lines[0].startswith("elastic: process cluster (nodes are plain processes, because ")
    why = "namespaces cannot be had (this is not root; in a user namespace: "
    assert why in lines[0] or "--elastic-cluster=process" in lines[0]
    cannot = [line for line in lines if line.startswith("elastic: cannot do network, ")]
    assert len(cannot) == 1
    assert cannot[0].count(":") >= 2, "a reason stands behind it"


def test_what_processes_can_do_works_and_the_rest_is_skipped_with_the_reason(
    called: Called,
) -> None:
    """A killed worker is recovered from; nothing is weakened in silence."""
    assert called.code == pytest.ExitCode.OK, called.out
    assert called.outcomes == {"killed": "PASSED", "test_that_looks": "PASSED"}, called.out
    skipped = [line for line in called.out.splitlines() if line.startswith("SKIPPED")]
    lacks = "needs what this cluster lacks"
    places = ["some.elastic.yaml:9", "test_some.py:3", "test_some.py:8"]
    for place, name in zip(places, ["network", "network", "private_disk"], strict=True):
        assert any(line.startswith(f"SKIPPED [1] {place}: {lacks}: {name}: ") for line in skipped)
    assert len(skipped) == 3, skipped
