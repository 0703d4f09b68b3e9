"""The proxies of a run: opened before its launchers start, with toxics that faults add and remove.

Nodes always connect to a proxy of ours at the gateway. Its toxics are its own or, with another
Toxiproxy server, that server's: then ours only leads there, and what is inside the cluster is
reached through a second one of ours behind it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastic_harness.cluster.cluster import Cluster, ClusterError
from elastic_harness.cluster.server.gateway import Gateway
from elastic_harness.faults.context import Ticket
from elastic_harness.scenario.planning.seed import Seed
from elastic_harness.toxiproxy.address import Dial, MakeDial
from elastic_harness.toxiproxy.proxied import RENDEZVOUS, ProxyPlan, Upstream, parse_upstream
from elastic_harness.toxiproxy.proxy import Proxy
from elastic_harness.toxiproxy.remote import RemoteToxiproxy
from elastic_harness.toxiproxy.stream import Direction, Toxic
from pytest_elastic.errors import ElasticError, UsageError
from pytest_elastic.loop import Loop

if TYPE_CHECKING:
    from elastic_harness.toxiproxy.client import ToxiproxyClient

__all__ = ["StageProxies"]


@dataclass(slots=True, kw_only=True)
class _Route:
    """A proxy of a run. `address` is what jobs are told; `back` leads from the host to a node."""

    plan: ProxyPlan
    front: Proxy
    address: str
    back: Proxy | None = None
    remote_name: str = ""
    read_before: dict[str, int] = field(default_factory=dict)


class StageProxies:
    """Everything happens in the loop's thread. `remote` is a Toxiproxy server that is not ours."""

    def __init__(
        self,
        loop: Loop,
        cluster: Cluster,
        plans: Sequence[ProxyPlan],
        *,
        seed: int,
        run_id: str,
        remote: RemoteToxiproxy | None = None,
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._gateway = Gateway(cluster)
        self._plans = plans
        self._seed = Seed(value=seed)
        self._run_id = run_id
        self._remote = remote
        self._routes: dict[str, _Route] = {}
        self._owned: dict[str, list[tuple[str, str]]] = {}
        self._is_open = False
        # Who has switched which proxy on or off, in order.
        self._switched: dict[str, dict[str, bool]] = {plan.name: {} for plan in plans}
        # Toxics for proxies that are not open yet: `at: 0s` means before anything connects.
        self._early: list[tuple[str, str, Toxic, Ticket[None]]] = []

    @property
    def addresses(self) -> Mapping[str, str]:
        """What nodes connect to, by the name of the proxy: `host:port`."""
        return {name: route.address for name, route in self._routes.items()}

    @property
    def rendezvous(self) -> str:
        """What the nodes that do not host the rendezvous connect to; "" where there is no proxy."""
        return next(
            (each.address for each in self._routes.values() if each.plan.upstream == RENDEZVOUS), ""
        )

    def open(
        self, *, store_host: str, endpoint_port: int, on_done: Callable[[ElasticError | None], None]
    ) -> None:
        """Open all proxies, one after the other, now that the first nodes are up."""
        waiting = list(self._plans)

        def open_next(problem: ElasticError | None) -> None:
            if problem is not None or not waiting:
                self._is_open = True
                self._add_early(problem, on_done)
                return
            plan = waiting.pop(0)
            upstream = parse_upstream(plan.upstream, self._cluster.nodes)
            if upstream.is_rendezvous:
                upstream = Upstream(node=store_host, port=endpoint_port)
            self._open(plan, upstream, open_next)

        open_next(None)

    def close(self) -> None:
        """Close every proxy and its connections; harmless twice."""
        routes, self._routes = self._routes, {}
        for route in routes.values():
            route.front.stop()
            if route.back is not None:
                route.back.stop()
            if self._remote is not None and route.remote_name:
                self._remote.call(_destroy(route.remote_name), lambda _: None)

    # FaultContext: proxies

    def add_toxic(self, owner: str, proxy: str, toxic: Toxic) -> Ticket[None]:
        """Add a toxic to a proxy, for the fault `owner`."""
        ticket: Ticket[None] = Ticket()
        self._add(owner, proxy, toxic, ticket)
        return ticket

    def _add_early(
        self, problem: ElasticError | None, on_done: Callable[[ElasticError | None], None]
    ) -> None:
        """Add what has waited for the proxies; done when all of it is there."""
        early, self._early = self._early, []
        if problem is not None or not early:
            for _, _, _, ticket in early:
                ticket.settle(problem)
            on_done(problem)
            return
        waiting = len(early)

        def on_added() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                on_done(None)

        for owner, proxy, toxic, ticket in early:
            self._add(owner, proxy, toxic, ticket, on_added)

    def _add(
        self,
        owner: str,
        proxy: str,
        toxic: Toxic,
        ticket: Ticket[None],
        on_added: Callable[[], None] = lambda: None,
    ) -> None:
        if not self._is_open and any(plan.name == proxy for plan in self._plans):
            self._early.append((owner, proxy, toxic, ticket))
            return
        route = self._routes.get(proxy)
        if route is None:
            ticket.settle(self._no_such(proxy))
            on_added()
            return
        self._owned.setdefault(owner, []).append((proxy, toxic.name))
        if self._remote is None:
            route.front.add_toxic(toxic)
            ticket.settle(None)
            on_added()
            return

        def on_answer(outcome: ElasticError | None) -> None:
            # What passed before it was there did not meet it; of a share of connections nothing
            # tells which had it.
            if outcome is None and toxic.toxicity >= 1.0:
                route.read_before[toxic.name] = route.front.read(toxic.direction)
            ticket.settle(outcome)
            on_added()

        self._remote.call(_add(route.remote_name, toxic), on_answer)

    def remove_toxics(self, owner: str) -> Ticket[None]:
        """Remove the toxics of a fault; harmless when there are none."""
        for early in [each for each in self._early if each[0] == owner]:
            self._early.remove(early)
            early[3].settle(None)
        owned = [each for each in self._owned.pop(owner, []) if each[0] in self._routes]
        ticket: Ticket[None] = Ticket()
        if self._remote is None or not owned:
            for proxy, name in owned:
                front = self._routes[proxy].front
                found = front.find_toxic(name)
                front.remove_toxics([found] if found is not None else [])
            ticket.settle(None)
            return ticket
        names = [(self._routes[proxy].remote_name, name) for proxy, name in owned]
        self._remote.call(_remove(names), ticket.settle)
        return ticket

    def switch(self, owner: str, proxy: str, *, enabled: bool) -> Ticket[None]:
        """Have a proxy accept connections, or refuse them and close those it has."""
        if proxy not in self._switched:
            ticket: Ticket[None] = Ticket()
            ticket.settle(self._no_such(proxy))
            return ticket
        self._switched[proxy][owner] = enabled
        return self._obey_switch(proxy)

    def unswitch(self, owner: str) -> Ticket[None]:
        """Take back what a fault did to a proxy; harmless when that is nothing."""
        for proxy, switched in self._switched.items():
            if switched.pop(owner, None) is not None:
                return self._obey_switch(proxy)
        ticket: Ticket[None] = Ticket()
        ticket.settle(None)
        return ticket

    def is_on(self, proxy: str) -> bool:
        """Tell whether a proxy accepts connections."""
        if proxy in self._routes:
            return self._routes[proxy].front.is_enabled
        return any(self._is_meant_to_be_on(plan) for plan in self._plans if plan.name == proxy)

    def _is_meant_to_be_on(self, plan: ProxyPlan) -> bool:
        return next(reversed(self._switched[plan.name].values()), plan.is_enabled)

    def _obey_switch(self, proxy: str) -> Ticket[None]:
        ticket: Ticket[None] = Ticket()
        route = self._routes.get(proxy)
        if route is None or route.front.is_enabled == self._is_meant_to_be_on(route.plan):
            ticket.settle(None)  # it will be opened as it is meant to be
        elif route.front.is_enabled:
            route.front.stop()
            ticket.settle(None)
        else:

            def on_listening(listener: socket.socket | ClusterError) -> None:
                if isinstance(listener, ClusterError):
                    ticket.settle(listener)
                    return
                if route.front.is_enabled or not self._is_meant_to_be_on(route.plan):
                    listener.close()  # another order has come in between
                else:
                    route.front.start_at(listener)
                ticket.settle(None)

            port = int(route.address.rpartition(":")[2])
            self._gateway.listen(port, on_listening)
        return ticket

    def toxic_met(self, proxy: str, toxic: str, way: Direction) -> int:
        """Return how often connections had something for a toxic since it was added.

        With another server that is what passed in its direction; nothing if it harms a share.
        """
        route = self._routes.get(proxy)
        if route is None:
            return 0
        if self._remote is None:
            return route.front.met(toxic)
        before = route.read_before.get(toxic)
        return 0 if before is None else route.front.read(way) - before

    # How it is done

    def _no_such(self, proxy: str) -> UsageError:
        known = ", ".join(self._switched) or "none"
        return UsageError(f"there is no proxy '{proxy}': the run has {known}")

    def _open(
        self,
        plan: ProxyPlan,
        upstream: Upstream,
        on_done: Callable[[ElasticError | None], None],
    ) -> None:
        dial: MakeDial = Dial
        address = upstream.address
        if upstream.node:
            dial = self._gateway.dial_nodes
            address = f"{self._cluster.nodes[upstream.node].address}:{upstream.port}"

        def on_listening(listener: socket.socket | ClusterError) -> None:
            if isinstance(listener, ClusterError):
                on_done(ElasticError(f"cannot open proxy '{plan.name}': {listener.message}"))
            elif self._remote is None:
                self._begin(plan, listener, self._proxy(plan, address, dial))
                on_done(None)
            else:
                self._begin_remote(plan, listener, upstream, address, on_done)

        self._gateway.listen(plan.listen, on_listening)

    def _begin(self, plan: ProxyPlan, listener: socket.socket, front: Proxy) -> _Route:
        host, port = listener.getsockname()
        if self._is_meant_to_be_on(plan):
            front.start_at(listener)
        else:
            listener.close()
        route = self._routes[plan.name] = _Route(plan=plan, front=front, address=f"{host}:{port}")
        return route

    def _begin_remote(
        self,
        plan: ProxyPlan,
        listener: socket.socket,
        upstream: Upstream,
        address: str,
        on_done: Callable[[ElasticError | None], None],
    ) -> None:
        assert self._remote is not None, "there is another server"
        back: Proxy | None = None
        if upstream.node:
            back = self._proxy(plan, address, self._gateway.dial_nodes)
            back.listen = "127.0.0.1:0"
            back.start()
            address = back.listen
        name = f"{self._run_id}-{plan.name}"

        def on_created(outcome: str | ElasticError) -> None:
            if isinstance(outcome, ElasticError):
                listener.close()
                if back is not None:
                    back.stop()
                on_done(outcome)
                return
            route = self._begin(plan, listener, self._proxy(plan, outcome, Dial))
            route.back, route.remote_name = back, name
            on_done(None)

        self._remote.call(_create(name, address), on_created)

    def _proxy(self, plan: ProxyPlan, upstream: str, dial: MakeDial) -> Proxy:
        return Proxy(
            self._loop, self._seed, name=plan.name, listen="", upstream=upstream, make_dial=dial
        )


# What is asked of another server, in its thread.


def _create(name: str, upstream: str) -> Callable[[ToxiproxyClient], str]:
    def create(client: ToxiproxyClient) -> str:
        found = client.get_proxy(name)
        if found is not None:
            client.destroy(found)
        host, port = client.create(upstream, name).address
        return f"{host}:{port}"

    return create


def _add(proxy: str, toxic: Toxic) -> Callable[[ToxiproxyClient], None]:
    def add(client: ToxiproxyClient) -> None:
        found = client.get_proxy(proxy)
        if found is None:
            raise UsageError(f"the Toxiproxy server has lost the proxy {proxy!r}")
        attributes: Mapping[str, Any] = toxic.attributes
        found.add_toxic(
            type=toxic.type,
            stream=toxic.stream,
            name=toxic.name,
            toxicity=toxic.toxicity,
            attributes=attributes,
        )

    return add


def _remove(names: Sequence[tuple[str, str]]) -> Callable[[ToxiproxyClient], None]:
    def remove(client: ToxiproxyClient) -> None:
        for proxy, toxic in names:
            found = client.get_proxy(proxy)
            if found is not None and toxic in found.toxics():
                found.destroy_toxic(toxic)

    return remove


def _destroy(name: str) -> Callable[[ToxiproxyClient], None]:
    def destroy(client: ToxiproxyClient) -> None:
        found = client.get_proxy(name)
        if found is not None:
            client.destroy(found)

    return destroy
