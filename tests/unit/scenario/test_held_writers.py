"""When the engine has writers held, and when it lets them go."""

from __future__ import annotations

from elastic_harness.history.events import NodeStarted, WriterHeld
from elastic_harness.scenario.engine.holds import HOLD_LIMIT_S
from elastic_harness.scenario.engine.messages import HoldWriting, ReleaseWriting, TimePassed

from tests.unit.scenario.bench import CRASH, Bench, running

TORN = {"id": "torn", "when": {"writing": "*.pt", "step": 3}, "kill": "rank 0"}
HELD = WriterHeld(pattern="*.pt", path=None, file="newest.pt")


def held_on(bench: Bench) -> list[str]:
    """Return the nodes on which writers are to be held."""
    return [order.node for order in bench.all_of(HoldWriting)]


def let_go_on(bench: Bench) -> list[str]:
    """Return the nodes on which they are let go."""
    return [order.node for order in bench.all_of(ReleaseWriting)]


def test_writers_are_held_from_the_step_on_and_until_the_fault_is_proven() -> None:
    """On every node, as nobody says who writes."""
    bench = running(TORN)
    bench.steps(2)
    assert held_on(bench) == []
    bench.steps(1)
    assert held_on(bench) == ["n1", "n2"]
    bench.see(WriterHeld(pattern="*.bin", path=None, file="x.bin"), node="n1")
    assert bench.fired == []
    bench.see(HELD, node="n1")
    assert bench.fired == ["torn"]
    bench.in_force("torn")
    assert let_go_on(bench) == []
    bench.prove("torn")
    assert let_go_on(bench) == ["n1", "n2"]


def test_one_node_can_be_named_and_no_step_need_be() -> None:
    """Then writers are held from the node's start on."""
    torn = {"id": "torn", "when": {"writing": "*.pt", "node": "n2"}, "kill": "rank 0"}
    bench = running(torn)
    assert held_on(bench) == ["n2"]
    bench.see(HELD, node="n1")
    assert bench.fired == []
    bench.see(HELD, node="n2")
    assert bench.fired == ["torn"]


def test_writers_of_other_entries_and_of_later_rounds_stay_held() -> None:
    """An entry that waits for a step holds none; a node without a launcher writes nothing."""
    bench = running(CRASH, TORN)
    bench.see(NodeStarted(address="10.77.0.3", incarnation=1), node="n3")
    bench.steps(3)
    assert held_on(bench) == ["n1", "n2"]
    bench.form("n1", "n2")
    bench.pass_time(1)
    assert let_go_on(bench) == []


def test_a_node_that_comes_later_has_its_writers_held_too() -> None:
    """While the entry still waits."""
    bench = running(TORN)
    bench.steps(3)
    bench.start_nodes("n3")
    bench.pass_time(0.1)
    assert held_on(bench) == ["n1", "n2", "n3"]


def test_nobody_is_held_longer_than_a_rank_may_be() -> None:
    """A collective that waits for the writer must not run into its own time-out."""
    bench = running(TORN)
    bench.steps(3)
    bench.see(HELD, node="n1")
    until = bench.now + HOLD_LIMIT_S
    bench.pass_time(HOLD_LIMIT_S - 0.1)
    assert let_go_on(bench) == []
    bench.now = until
    bench.give(TimePassed())
    assert let_go_on(bench) == ["n1", "n2"]


def test_the_end_of_the_run_lets_everybody_go() -> None:
    """And a trigger that never came says what was waited for."""
    bench = running(TORN)
    bench.steps(3)
    bench.end_job()
    assert let_go_on(bench) == ["n1", "n2"]
    (skipped,) = [state for state in bench.engine.entries if state.id == "torn"]
    assert skipped.phase.value == "skipped"
