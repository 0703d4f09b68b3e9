"""Over real connections: a node comes to its own coordinator when the job is over, and is told."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence

import pytest

from pytest_elastic.loop import Loop
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.announcer import found_at
from pytest_elastic.rendezvous.driver import NodeRendezvous
from pytest_elastic.rendezvous.mandate import GrantedMandate
from pytest_elastic.rendezvous.model import Node, RosterEntry, Settings
from pytest_elastic.rendezvous.registry import NodeSide

LIMIT_S = 60.0


class _Named:
    """A registry that names one node, and may let its member begin later."""

    def __init__(self, place: m.Place, *, is_here: bool) -> None:
        self.is_finished = False
        self._place = place
        self._is_here = is_here

    def open(self, side: NodeSide) -> None:
        self._side = side
        if self._is_here:
            side.coordinate(1, "named", mandate=GrantedMandate(float("inf")))
        else:
            self.begin()

    def begin(self) -> None:
        """Have the member look for its coordinator."""
        self._side.tell_member(v.Start())

    def find(self, within_s: float) -> None:
        del within_s
        self._side.tell_member(found_at(self._place, is_here=False))

    def announce(self, place: m.Place, members: Sequence[RosterEntry]) -> None:
        raise AssertionError(f"nobody was elected: {place}, {members}")

    def remember(self) -> None:
        """What is remembered here concerns nobody."""

    def pass_on(self, command: v.CoordinatorCommand) -> None:
        self.is_finished |= isinstance(command, v.Finished)
        self._side.perform(command)

    def end(self) -> None:
        raise AssertionError("nobody steps down")

    def close(self, *, is_over: bool, on_closed: Callable[[], None]) -> None:
        del is_over
        on_closed()


class _Agent:
    """A node whose workers succeed as soon as they start."""

    def __init__(self, loop: Loop, name: str, quorum: str, place: m.Place | None = None) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        port = self.listener.getsockname()[1]
        node = Node(name=name, incarnation=name, address="127.0.0.1", port=port, slots=1)
        self.place = place or m.Place(
            term=1, name=name, incarnation=name, address=node.address, port=port
        )
        self.registry = _Named(self.place, is_here=place is None)
        self.results: list[str] = []
        self.rendezvous = NodeRendezvous(
            loop,
            node=node,
            settings=Settings(
                run_id="r", min_nodes=1, max_nodes=1, max_restarts=0, quorum=quorum, linger_s=0.0
            ),
            registry=self.registry,
            listener=self.listener,
            on_notice=self._take,
            on_event=lambda _: None,
        )
        self.rendezvous.open()

    def _take(self, notice: ports.Notice) -> None:
        match notice:
            case ports.OpenStore(round=round_):
                opened = ports.StoreOpened(round=round_, address="127.0.0.1", port=1)
                self.rendezvous.request(opened)
            case ports.StartWorkers(assignment=assignment):
                self.rendezvous.request(ports.GroupSucceeded(round=assignment.round))
            case ports.JobOver(result=result):
                self.results.append(result)


@pytest.mark.parametrize("quorum", ["coordinator", "majority", "granted"])
def test_who_comes_to_its_own_coordinator_after_the_end_is_told(quorum: str) -> None:
    """It waited for nobody any more; with `quorum=coordinator` the member waits for ever."""
    loop, closed = Loop(), list[bool]()
    decides = _Agent(loop, "n1", quorum)
    works = _Agent(loop, "n2", quorum, decides.place)
    until = time.monotonic() + LIMIT_S
    while not decides.registry.is_finished:
        assert time.monotonic() < until, "the job has not ended"
        loop.run_once(1.0)
    assert decides.results == []
    decides.registry.begin()
    assert decides.results == ["succeeded"]
    decides.rendezvous.close(lambda: closed.append(True))
    assert closed
    works.rendezvous.close(lambda: None)
    for agent in (decides, works):
        agent.listener.close()
    loop.close()
