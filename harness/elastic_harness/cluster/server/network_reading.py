"""Reading the counters of a network: the switch's, and those of every node's device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elastic_harness.cluster.cluster import ClusterError, Done, NetworkCounters
from elastic_harness.conversation import Answer
from elastic_harness.network.link_model import DropReason, LinkCounters, Pair
from elastic_harness.network.switch_wire import counters_from_fields

__all__ = ["read_counters"]

Ask = Callable[
    [str, Mapping[str, Any], Callable[[Answer], None], Callable[[ClusterError], None]], None
]


def read_counters(ask: Ask, nodes: Sequence[str], on_done: Done[NetworkCounters]) -> None:
    """Ask the switch for its links, and every device for what it had to drop meanwhile.

    A device drops packets, unseen by the switch, when the switch stalls for so long that the
    device's own queue is full; those of nodes that have ended are known to the server.
    """
    links: dict[Pair, LinkCounters] = {}
    stalled = 0
    waiting = 1 + len(nodes)
    has_failed = False

    def on_links(answer: Answer) -> None:
        links.update(counters_from_fields(answer.fields["links"]))
        ask("drops_of_ended", {}, on_dropped, on_error)
        for node in nodes:
            order = {"name": node, "order": "count_drops", "fields": {}}
            ask("node", order, on_dropped, lambda _: on_heard())  # it has ended meanwhile

    def on_dropped(answer: Answer) -> None:
        nonlocal stalled
        stalled += int(answer.fields["dropped"])
        on_heard()

    def on_heard() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting and not has_failed:
            on_done(NetworkCounters(links=links, own_drops=_own_drops(links, stalled)))

    def on_error(error: ClusterError) -> None:
        nonlocal has_failed
        has_failed = True
        on_done(error)

    ask("network", {"order": "counters", "fields": {}}, on_links, on_error)


def _own_drops(links: Mapping[Pair, LinkCounters], stalled: int) -> dict[str, int]:
    own = {DropReason.STALL.value: stalled} if stalled else {}
    for link in links.values():
        for reason, number in link.dropped.items():
            if reason.is_own:
                own[reason.value] = own.get(reason.value, 0) + number
    return own
