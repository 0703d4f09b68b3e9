"""What the pages show of faults, checkers and clusters, used as a reader would: as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from elastic_harness.scenario.launchers import launcher_named

from pytest_elastic.errors import UsageError
from tests.plugin.place import Place, scenario

DOCS = Path(__file__).parents[2] / "docs"
# As long as one screen: what a user has to write.
MOST_LINES = 60

WAITS = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    import os
    print("here", flush=True)
    while os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        time.sleep(0.01)
"""
SEES_GPUS = """
    import os
    print("rank", os.environ["RANK"], "sees", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
"""
KILLED = """
    timeline: [{when: {log: here, by: rank 1}, kill: rank 1}]
    expect: {finally: [{job: succeeded}, {restarts: 1}]}
"""
ON_ITS_GPUS = """
    def test_gpus(elastic_job, elastic_cluster):
        job = elastic_job("sees_gpus.py", nodes=3)
        assert job.wait().succeeded
        assert elastic_cluster.kind == "gpus-apart"
        for node, seen in {"n1": "0,1", "n2": "2,3", "n3": "4,5"}.items():
            assert f" sees {seen}\\n" in job.log(node)
"""
TERMINATED = """
    timeline: [{when: {log: here}, terminate: rank 0}]
    expect: {finally: [{job: succeeded}, {restarts: 1}]}
"""
TERMINATED_IN_PYTHON = """
    def test_good(elastic_job, elastic_chaos):
        job = elastic_job("waits.py", nodes=1, max_restarts=1)
        elastic_chaos.when(log="here").terminate("rank 0")
        assert job.wait().succeeded

    def test_bad(elastic_job, elastic_chaos):
        job = elastic_job("waits.py", nodes=1)
        elastic_chaos.when(log="here").terminate("rank 0")
        job.wait()
"""


def shown(page: str, heading: str) -> str:
    """Return the first Python block below a heading of a page."""
    section = (DOCS / page).read_text().partition(f"## {heading}\n")[2]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    assert len(found[1].splitlines()) < MOST_LINES
    return found[1]


def test_the_fault_of_the_page_is_one_like_ours(place: Place) -> None:
    """It is injected, proved and judged, in files and in tests; mistakes are told before a run."""
    place.add("conftest.py", shown("faults.md", "Faults of your own"))
    place.add("waits.py", WAITS)
    good = scenario("good", TERMINATED, script="waits.py", nodes="1", max_restarts=1)
    place.add("good.elastic.yaml", good)
    place.add("test_some.py", TERMINATED_IN_PYTHON)
    called = place.pytest("-rA")
    passed = {"good": "PASSED", "test_good": "PASSED"}
    assert called.outcomes == {**passed, "test_bad": "FAILED"}, called.out
    none = "a worker that ends costs a restart, and this job has none"
    assert f"terminate-1: {none}" in called.about("test_bad")
    place.add("bad.elastic.yaml", scenario("bad", TERMINATED, script="waits.py", nodes="1"))
    place.add("misspelt.elastic.yaml", good.replace("terminate:", "terminat:"))
    place.add("missing.elastic.yaml", good.replace("terminate: rank 0", "terminate: {}"))
    called = place.pytest("--collect-only")
    assert called.code == pytest.ExitCode.INTERRUPTED, called.out
    assert f"bad.elastic.yaml:6:43: {none}" in called.out
    assert "(did you mean 'terminate'?)" in called.out
    assert "`worker` is missing here" in called.out


def test_a_fault_cannot_take_the_name_of_another(place: Place) -> None:
    """Of a conftest.py below the root, too."""
    text = shown("faults.md", "Faults of your own").replace('name = "terminate"', 'name = "kill"')
    place.add("sub/conftest.py", text)
    place.add_scripts()
    place.add("sub/some.elastic.yaml", scenario("some", script="../hello.py"))
    called = place.pytest("sub", "--collect-only")
    assert "a fault is called 'kill' already: choose another name" in called.out
    assert "Traceback" not in called.out


def test_the_checker_of_the_page_is_one_like_ours(place: Place) -> None:
    """It judges a run; its finding points at the parameter, before a run."""
    place.add_scripts()
    place.add("conftest.py", shown("verdicts.md", "A checker of your own"))
    clauses = "expect: {finally: [{argv: --fast}]}"
    text = scenario("fast", clauses, nodes="1")
    place.add("fast.elastic.yaml", text.replace("hello.py,", "hello.py, args: [--fast],"))
    called = place.pytest("-rA", "fast.elastic.yaml")
    assert called.outcomes == {"fast": "PASSED"}, called.out
    place.add("slow.elastic.yaml", text.replace("id: fast", "id: slow"))
    called = place.pytest("slow.elastic.yaml")
    assert called.code == pytest.ExitCode.INTERRUPTED, called.out
    assert "slow.elastic.yaml:6:27: the job is not given '--fast'" in called.out


def test_the_launcher_of_the_page_runs_jobs(place: Place) -> None:
    """By its name; it restarts a worker, and is told what a job asks for."""
    place.add("waits.py", WAITS)
    place.add("conftest.py", shown("plugin.md", "A launcher of your own"))
    killed = KILLED.replace("rank 1", "rank 0")
    text = scenario("killed", killed, script="waits.py", nodes="1", max_restarts=1)
    place.add("killed.elastic.yaml", text)
    called = place.pytest("-rA", "--elastic-launcher=nice", "--elastic-cluster=process")
    assert called.outcomes == {"killed": "PASSED"}, called.out


def test_the_page_names_every_word_of_a_launchers_command() -> None:
    """And none that there is not."""
    section = (DOCS / "plugin.md").read_text().partition("## A launcher of your own\n")[2]
    table = section.partition("| word of the command |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    named = {word for cell in cells for word in re.findall(r"`(\$\w+)`", cell)}
    with pytest.raises(UsageError) as refused:
        launcher_named("run $none $program")
    known = str(refused.value.hint).removeprefix("known: ").split(", ")
    assert named == set(known)


def test_the_cluster_of_the_page_runs_jobs(place: Place) -> None:
    """Tests and scenarios are run on it, with the faults that it has from the one below it."""
    place.add("sees_gpus.py", SEES_GPUS)
    place.add("waits.py", WAITS)
    place.add("test_gpus.py", ON_ITS_GPUS)
    killed = scenario("killed", KILLED, script="waits.py", max_restarts=1)
    place.add("killed.elastic.yaml", killed)
    place.add("conftest.py", shown("cluster.md", "A cluster of your own"))
    called = place.pytest("-rA", "--elastic-cluster=gpus-apart")
    assert "elastic: gpus-apart cluster (2 GPUs a node; nodes are " in called.out
    assert called.outcomes == {"test_gpus": "PASSED", "killed": "PASSED"}, called.out
    called = place.pytest("-rA", "test_gpus.py")
    assert called.outcomes == {"test_gpus": "FAILED"}, called.out


def test_kinds_of_cluster_are_known_by_their_names(place: Place) -> None:
    """An unknown one is told all of them, before anything runs; a name that is taken is refused."""
    place.add("conftest.py", shown("cluster.md", "A cluster of your own"))
    called = place.pytest("--elastic-cluster=gpus")
    assert called.code == pytest.ExitCode.USAGE_ERROR, called.out
    known = "expected auto, namespace, process, ssh, ray, gpus-apart or 'command: ...'"
    assert f"ERROR: --elastic-cluster=gpus: {known}\n" in called.out
    text = shown("cluster.md", "A cluster of your own").replace('"gpus-apart"', '"process"')
    place.add("conftest.py", text)
    called = place.pytest("--elastic-cluster=process")
    assert called.code == pytest.ExitCode.USAGE_ERROR, called.out
    assert "a kind of cluster is called 'process' already: choose another name" in called.out
