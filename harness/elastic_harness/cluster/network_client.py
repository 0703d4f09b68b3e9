"""The network of a cluster, as its client asks for it: policies, classes of traffic, captures."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from elastic_harness.cluster.cluster import (
    ClusterError,
    ClusterNode,
    Done,
    NetworkCounters,
)
from elastic_harness.cluster.server.network_reading import read_counters
from elastic_harness.conversation import Answer
from elastic_harness.network.link_model import Layers, LinkPolicy, Pair
from elastic_harness.network.names import NameChange, read_hosts
from elastic_harness.network.switch_wire import layers_to_fields, policy_to_fields
from elastic_harness.network.traffic import check_class
from pytest_elastic.errors import UsageError
from pytest_elastic.loop import Loop

__all__ = ["NetworkClient"]


class NetworkClient:
    """The part of a cluster's client that speaks to its switch, through the cluster's server."""

    _is_isolated: ClassVar[bool] = True
    _loop: Loop
    _nodes: dict[str, ClusterNode]

    def set_policy(
        self,
        pairs: Sequence[Pair],
        policy: LinkPolicy,
        on_done: Done[None],
        *,
        traffic: str | None = None,
        layers: Layers = (),
    ) -> None:
        """Apply a policy to links, or to one class of what passes over them."""
        if traffic is not None:
            check_class(traffic)
        order = {
            "pairs": [list(pair) for pair in pairs],
            "policy": policy_to_fields(policy),
            "layers": layers_to_fields(layers),
            "traffic": traffic,
        }
        self._ask_network("set_policy", order, lambda _: on_done(None), on_done)

    def learn_traffic(
        self, endpoints: Mapping[str, Sequence[tuple[str, int]]], on_done: Done[None]
    ) -> None:
        """Tell the switch which (node, port) belongs to which class; in place of what it knew."""
        ends = {
            name: [(self._nodes[node].index, port) for node, port in found if node in self._nodes]
            for name, found in endpoints.items()
        }
        self._ask_network("learn_traffic", {"ends": ends}, lambda _: on_done(None), on_done)

    def set_names(
        self, node: str, changes: Mapping[str, NameChange], on_done: Done[Mapping[str, str]]
    ) -> None:
        """Have a node take names for something else; done with what it reads now."""
        fields = {
            name: (None if change.is_missing else change.address or "", change.slow_s, change.owner)
            for name, change in changes.items()
        }
        self._ask(
            "set_names",
            {"name": node, "changes": fields},
            lambda answer: on_done(read_hosts(answer.fields["hosts"])),
            on_done,
        )

    def names_asked(self, node: str, on_done: Done[Mapping[str, Mapping[str, int]]]) -> None:
        """Return how often a node asked for which changed name, by whose change it is."""
        order = {"name": node, "order": "names_asked", "fields": {}}
        self._ask("node", order, lambda answer: on_done(answer.fields["asked"]), on_done)

    def capture(self, id: str, pairs: Sequence[Pair], path: str, on_done: Done[None]) -> None:
        """Write what passes over links into a new pcapng file; raises UsageError if it cannot."""
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(f"cannot capture packets in {path}: {error.strerror}") from error
        order = {"name": id, "pairs": [list(pair) for pair in pairs]}
        try:
            self._ask_network("capture", order, lambda _: on_done(None), on_done, fds=[fd])
        finally:
            os.close(fd)

    def captured(self, id: str, on_done: Done[int]) -> None:
        """Return how many packets a capture has, all of them in its file."""
        self._ask_network(
            "captured", {"name": id}, lambda answer: on_done(answer.fields["packets"]), on_done
        )

    def end_capture(self, id: str, on_done: Done[int]) -> None:
        """End a capture and return how many packets it has; harmless when there is none."""
        self._ask_network(
            "end_capture", {"name": id}, lambda answer: on_done(answer.fields["packets"]), on_done
        )

    def counters(self, on_done: Done[NetworkCounters]) -> None:
        """Read what the network has done since the last reset."""
        if self._is_isolated:
            read_counters(self._ask, list(self._nodes), on_done)
        else:
            nothing = NetworkCounters(links={}, own_drops={})
            self._loop.call_soon(lambda: on_done(nothing))

    def _ask_network(
        self,
        order: str,
        fields: Mapping[str, Any],
        on_result: Callable[[Answer], None],
        on_error: Callable[[ClusterError], None],
        *,
        fds: Sequence[int] = (),
    ) -> None:
        self._ask("network", {"order": order, "fields": fields}, on_result, on_error, fds)

    def _ask(
        self,
        op: str,
        fields: Mapping[str, Any],
        on_result: Callable[[Answer], None],
        on_error: Callable[[ClusterError], None],
        fds: Sequence[int] = (),
    ) -> None:
        raise NotImplementedError
