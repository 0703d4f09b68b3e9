"""Cut and degraded links: their shapes, what proves them, how they are undone."""

from __future__ import annotations

import pytest
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.network.link_model import HEALTHY, LinkMode, LinkPolicy
from elastic_harness.network.link_policy import BurstLoss, Distribution, Flap
from elastic_harness.scenario.selectors import SelectionEmpty

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
    assert world.story[-1] == "proved: packets on 1 of 4 links: 3 dropped"


def test_a_cut_that_nobody_noticed_has_failed() -> None:
    """It stays until it is healed, all the same."""
    world = World()
    world.fire("partition", "n2")
    world.pass_time(32)
    assert world.story[-1].startswith("failed: in force, but nothing that it could act on was sent")
    assert "undone" not in world.story
    world.heal()
    world.pass_time()
    assert world.links["n1", "n2"] == HEALTHY
    assert world.story[-1] == "undone"


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
        "proved: packets on 1 of 4 links: 1 dropped",
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
    assert world.story[-1] == "proved: packets on 1 of 4 links: 2 held"


def both(*pairs: str) -> set[tuple[str, str]]:
    """Return links in both directions, of pairs written "n1 n2"."""
    links = {(pair.split()[0], pair.split()[1]) for pair in pairs}
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
    assert world.story[-1] == "proved: packets on 1 of 4 links: 1 delayed"
    world = World()
    world.fire("degrade", {"loss": "100%"})
    world.pass_time(0.5)
    world.send("n1", "n2", packets=4)
    world.pass_time(0.5)
    assert world.story[-1] == "proved: packets on 1 of 6 links: 4 lost"


def test_a_partition_excuses_those_that_it_cuts_off() -> None:
    """Their launchers cannot know how the job goes on."""
    world = World(4)
    for value, exempt in (
        ({"isolate": "n2"}, ("n2",)),
        ({"isolate": ["n2", "n3"]}, ("n2", "n3")),
        ({"split": "n4"}, ("n4",)),
        ({"split": ["n1", "n2"]}, ("n1", "n2")),
        ("halves", ()),
    ):
        fault = built_in_faults().parse("partition", value)
        targets = fault.resolve(world.situation(), stream="x")
        assert fault.exempt_nodes(targets) == exempt, value


def test_everything_that_can_be_wrong_with_a_link_can_be_said() -> None:
    """And becomes one policy."""
    world = World()
    world.fire(
        "degrade",
        {
            "from": "n1",
            "to": "n2",
            "latency": "20ms",
            "jitter": "5ms",
            "distribution": "pareto",
            "burst_loss": {"enter": "1%", "leave": "20%", "loss": "90%"},
            "corrupt": "1%",
            "reorder": "2%",
        },
    )
    world.pass_time(0.5)
    assert world.links == {
        ("n1", "n2"): LinkPolicy(
            latency_s=0.02,
            jitter_s=0.005,
            distribution=Distribution.PARETO,
            bursts=(BurstLoss(enter=0.01, leave=0.2, loss=0.9),),
            corrupt=0.01,
            reorder=0.02,
        )
    }


def test_one_class_of_traffic_is_hit_and_proven_by_itself() -> None:
    """What passes otherwise proves nothing."""
    world = World()
    world.fire("partition", {"isolate": "n2", "traffic": "store"})
    world.pass_time(0.5)
    assert world.links == {}
    assert world.cluster.network.places[("n1", "n2"), "store"] == LinkPolicy(up=False)
    world.send("n1", "n2")
    world.pass_time(32)
    assert world.story[-1] == (
        "failed: in force, but nothing of store that it could act on was sent over these links "
        "(a round talks to its stores while it forms)"
    )
    world.heal()
    world.pass_time()
    assert world.cluster.network.places[("n1", "n2"), "store"] == HEALTHY
    fault = built_in_faults().parse("degrade", {"latency": "1s", "traffic": 29400})
    assert fault.describe()["traffic"] == "port:29400"


def test_partitions_that_overlap_are_cut_together_and_heal_their_own_share() -> None:
    """Twice is harmless, in any order."""
    world = World()
    world.fire("partition", {"isolate": "n1"}, entry_id="one")
    world.fire("partition", {"isolate": "n2", "mode": "reject"}, entry_id="two")
    world.pass_time(0.5)
    assert world.links["n1", "n2"] == LinkPolicy(up=False, mode=LinkMode.REJECT)
    assert world.links["n1", "n3"] == LinkPolicy(up=False)
    for _ in range(2):
        world.heal("two")
        world.pass_time(0.5)
    assert world.links["n1", "n2"] == LinkPolicy(up=False)
    assert world.links["n2", "n3"] == HEALTHY
    world.heal("one")
    world.pass_time(0.5)
    assert set(world.links.values()) == {HEALTHY}


def test_a_flapping_link_has_its_rhythm_and_is_proven_by_what_it_stopped() -> None:
    """Any shape of a partition may flap."""
    world = World()
    world.fire("flap", {"isolate": "n2", "down": "500ms", "up": "2s"})
    world.pass_time(0.5)
    assert world.links["n1", "n2"] == LinkPolicy(flaps=(Flap(down_s=0.5, up_s=2.0),))
    assert built_in_faults().parse("flap", "halves").describe()["down"] == "1s"


def test_connections_are_reset_by_a_policy_of_their_links() -> None:
    """All links of a node, by the short form."""
    world = World()
    order = world.fire("reset", "n2")
    world.pass_time(0.5)
    assert set(order.targets.links) == both("n1 n2", "n2 n3")
    assert world.links["n1", "n2"] == LinkPolicy(resets=1)


def test_a_capture_is_proven_by_what_it_wrote_and_ends_when_healed() -> None:
    """The evidence says where."""
    world = World()
    world.fire("capture", "n2", entry_id="look")
    world.pass_time(0.5)
    world.send("n1", "n3")
    world.pass_time(0.5)
    assert world.story == ["in force, needs job"]
    world.send("n1", "n2", packets=2)
    world.pass_time(0.5)
    assert world.story[-1] == (f"proved: 2 packets so far in {world.folder}/captures/look.pcapng")
    world.heal("look")
    world.pass_time(0.5)
    assert world.cluster.network.captures == {}
    world.fire("capture", "n1", entry_id="again")
    world.send("n1", "n3")
    world.pass_time(0.5)
    assert world.story[-1].endswith(f"packets so far in {world.folder}/captures/again.pcapng")


def test_names_are_confused_for_those_who_are_named() -> None:
    """Proven when one of them asks; healed, they read the truth."""
    world = World()
    world.fire("names", {"node": "others", "of": "n1", "missing": True}, entry_id="gone")
    world.pass_time(0.5)
    assert world.story == ["in force, needs job"]
    world.look_up("n2", "n3")
    world.look_up("n3", "n1")
    world.pass_time(0.5)
    said = "n3 asked for n1 (1x), and the answer is that there is no such name"
    assert world.story[-1] == f"proved: {said}"
    world.heal("gone")
    world.pass_time(0.5)
    assert world.cluster.names.changes["n2"] == {}


def test_a_slow_name_is_proven_by_a_lookup() -> None:
    """Until then nobody has noticed."""
    world = World()
    world.fire("names", {"node": "n2", "of": "n1", "slow": "2s"})
    world.pass_time(1)
    assert world.story == ["in force, needs job"]
    world.look_up("n2", "n1")
    world.pass_time(1)
    assert world.story[-1] == "proved: n2 asked for n1 (1x), and the answer is 2 s late"


@pytest.mark.parametrize(
    ("value", "links"),
    [
        ({"between": ["n2", "gateway"]}, both("n2 gateway")),
        ({"from": "n2", "to": "gateway"}, {("n2", "gateway")}),
        ({"isolate": "gateway"}, both("n1 gateway", "n2 gateway", "n3 gateway")),
        ({"split": ["n2", "gateway"]}, both("n2 n1", "n2 n3", "gateway n1", "gateway n3")),
        ({"pairs": [["gateway", "n3"]]}, {("gateway", "n3")}),
        ({"isolate": "n2"}, both("n1 n2", "n3 n2")),
    ],
)
def test_the_gateway_is_an_end_of_links_where_it_is_named(
    value: object, links: set[tuple[str, str]]
) -> None:
    """And only there: services beyond it stay within reach of a node that is isolated."""
    assert set(World().fire("partition", value).targets.links) == links


@pytest.mark.parametrize("name", ["degrade", "reset", "capture"])
def test_links_to_the_gateway_are_those_of_all_nodes(name: str) -> None:
    """For what is done to links without cutting them, too."""
    value = {"node": "gateway", **({"latency": "10ms"} if name == "degrade" else {})}
    found = World().fire(name, value).targets.links
    assert {end for pair in found for end in pair} == {"n1", "n2", "n3", "gateway"}
    assert all("gateway" in pair for pair in found)
