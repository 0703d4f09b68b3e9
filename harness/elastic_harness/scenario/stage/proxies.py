"""The proxies of a run: opened before its launchers start, with toxics that faults add and remove.

Nodes always connect to a proxy of ours at the gateway. Its toxics are its own or, with another
Toxiproxy server, that server's: then ours only leads there, and what is inside the cluster is
reached through a second one of ours behind it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from elastic_harness.cluster.cluster import GATEWAY, Cluster, ClusterError, having
from elastic_harness.future import Future, Steps, Until, run, settled
from elastic_harness.scenario.job_spec import RENDEZVOUS, ProxySpec, Upstream, parse_upstream
from elastic_harness.scenario.planning.seed import Seed
from elastic_harness.toxiproxy.address import OpenSocket
from elastic_harness.toxiproxy.proxy import Proxy
from elastic_harness.toxiproxy.remote import RemoteToxiproxy
from elastic_harness.toxiproxy.stream import Direction, Toxic
from pytest_elastic.config import Endpoint
from pytest_elastic.errors import ElasticError, UsageError
from pytest_elastic.loop import Loop

if TYPE_CHECKING:
    from elastic_harness.toxiproxy.client import ToxiproxyClient

__all__ = ["StageProxies"]

T = TypeVar("T")

# A call of another Toxiproxy server is bounded by its client's own time-outs.
_EARLY_S: Final = 60.0
_BACKLOG: Final = 4096


@dataclass(slots=True, kw_only=True)
class _Route:
    """A proxy of a run. `address` is what jobs are told; `back` leads from the host to a node."""

    spec: ProxySpec
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
        specs: Mapping[str, ProxySpec],
        *,
        seed: int,
        run_id: str,
        remote: RemoteToxiproxy | None = None,
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._gateway = _Gateway(cluster)
        self._specs = specs
        self._seed = Seed(value=seed)
        self._run_id = run_id
        self._remote = remote
        self._routes: dict[str, _Route] = {}
        self._owned: dict[str, list[tuple[str, str]]] = {}
        # Which entry has switched which proxy on or off, in order.
        self._switched: dict[str, dict[str, bool]] = {name: {} for name in specs}
        # `at: 0s` means before anything connects: such a toxic waits for its proxy.
        self._opened: Future[None] = Future()
        self._early: list[Future[None]] = []

    @property
    def addresses(self) -> Mapping[str, str]:
        """What nodes connect to, by the name of the proxy: `host:port`."""
        return {name: route.address for name, route in self._routes.items()}

    @property
    def rendezvous(self) -> str:
        """What the nodes that do not host the rendezvous connect to; "" where there is no proxy."""
        return next(
            (each.address for each in self._routes.values() if each.spec.upstream == RENDEZVOUS), ""
        )

    def open(self, *, store_host: str, endpoint_port: int) -> Steps[None]:
        """Open all proxies, one after the other, now that the first nodes are up."""
        try:
            for name, spec in self._specs.items():
                upstream = parse_upstream(spec.upstream, self._cluster.nodes)
                if upstream.is_rendezvous:
                    upstream = Upstream(node=store_host, port=endpoint_port)
                yield from self._open(name, spec, upstream)
        except ElasticError as error:
            self._opened.settle(error)
            raise
        self._opened.settle(None)
        for early in self._early:
            if not early.is_done:
                yield Until(early, _EARLY_S, "toxics were not added in time")

    def close(self) -> None:
        """Close every proxy and its connections; harmless twice."""
        routes, self._routes = self._routes, {}
        for route in routes.values():
            route.front.stop()
            if route.back is not None:
                route.back.stop()
            if self._remote is not None and route.remote_name:
                self._ask(_destroy(route.remote_name))

    # FaultContext: proxies

    def add_toxic(self, owner: str, proxy: str, toxic: Toxic) -> Future[None]:
        """Add a toxic to a proxy, for the fault `owner`; to one that is not open yet, then."""
        self._owned.setdefault(owner, []).append((proxy, toxic.name))
        added = run(self._loop, self._add(owner, proxy, toxic))
        if not added.is_done:
            self._early.append(added)
        return added

    def _add(self, owner: str, proxy: str, toxic: Toxic) -> Steps[None]:
        if proxy in self._specs:
            yield from self._opened
        if (proxy, toxic.name) not in self._owned.get(owner, ()):
            return  # it has been removed meanwhile
        route = self._routes.get(proxy)
        if route is None:
            raise self._no_such(proxy)
        if self._remote is None:
            route.front.add_toxic(toxic)
            return
        yield from self._ask(_add(route.remote_name, toxic))
        # What passed before it was there did not meet it; of a share of connections nothing tells
        # which had it.
        if toxic.toxicity >= 1.0:
            route.read_before[toxic.name] = route.front.read(toxic.direction)

    def remove_toxics(self, owner: str) -> Future[None]:
        owned = [each for each in self._owned.pop(owner, []) if each[0] in self._routes]
        if self._remote is not None and owned:
            names = [(self._routes[proxy].remote_name, name) for proxy, name in owned]
            return self._ask(_remove(names))
        for proxy, name in owned:
            front = self._routes[proxy].front
            found = front.find_toxic(name)
            front.remove_toxics([found] if found is not None else [])
        return settled(None)

    def switch(self, owner: str, proxy: str, *, enabled: bool) -> Future[None]:
        if proxy not in self._switched:
            return settled(self._no_such(proxy))
        self._switched[proxy][owner] = enabled
        return run(self._loop, self._obey_switch(proxy))

    def unswitch(self, owner: str) -> Future[None]:
        for proxy, switched in self._switched.items():
            if switched.pop(owner, None) is not None:
                return run(self._loop, self._obey_switch(proxy))
        return settled(None)

    def is_on(self, proxy: str) -> bool:
        if proxy in self._routes:
            return self._routes[proxy].front.is_enabled
        return proxy in self._specs and self._is_meant_to_be_on(proxy)

    def _is_meant_to_be_on(self, proxy: str) -> bool:
        return next(reversed(self._switched[proxy].values()), self._specs[proxy].enabled)

    def _obey_switch(self, proxy: str) -> Steps[None]:
        route = self._routes.get(proxy)
        if route is None or route.front.is_enabled == self._is_meant_to_be_on(proxy):
            return  # it will be opened as it is meant to be
        if route.front.is_enabled:
            route.front.stop()
            return
        listener = yield from self._gateway.listen(int(route.address.rpartition(":")[2]))
        if self.is_on(proxy) or not self._is_meant_to_be_on(proxy):
            listener.close()  # another order has come in between
        else:
            route.front.start_at(listener)

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

    def _open(self, name: str, spec: ProxySpec, upstream: Upstream) -> Steps[None]:
        open_socket: OpenSocket | None = None
        address = upstream.address
        if upstream.node:
            open_socket = self._gateway.open_socket
            node = self._cluster.nodes[upstream.node]
            address = str(Endpoint(host=node.address, port=upstream.port))
        try:
            listener = yield from self._gateway.listen(spec.listen)
        except ClusterError as error:
            raise ElasticError(f"cannot open proxy '{name}': {error.message}") from error
        if self._remote is None:
            self._begin(name, spec, listener, self._proxy(name, address, open_socket))
        else:
            yield from self._open_remote(name, spec, listener, upstream, address)

    def _begin(self, name: str, spec: ProxySpec, listener: socket.socket, front: Proxy) -> _Route:
        host, port = listener.getsockname()[:2]
        if self._is_meant_to_be_on(name):
            front.start_at(listener)
        else:
            listener.close()
        route = self._routes[name] = _Route(
            spec=spec, front=front, address=str(Endpoint(host=host, port=port))
        )
        return route

    def _open_remote(
        self, name: str, spec: ProxySpec, listener: socket.socket, upstream: Upstream, address: str
    ) -> Steps[None]:
        back: Proxy | None = None
        if upstream.node:
            back = self._proxy(name, address, self._gateway.open_socket)
            back.listen = "127.0.0.1:0"
            back.start()
            address = back.listen
        remote_name = f"{self._run_id}-{name}"
        try:
            created = yield from self._ask(_create(remote_name, address))
        except ElasticError:
            listener.close()
            if back is not None:
                back.stop()
            raise
        route = self._begin(name, spec, listener, self._proxy(name, created))
        route.back, route.remote_name = back, remote_name

    def _ask(self, work: Callable[[ToxiproxyClient], T]) -> Future[T]:
        """Do something with the other server, in its thread."""
        assert self._remote is not None, "there is another server"
        answer: Future[T] = Future()
        self._remote.call(work, answer.settle)
        return answer

    def _proxy(self, name: str, upstream: str, open_socket: OpenSocket | None = None) -> Proxy:
        return Proxy(
            self._loop,
            self._seed,
            name=name,
            listen="",
            upstream=upstream,
            open_socket=open_socket,
        )


class _Gateway:
    """The cluster's edge: listens where nodes can connect to, connects to what listens on nodes.

    In a namespace cluster it is a place in the cluster's network, whose sockets belong to this
    process. Without networks of their own, nodes share a network with this process.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def listen(self, port: int) -> Future[socket.socket]:
        """Open a socket that listens at a port of the gateway (0: any that is free)."""
        sockets = having(self._cluster.sockets, self._cluster.capabilities["gateway"])

        def listen(opened: socket.socket) -> socket.socket:
            try:
                opened.setblocking(False)
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                opened.bind((sockets.gateway_address, port))
                opened.listen(_BACKLOG)
            except OSError as error:
                opened.close()
                where = f"{sockets.gateway_address}:{port}"
                raise ClusterError(
                    f"cannot listen at the gateway, {where}: {error.strerror}"
                ) from error
            return opened

        return sockets.open(GATEWAY).then(listen)

    def open_socket(self, on_opened: Callable[[socket.socket | None], None]) -> None:
        """Open a socket that connects to a node."""
        sockets = having(self._cluster.sockets, self._cluster.capabilities["gateway"])
        sockets.open(GATEWAY).add_done_callback(
            lambda done: on_opened(None if done.error is not None else done.result())
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
