"""Links between simulated nodes, at moments at which a real one could fall short."""

from __future__ import annotations

from collections.abc import Callable

from elastic_harness.network.link_model import LinkMode, LinkPolicy
from elastic_simulation.scenarios.network import SimulatedNetwork

from tests.unit.faults.virtual_time import VirtualTime

PAIR = ("n1", "n2")


def test_what_is_on_its_way_when_its_link_holds_waits_and_arrives_in_order() -> None:
    """As at the switch: it is decided on when it is sent, and only a link that drops loses it."""
    time, arrived = VirtualTime(), list[int]()

    def later(delay_s: float, act: Callable[..., None], *arguments: object) -> None:
        time.call_at(time.now() + delay_s, lambda: act(*arguments))

    network = SimulatedNetwork(
        now=time.now,
        later=later,
    )

    def send(number: int) -> None:
        network.send(PAIR, 100, "flow", lambda: arrived.append(number))

    network.lay(PAIR, (("", LinkPolicy(latency_s=0.02)),))
    send(1)
    time.pass_time(0.01)
    send(2)
    network.lay(PAIR, (("", LinkPolicy(up=False, mode=LinkMode.HOLD)),))
    time.pass_time(0.015)
    send(3)
    assert arrived == []
    network.lay(PAIR, ())
    time.pass_time(1)
    assert arrived == [1, 2, 3]
    assert network.counters()[PAIR].dropped == {}
