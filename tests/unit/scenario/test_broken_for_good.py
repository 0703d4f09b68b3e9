"""What a running test broke and nobody mends, and jobs whose nodes were all told to leave."""

from __future__ import annotations

import pytest
from elastic_harness.scenario.engine.messages import EndRun

from tests.unit.scenario.bench import Bench, scenario


def test_what_a_test_broke_for_good_stays_so_when_it_waits_for_the_end() -> None:
    """`wait()` heals nothing that nobody asked to heal; what has a time of its own still ends."""
    bench = Bench(scenario(nodes=2), is_open=True)
    bench.start_nodes("n1", "n2")
    bench.add(id="for-good", at="0s", partition="n2")
    bench.add(id="for-a-while", at="0s", partition="n2", for_="5s")
    for name in ("for-good", "for-a-while"):
        bench.in_force(name, proof_needs_job=True)
        bench.prove(name)
    bench.close()
    assert bench.healed == []
    bench.pass_time(6)
    assert bench.healed == ["for-a-while"]


def test_a_launcher_that_a_test_broke_for_good_is_not_waited_for() -> None:
    """Nor does its end say anything about the job, from the moment when nobody can mend it."""
    bench = Bench(scenario(nodes=2), is_open=True)
    bench.start_nodes("n1", "n2")
    bench.add(id="frozen", at="0s", pause={"agent": "n2"})
    bench.in_force("frozen")
    bench.prove("frozen")
    bench.exit_launcher("n1", 0)
    bench.pass_time(1)
    assert not bench.all_of(EndRun), "it may still be mended"
    bench.close()
    bench.pass_time(1)
    assert bench.end is not None
    assert bench.end.outcome == "succeeded"


def test_a_launcher_that_will_be_mended_is_waited_for() -> None:
    """A `heal` that is still to come names it."""
    bench = Bench(scenario(nodes=2), is_open=True)
    bench.start_nodes("n1", "n2")
    bench.add(id="frozen", at="0s", pause={"agent": "n2"})
    bench.add(id="mend", at="3s", heal="frozen")
    bench.in_force("frozen")
    bench.prove("frozen")
    bench.exit_launcher("n1", 0)
    bench.close()
    bench.pass_time(1)
    assert not bench.all_of(EndRun)
    bench.pass_time(3)
    bench.undo("frozen")
    bench.exit_launcher("n2", 1)
    bench.pass_time(1)
    assert bench.end is not None
    assert bench.end.outcome == "failed"


def test_a_run_that_reaches_its_limit_says_what_is_still_in_force() -> None:
    """A job that could not end because of it is the first thing to think of."""
    bench = Bench(scenario(nodes=2), is_open=True)
    bench.start_nodes("n1", "n2")
    bench.add(id="cut", at="0s", partition="n2")
    bench.in_force("cut", proof_needs_job=True)
    bench.close()
    bench.pass_time(100)
    assert bench.end is not None
    assert bench.end.outcome == "limit"
    assert bench.end.reason.endswith("; still in force: cut (partition)")


@pytest.mark.parametrize(
    ("code", "outcome"), [(0, "drained"), (143, "drained"), (-15, "drained"), (1, "failed")]
)
def test_a_job_is_drained_when_every_node_left_because_it_was_told_to(
    code: int, outcome: str
) -> None:
    """A launcher that obeys SIGTERM ends with 0, with 143, or by the signal itself."""
    bench = Bench(scenario({"at": "1s", "id": "bye", "leave": "all"}, nodes=2))
    bench.start_nodes("n1", "n2")
    bench.pass_time(1)
    bench.in_force("bye")
    bench.prove("bye")
    bench.end_job(code)
    bench.pass_time(1)
    assert bench.end is not None
    assert bench.end.outcome == outcome
