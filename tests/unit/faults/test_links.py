"""Cut and degraded links: their shapes, what proves them, how they are undone."""

from __future__ import annotations

import pytest
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.network.link_model import HEALTHY, LinkMode, LinkPolicy
from elastic_harness.scenario.selectors import SelectionEmpty
from pydantic import ValidationError

from tests.unit.faults.bench import World


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
