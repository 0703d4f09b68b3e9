"""Nodes that are plain processes, asked for or for want of namespaces: the header says which."""

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
from elastic_harness.cluster.choose import choose_cluster

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


# Imports what a session imports, and torch, and says what it would have as nodes.
LOOK = """
import pytest
import torch
from elastic_harness.cluster.choose import choose_cluster
print(choose_cluster("auto").cluster.kind)
"""


# Set by `.ci/run`, whose tree and interpreter every user can read.
ALL_CAN_READ = "ELASTIC_CI_ALL_CAN_READ"

# What no plain process has of its own.
CANNOT = "elastic: cannot do network, names, private_disk, private_pids, disk_faults: "


@functools.cache
def kind_for(user: int) -> str:
    """Return the kind of cluster that a user has.

    Where that user cannot run our packages at all, because of where this tree or its interpreter
    lies, the test is skipped; in continuous integration it fails.
    """
    command = as_user(user, [sys.executable, "-c", LOOK])
    done = subprocess.run(
        command, cwd="/", capture_output=True, text=True, timeout=240, check=False
    )
    if done.returncode:
        why = done.stderr.strip().rpartition("\n")[2]
        give_up = pytest.fail if ALL_CAN_READ in os.environ else pytest.skip
        give_up(f"user {user} may not run an interpreter that has our packages: {why}")
    return done.stdout.strip()


@pytest.fixture(scope="module")
def kind() -> str:
    """Return the kind of cluster that an ordinary user has here: nobody, if we are root."""
    return kind_for(NOBODY) if os.getuid() == 0 else choose_cluster("auto").cluster.kind


@pytest.fixture(scope="module")
def called(kind: str) -> Iterator[Called]:
    """Call pytest as nobody, if we are root; else as we are.

    Where an ordinary user can have namespaces, plain processes have to be asked for.
    """
    folder = Path(tempfile.mkdtemp(prefix="plugin-test-"))  # tmp_path is closed to others
    try:
        if os.getuid() == 0:
            place = Place(folder, {"HOME": str(folder)}, user=NOBODY, preload="torch")
        else:
            place = Place(folder)
        place.add_ini()
        place.add_scripts()
        killed = scenario("killed", KILLED, script="second_try.py", max_restarts=1)
        place.add("some.elastic.yaml", f"{killed}---\n{scenario('cut', CUT)}")
        place.add("test_some.py", TESTS)
        for path_ in (folder, *folder.rglob("*")):
            os.chown(path_, place.user or -1, place.user or -1)
        asked = ["--elastic-cluster=process"] if kind == "namespace" else []
        yield place.pytest("-rfEps", *asked)
    finally:
        shutil.rmtree(folder)


def header_of(called: Called) -> tuple[str, str]:
    """Return what the header says of the cluster, and of what it lacks with plain processes."""
    lines = [line for line in called.out.splitlines() if line.startswith("elastic: ")]
    (lacking,) = (line for line in lines if line.startswith("elastic: cannot do network"))
    return lines[0].partition("; launcher ")[0], lacking


def test_the_header_says_that_plain_processes_were_asked_for(place: Place) -> None:
    """Whatever else this machine could do: the user is not sent to look for what it lacks."""
    place.add("test_some.py", "def test_nothing(elastic_cluster): pass")
    cluster, lacking = header_of(place.pytest("--elastic-cluster=process"))
    assert cluster == (
        "elastic: process cluster (nodes are plain processes, because it was asked for)"
    )
    assert lacking == f"{CANNOT}plain processes share the host's"


def test_the_header_says_why_nodes_are_plain_processes(called: Called, kind: str) -> None:
    """And what cannot be done, with the reason."""
    if kind == "namespace":
        pytest.skip("an ordinary user can have namespaces here")
    cluster, lacking = header_of(called)
    plain = "elastic: process cluster (nodes are plain processes, because"
    begin = f"{plain} namespaces cannot be had ("
    refusal = cluster.removeprefix(begin).removesuffix("))")
    assert cluster == f"{begin}{refusal}))"
    assert refusal.startswith("this is not root; in a user namespace: ")
    assert lacking == f"{CANNOT}no namespaces: {refusal}"


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
