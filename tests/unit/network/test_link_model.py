"""What becomes of each packet on one direction of a link."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
from elastic_harness.network.link_model import (
    HEALTHY,
    MAX_QUEUE_S,
    Decision,
    DecisionKind,
    DropReason,
    Link,
    LinkMode,
    LinkPolicy,
)
from elastic_harness.network.link_policy import BurstLoss, Distribution, Flap

from pytest_elastic.errors import UsageError


def link(policy: LinkPolicy = HEALTHY) -> Link:
    """Return a link whose stream of chance has a name."""
    made = Link(7)
    made.lay((("", policy),))
    return made


def arrivals(made: Link, count: int, *, size: int = 1000, gap_s: float = 0.0) -> list[float]:
    """Offer packets of one flow and return when those that leave arrive, in the order offered."""
    times: list[float] = []
    for number in range(count):
        decision = made.offer(size, "flow", number * gap_s)
        times.extend(decision.leave_at)
    return times


def test_a_healthy_link_delivers_at_once() -> None:
    """Without a policy a packet arrives when it is sent."""
    assert link().offer(1500, "flow", 12.5) == Decision(DecisionKind.LEAVE, leave_at=(12.5,))
    assert HEALTHY.is_transparent


@pytest.mark.parametrize(
    ("mode", "kind", "reason"),
    [
        (LinkMode.DROP, DecisionKind.DROP, DropReason.DOWN),
        (LinkMode.REJECT, DecisionKind.REJECT, DropReason.REJECTED),
        (LinkMode.HOLD, DecisionKind.HOLD, None),
    ],
)
def test_a_link_that_is_down_treats_packets_by_its_mode(
    mode: LinkMode, kind: DecisionKind, reason: DropReason | None
) -> None:
    """Down links swallow, answer or keep; only what does not arrive is counted as dropped."""
    made = link(LinkPolicy(up=False, mode=mode))
    decision = made.offer(100, "flow", 0.0)
    assert (decision.kind, decision.reason) == (kind, reason)
    assert made.counters().dropped == ({} if reason is None else {reason: 1})
    assert made.stop_on_way() is mode


def test_latency_delays_and_jitter_spreads_without_reordering() -> None:
    """Arrivals lie within latency plus and minus jitter, and keep their order within a flow."""
    times = arrivals(link(LinkPolicy(latency_s=0.1, jitter_s=0.05)), 500)
    assert min(times) >= 0.05
    assert max(times) <= 0.15
    assert times == sorted(times)
    assert len(set(times)) > 1


def test_a_late_packet_does_not_hold_back_other_flows() -> None:
    """Order is kept within a flow; between flows jitter may do what it likes."""
    made = link(LinkPolicy(latency_s=0.1, jitter_s=0.1))
    times = [made.offer(100, number, 0.0).leave_at[0] for number in range(200)]
    assert times != sorted(times)


def test_loss_strikes_as_often_as_it_says_and_counts_segments() -> None:
    """Of forty segments in one go each is lost by itself, and the others arrive."""
    made = link(LinkPolicy(loss=0.1))
    decisions = [made.offer(60_000, "flow", 0.0, units=40) for _ in range(500)]
    lost = sum(len(decision.lost_units) for decision in decisions)
    assert 0.09 < lost / (500 * 40) < 0.11
    assert made.counters().dropped == {DropReason.LOST: lost}
    assert all(decision.kind is DecisionKind.LEAVE for decision in decisions)


def test_a_packet_of_which_every_unit_is_lost_does_not_leave() -> None:
    """Certain loss loses everything."""
    assert link(LinkPolicy(loss=1.0)).offer(4000, "flow", 0.0).kind is DecisionKind.DROP


def test_duplicates_and_late_packets_are_drawn_by_chance() -> None:
    """A duplicated packet arrives twice; a reordered one after those sent behind it."""
    assert len(arrivals(link(LinkPolicy(duplicate=1.0)), 10)) == 20
    reordered = arrivals(link(LinkPolicy(latency_s=0.01, reorder=0.2)), 200, gap_s=0.0001)
    assert reordered != sorted(reordered)


def test_a_rate_spaces_packets_and_bounds_the_queue() -> None:
    """Packets leave one behind the other; what would wait above the bound is dropped."""
    made = link(LinkPolicy(rate_bytes_per_s=10_000))
    times = arrivals(made, 100)
    assert times == pytest.approx([0.1, 0.2])
    assert max(times) <= MAX_QUEUE_S
    assert made.counters().dropped == {DropReason.QUEUE_FULL: 98}


def test_a_flow_that_begins_is_not_behind_anothers_queue() -> None:
    """A beat passes while a checkpoint fills the link: each flow has its share of the rate."""
    made = link(LinkPolicy(rate_bytes_per_s=1_000_000))
    for _ in range(190):
        made.offer(1000, "checkpoint", 0.0)
    (beat,) = made.offer(100, "beat", 0.0).leave_at
    assert beat == pytest.approx(0.0002)


def test_the_same_seed_gives_the_same_fates() -> None:
    """All chance comes from the stream that the seed names."""
    policy = LinkPolicy(latency_s=0.1, jitter_s=0.1, loss=0.3, duplicate=0.3, reorder=0.3)
    one, two = link(policy), link(policy)
    decisions = [[made.offer(3000, 0, now) for now in range(100)] for made in (one, two)]
    assert decisions[0] == decisions[1]
    assert one.counters() == two.counters()


def test_a_changed_policy_holds_for_the_next_packet() -> None:
    """Nothing of the old policy's queue is left when the rate is lifted."""
    made = link(LinkPolicy(rate_bytes_per_s=1000))
    made.offer(150, "flow", 0.0)
    made.lay(())
    assert made.offer(150, "flow", 0.2).leave_at == (0.2,)


def test_counters_tell_what_was_offered() -> None:
    """Packets and bytes are counted when they are offered, deliveries when they are made."""
    made = link()
    made.offer(100, "flow", 0.0)
    made.offer(200, "flow", 0.0)
    made.count_delivery()
    counters = made.counters()
    assert (counters.packets, counters.bytes, counters.delivered) == (2, 300, 1)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"loss": 1.5}, "loss of 1.5: 0 to 1"),
        ({"duplicate": -0.1}, "duplicate of -0.1: 0 to 1"),
        ({"reorder": 2}, "reorder of 2: 0 to 1"),
        ({"latency_s": -1.0}, "latency_s of -1.0: 0 to 3600"),
        ({"jitter_s": 0.2, "latency_s": 0.1}, "jitter of 0.2 s around a latency of 0.1 s"),
        ({"rate_bytes_per_s": 0.0}, "rate of 0.0 bytes per second: more than 0"),
        ({"corrupt": 1.1}, "corrupt of 1.1: 0 to 1"),
        ({"latency_s": float("nan")}, "latency_s of nan: 0 to 3600"),
    ],
)
def test_impossible_policies_are_refused(fields: dict[str, Any], words: str) -> None:
    """A policy that no link can have is the user's mistake, and the message says which."""
    with pytest.raises(UsageError, match=re.escape(words)):
        LinkPolicy(**fields)


def test_only_our_own_drops_make_a_run_unknown() -> None:
    """What a policy drops is a fault that was asked for; what we drop ourselves is not."""
    own = {reason for reason in DropReason if reason.is_own}
    assert own == {DropReason.HOLD_FULL, DropReason.DEVICE, DropReason.STALL, DropReason.TRUNK}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BurstLoss(enter=1.2, leave=0.5), "whose enter is 1.2: 0 to 1"),
        (lambda: BurstLoss(enter=0.2, leave=0.0), "bursts never end"),
        (lambda: Flap(down_s=0.0, up_s=1.0), "down_s of 0.0: 0.001 to 3600"),
        (lambda: Flap(down_s=1.0, up_s=-1.0), "up_s of -1.0"),
    ],
)
def test_impossible_parts_of_policies_are_refused(make: Callable[[], object], words: str) -> None:
    """So that nothing that cannot be is found out by a run."""
    with pytest.raises(UsageError, match=re.escape(words)):
        make()


@pytest.mark.parametrize(
    ("distribution", "mean_s", "least_s", "most_s"),
    [
        (Distribution.UNIFORM, 0.1, 0.05, 0.15),
        (Distribution.NORMAL, 0.1, 0.0, 0.4),
        (Distribution.PARETO, 0.125, 0.1, 1.1),
        (Distribution.EXPONENTIAL, 0.15, 0.1, 1.1),
    ],
)
def test_jitter_spreads_as_its_distribution_says(
    distribution: Distribution, mean_s: float, least_s: float, most_s: float
) -> None:
    """Mean and bounds of 20 000 packets, each of a flow of its own so that none waits for others.

    The standard error of the mean is below 0.4 ms; five times that is allowed.
    """
    made = link(LinkPolicy(latency_s=0.1, jitter_s=0.05, distribution=distribution))
    times = [made.offer(100, number, 0.0).leave_at[0] for number in range(20_000)]
    assert sum(times) / len(times) == pytest.approx(mean_s, abs=0.002)
    assert least_s <= min(times)
    assert max(times) <= most_s


def test_bursts_lose_as_often_and_as_long_as_they_say() -> None:
    """Gilbert and Elliott: the share in the long run, and how long a burst lasts."""
    made = link(LinkPolicy(bursts=(BurstLoss(enter=0.01, leave=0.2),)))
    lost = [made.offer(100, 0, 0.0).kind is DecisionKind.DROP for _ in range(100_000)]
    bursts = sum(is_lost and not before for before, is_lost in itertools.pairwise([False, *lost]))
    assert sum(lost) / len(lost) == pytest.approx(0.01 / 0.21, rel=0.1)
    assert sum(lost) / bursts == pytest.approx(5.0, rel=0.1)
    assert made.counters().dropped == {DropReason.LOST: sum(lost)}


def test_corrupted_units_are_told_apart_from_lost_ones() -> None:
    """A unit is lost or corrupted, never both."""
    made = link(LinkPolicy(loss=0.2, corrupt=0.5))
    decisions = [made.offer(60_000, 0, 0.0, units=40) for _ in range(200)]
    corrupt = sum(len(decision.corrupt_units) for decision in decisions)
    assert corrupt / (200 * 40) == pytest.approx(0.4, rel=0.05)
    assert all(not set(decision.lost_units) & set(decision.corrupt_units) for decision in decisions)
    assert made.counters().dropped[DropReason.CORRUPTED] == corrupt


def test_a_flapping_link_is_down_first_and_keeps_its_rhythm() -> None:
    """Also when another policy is laid over it meanwhile."""
    flap = Flap(down_s=1.0, up_s=2.0)
    made = link()
    made.lay((("", LinkPolicy(flaps=(flap,))),), 10.0)
    down = [made.offer(1, 0, 10.0 + t).kind is DecisionKind.DROP for t in (0.0, 0.9, 1.1, 2.9, 3.1)]
    assert down == [True, True, False, False, True]
    made.lay((("", LinkPolicy(flaps=(flap,), latency_s=0.5)),), 14.5)
    assert made.offer(1, 0, 15.0).kind is DecisionKind.LEAVE
    assert made.stop_on_way(16.5) is LinkMode.DROP
    made.lay((), 16.5)
    assert made.stop_on_way(16.5) is None


def test_a_flap_that_holds_delivers_when_the_link_is_up_again() -> None:
    """Later, and in order."""
    made = link(LinkPolicy(flaps=(Flap(down_s=1.0, up_s=2.0, mode=LinkMode.HOLD),)))
    times = [made.offer(1, 0, t).leave_at[0] for t in (0.2, 0.4, 1.5)]
    assert times == pytest.approx([1.0, 1.0, 1.5], abs=1e-5)
    assert made.stop_on_way(times[0]) is None


def test_an_order_to_reset_spares_connections_that_begin_later() -> None:
    """Those that were there are reset at their next packet, until the order is lifted."""
    made = link(LinkPolicy(resets=1))
    assert made.offer(1, "old", 0.0, opens=False).kind is DecisionKind.RESET
    assert made.offer(1, "new", 0.0, opens=True).kind is DecisionKind.LEAVE
    assert made.offer(1, "new", 0.0, opens=False).kind is DecisionKind.LEAVE
    assert made.offer(1, "datagrams", 0.0).kind is DecisionKind.LEAVE
    made.lay((("", LinkPolicy(resets=2)),))
    assert made.offer(1, "new", 0.0, opens=False).kind is DecisionKind.RESET
    made.lay(())
    assert made.offer(1, "old", 0.0, opens=False).kind is DecisionKind.LEAVE


def test_a_class_of_traffic_meets_its_own_policy_and_that_for_everything() -> None:
    """And is counted by itself as well."""
    made = link(LinkPolicy(latency_s=0.1))
    made.lay((("", LinkPolicy(up=False)),), traffic="store")
    made.lay((("", LinkPolicy(latency_s=0.2)),), traffic="liveness")
    assert made.offer(10, 0, 0.0, traffic=("collectives",)).leave_at == (0.1,)
    assert made.offer(10, 1, 0.0, traffic=("store",)).kind is DecisionKind.DROP
    assert made.offer(10, 2, 0.0, traffic=("liveness",)).leave_at[0] == pytest.approx(0.3)
    assert made.offer(10, 3, 0.0, traffic=("store", "liveness")).kind is DecisionKind.DROP
    counters = made.counters()
    assert (counters.packets, counters.delayed) == (4, 2)
    assert counters.of("store").dropped == {DropReason.DOWN: 2}
    assert counters.of("liveness").delayed == 1
    assert counters.of("rendezvous").packets == 0
    made.lay((), traffic="store")
    assert made.offer(10, 1, 0.0, traffic=("store",)).kind is DecisionKind.LEAVE


def test_what_comes_after_a_heal_does_not_overtake_what_is_on_its_way() -> None:
    """The way is a queue: TCP would take the other for loss. Other flows are not behind it."""
    made = link(LinkPolicy(latency_s=0.2))
    made.offer(10, "flow", 0.0)
    made.lay((), 0.1)
    assert not made.is_settled(0.1)
    assert made.offer(10, "flow", 0.1).leave_at == (0.2,)
    assert made.offer(10, "other", 0.1).leave_at == (0.1,)
    assert made.is_settled(0.2)


def laid(*policies: LinkPolicy) -> Link:
    """Return a link over which several faults have laid policies."""
    made = link()
    made.lay(tuple((f"fault {number}", policy) for number, policy in enumerate(policies)))
    return made


def test_a_packet_meets_the_policies_of_all_faults_as_those_of_links_in_a_row() -> None:
    """Delays add up, the narrowest rate and the hardest cut hold, each draws its own chance."""
    late = laid(LinkPolicy(latency_s=0.1), LinkPolicy(latency_s=0.2))
    assert late.offer(1, 0, 0.0).leave_at[0] == pytest.approx(0.3)
    narrow = laid(LinkPolicy(rate_bytes_per_s=100.0), LinkPolicy(rate_bytes_per_s=50.0))
    assert narrow.offer(5, 0, 0.0).leave_at[0] == pytest.approx(0.1)
    cuts = [LinkPolicy(up=False, mode=mode) for mode in (LinkMode.HOLD, LinkMode.REJECT)]
    assert laid(*cuts).offer(1, 0, 0.0).kind is DecisionKind.REJECT
    lossy = laid(LinkPolicy(loss=0.5), LinkPolicy(loss=0.5))
    lost = sum(lossy.offer(1, 0, 0.0).kind is DecisionKind.DROP for _ in range(4000))
    assert lost / 4000 == pytest.approx(0.75, rel=0.05)
    long = laid(LinkPolicy(latency_s=3000.0), LinkPolicy(latency_s=3000.0))
    assert long.offer(1, 0, 0.0).leave_at == (3600.0,)
    assert laid().is_transparent
