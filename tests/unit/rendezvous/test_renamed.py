"""A node that was given another name decides, and is announced, under that one."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence

from pytest_elastic.loop import Loop
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.announcer import found_at, place_of
from pytest_elastic.rendezvous.driver import NodeRendezvous
from pytest_elastic.rendezvous.mandate import GrantedMandate
from pytest_elastic.rendezvous.model import Node, RosterEntry, Settings
from pytest_elastic.rendezvous.registry import NodeSide

SETTINGS = Settings(
    run_id="r", min_nodes=2, max_nodes=2, max_restarts=1, quorum="granted", linger_s=0.0
)
LIMIT_S = 30.0


class _Registry:
    """Names the node of one side, for all of its nodes."""

    def __init__(self, decider: list[NodeSide]) -> None:
        self._decider = decider

    def open(self, side: NodeSide) -> None:
        self.side = side
        if not self._decider:
            self._decider.append(side)
            side.coordinate(1, "named", mandate=GrantedMandate(float("inf")))
        side.tell_member(v.Start())

    def find(self, within_s: float) -> None:
        del within_s
        self.side.tell_member(found_at(place_of(self._decider[0].node, 1), is_here=False))

    def announce(self, place: m.Place, members: Sequence[RosterEntry]) -> None:
        raise AssertionError(f"nobody was elected: {place}, {members}")

    def remember(self) -> None:
        """Keep nothing."""

    def pass_on(self, command: v.CoordinatorCommand) -> None:
        self.side.perform(command)

    def end(self) -> None:
        """Nobody else is named."""

    def close(self, *, is_over: bool, on_closed: Callable[[], None]) -> None:
        del is_over
        on_closed()


@contextlib.contextmanager
def _two_of_one_name(loop: Loop) -> Iterator[tuple[NodeRendezvous, NodeRendezvous]]:
    decider = list[NodeSide]()
    with contextlib.ExitStack() as stack:
        nodes = []
        for incarnation in ("i1", "i2"):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            listener.setblocking(False)
            port = listener.getsockname()[1]
            rendezvous = NodeRendezvous(
                loop,
                node=Node(
                    name="host", incarnation=incarnation, address="127.0.0.1", port=port, slots=1
                ),
                settings=SETTINGS,
                registry=_Registry(decider),
                listener=listener,
                on_notice=lambda _: None,
                on_event=lambda _: None,
            )
            rendezvous.open()
            stack.callback(rendezvous.close, lambda: None)
            nodes.append(rendezvous)
        yield nodes[0], nodes[1]


def test_a_node_is_known_by_the_name_that_it_was_given() -> None:
    """The second of a name gets a suffix; a registry publishes what it is told is the node's."""
    loop = Loop()
    with _two_of_one_name(loop) as (first, second):
        deadline = loop.now() + LIMIT_S
        while second.member.node.name == "host":
            assert loop.now() < deadline
            loop.run_once(0.1)
        assert (first.node.name, second.node.name) == ("host", "host-2")
    loop.close()
