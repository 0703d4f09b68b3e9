"""Nodes on real sockets in one loop, and a registry that names one of them when a test likes."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Sequence

from pytest_elastic.events.model import Event
from pytest_elastic.loop import Loop
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import Term, founding_record
from pytest_elastic.rendezvous.consensus.replication import Recovered
from pytest_elastic.rendezvous.driver.driver import NodeRendezvous
from pytest_elastic.rendezvous.driver.questions import Questions
from pytest_elastic.rendezvous.messages import LeaderAddress
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.registries.registry import NodeSide
from pytest_elastic.rendezvous.settings import Settings

__all__ = ["Agent", "Naming", "serve_until"]

LIMIT_S = 60.0


class Naming:
    """A registry that names `names`, or no leader; a record counts as written at once."""

    def __init__(self) -> None:
        self.resigned = 0
        self.side: NodeSide
        self.names: LeaderAddress | None = None

    def open(self, side: NodeSide) -> None:
        """Hold the side: the test says when something begins."""
        self.side = side

    def begin(self) -> None:
        """Have the follower look for its leader."""
        self.side.tell_follower(v.Start())

    def lead(self, counter: int) -> LeaderAddress:
        """Name this node, for ever; return where its leader is."""
        node = self.side.node
        base = founding_record([node])
        recovered = Recovered(
            term=Term(counter, node.incarnation),
            base=base,
            record=base,
            started=None,
            contact_at=0.0,
            granted_until=math.inf,
        )
        self.side.lead(recovered, "named")
        return LeaderAddress(
            term=recovered.term,
            name=node.name,
            incarnation=node.incarnation,
            address=node.address,
            port=node.port,
        )

    def find(self, within_s: float) -> None:
        """Say who is named."""
        del within_s
        if self.names is None:
            self.side.tell_follower(v.LeaderNotFound(reason="nobody is named"))
        else:
            self.side.tell_follower(v.LeaderFound(leader=self.names))

    def announce(self, known: Sequence[Node]) -> None:
        """Tell nobody: the test does."""

    def remember(self) -> None:
        """Keep nothing."""

    def write(self, written: v.WriteRecord) -> None:
        """Say that it is written."""
        self.side.tell_leader(v.RecordWritten(number=written.record.number))

    def end(self) -> None:
        """Count how often no leader was here any more."""
        self.resigned += 1

    def close(self, on_closed: Callable[[], None]) -> None:
        """Hold nothing."""
        on_closed()


class Agent:
    """A node whose workers succeed as soon as they start, if `succeeds`."""

    def __init__(
        self,
        loop: Loop,
        name: str,
        settings: Settings,
        *,
        incarnation: str = "",
        succeeds: bool = True,
    ) -> None:
        self.loop = loop
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.registry = Naming()
        self.notices: list[ports.Notice] = []
        self.events: list[Event] = []
        self._succeeds = succeeds
        port = self.listener.getsockname()[1]
        self.rendezvous = NodeRendezvous(
            loop,
            node=Node(
                name=name, incarnation=incarnation or name, address="127.0.0.1", port=port, slots=1
            ),
            settings=settings,
            make_registry=self._registry_with,
            listener=self.listener,
            on_notice=self._take,
            on_event=self.events.append,
        )
        self.rendezvous.open()

    def _registry_with(self, questions: Questions) -> Naming:
        self.questions = questions
        return self.registry

    @property
    def results(self) -> list[str]:
        """Return what this node was told of how its part in the job has ended."""
        return [each.result for each in self.notices if isinstance(each, ports.JobOver)]

    def _take(self, notice: ports.Notice) -> None:
        self.notices.append(notice)
        match notice:
            case ports.OpenStore(round=round_):
                opened = ports.StoreOpened(round=round_, address="127.0.0.1", port=1)
                self.rendezvous.request(opened)
            case ports.StartWorkers(assignment=assignment) if self._succeeds:
                self.rendezvous.request(ports.GroupSucceeded(round=assignment.round))

    def close(self) -> bool:
        """Close; tell whether nobody had to be waited for."""
        closed: list[bool] = []
        self.rendezvous.close(lambda: closed.append(True))
        self.listener.close()
        return bool(closed)


def serve_until(loop: Loop, is_done: Callable[[], bool]) -> None:
    """Serve until something has happened."""
    end = loop.now() + LIMIT_S
    while not is_done():
        assert loop.now() < end, "it never came to that"
        loop.run_once(0.1)
