"""Classes of traffic: which of what passes between nodes is the store's, or a beat, or gradients.

Pure. A packet is told by its ends. Known endpoints (an address and a port) belong to a class by
name: `rendezvous` is the endpoint's store, `store` a round's worker store, `liveness` what agents
tell each other. What touches none of these is `collectives`: the connections that workers make
among themselves, on ports that are not announced. `port:N` is everything with an end at port N.
A packet may belong to several classes: torchrun's worker store is its endpoint's store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from elastic_harness.network.link_model import NO_CLASS, Traffic
from elastic_harness.network.packets import Ends
from pytest_elastic.errors import UsageError

__all__ = ["CLASSES", "COLLECTIVES", "NAMED", "TrafficTable", "check_class", "port_class"]

# The classes that are known by their endpoints.
NAMED = ("rendezvous", "store", "liveness")
COLLECTIVES = "collectives"
CLASSES = (*NAMED, COLLECTIVES)

_PORT = "port:"


def port_class(port: int) -> str:
    """Return the name of the class of everything with an end at a port; raises UsageError."""
    if not 1 <= port <= 65535:
        raise UsageError(f"there is no port {port}: 1 to 65535 is expected")
    return f"{_PORT}{port}"


def check_class(name: str) -> str:
    """Return the name of a class if it is one; raises UsageError."""
    number = name.removeprefix(_PORT)
    if name.startswith(_PORT) and number.isdigit():
        return port_class(int(number))
    if name not in CLASSES:
        raise UsageError(
            f"there is no traffic {name!r}: {', '.join(CLASSES)}, or {_PORT}29400 for everything"
            " with an end at that port"
        )
    return name


class TrafficTable:
    """What is known of endpoints, (last octet of the address, port), and which ports matter."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, int], Traffic] = {}
        self._ports: frozenset[int] = frozenset()

    def learn(self, endpoints: Mapping[str, Iterable[tuple[int, int]]]) -> None:
        """Take these endpoints for those of the classes, in place of what was known."""
        names: dict[tuple[int, int], Traffic] = {}
        for name in NAMED:
            for end in endpoints.get(name, ()):
                names[end] = (*names.get(end, ()), name)
        self._names = names

    def mind_port(self, name: str) -> None:
        """Tell apart what has an end at a port, if `name` is the class of one."""
        if name.startswith(_PORT):
            self._ports |= {int(name.removeprefix(_PORT))}

    def classes_of(self, ends: Ends | None) -> Traffic:
        """Return the classes of a packet, in a fixed order."""
        if ends is None:
            return NO_CLASS
        here = self._names.get((ends.source, ends.source_port), NO_CLASS)
        there = self._names.get((ends.target, ends.target_port), NO_CLASS)
        known = here + tuple(name for name in there if name not in here)
        ports = sorted(self._ports & {ends.source_port, ends.target_port})
        return (known or (COLLECTIVES,)) + tuple(f"{_PORT}{port}" for port in ports)
