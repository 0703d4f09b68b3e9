"""What becomes of a fault that the scenario engine has fired: targets, effects, heals."""

from __future__ import annotations

import json

import pytest
from elastic_harness.faults.evidence import Evidence
from elastic_harness.history.events import (
    FaultEffective,
    FaultFired,
    FaultHealed,
    FaultIneffective,
)
from elastic_harness.scenario.engine.messages import FaultProved

from pytest_elastic.events.codec import decode_record, encode_record
from pytest_elastic.events.model import CoordinatorStarted, Record
from tests.unit.scenario.bench import Bench, running, scenario


def test_a_fault_is_recorded_before_it_is_ordered_with_its_targets() -> None:
    """Nothing it causes can come before it in the history."""
    bench = running({"at": "1s", "id": "x", "kill": {"worker": "rank 0", "signal": "SIGTERM"}})
    bench.pass_time(1)
    fact = bench.facts(FaultFired)[0]
    assert (fact.id, fact.fault) == ("x", "kill")
    assert fact.parameters == {"worker": "rank 0", "signal": "SIGTERM"}
    kinds = [type(answer).__name__ for answer in bench.answers]
    assert kinds.index("RecordEvent") < kinds.index("Fire")


def test_whom_a_fault_hits_and_what_kind_it_is_stands_in_the_fact() -> None:
    """Exactly, for programs: a node is no worker on it, and a link is a pair."""
    bench = running(
        {"at": "1s", "id": "worker", "hang": "rank 1"},
        {"at": "1s", "id": "node", "crash": "n2"},
        {"at": "1s", "id": "links", "capture": {"from": "n1", "to": "n2"}},
    )
    bench.pass_time(1)
    worker, node, links = bench.facts(FaultFired)
    assert [(node_name, rank) for node_name, rank, _ in worker.workers] == [("n2", 1)]
    assert (worker.nodes, worker.links) == ((), ())
    assert (worker.pauses, worker.disturbs, worker.may_end_launchers) == (True, True, ())
    assert (node.nodes, node.workers, node.may_end_launchers) == (("n2",), (), ("n2",))
    assert (node.pauses, node.disturbs) == (False, True)
    assert (links.links, links.pauses, links.disturbs) == ((("n1", "n2"),), False, False)


def test_evidence_is_recorded_with_its_facts() -> None:
    """A mere sentence, as a user's fault may return, has none."""
    bench = running(
        {"at": "1s", "id": "x", "kill": "rank 0"}, {"at": "1s", "id": "y", "kill": "rank 1"}
    )
    bench.pass_time(1)
    bench.give(FaultProved(entry_id="x", evidence=Evidence(text="seen", facts={"exit_code": 3})))
    bench.give(FaultProved(entry_id="y", evidence="seen"))
    found = [(fact.evidence, fact.facts) for fact in bench.facts(FaultEffective)]
    assert found == [("seen", {"exit_code": 3}), ("seen", {})]


def test_facts_survive_the_history_and_older_ones_without_them_are_read() -> None:
    """What an older harness wrote down has neither facts nor who was hit."""
    facts = {"packets": {"lost": 2}}
    written = Record(
        at=1.0,
        source="fault",
        node="",
        run_id="job",
        event=FaultEffective(id="x", evidence="seen", facts=facts),
    )
    assert decode_record(encode_record(written)) == written
    old = {"id": "x", "fault": "kill", "targets": ["rank 0"], "parameters": {}}
    line = {"v": 1, "at": 1.0, "source": "fault", "kind": "fault_fired", "event": old}
    read = decode_record(json.dumps(line))
    assert read is not None
    assert read.event == FaultFired(id="x", fault="kill", targets=("rank 0",))


def test_a_selector_that_means_nobody_makes_the_fault_ineffective_with_the_reason() -> None:
    """There is no rank 1 when n2 is gone."""
    bench = running({"at": "1s", "id": "x", "kill": "rank 1"})
    bench.lose(1)
    bench.pass_time(1)
    assert bench.fired == []
    assert "is empty now" in bench.facts(FaultIneffective)[0].reason


def test_chance_chooses_the_same_for_the_same_seed_and_entry() -> None:
    """Seeds matter, and nothing else."""

    def choice(seed: int) -> tuple[str, ...]:
        bench = Bench(scenario({"at": "1s", "id": "x", "crash": "random 2"}, nodes=5), seed=seed)
        bench.start_nodes("n1", "n2", "n3", "n4", "n5")
        bench.pass_time(1)
        return bench.targets("x")

    assert choice(3) == choice(3)
    assert len({choice(seed) for seed in range(20)}) > 3


def test_the_store_host_is_where_the_newest_coordinator_is() -> None:
    """After a succession, `store host` means the successor."""
    bench = running({"at": "2s", "id": "x", "crash": "store host"})
    for term, node in ((1, "n1"), (2, "n2")):
        bench.see(
            CoordinatorStarted(
                term=term, address="10.77.0.1", port=29400, quorum="majority", reason="test"
            ),
            node=node,
        )
    bench.pass_time(2)
    assert bench.targets("x") == ("n2",)


def test_a_fault_is_healed_after_its_time_and_once() -> None:
    """`for` counts from when it is in force."""
    bench = running({"at": "1s", "id": "cut", "partition": "n2", "for": "3s"})
    bench.pass_time(1.5)
    bench.in_force("cut", proof_needs_job=True)
    bench.pass_time(2.9)
    assert bench.healed == []
    bench.pass_time(0.1)
    assert bench.healed == ["cut"]
    bench.undo("cut")
    bench.undo("cut")
    bench.pass_time(5)
    assert bench.healed == ["cut"]
    assert bench.facts(FaultHealed) == [FaultHealed(id="cut", by="schedule")]


def test_a_fault_is_healed_when_its_until_comes_true() -> None:
    """`until` is a condition like any other, counted from when the fault is in force."""
    bench = running(
        {
            "at": "1s",
            "id": "cut",
            "partition": "n2",
            "until": {"stable": {"world_size": 1, "steps": 2}},
        }
    )
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench._pids.clear()
    bench.form("n1")
    bench.steps(1)
    assert bench.healed == []
    bench.steps(1)
    assert bench.healed == ["cut"]


def test_a_heal_action_heals_by_id_and_is_no_fault_itself() -> None:
    """`heal: cut` orders the heal and leaves no fault facts of its own."""
    bench = running(
        {"at": "1s", "id": "cut", "partition": "n2", "until": "end"},
        {"after": "cut + 2s", "id": "mend", "heal": "cut"},
    )
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench.pass_time(2)
    assert bench.healed == ["cut"]
    bench.undo("cut")
    assert bench.facts(FaultHealed) == [FaultHealed(id="cut", by="action")]
    assert [fact.id for fact in bench.facts(FaultFired)] == ["cut"]


@pytest.mark.parametrize("again", ["cut", "all"])
def test_healing_again_is_harmless_while_it_is_undone_and_afterwards(again: str) -> None:
    """`for` may come first: one order to undo it, and nothing is said to have failed."""
    bench = running(
        {"at": "1s", "id": "cut", "partition": "n2", "for": "2s"},
        {"after": "cut + 2s", "id": "meanwhile", "heal": again},
        {"after": "cut.healed + 1s", "id": "afterwards", "heal": again},
    )
    bench.pass_time(1)
    bench.in_force("cut")
    bench.prove("cut")
    bench.pass_time(2)
    bench.undo("cut")
    bench.pass_time(1)
    assert bench.healed == ["cut"]
    assert [fact.id for fact in bench.facts(FaultHealed)] == ["cut"]
    assert bench.facts(FaultIneffective) == []


def test_healing_what_was_never_in_force_is_said() -> None:
    """A fault that failed, one that has nothing to undo, or none at all."""
    bench = running(
        {"at": "1s", "id": "cut", "partition": "n2"},
        {"at": "1s", "id": "dead", "kill": "rank 1"},
        {"at": "3s", "id": "first", "heal": "cut"},
        {"at": "3s", "id": "second", "heal": "dead"},
        {"at": "3s", "id": "third", "heal": "all"},
    )
    bench.pass_time(1)
    bench.disprove("cut", "there is no switch")
    bench.in_force("dead")
    bench.prove("dead")
    bench.pass_time(2)
    said = {fact.id: fact.reason for fact in bench.facts(FaultIneffective)}
    assert said.pop("cut") == "there is no switch"
    assert said == {
        name: f"heal: {wanted}: nothing of that was ever in force"
        for name, wanted in {"first": "cut", "second": "dead", "third": "all"}.items()
    }


def test_a_fault_healed_by_the_teardown_is_recorded_even_after_the_end() -> None:
    """The history shows that what was broken was given back."""
    bench = running({"at": "1s", "id": "cut", "partition": "n2", "until": "end"})
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench.prove("cut")
    bench.end_job()
    bench.undo("cut")
    assert bench.facts(FaultHealed) == [FaultHealed(id="cut", by="teardown")]


def test_effect_and_failure_are_recorded_once() -> None:
    """The first word on a fault holds."""
    bench = running({"at": "1s", "id": "x", "kill": "rank 0"})
    bench.pass_time(1)
    bench.prove("x")
    bench.prove("x")
    bench.disprove("x")
    assert bench.facts(FaultEffective) == [FaultEffective(id="x", evidence="seen")]
    assert bench.facts(FaultIneffective) == []


@pytest.mark.parametrize("is_optional", [False, True])
def test_a_fault_that_did_nothing_may_do_so_if_it_is_optional(*, is_optional: bool) -> None:
    """It is recorded either way."""
    bench = running({"at": "1s", "id": "x", "kill": "rank 0", "optional": is_optional})
    bench.pass_time(1)
    bench.disprove("x")
    assert [fact.is_optional for fact in bench.facts(FaultIneffective)] == [is_optional]


@pytest.mark.parametrize("more", [{}, {"optional": True}])
@pytest.mark.parametrize("phase", ["fired", "in force"])
def test_a_fault_whose_code_crashes_ends_the_run_as_what_it_is(
    phase: str, more: dict[str, bool]
) -> None:
    """Whatever the job makes of half a fault; one that may do nothing must not crash either."""
    bench = running({"at": "1s", "id": "x", "kill": "rank 0", **more})
    bench.pass_time(1)
    if phase == "in force":
        bench.in_force("x")
    bench.crash("x", "it crashed")
    assert bench.facts(FaultIneffective) == [FaultIneffective(id="x", reason="it crashed")]
    assert bench.end is not None
    assert (bench.end.outcome, bench.end.reason) == ("aborted", "x: it crashed")


def test_a_fault_that_never_fired_is_said_to_be_ineffective_unless_it_is_optional() -> None:
    """What the scenario wanted to happen has to happen."""
    bench = running(
        {"at": {"step": 30, "rank": 1}, "id": "must", "kill": "rank 1"},
        {"at": {"step": 31, "rank": 1}, "id": "may", "kill": "rank 1", "optional": True},
    )
    bench.steps(3)
    bench.end_job()
    facts = bench.facts(FaultIneffective)
    assert [fact.id for fact in facts] == ["must"]
    assert "rank 1 was not seen to complete step 30" in facts[0].reason
    assert "step 3" in facts[0].reason
