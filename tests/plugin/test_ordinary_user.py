"""Where no namespaces can be had: plain processes, which the header says and why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin.place import Called, Place, scenario

ROOT = Path(__file__).parents[2]
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


def interpreter_for(user: int) -> list[str]:
    """Return an interpreter with our packages that a user may run; skips if there is none."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        if not os.path.exists(python):
            continue
        try:
            path = os.pathsep.join([str(ROOT), str(ROOT / "harness"), *filter(None, sys.path)])
            subprocess.run(
                [python, "-c", "import pytest, torch.version"],
                user=user, group=user, extra_groups=[], env={"PYTHONPATH": path},
                cwd="/", check=True, capture_output=True, timeout=60,
            )  # fmt: skip
        except (OSError, subprocess.CalledProcessError):
            continue
        return [python, path]
    pytest.skip(f"user {user} may not run any interpreter that has our packages")


@pytest.fixture(scope="module")
def called() -> Iterator[Called]:
    """Call pytest as nobody, if we are root and nobody can; else as we are, on plain processes."""
    folder = Path(tempfile.mkdtemp(prefix="plugin-test-"))  # tmp_path is closed to others
    arguments = ["-rfEps"]
    try:
        if os.getuid() == 0:
            python, path = interpreter_for(NOBODY)
            place = Place(folder, {"PYTHONPATH": path, "HOME": str(folder)}, user=NOBODY)
        else:
            python, place = sys.executable, Place(folder)
            arguments.append("--elastic-cluster=process")
        place.add_ini()
        place.add_scripts()
        killed = scenario("killed", KILLED, script="second_try.py", max_restarts=1)
        place.add("some.elastic.yaml", f"{killed}---\n{scenario('cut', CUT)}")
        place.add("test_some.py", TESTS)
        for path_ in (folder, *folder.rglob("*")):
            os.chown(path_, place.user or -1, place.user or -1)
        yield place.call([python, "-m", "pytest", *arguments])
    finally:
        shutil.rmtree(folder)


def test_the_header_says_what_nodes_are_and_why(called: Called) -> None:
    """And what cannot be done, with the reason."""
    lines = [line for line in called.out.splitlines() if line.startswith("elastic: ")]
    assert lines[0].startswith("elastic: process cluster (nodes are plain processes, because ")
    if os.getuid() == 0:
        assert "namespaces cannot be had (this is not root; in a user namespace: " in lines[0]
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
