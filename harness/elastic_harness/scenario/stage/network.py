"""The links and names of a run's nodes: the part of the stage that network faults ask for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from random import Random

from elastic_harness.cluster.cluster import Cluster, ClusterError, NetworkCounters
from elastic_harness.faults.context import Ticket
from elastic_harness.faults.links.visits import Visits
from elastic_harness.network.endpoints import Endpoints
from elastic_harness.network.link_model import HEALTHY, Layers, LinkCounters, LinkPolicy, Pair
from elastic_harness.network.names import NameChange, NameOverlay
from elastic_harness.network.overlay import Overlay, Place
from elastic_harness.scenario.planning.seed import Seed
from elastic_harness.scenario.stage.proxies import StageProxies
from elastic_harness.scenario.stage.strangers import Strangers
from elastic_harness.toxiproxy.stream import Direction, Toxic
from pytest_elastic.errors import UsageError
from pytest_elastic.events.model import Record
from pytest_elastic.loop import Loop

__all__ = ["StageNetwork"]


class StageNetwork:
    """What faults have done to the network of one run (`FaultContext`), each its own layer."""

    def __init__(
        self,
        loop: Loop,
        cluster: Cluster,
        *,
        capture_dir: str,
        proxies: StageProxies,
        seed: int,
    ) -> None:
        self._cluster = cluster
        self._seed = Seed(value=seed)
        self._strangers = Strangers(loop, cluster)
        self._proxies = proxies
        self._capture_dir = capture_dir
        self._overlay = Overlay()
        self._names = NameOverlay()
        self._endpoints = Endpoints()
        self._tells_apart = False

    def learn(self, record: Record) -> None:
        """Take note of what a record tells about endpoints."""
        if self._endpoints.learn(record) and self._tells_apart:
            self._cluster.learn_traffic(self._endpoints.by_class, lambda _: None)

    def store_endpoint(self, which: str) -> tuple[str, int] | None:
        """Return where a store is: that of the "rendezvous", or of the newest round's "workers".

        Of several rendezvous endpoints, it is the first.
        """
        if which == "rendezvous":
            return next(iter(self._endpoints.by_class["rendezvous"]), None)
        return next(reversed(self._endpoints.by_class["store"]), None)

    def chance(self, name: str) -> Random:
        """Return the run's source of chance for `name`."""
        return self._seed.stream(name)

    # FaultContext: links

    def impose(
        self,
        owner: str,
        pairs: Sequence[Pair],
        policy: LinkPolicy,
        *,
        traffic: str | None = None,
    ) -> Ticket[None]:
        """Lay a policy over links, or over a class of what passes there."""
        if traffic is not None and not self._tells_apart:
            self._tells_apart = True
            self._cluster.learn_traffic(self._endpoints.by_class, lambda _: None)
        return self._apply(self._overlay.impose(owner, pairs, policy, traffic=traffic))

    def lift(self, owner: str) -> Ticket[None]:
        """Take away what `owner` has laid over links."""
        return self._apply(self._overlay.lift(owner))

    def counters(self) -> Ticket[Mapping[Pair, LinkCounters]]:
        """Read what links have done."""
        ticket: Ticket[Mapping[Pair, LinkCounters]] = Ticket()

        def on_done(outcome: NetworkCounters | ClusterError) -> None:
            ticket.settle(outcome if isinstance(outcome, ClusterError) else outcome.links)

        self._cluster.counters(on_done)
        return ticket

    def capture(self, owner: str, pairs: Sequence[Pair]) -> Ticket[str]:
        """Write what passes over links into a file of the run; settled with its path."""
        ticket: Ticket[str] = Ticket()
        path = os.path.join(self._capture_dir, f"{owner.replace('#', '-')}.pcapng")

        def on_done(outcome: ClusterError | None) -> None:
            ticket.settle(outcome if isinstance(outcome, ClusterError) else path)

        try:
            os.makedirs(self._capture_dir, exist_ok=True)
            self._cluster.capture(owner, pairs, path, on_done)
        except OSError as error:
            ticket.settle(ClusterError(f"cannot capture packets in {path}: {error.strerror}"))
        except UsageError as error:
            ticket.settle(error)
        return ticket

    def captured(self, owner: str) -> Ticket[int]:
        """Return how many packets the capture of `owner` has, all of them in its file."""
        ticket: Ticket[int] = Ticket()
        self._cluster.captured(owner, ticket.settle)
        return ticket

    def end_capture(self, owner: str) -> Ticket[int]:
        """End a capture; harmless when there is none."""
        ticket: Ticket[int] = Ticket()
        self._cluster.end_capture(owner, ticket.settle)
        return ticket

    def _apply(self, changed: Mapping[Place, Layers]) -> Ticket[None]:
        # Links with the same layers are changed in one order to the switch.
        groups: dict[tuple[Layers, str | None], list[Pair]] = {}
        for (pair, traffic), layers in changed.items():
            groups.setdefault((layers, traffic), []).append(pair)
        ticket: Ticket[None] = Ticket()
        on_done = _when_all_are_done(len(groups), ticket)
        for (layers, traffic), pairs in groups.items():
            self._cluster.set_policy(pairs, HEALTHY, on_done, traffic=traffic, layers=layers)
        return ticket

    # FaultContext: strangers

    def send_strangers(
        self, owner: str, node: str, at: tuple[str, int], words: bytes, *, connections: int
    ) -> None:
        """Open connections from `node` to a node and port; each says `words`, and stays open."""
        target, port = at
        address = self._cluster.nodes[target].address
        self._strangers.send(owner, node, (address, port), words, connections=connections)

    def visits(self, owner: str) -> Visits:
        """Return what has become of the connections of `owner` so far."""
        return self._strangers.visits(owner)

    def send_strangers_away(self, owner: str) -> None:
        """Close the connections of `owner`; harmless when there are none."""
        self._strangers.send_away(owner)

    # FaultContext: names

    def change_names(
        self, owner: str, node: str, changes: Mapping[str, NameChange]
    ) -> Ticket[Mapping[str, str]]:
        """Have a node take names for something else; settled with the table that it reads."""
        self._names.impose(owner, node, changes)
        ticket: Ticket[Mapping[str, str]] = Ticket()
        self._cluster.set_names(node, self._names.of(node), ticket.settle)
        return ticket

    def restore_names(self, owner: str) -> Ticket[None]:
        """Undo what `owner` did to names, on every node that is up; harmless twice."""
        nodes = [node for node in self._names.lift(owner) if node in self._cluster.nodes]
        ticket: Ticket[None] = Ticket()
        settle = _when_all_are_done(len(nodes), ticket)

        def on_done(outcome: Mapping[str, str] | ClusterError) -> None:
            settle(outcome if isinstance(outcome, ClusterError) else None)

        for node in nodes:
            self._cluster.set_names(node, self._names.of(node), on_done)
        return ticket

    def names_asked(self, node: str) -> Ticket[Mapping[str, Mapping[str, int]]]:
        """Return how often a node asked for which changed name, by whose change it is."""
        ticket: Ticket[Mapping[str, Mapping[str, int]]] = Ticket()
        self._cluster.names_asked(node, ticket.settle)
        return ticket

    def _rename_again(self, node: str) -> None:
        """Have a new incarnation of a node take names for what its predecessor did."""
        if changes := self._names.of(node):
            self._cluster.set_names(node, changes, lambda _: None)

    # FaultContext: proxies

    def add_toxic(self, owner: str, proxy: str, toxic: Toxic) -> Ticket[None]:
        """Add a toxic to a proxy of the run."""
        return self._proxies.add_toxic(owner, proxy, toxic)

    def remove_toxics(self, owner: str) -> Ticket[None]:
        """Remove the toxics of a fault; harmless when there are none."""
        return self._proxies.remove_toxics(owner)

    def switch_proxy(self, owner: str, proxy: str, *, enabled: bool) -> Ticket[None]:
        """Have a proxy accept connections, or refuse them and close those it has."""
        return self._proxies.switch(owner, proxy, enabled=enabled)

    def unswitch_proxy(self, owner: str) -> Ticket[None]:
        """Take back what a fault did to a proxy; harmless when that is nothing."""
        return self._proxies.unswitch(owner)

    def is_proxy_on(self, proxy: str) -> bool:
        """Tell whether a proxy accepts connections."""
        return self._proxies.is_on(proxy)

    def toxic_met(self, proxy: str, toxic: str, way: Direction) -> int:
        """Return how often connections had something for a toxic since it was added."""
        return self._proxies.toxic_met(proxy, toxic, way)

    def close(self) -> None:
        """Close what is open of the network's own; harmless twice."""
        self._strangers.close()
        self._proxies.close()


def _when_all_are_done(count: int, ticket: Ticket[None]) -> Callable[[ClusterError | None], None]:
    """Return what settles a ticket at the first error, or once it was called so often."""
    waiting = count
    if not waiting:
        ticket.settle(None)

    def on_done(outcome: ClusterError | None) -> None:
        nonlocal waiting
        waiting -= 1
        if isinstance(outcome, ClusterError) or waiting == 0:
            ticket.settle(outcome)

    return on_done
