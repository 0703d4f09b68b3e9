"""Of several policies on one link, each is put down what it did itself, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from elastic_harness.network.link_model import FateKind
from elastic_harness.network.link_owners import OwnedLink
from elastic_harness.network.link_policy import (
    HEALTHY,
    BurstLoss,
    Distribution,
    Flap,
    LinkMode,
    LinkPolicy,
    combine,
)

DROP, HOLD = LinkMode.DROP, LinkMode.HOLD
LATE, LOSSY = LinkPolicy(latency_s=0.01), LinkPolicy(loss=0.5)


def laid(now: float = 0.0, **layers: LinkPolicy) -> OwnedLink:
    """Return a link with these policies, by owner."""
    link = OwnedLink("seed")
    link.own(tuple(layers.items()), combine(layers.values()), now)
    return link


def sent(link: OwnedLink, packets: int = 1000, now: float = 0.0) -> Mapping[str, Mapping[str, int]]:
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
            {"one": {"delayed"}},
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


def test_of_two_that_lose_packets_each_has_its_share() -> None:
    """Of twelve thousand, nine in ten by the one that loses nine times as many."""
    did = sent(laid(much=LinkPolicy(loss=0.18), little=LinkPolicy(loss=0.02)), 12_000)
    lost = did["much"]["lost"], did["little"]["lost"]
    assert sum(lost) == pytest.approx(12_000 * (1 - 0.82 * 0.98), rel=0.1)
    assert lost[1] / sum(lost) == pytest.approx(0.1, abs=0.02)


def test_a_flap_that_is_up_has_done_nothing() -> None:
    """A link that is late for another reason is no sign of it."""
    link = laid(flap=LinkPolicy(flaps=(Flap(down_s=1, up_s=1, mode=HOLD),)), late=LATE)
    assert set(sent(link, now=1.5)) == {"late"}
    assert set(sent(link, now=2.5)) == {"late", "flap"}


def test_what_was_on_its_way_is_stopped_by_the_cut_that_came() -> None:
    """It had its fate from the policy before; the cut has made it another one."""
    link = laid(late=LATE)
    link.offer(1000, "flow", 0.0)
    for mode, kind in ((DROP, "dropped"), (HOLD, "held")):
        cut = LinkPolicy(up=False, mode=mode)
        link.own((("late", LATE), ("cut", cut)), combine([LATE, cut]), 0.005)
        assert not link.may_deliver(0.01)
        assert link.counters().by_owner["cut"][kind] == 1


def test_who_is_lifted_keeps_what_it_did_and_does_no_more() -> None:
    """It may still be asked what it did."""
    link = laid(one=LATE, other=LATE)
    sent(link, 2)
    link.own((("other", LATE),), LATE, 0.0)
    assert sent(link, 3) == {"one": {"delayed": 2}, "other": {"delayed": 5}}
    link.own((), HEALTHY, 0.0)
    assert sent(link, 3) == {"one": {"delayed": 2}, "other": {"delayed": 5}}


def test_a_class_of_traffic_is_its_owners_and_meets_those_of_everything_too() -> None:
    """A packet of no class has nothing to do with it."""
    link = laid(all=LATE)
    link.own((("store", LinkPolicy(up=False)),), LinkPolicy(up=False), 0.0, traffic="store")
    link.offer(1000, "flow", 0.0)
    link.offer(1000, "other", 0.0, traffic=("store",))
    assert link.counters().by_owner == {"all": {"delayed": 1}, "store": {"dropped": 1}}


def test_a_connection_that_began_between_two_orders_is_reset_by_the_second_alone() -> None:
    """An older one by both: each of them would have."""
    reset = LinkPolicy(resets=1)
    link = laid(first=reset)
    assert link.offer(40, "old", 0.0, opens=False).kind is FateKind.RESET
    assert link.offer(40, "new", 0.0, opens=True).kind is FateKind.LEAVE
    link.own((("first", reset), ("second", reset)), LinkPolicy(resets=2), 0.0)
    assert link.offer(40, "new", 0.0, opens=False).kind is FateKind.RESET
    assert link.counters().by_owner == {"first": {"reset": 1}, "second": {"reset": 1}}
    link.offer(40, "old", 0.0, opens=False)
    assert link.counters().by_owner == {"first": {"reset": 2}, "second": {"reset": 2}}


def test_what_a_link_draws_is_the_same_with_owners_and_without() -> None:
    """Whose loss it was is drawn from another stream."""
    policies = (LinkPolicy(loss=0.3), LinkPolicy(loss=0.2, duplicate=0.1))
    owned = laid(one=policies[0], other=policies[1])
    plain = OwnedLink("seed", combine(policies))
    fates = [[each.offer(1000, "flow", 0.0) for _ in range(500)] for each in (owned, plain)]
    assert fates[0] == fates[1]
