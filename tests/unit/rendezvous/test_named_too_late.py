"""A node that has left is named all the same: whoever names it had been asked before."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from pytest_elastic.events import model as events
from pytest_elastic.loop import Loop
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.driver import NodeRendezvous
from pytest_elastic.rendezvous.mandate import GrantedMandate
from pytest_elastic.rendezvous.model import Node, RosterEntry, Settings
from pytest_elastic.rendezvous.registry import NodeSide

SETTINGS = Settings(
    run_id="r", min_nodes=1, max_nodes=3, max_restarts=1, quorum="granted", linger_s=0.0
)


class _Slow:
    """A registry that names this node, as late as a test likes."""

    def __init__(self) -> None:
        self.resigned = 0

    def open(self, side: NodeSide) -> None:
        self.side = side
        side.tell_member(v.Start())

    def find(self, within_s: float) -> None:
        del within_s  # the answer is under way

    def name(self) -> None:
        """Answer: nobody else has asked."""
        self.side.coordinate(7, "named", mandate=GrantedMandate(float("inf")))

    def announce(self, place: m.Place, members: Sequence[RosterEntry]) -> None:
        raise AssertionError(f"nobody was elected: {place}, {members}")

    def remember(self) -> None:
        raise AssertionError("there is no round")

    def pass_on(self, command: v.CoordinatorCommand) -> None:
        self.side.perform(command)

    def end(self) -> None:
        self.resigned += 1

    def close(self, *, is_over: bool, on_closed: Callable[[], None]) -> None:
        del is_over
        on_closed()


def test_it_resigns_at_once_and_waits_for_nobody() -> None:
    """Else it would decide for the others without a node, for as long as they go on."""
    registry, told, closed = _Slow(), list[object](), list[bool]()
    loop, listener = Loop(), socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    port = listener.getsockname()[1]
    rendezvous = NodeRendezvous(
        loop,
        node=Node(name="n1", incarnation="i1", address="127.0.0.1", port=port, slots=1),
        settings=SETTINGS,
        registry=registry,
        listener=listener,
        on_notice=told.append,
        on_event=told.append,
    )
    rendezvous.open()
    rendezvous.request(ports.DrainRequested(reason="SIGTERM", grace_s=5.0))
    assert [notice.result for notice in told if isinstance(notice, ports.JobOver)] == ["drained"]
    registry.name()
    assert [event.term for event in told if isinstance(event, events.CoordinatorSteppedDown)] == [7]
    assert registry.resigned == 1
    rendezvous.close(lambda: closed.append(True))
    assert closed
    listener.close()
    loop.close()
