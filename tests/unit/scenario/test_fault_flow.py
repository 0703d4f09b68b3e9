"""Which entries of a timeline fire and heal, beside others, and at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from elastic_harness.history.events import (
    FaultEffective,
    FaultHealed,
    FaultIneffective,
    RankHeld,
    WorkerFinished,
)
from elastic_harness.scenario.engine.messages import TimePassed, TimeStoodStill
from elastic_harness.scenario.planning.planner import PinnedTargets, make_plan

from tests.unit.scenario.bench import CRASH, CUT, KILL, Bench, running, scenario


def at_once(bench: Bench, seconds: float) -> None:
    """Let time pass, and the engine look once."""
    bench.now += seconds
    bench.give(TimePassed())


def ineffective(bench: Bench) -> dict[str, str]:
    """Return why entries did nothing."""
    return {each.id: each.reason for each in bench.facts(FaultIneffective)}


# --- beside others --------------------------------------------------------------------------------


def test_a_rank_that_is_held_fires_the_entry_that_asked_for_it() -> None:
    """Not those of a time, of another rank or of a later step, wherever they stand."""
    bench = running(
        {**KILL, "at": "60s"},
        {"at": {"step": 3, "rank": 0}, "id": "other", "kill": "rank 0"},
        {"at": {"step": 9, "rank": 1}, "id": "later", "kill": "rank 1"},
        CRASH,
    )
    bench.hold(1, 3)
    assert bench.fired == ["crash"]


def test_an_entry_that_has_fired_is_not_asked_again() -> None:
    """Whatever step its rank is held at in a later round."""
    bench = running(CRASH)
    bench.hold(1, 3)
    bench.prove("crash")
    bench.form("n1", "n2")
    bench.resume(1, 5)
    bench.hold(1, 6)
    assert bench.fired == ["crash"]
    assert ineffective(bench) == {}


@pytest.mark.parametrize("round", [None, 1])
def test_a_held_process_of_which_nothing_is_known_fires_what_asks_for_no_round(
    round: int | None,
) -> None:
    """Its hello may be on its way."""
    at = {"step": 3, "rank": 1} if round is None else {"step": 3, "rank": 1, "round": round}
    bench = running({**CRASH, "at": at})
    bench.see(RankHeld(pid=1, rank=1, step=3))
    assert bench.fired == (["crash"] if round is None else [])


def test_what_heals_when_something_happens_is_found_behind_what_does_not() -> None:
    """And is not healed again once it was undone."""
    until = {**CUT, "until": {"round": 2}}
    bench = running({**CUT, "id": "stays", "until": "end"}, until, {**until, "id": "undone"})
    bench.pass_time(1)
    for id in ("stays", "cut", "undone"):
        bench.in_force(id, proof_needs_job=True)
        bench.prove(id)
    bench.undo("undone")
    bench.form("n1", "n2")
    assert bench.healed == ["cut"]


def test_what_was_undone_early_is_not_healed_when_its_time_comes() -> None:
    """The teardown undoes things, too."""
    bench = running({**CUT, "for": "2s"})
    bench.pass_time(1)
    bench.in_force("cut")
    bench.prove("cut")
    bench.undo("cut")
    bench.pass_time(5)
    assert bench.healed == []
    assert [each.id for each in bench.facts(FaultHealed)] == ["cut"]


def test_a_fault_that_failed_is_not_proven_afterwards() -> None:
    """The first word holds."""
    bench = running(KILL)
    bench.pass_time(1)
    bench.disprove("x")
    bench.prove("x")
    assert bench.facts(FaultEffective) == []


def test_a_fault_that_was_not_drawn_fires_though_all_ranks_have_finished() -> None:
    """Who wrote it down wants it."""
    bench = running({"at": "1s", "id": "x", "kill_agent": "n2"})
    for rank in (0, 1):
        bench.see(WorkerFinished(pid=bench._pids[rank], rank=rank))
    bench.pass_time(1)
    assert bench.fired == ["x"]


def test_what_was_chosen_is_told_of_words_that_leave_a_choice_only() -> None:
    """And a replay is told whom to hit."""
    bench = running(KILL, {**KILL, "id": "any", "kill": "random"})
    bench.pass_time(1)
    assert list(bench.engine.resolved) == ["any"]
    plan = make_plan(scenario({**KILL, "kill": "random"}), 1)
    for rank in (0, 1):
        again = replace(plan, targets={"x": PinnedTargets(ranks=(rank,))})
        bench = Bench(again.scenario, plan=again)
        bench.start_nodes("n1", "n2")
        bench.form("n1", "n2")
        bench.pass_time(1)
        assert bench.targets("x")[0].startswith(f"rank {rank} ")


def test_one_firing_of_many_is_healed_by_its_id_and_all_by_their_name() -> None:
    """`heal: chaos#1`, or `heal: chaos`."""
    many = {"every": {"mtbf": "5s", "max": 2}, "id": "chaos", "partition": "n2", "until": "end"}
    for word, healed in (("chaos#1", ["chaos#1"]), ("chaos", ["chaos#2", "chaos#1"])):
        bench = running(many, {"at": "50s", "id": "h", "heal": word}, limit="100s")
        bench.pass_time(40)
        for id in ("chaos#1", "chaos#2"):
            bench.in_force(id, proof_needs_job=True)
            bench.prove(id)
        bench.pass_time(10)
        assert bench.healed == healed


# --- at once --------------------------------------------------------------------------------------


def test_what_follows_at_once_happens_in_the_same_moment() -> None:
    """In whatever order it is written down."""
    bench = running(
        {"after": "h", "id": "then", "kill": "rank 1"},
        {"at": "2s", "id": "h", "heal": "cut"},
        {**CUT, "until": "end"},
    )
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench.prove("cut")
    at_once(bench, 1)
    assert bench.fired == ["cut", "then"]


def test_what_can_never_fire_is_given_up_at_once_and_keeps_nothing_else() -> None:
    """Those that wait for it, too."""
    bench = running(
        {"after": "second", "id": "third", "kill": "rank 1"},
        {"after": "x", "id": "second", "kill": "rank 1"},
        {**KILL, "at": "3s", "id": "other"},
        KILL,
    )
    bench.pass_time(1)
    bench.disprove("x", "no")
    assert list(ineffective(bench)) == ["x", "second", "third"]
    assert ineffective(bench)["third"] == (
        "it never fired: it waits for second, which never took effect"
    )
    at_once(bench, 2)
    assert bench.fired == ["x", "other"]


def test_what_waits_for_nothing_there_is_given_up() -> None:
    """A running test may have mistaken a name."""
    bench = Bench(scenario(), is_open=True)
    bench.add(id="x", after="nobody", kill="rank 1")
    assert list(ineffective(bench)) == ["x"]


def test_a_delay_after_a_fault_is_longer_by_the_time_that_stood_still() -> None:
    """As every other moment."""
    bench = running(KILL, {"after": "x + 5s", "id": "then", "kill": "rank 1"})
    bench.pass_time(1)
    bench.prove("x")
    bench.now += 10
    bench.give(TimeStoodStill(seconds=10.0))
    bench.pass_time(4.9)
    assert bench.fired == ["x"]
    bench.pass_time(0.1)
    assert bench.fired == ["x", "then"]


def test_an_event_that_was_never_seen_is_named_with_what_was() -> None:
    """A storm's user sees it in the verdict."""
    bench = running({"when": {"event": "worker_gone", "count": 2}, "id": "x", "kill": "rank 1"})
    bench.lose(0)
    bench.end_job()
    bench.pass_time(1)
    assert ineffective(bench)["x"].endswith("was not seen; last seen: 1 of 2 such events")
