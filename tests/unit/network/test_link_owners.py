"""Of several policies on one link, each is put down what it did itself, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from elastic_harness.network.link_model import DecisionKind, DropReason, Link
from elastic_harness.network.link_policy import (
    BurstLoss,
    Distribution,
    Flap,
    LinkMode,
    LinkPolicy,
)

DROP, HOLD = LinkMode.DROP, LinkMode.HOLD
LATE, LOSSY = LinkPolicy(latency_s=0.01), LinkPolicy(loss=0.5)


def laid(now: float = 0.0, **layers: LinkPolicy) -> Link:
    """Return a link with these policies, by owner."""
    link = Link("seed")
    link.lay(tuple(layers.items()), now)
    return link


def sent(link: Link, packets: int = 1000, now: float = 0.0) -> Mapping[str, Mapping[str, int]]:
    """Send packets over it; return what each owner's policy did."""
    for _ in range(packets):
        link.offer(1000, "flow", now)
    return link.counters().by_owner


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (LATE, LinkPolicy(loss=1e-12), {"one": {"delayed"}}),
        (LATE, LinkPolicy(corrupt=0.5), {"one": {"delayed"}, "other": {"corrupted"}}),
        (LATE, LinkPolicy(duplicate=0.5), {"one": {"delayed"}, "other": {"doubled"}}),
        (LATE, LinkPolicy(reorder=0.5), {"one": {"delayed"}, "other": {"reordered"}}),
        (LATE, LOSSY, {"one": {"delayed"}, "other": {"lost"}}),
        (LATE, LATE, {"one": {"delayed"}, "other": {"delayed"}}),
        (
            LOSSY,
            LinkPolicy(bursts=(BurstLoss(enter=0.5, leave=0.5),)),
            {"one": {"lost"}, "other": {"lost"}},
        ),
        (
            LinkPolicy(rate_bytes_per_s=1e9),
            LinkPolicy(rate_bytes_per_s=1e8),
            {"other": {"delayed"}},
        ),
        (
            LinkPolicy(latency_s=0.02, jitter_s=0.01),
            LinkPolicy(jitter_s=0.001, distribution=Distribution.PARETO),
            {"one": {"delayed"}, "other": {"delayed"}},
        ),
        (LinkPolicy(up=False), LATE, {"one": {"dropped"}}),
        (LinkPolicy(up=False), LinkPolicy(up=False), {"one": {"dropped"}, "other": {"dropped"}}),
        (LinkPolicy(up=False), LinkPolicy(up=False, mode=HOLD), {"one": {"dropped"}}),
        (LinkPolicy(up=False, mode=HOLD), LATE, {"one": {"held"}}),
        (
            LinkPolicy(up=False, mode=LinkMode.REJECT),
            LinkPolicy(flaps=(Flap(down_s=1, up_s=1),)),
            {"one": {"rejected"}},
        ),
        (
            LinkPolicy(up=False),
            LinkPolicy(flaps=(Flap(down_s=1, up_s=1),)),
            {"one": {"dropped"}, "other": {"dropped"}},
        ),
        (
            LinkPolicy(up=False, mode=HOLD),
            LinkPolicy(flaps=(Flap(down_s=1, up_s=1),)),
            {"other": {"dropped"}},
        ),
        (
            LinkPolicy(up=False),
            LinkPolicy(flaps=(Flap(down_s=1, up_s=1, mode=LinkMode.REJECT),)),
            {"other": {"rejected"}},
        ),
        (
            LinkPolicy(up=False),
            LinkPolicy(flaps=(Flap(down_s=1, up_s=1, mode=HOLD),)),
            {"one": {"dropped"}},
        ),
        (LinkPolicy(flaps=(Flap(down_s=1, up_s=1),)), LATE, {"one": {"dropped"}}),
        (
            LinkPolicy(flaps=(Flap(down_s=1, up_s=1, mode=HOLD),)),
            LATE,
            {"one": {"held"}, "other": {"delayed"}},
        ),
    ],
)
def test_what_happens_to_packets_is_put_down_to_whose_doing_it_is(
    one: LinkPolicy, other: LinkPolicy, found: Mapping[str, set[str]]
) -> None:
    """Delays to all that delay, a stop to those that stop so, a chance to one that had it."""
    did = sent(laid(one=one, other=other), 300)
    assert {owner: set(kinds) for owner, kinds in did.items()} == found


def test_of_two_that_lose_packets_each_loses_its_share() -> None:
    """A packet that both of them would have lost is put down to both."""
    link = laid(much=LinkPolicy(loss=0.18), little=LinkPolicy(loss=0.02))
    did = sent(link, 12_000)
    assert did["much"]["lost"] == pytest.approx(12_000 * 0.18, rel=0.1)
    assert did["little"]["lost"] == pytest.approx(12_000 * 0.02, rel=0.2)
    lost = link.counters().dropped[DropReason.LOST]
    assert lost == pytest.approx(12_000 * (1 - 0.82 * 0.98), rel=0.1)


def test_a_flap_that_is_up_has_done_nothing() -> None:
    """A link that is late for another reason is no sign of it."""
    link = laid(flap=LinkPolicy(flaps=(Flap(down_s=1, up_s=1, mode=HOLD),)), late=LATE)
    assert set(sent(link, now=1.5)) == {"late"}
    assert set(sent(link, now=2.5)) == {"late", "flap"}


def test_what_was_on_its_way_is_stopped_by_the_cut_that_came() -> None:
    """It had its decision from the policy before; the cut has made it another one."""
    link = laid(late=LATE)
    link.offer(1000, "flow", 0.0)
    for mode, kind in ((DROP, "dropped"), (HOLD, "held")):
        cut = LinkPolicy(up=False, mode=mode)
        link.lay((("late", LATE), ("cut", cut)), 0.005)
        assert link.stop_on_way(0.01) is mode
        assert link.counters().by_owner["cut"][kind] == 1


def test_who_is_lifted_keeps_what_it_did_and_does_no_more() -> None:
    """It may still be asked what it did."""
    link = laid(one=LATE, other=LATE)
    sent(link, 2)
    link.lay((("other", LATE),))
    assert sent(link, 3) == {"one": {"delayed": 2}, "other": {"delayed": 5}}
    link.lay(())
    assert sent(link, 3) == {"one": {"delayed": 2}, "other": {"delayed": 5}}


def test_a_class_of_traffic_is_its_owners_and_meets_those_of_everything_too() -> None:
    """A packet of no class has nothing to do with it."""
    link = laid(all=LATE)
    link.lay((("store", LinkPolicy(up=False)),), traffic="store")
    link.offer(1000, "flow", 0.0)
    link.offer(1000, "other", 0.0, traffic=("store",))
    assert link.counters().by_owner == {"all": {"delayed": 1}, "store": {"dropped": 1}}


def test_a_connection_that_began_between_two_orders_is_reset_by_the_second_alone() -> None:
    """An older one by both: each of them would have."""
    reset = LinkPolicy(resets=1)
    link = laid(first=reset)
    assert link.offer(40, "old", 0.0, opens=False).kind is DecisionKind.RESET
    assert link.offer(40, "new", 0.0, opens=True).kind is DecisionKind.LEAVE
    link.lay((("first", reset), ("second", reset)))
    assert link.offer(40, "new", 0.0, opens=False).kind is DecisionKind.RESET
    assert link.counters().by_owner == {"first": {"reset": 1}, "second": {"reset": 1}}
    link.offer(40, "old", 0.0, opens=False)
    assert link.counters().by_owner == {"first": {"reset": 2}, "second": {"reset": 2}}
