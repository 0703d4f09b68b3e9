"""Each fault: what it does, what proves it, what it says when it did nothing, how it is undone."""

from __future__ import annotations

import signal

import pytest
from elastic_harness.cluster.cluster import CAPABILITIES
from elastic_harness.faults.fault import Fault
from elastic_harness.faults.registry import BUILT_IN, FaultRegistry, built_in_faults
from elastic_harness.faults.worker import KillWorker
from elastic_harness.network.link_model import HEALTHY, LinkMode, LinkPolicy
from elastic_harness.scenario.selectors import SelectionEmpty
from pydantic import ValidationError

from pytest_elastic.errors import UsageError
from tests.unit.faults.bench import World

# --- workers ----------------------------------------------------------------------------


def test_a_killed_worker_is_proven_by_its_end() -> None:
    """In force when the signal is sent, proven when that very process is gone."""
    world = World()
    world.fire("kill", "rank 1")
    assert world.story == ["in force"]
    world.pass_time()
    assert world.log == ["SIGKILL 1002"]
    assert world.story == ["in force", "proved: rank 1 (n2, pid 1002) gone"]


def test_a_signal_that_can_be_handled_is_proven_by_its_delivery() -> None:
    """What a program makes of SIGTERM is the program's business."""
    world = World()
    world.processes[1002].ignores = {signal.SIGTERM}
    world.fire("kill", {"worker": "rank 1", "signal": "term"})
    assert world.story[-1] == "proved: SIGTERM was delivered to rank 1 (n2, pid 1002)"


def test_a_worker_that_ended_before_is_no_proof_of_anything() -> None:
    """The fault says that it did nothing."""
    world = World()
    del world.processes[1002]
    world.fire("kill", "rank 1")
    assert world.story == ["failed: rank 1 (n2, pid 1002) had ended before SIGKILL was sent"]


def test_a_worker_that_does_not_die_is_not_waited_for_for_ever() -> None:
    """A process stuck in the kernel makes the fault fail."""
    world = World()
    world.processes[1002].ignores = {signal.SIGKILL}
    world.fire("kill", "rank 1")
    world.pass_time(4.9)
    assert len(world.told) == 1
    world.pass_time(0.2)
    assert "still alive after 5 s" in world.story[-1]


@pytest.mark.parametrize(
    ("action", "value", "order"),
    [
        ("exit", {"worker": "rank 1", "code": 3}, {"do": "exit", "code": 3}),
        (
            "raise",
            {"worker": "rank 1", "error": "ValueError", "message": "no"},
            {"do": "raise", "error": "ValueError", "message": "no"},
        ),
    ],
)
def test_an_order_to_a_worker_is_proven_by_its_end_and_holds_nobody_up(
    action: str, value: object, order: dict[str, object]
) -> None:
    """It is done in the step hook, where a held rank stands."""
    world = World()
    world.fire(action, value)
    assert world.processes[1002].orders == [order]
    assert world.story == ["in force, needs job"]
    del world.processes[1002]
    world.pass_time()
    assert world.story[-1].startswith("proved: rank 1 (n2, pid 1002) told to")


def test_a_worker_without_a_probe_cannot_be_ordered() -> None:
    """Other languages, `python -I`."""
    world = World()
    world.processes[1002].has_probe = False
    world.fire("exit", {"worker": "rank 1"})
    assert "no probe that could exit with 1" in world.story[0]


# --- agents and nodes -------------------------------------------------------------------


def test_a_killed_agent_is_proven_by_its_launchers_end() -> None:
    """Its workers are not touched."""
    world = World()
    world.fire("kill_agent", "n2")
    world.pass_time()
    assert world.log == ["SIGKILL 502"]
    assert world.story == ["in force", "proved: launcher on n2 gone"]
    assert 1002 in world.processes


@pytest.mark.parametrize(("action", "how"), [("crash", "crash"), ("power_cut", "power_cut")])
def test_a_node_that_ends_is_proven_by_being_gone(action: str, how: str) -> None:
    """The cluster's word is not enough: the node must not be up."""
    world = World()
    world.fire(action, {"node": ["n2", "n3"]})
    world.pass_time()
    assert world.log == [f"{how} n2", f"{how} n3"]
    assert world.up == ["n1"]
    assert world.story[0] == "in force"
    assert world.story[1].startswith("proved: n2, n3 gone")


def test_what_the_cluster_refuses_makes_the_fault_fail_with_its_words() -> None:
    """And what it never answers, too, in bounded time."""
    world = World()
    world.broken = {"crash"}
    world.fire("crash", "n2")
    world.pass_time()
    assert world.story == ["failed: cannot crash n2"]
    world = World()
    world.stuck = {"power_cut"}
    world.fire("power_cut", "n2")
    world.pass_time(15.1)
    assert world.story == ["failed: ending n2: no answer within 15 s"]


def test_a_preempted_node_gets_its_notice_and_then_loses_power_whatever_it_does() -> None:
    """SIGTERM at once; the power goes when the notice is over."""
    world = World()
    world.fire("preempt", {"node": "n2", "notice": "5s"})
    assert world.log == ["SIGTERM 502"]
    assert world.story == ["in force, needs job"]
    world.pass_time(4.9)
    assert world.log == ["SIGTERM 502"]
    world.pass_time(0.2)
    assert world.log == ["SIGTERM 502", "power_cut n2"]
    world.pass_time(0.2)
    assert world.story[-1] == "proved: n2 gone, 5 s after SIGTERM"


def test_a_node_that_leaves_is_proven_by_its_launchers_end_and_stays_up() -> None:
    """Within the time that it is given."""
    world = World()
    world.fire("leave", {"node": "n2", "within": "20s"})
    world.pass_time()
    assert world.story[-1] == "proved: launcher on n2 ended after SIGTERM"
    assert "n2" in world.up
    world = World()
    world.processes[502].ignores = {signal.SIGTERM}
    world.fire("leave", {"node": "n2", "within": "20s"})
    world.pass_time(20.1)
    assert world.story[-1] == "failed: told to leave, the launcher on one of n2 stayed"


def test_nodes_that_join_get_fresh_names_and_come_one_after_the_other() -> None:
    """A name that the run has used is not given out again."""
    world = World()
    world.up.remove("n2")
    world.up.insert(1, "n4")
    order = world.fire("join", {"nodes": 2, "stagger": "500ms"})
    assert order.targets.new_nodes == ("n2", "n5")
    assert world.log == ["start n2"]
    world.pass_time(0.6)
    assert world.log == ["start n2", "start n5"]
    assert world.story == ["in force, needs job", "proved: n2, n5 up"]


def test_a_node_that_is_up_cannot_join() -> None:
    """By name, the scenario must know what it does."""
    with pytest.raises(SelectionEmpty, match="n2 cannot join: it is up already"):
        World().fire("join", ["n2", "n9"])


def test_a_replaced_node_comes_back_empty_and_a_rebooted_one_with_its_disk() -> None:
    """Both are in force once the old one is gone, and proven once the new one is up."""
    for action, value, again in (
        ("replace", {"node": "n2", "by": "power_cut"}, "start n2"),
        ("reboot", {"node": "n2", "downtime": "2s"}, "start n2 keep_disk"),
    ):
        world = World()
        world.fire(action, value)
        world.pass_time(0.5)
        assert world.story[0] == "in force, needs job"
        world.pass_time(2)
        assert world.log[-1] == again
        assert world.story[-1] == "proved: n2 gone and back"


# --- pauses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "pid"), [("rank 1", 1002), ({"worker": "rank 1"}, 1002), ({"agent": "n2"}, 502)]
)
def test_a_paused_process_is_proven_by_its_state_and_goes_on_when_healed(
    value: object, pid: int
) -> None:
    """Healing it twice is harmless."""
    world = World()
    world.fire("pause", value)
    world.pass_time()
    assert world.story == ["in force", f"proved: state T: {pid}"]
    world.heal()
    world.heal()
    world.pass_time()
    assert world.log == [f"SIGSTOP {pid}", f"SIGCONT {pid}"]
    assert world.processes[pid].state == "S"
    assert world.story[-1] == "undone"
    assert world.story.count("undone") == 1


def test_a_paused_node_needs_a_cluster_that_can_and_is_resumed_by_it() -> None:
    """Every process of it, those being forked included, is the cluster's business."""
    world = World()
    world.fire("pause", {"node": "n2"})
    world.pass_time()
    world.heal()
    world.pass_time()
    assert world.log == ["pause n2", "resume n2"]
    assert built_in_faults().parse("pause", {"node": "n2"}).needs == "pause"
    assert built_in_faults().parse("pause", {"agent": "n2"}).needs is None


# --- links ------------------------------------------------------------------------------


def test_a_cut_is_proven_by_the_packets_it_stopped() -> None:
    """In force once the switch has it; what was dropped before does not count."""
    world = World()
    world.fire("partition", {"isolate": "n2"})
    world.pass_time(0.5)
    assert world.story == ["in force, needs job"]
    world.send("n1", "n3")
    world.pass_time(0.5)
    assert len(world.told) == 1
    world.send("n1", "n2", packets=3)
    world.pass_time(0.5)
    assert world.story[-1] == "proved: 3 packets stopped on 4 links"


def test_a_cut_that_nobody_noticed_has_failed() -> None:
    """It stays until it is healed, all the same."""
    world = World()
    world.fire("partition", "n2")
    world.pass_time(16)
    assert world.story[-1].startswith("failed: nothing was sent over these links")
    assert "x" in world.injector.in_force
    world.heal()
    world.pass_time()
    assert world.links["n1", "n2"] == HEALTHY
    assert not world.injector.in_force


def test_a_cut_that_is_healed_early_looks_once_more() -> None:
    """What was dropped between the last look and the heal counts."""
    world = World()
    world.fire("partition", "n2")
    world.pass_time(0.05)
    world.send("n1", "n2")
    world.heal()
    world.pass_time()
    assert world.story == [
        "in force, needs job",
        "proved: 1 packets stopped on 4 links",
        "undone",
    ]


def test_a_cut_that_holds_packets_is_proven_by_those_that_do_not_arrive() -> None:
    """They are not dropped: they come when it heals."""
    world = World()
    world.fire("partition", {"isolate": "n2", "mode": "hold"})
    world.pass_time(0.5)
    assert world.links["n1", "n2"] == LinkPolicy(up=False, mode=LinkMode.HOLD)
    world.send("n2", "n1", packets=2)
    world.pass_time(0.5)
    assert world.story[-1].startswith("proved: 2 packets")


def both(*pairs: str) -> set[tuple[str, str]]:
    """Return links in both directions, of pairs written "n1 n2"."""
    links = {(pair[:2], pair[3:]) for pair in pairs}
    return links | {(target, source) for source, target in links}


@pytest.mark.parametrize(
    ("value", "links"),
    [
        ("n2", both("n1 n2", "n2 n3", "n2 n4")),
        ({"isolate": ["n1", "n2"]}, both("n1 n2", "n1 n3", "n1 n4", "n2 n3", "n2 n4")),
        ({"split": ["n1", "n2"]}, both("n1 n3", "n1 n4", "n2 n3", "n2 n4")),
        ("halves", both("n1 n3", "n1 n4", "n2 n3", "n2 n4")),
        ({"shape": "ring"}, both("n1 n3", "n2 n4")),
        ({"bridge": "n4"}, both("n1 n2", "n1 n3")),
        ({"between": ["n1", ["n3", "n4"]]}, both("n1 n3", "n1 n4")),
        ({"between": ["n1", "others"]}, both("n1 n2", "n1 n3", "n1 n4")),
        ({"from": "others", "to": "store host"}, {("n2", "n1"), ("n3", "n1"), ("n4", "n1")}),
        ({"from": "store host", "to": "others"}, {("n1", "n2"), ("n1", "n3"), ("n1", "n4")}),
        ({"from": "n2", "to": "n3"}, {("n2", "n3")}),
        ({"pairs": [["n1", "n2"], ["n3", "n1"]]}, {("n1", "n2"), ("n3", "n1")}),
    ],
)
def test_partitions_have_shapes(value: object, links: set[tuple[str, str]]) -> None:
    """Pairs are directed: from, to."""
    fault = built_in_faults().parse("partition", value)
    assert set(fault.resolve(World(4).situation(), stream="x").links) == links


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"isolate": "n1", "shape": "ring"},
        {"from": "n1"},
        {"between": ["n1"]},
        {"isolate": "n1", "mode": "lose"},
        {"pairs": [["n1"]]},
        {"shape": "star"},
    ],
)
def test_a_partition_has_exactly_one_shape(value: object) -> None:
    """And no half of one."""
    with pytest.raises(ValidationError):
        built_in_faults().parse("partition", value)


def test_a_partition_of_nodes_that_do_not_exist_is_refused_when_it_fires() -> None:
    """With the names that there are."""
    fault = built_in_faults().parse("partition", {"pairs": [["n1", "n9"]]})
    with pytest.raises(SelectionEmpty, match="n9: no such node"):
        fault.resolve(World().situation(), stream="x")


def test_faults_on_one_link_are_undone_each_by_itself() -> None:
    """A slow link that was also cut is slow again when the cut is healed."""
    world = World()
    world.fire("degrade", {"latency": "100ms"}, entry_id="slow")
    world.fire("partition", "n2", entry_id="cut")
    world.pass_time(0.5)
    assert not world.links["n1", "n2"].up
    world.heal("cut")
    world.pass_time(0.5)
    assert world.links["n1", "n2"] == LinkPolicy(latency_s=0.1)
    world.heal("slow")
    world.pass_time(0.5)
    assert world.links["n1", "n2"] == HEALTHY


def test_a_degraded_link_is_proven_by_what_it_carried_or_lost() -> None:
    """A delay acts on every packet, a loss on those that are lost."""
    world = World()
    world.fire("degrade", {"node": "n2", "latency": "20ms", "jitter": "5ms", "rate": "10mbit"})
    world.pass_time(0.5)
    assert world.links["n2", "n3"] == LinkPolicy(
        latency_s=0.02, jitter_s=0.005, rate_bytes_per_s=1.25e6
    )
    assert ("n1", "n3") not in world.links
    world.send("n2", "n3")
    world.pass_time(0.5)
    assert world.story[-1] == "proved: 1 packets delayed or lost on 4 links"
    world = World()
    world.fire("degrade", {"loss": "2%"})
    world.pass_time(0.5)
    world.send("n1", "n2", packets=4)
    world.pass_time(0.5)
    assert world.story[-1] == "proved: 4 packets delayed or lost on 6 links"


@pytest.mark.parametrize(
    "value",
    [{}, {"node": "n1"}, {"latency": "1s", "from": "n1"}, {"jitter": "10ms"}, {"loss": "200%"}],
)
def test_a_degradation_must_degrade_something(value: object) -> None:
    """And jitter cannot make packets arrive before they were sent."""
    with pytest.raises(ValidationError):
        built_in_faults().parse("degrade", value)


# --- giving back ------------------------------------------------------------------------


def test_everything_is_given_back_in_reverse_order() -> None:
    """What was broken last is mended first, and problems are collected."""
    world = World()
    world.fire("pause", {"node": "n3"}, entry_id="first")
    world.fire("partition", "n2", entry_id="second")
    world.pass_time(0.5)
    world.broken = {"lift"}
    problems: list[dict[str, str]] = []
    world.injector.heal_all(lambda found: problems.append(dict(found)))
    world.pass_time(5)
    assert world.log[-2:] == ["lift second", "resume n3"]
    assert problems == [{"second": "cannot lift second"}]


def test_a_fault_that_could_not_be_undone_is_not_said_to_be_and_is_tried_again() -> None:
    """The teardown has another try."""
    world = World()
    world.fire("partition", "n2")
    world.pass_time(0.5)
    world.send("n1", "n2")
    world.pass_time(0.5)
    world.broken = {"lift"}
    world.heal()
    world.pass_time(1)
    assert "undone" not in world.story
    assert world.injector.in_force == ("x",)
    world.broken = set()
    world.injector.heal_all(lambda _: None)
    world.pass_time(1)
    assert world.story[-1] == "undone"


def test_giving_back_ends_even_while_a_fault_is_still_being_injected() -> None:
    """A preemption whose notice runs is not waited for."""
    world = World()
    world.fire("preempt", {"node": "n2", "notice": "60s"})
    done: list[object] = []
    world.injector.heal_all(done.append)
    world.pass_time(0.1)
    assert done == [{}]
    # What cannot be undone is not said to be: the node was told to go.
    assert world.story[-1] == "failed: it was healed before it was seen to act"
    world.pass_time(120)
    assert "power_cut n2" not in world.log


def test_giving_back_nothing_is_done_at_once() -> None:
    """A run without faults has nothing to wait for."""
    done: list[object] = []
    World().injector.heal_all(done.append)
    assert done == [{}]


# --- the registry -----------------------------------------------------------------------


@pytest.mark.parametrize("fault", BUILT_IN, ids=lambda fault: fault.name)
def test_every_fault_says_what_it_is_and_what_it_needs(fault: type[Fault]) -> None:
    """A name, a layer, a docstring that says what it stands for, a capability that exists."""
    assert fault.layer in {"process", "agent", "node", "network"}
    assert fault.__doc__ is not None
    assert "Stands for" in fault.__doc__
    assert built_in_faults().schema(fault.name)["description"]


@pytest.mark.parametrize(
    ("action", "value"),
    [
        ("kill", "rank 1"),
        ("power_cut", "n1"),
        ("preempt", "n1"),
        ("pause", {"node": "n1"}),
        ("partition", "n1"),
        ("degrade", {"loss": "1%"}),
    ],
)
def test_what_a_fault_needs_is_a_capability_that_clusters_know(action: str, value: object) -> None:
    """Or nothing."""
    needs = built_in_faults().parse(action, value).needs
    assert needs is None or needs in CAPABILITIES


def test_a_fault_from_outside_is_known_by_its_name() -> None:
    """And cannot take the name of another."""

    class Nudge(KillWorker):
        """A worker gets SIGUSR1. Stands for a nudge."""

        name = "nudge"

    registry = FaultRegistry(BUILT_IN)
    registry.add(Nudge)
    assert isinstance(registry.parse("nudge", "rank 1"), Nudge)
    with pytest.raises(UsageError, match="'nudge' already"):
        registry.add(Nudge)
    with pytest.raises(UsageError, match="there is no fault 'poke'"):
        registry.parse("poke", "rank 1")


@pytest.mark.parametrize(
    "value", [{"worker": "rank 1", "signal": "SIGSTOP"}, {"worker": "rank 1", "signal": 9}, {}]
)
def test_a_kill_takes_signals_that_end(value: object) -> None:
    """Stopping is `pause`; numbers differ between machines."""
    with pytest.raises(ValidationError):
        built_in_faults().parse("kill", value)


def test_a_partition_excuses_those_that_it_cuts_off() -> None:
    """Their launchers cannot know how the job goes on."""
    world = World(4)
    for value, excused in (
        ({"isolate": "n2"}, ("n2",)),
        ({"isolate": ["n2", "n3"]}, ("n2", "n3")),
        ({"split": "n4"}, ("n4",)),
        ({"split": ["n1", "n2"]}, ("n1", "n2")),
        ("halves", ()),
    ):
        fault = built_in_faults().parse("partition", value)
        targets = fault.resolve(world.situation(), stream="x")
        assert fault.excuses(targets) == excused, value
