"""The fault and the checker that the pages show, used as a reader would: copied as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
TERMINATED = """
    timeline: [{when: {log: here}, terminate: rank 0}]
    expect: {finally: [{job: succeeded}, {restarts: 1}]}
"""


def shown(page: str, heading: str) -> str:
    """Return the first Python block below a heading of a page."""
    section = (DOCS / page).read_text().partition(f"## {heading}\n")[2]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    assert len(found[1].splitlines()) < MOST_LINES
    return found[1]


def test_the_fault_of_the_page_is_one_like_ours(place: Place) -> None:
    """It is injected, proved and judged; its finding stands where it is used, before a run."""
    place.add("conftest.py", shown("faults.md", "Faults of your own"))
    place.add("waits.py", WAITS)
    good = scenario("good", TERMINATED, script="waits.py", nodes="1", max_restarts=1)
    place.add("good.elastic.yaml", good)
    called = place.pytest("-rA", "good.elastic.yaml")
    assert called.outcomes == {"good": "PASSED"}, called.out
    place.add("bad.elastic.yaml", scenario("bad", TERMINATED, script="waits.py", nodes="1"))
    called = place.pytest("bad.elastic.yaml")
    assert called.code == pytest.ExitCode.INTERRUPTED, called.out
    finding = "6:43: a worker that ends costs a restart, and this job has none"
    assert f"bad.elastic.yaml:{finding}" in called.out
    place.add(
        "test_bad.py",
        """
        def test_bad(elastic_job, elastic_chaos):
            job = elastic_job("waits.py", nodes=1)
            elastic_chaos.when(log="here").terminate("rank 0")
            job.wait()
    """,
    )
    called = place.pytest("test_bad.py")
    assert "terminate-1: a worker that ends costs a restart, and this job has none" in called.out


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
