"""Which endpoint belongs to which class of traffic, as a run's own history tells it.

Pure. The rendezvous endpoints are known beforehand. Agents say where they listen, rounds and
workers where their store is: both before anything connects there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elastic_harness.history.events import NodeStarted, WorkerHello
from pytest_elastic.events.model import (
    AgentMoved,
    AgentStarted,
    CoordinatorStarted,
    Event,
    Record,
    RoundCommitted,
)

__all__ = ["Endpoint", "Endpoints"]

# A node's name, and a port.
Endpoint = tuple[str, int]

# The stores of this many rounds are remembered: of the one that runs, and of those whose last
# connections are still being closed. Older ports may have another owner by now.
_ROUNDS = 3


class Endpoints:
    """What is known so far."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._rendezvous: tuple[Endpoint, ...] = ()
        self._stores: list[Endpoint] = []
        self._agents: dict[str, list[Endpoint]] = {}

    @property
    def by_class(self) -> Mapping[str, tuple[Endpoint, ...]]:
        """The endpoints of each class that is known by them."""
        agents = [end for ends in self._agents.values() for end in ends]
        return {
            "rendezvous": self._rendezvous,
            "store": tuple(self._stores),
            "liveness": tuple(agents),
        }

    def meet_at(self, nodes: Sequence[str], port: int) -> None:
        """Take these for the rendezvous endpoints: one as a rule."""
        self._rendezvous = tuple((node, port) for node in nodes)

    def learn(self, record: Record) -> bool:
        """Note what a record says; tell whether it was something new."""
        before = self.by_class
        self._learn(record.node, record.event)
        return self.by_class != before

    def _learn(self, node: str, event: Event) -> None:
        match event:
            case NodeStarted():
                self._addresses[event.address] = node
                self._agents.pop(node, None)  # those of an earlier incarnation
            case AgentStarted() | AgentMoved():
                self._agents[node] = [(node, event.port)]
            case CoordinatorStarted():
                ends = self._agents.setdefault(node, [])
                if (node, event.port) not in ends:
                    ends.append((node, event.port))
            case RoundCommitted() | WorkerHello():
                self._learn_store(event.master_addr, event.master_port)
            case _:
                pass

    def _learn_store(self, address: str, port: int) -> None:
        node = self._addresses.get(address, address)
        if node in self._addresses.values() and (node, port) not in self._stores:
            self._stores = [*self._stores, (node, port)][-_ROUNDS:]
