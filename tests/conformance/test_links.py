"""What a link does with packets: one suite, for the model, simulated nodes, real switches.

The last kind of link begins at the switch of one machine and ends, behind a trunk, at another's.

All chance is seeded, so that a share that is right once is right always. A real switch may be late
at any time, and never early: upper bounds of delays are the model's alone.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
from elastic_harness.cluster.choose import choose_cluster
from elastic_harness.network.link_model import HEALTHY, DropReason, LinkMode, LinkPolicy
from elastic_harness.network.link_policy import BurstLoss, Distribution, Flap

from pytest_elastic.errors import UsageError
from tests.cluster_bench import Bench
from tests.conformance.wires import OTHER_PORT, PORT, ModelWire, SimulatedWire, SwitchWire, Wire
from tests.machines import MachinesBench, Network

# What sums of floats may be off by.
EXACT_S = 2e-6


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench | None]:
    """One cluster for all tests of the switch, with nothing preloaded; None where there is none."""
    try:
        choose_cluster("namespace")
    except UsageError:
        yield None
        return
    made = Bench("namespace", tmp_path_factory.mktemp("cluster"), preload=())
    yield made
    made.close()


@pytest.fixture(scope="module")
def far_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench | None]:
    """A cluster on two machines, whose switches are joined by a trunk."""
    if os.geteuid() != 0:
        yield None
        return
    network = Network(2)
    made = MachinesBench(network, tmp_path_factory.mktemp("machines"))
    yield made
    made.close()
    assert network.is_clean()
    network.end()


@pytest.fixture(params=["model", "simulated", "switch", "trunk"])
def wire(
    request: pytest.FixtureRequest, bench: Bench | None, far_bench: Bench | None
) -> Iterator[Wire]:
    """A link of each kind, freshly seeded."""
    if far_bench is not None:
        far_bench.loop.run_once(0.0)  # agents dial anew where nothing was heard for 3 s
    if request.param in ("model", "simulated"):
        yield ModelWire() if request.param == "model" else SimulatedWire()
        return
    chosen = bench if request.param == "switch" else far_bench
    if chosen is None:
        pytest.skip("there is no such switch here: it needs namespaces, and machines need root")
    made = SwitchWire(chosen)
    yield made
    made.close()


def numbers(wire: Wire, count: int) -> list[int]:
    """Send packets and return the numbers of those that arrive, in order."""
    return [arrival.number for arrival in wire.send(count)]


def test_a_healthy_link_delivers_everything_in_order(wire: Wire) -> None:
    """And counts it."""
    assert numbers(wire, 200) == list(range(200))
    counters = wire.counters()
    assert (counters.packets, counters.delivered, counters.dropped) == (200, 200, {})
    assert counters.bytes == 200 * 128


@pytest.mark.parametrize(
    ("mode", "reason"), [(LinkMode.DROP, DropReason.DOWN), (LinkMode.REJECT, DropReason.REJECTED)]
)
def test_a_cut_link_delivers_nothing(wire: Wire, mode: LinkMode, reason: DropReason) -> None:
    """Healed, it delivers what is sent from then on."""
    wire.change(LinkPolicy(up=False, mode=mode))
    assert numbers(wire, 50) == []
    assert wire.counters().dropped == {reason: 50}
    wire.change(HEALTHY)
    assert numbers(wire, 10) == list(range(10))


def test_a_link_that_holds_delivers_later_and_in_order(wire: Wire) -> None:
    """Nothing is dropped."""
    wire.change(LinkPolicy(up=False, mode=LinkMode.HOLD))
    assert numbers(wire, 50) == []
    wire.change(HEALTHY)
    assert [arrival.number for arrival in wire.arrive_later()] == list(range(50))
    assert wire.counters().dropped == {}


def test_latency_delays_every_packet_and_keeps_their_order(wire: Wire) -> None:
    """Pipelined: a hundred packets under a delay take that delay once."""
    wire.change(LinkPolicy(latency_s=0.05))
    arrivals = wire.send(100)
    assert [arrival.number for arrival in arrivals] == list(range(100))
    assert all(arrival.late_s >= 0.05 - EXACT_S for arrival in arrivals)
    assert wire.counters().delayed == 100
    if isinstance(wire, ModelWire):
        assert all(arrival.late_s == pytest.approx(0.05) for arrival in arrivals)


@pytest.mark.parametrize("distribution", list(Distribution))
def test_jitter_is_never_early_and_never_reorders(wire: Wire, distribution: Distribution) -> None:
    """Whatever its distribution."""
    wire.change(LinkPolicy(latency_s=0.03, jitter_s=0.02, distribution=distribution))
    arrivals = wire.send(100)
    assert [arrival.number for arrival in arrivals] == list(range(100))
    least_s = {Distribution.UNIFORM: 0.01, Distribution.NORMAL: 0.0}.get(distribution, 0.03)
    assert all(arrival.late_s >= least_s - EXACT_S for arrival in arrivals)
    assert len({arrival.late_s for arrival in arrivals}) > 1


def test_loss_takes_its_share(wire: Wire) -> None:
    """1 000 packets at 20 %: 200, with a standard deviation of 13."""
    wire.change(LinkPolicy(loss=0.2))
    arrived = numbers(wire, 1000)
    assert arrived == sorted(arrived)
    assert 1000 - len(arrived) == pytest.approx(200, abs=52)
    assert wire.counters().dropped == {DropReason.LOST: 1000 - len(arrived)}


def test_bursts_lose_packets_in_a_row(wire: Wire) -> None:
    """As many as without bursts would be lost one by one."""
    wire.change(LinkPolicy(bursts=(BurstLoss(enter=0.02, leave=0.2),)))
    arrived = numbers(wire, 2000)
    lost = 2000 - len(arrived)
    gaps = sum(after - before > 1 for before, after in itertools.pairwise([-1, *arrived, 2000]))
    assert lost == pytest.approx(2000 * 0.02 / 0.22, rel=0.4)
    assert lost / gaps == pytest.approx(5, rel=0.4)


def test_duplicates_arrive_twice(wire: Wire) -> None:
    """One in three, here."""
    wire.change(LinkPolicy(duplicate=1 / 3))
    arrived = numbers(wire, 300)
    twice = [number for number in range(300) if arrived.count(number) == 2]
    assert set(arrived) == set(range(300))
    assert len(arrived) == 300 + len(twice)
    assert len(twice) == pytest.approx(100, abs=33)
    assert wire.counters().duplicated == len(twice)


def test_corrupted_packets_do_not_get_past_the_receivers_kernel(wire: Wire) -> None:
    """They are delivered, and their checksums are wrong."""
    wire.change(LinkPolicy(corrupt=0.5))
    arrived = numbers(wire, 200)
    corrupted = wire.counters().dropped[DropReason.CORRUPTED]
    assert len(arrived) == 200 - corrupted
    assert corrupted == pytest.approx(100, abs=28)


def test_reordered_packets_are_passed_by_others(wire: Wire) -> None:
    """All arrive; some after packets that were sent behind them."""
    wire.change(LinkPolicy(latency_s=0.02, reorder=0.1))
    arrived = numbers(wire, 200)
    assert sorted(arrived) == list(range(200))
    assert arrived != sorted(arrived)


def test_a_rate_is_not_exceeded_and_its_queue_is_bounded(wire: Wire) -> None:
    """1 000 bytes every 10 ms; of what comes at once, a fifth of a second's worth waits."""
    wire.change(LinkPolicy(rate_bytes_per_s=100_000.0))
    arrivals = wire.send(60, size=972)
    assert len(arrivals) >= 19
    last = max(wire.sent_at[arrival.number] + arrival.late_s for arrival in arrivals)
    assert last - wire.sent_at[0] >= len(arrivals) * 0.01 - EXACT_S
    assert wire.counters().dropped.get(DropReason.QUEUE_FULL, 0) == 60 - len(arrivals)
    if isinstance(wire, ModelWire):
        assert len(arrivals) <= 20


def test_a_flapping_link_loses_what_is_sent_while_it_is_down(wire: Wire) -> None:
    """It begins with being down."""
    flap = Flap(down_s=0.05, up_s=0.05)
    # What was sent in the first phase for certain; a busy machine may send nothing in it.
    for _ in range(20):
        wire.change(HEALTHY)
        asked, before = wire.now(), wire.counters()
        wire.change(LinkPolicy(flaps=(flap,)))
        arrived = [arrival.number for arrival in wire.send(60, spacing_s=0.005)]
        assert 0 < len(arrived) < 60
        lost = wire.counters().dropped[DropReason.DOWN] - before.dropped.get(DropReason.DOWN, 0)
        assert lost == 60 - len(arrived)
        if wire.sent_at[0] < asked + flap.down_s:
            assert 0 not in arrived
            return
    raise AssertionError("never was anything sent soon enough")


def test_a_flapping_link_that_holds_loses_nothing(wire: Wire) -> None:
    """What is sent while it is down arrives when it is up."""
    wire.change(LinkPolicy(flaps=(Flap(down_s=0.05, up_s=0.05, mode=LinkMode.HOLD),)))
    arrivals = wire.send(40, spacing_s=0.005)
    assert [arrival.number for arrival in arrivals] == list(range(40))
    assert max(arrival.late_s for arrival in arrivals) > 0.01


def test_a_class_of_traffic_can_be_cut_by_itself(wire: Wire) -> None:
    """And is slow with everything else when everything is slow."""
    wire.change(LinkPolicy(up=False), traffic=f"port:{PORT}")
    wire.change(LinkPolicy(latency_s=0.02))
    assert wire.send(20, port=PORT) == []
    others = wire.send(20, port=OTHER_PORT)
    assert len(others) == 20
    assert all(arrival.late_s >= 0.02 - EXACT_S for arrival in others)
    assert wire.counters().of(f"port:{PORT}").dropped == {DropReason.DOWN: 20}
    wire.change(HEALTHY, traffic=f"port:{PORT}")
    assert len(wire.send(20, port=PORT)) == 20


def test_a_cut_loses_what_is_on_its_way(wire: Wire) -> None:
    """What was sent while the link was up, and would arrive while it is down, does not."""
    flap = Flap(down_s=0.05, up_s=0.1)
    wire.change(LinkPolicy(latency_s=0.06, flaps=(flap,)))
    arrived = [arrival.number for arrival in wire.send(60, spacing_s=0.005)]
    assert 0 < len(arrived) < 60
    assert wire.counters().dropped == {DropReason.DOWN: 60 - len(arrived)}
    if isinstance(wire, ModelWire):
        began = wire.sent_at[0]
        sent_up = [n for n, when in enumerate(wire.sent_at) if flap.up_at(began, when) is None]
        assert set(arrived) < set(sent_up)


MANY_THINGS = LinkPolicy(
    latency_s=0.004,
    jitter_s=0.003,
    distribution=Distribution.PARETO,
    loss=0.1,
    bursts=(BurstLoss(enter=0.02, leave=0.3, loss=0.8),),
    duplicate=0.1,
    corrupt=0.1,
)


@pytest.mark.parametrize("kind", ["switch", "trunk"])
def test_switch_and_model_decide_alike_packet_by_packet(
    bench: Bench | None, far_bench: Bench | None, kind: str
) -> None:
    """From one seed: the same are lost, corrupted, doubled; and none is earlier than the model's.

    The model is told when each packet was sent; the switch sees it a little later.
    """
    chosen = bench if kind == "switch" else far_bench
    if chosen is None:
        pytest.skip("there is no such switch here: it needs namespaces, and machines need root")
    switch = SwitchWire(chosen)
    switch.change(MANY_THINGS)
    real = switch.send(500)
    counted = switch.counters()
    model = ModelWire()
    model.change(MANY_THINGS)
    expected = model.send_at(switch.sent_at)
    switch.close()
    assert sorted(each.number for each in real) == sorted(each.number for each in expected)
    assert counted.dropped == model.counters().dropped
    assert counted.duplicated == model.counters().duplicated
    earliest = {each.number: each.late_s for each in reversed(expected)}
    assert all(each.late_s >= earliest[each.number] - EXACT_S for each in real)
