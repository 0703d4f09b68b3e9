"""Over real connections: a node is told at its port how the job has ended, and says so."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from pytest_elastic.loop import Loop
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.driver import NodeRendezvous
from pytest_elastic.rendezvous.inquiries import Inquiries
from pytest_elastic.rendezvous.model import Node, RosterEntry, Settings
from pytest_elastic.rendezvous.registry import NodeSide

LIMIT_S = 60.0
SETTINGS = Settings(
    run_id="r", min_nodes=1, max_nodes=3, max_restarts=1, quorum="majority", linger_s=0.0
)
ENDING = m.JobEnding(term=1, result="succeeded", reason="all is done")


class _Nowhere:
    """A registry at which nobody answers."""

    def open(self, side: NodeSide) -> None:
        self._side = side
        side.tell_member(v.Start())

    def find(self, within_s: float) -> None:
        del within_s
        self._side.tell_member(v.CoordinatorNotFound(reason="nobody answers"))

    def announce(self, place: m.Place, members: Sequence[RosterEntry]) -> None:
        raise AssertionError(f"nobody was elected: {place}, {members}")

    def remember(self) -> None:
        raise AssertionError("there is no round")

    def pass_on(self, command: v.CoordinatorCommand) -> None:
        raise AssertionError(f"nobody decides here: {command}")

    def end(self) -> None:
        """Nobody decides here."""

    def close(self, *, is_over: bool, on_closed: Callable[[], None]) -> None:
        del is_over
        on_closed()


class _Door:
    """A node that looks for its coordinator, and who calls at its port."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.notices: list[ports.Notice] = []
        self.answers: list[object] = []
        node = Node(name="n1", incarnation="i1", address="127.0.0.1", port=self.port, slots=1)
        self.rendezvous = NodeRendezvous(
            self.loop,
            node=node,
            settings=SETTINGS,
            registry=_Nowhere(),
            listener=self.listener,
            on_notice=self.notices.append,
            on_event=lambda _: None,
        )
        self.rendezvous.open()

    def tell(self, incarnation: str, run_id: str = "r") -> v.ProbeAnswered:
        """Tell an incarnation behind the port of the end; return what came of it."""
        caller = Inquiries(
            self.loop,
            run_id,
            credentials=None,
            tell_member=self.answers.append,
            tell_coordinator=self.answers.append,
        )
        probe = v.Probe(
            name="n1",
            incarnation=incarnation,
            address="127.0.0.1",
            port=self.port,
            answer_within_s=LIMIT_S,
            ended=ENDING,
        )
        caller.probe_for_member(probe)
        until = time.monotonic() + LIMIT_S
        while not self.answers:
            assert time.monotonic() < until, "nobody has answered"
            self.loop.run_once(1.0)
        answer = self.answers.pop()
        assert isinstance(answer, v.ProbeAnswered)
        return answer


@pytest.fixture
def door() -> Iterator[_Door]:
    """Return a node that looks for its coordinator."""
    door = _Door()
    yield door
    door.rendezvous.close(lambda: None)
    door.listener.close()
    door.loop.close()


def test_who_is_told_of_the_end_ends_and_says_so(door: _Door) -> None:
    """Whoever has told it need not tell it again."""
    assert door.tell("i1").ended == ENDING
    over = [notice for notice in door.notices if isinstance(notice, ports.JobOver)]
    assert [each.result for each in over] == ["succeeded"]


@pytest.mark.parametrize(
    ("incarnation", "run_id", "outcome"),
    [("i0", "r", v.Outcome.REFUSED), ("i1", "another", v.Outcome.ALIVE)],
)
def test_who_is_not_meant_hears_of_no_end(
    door: _Door, incarnation: str, run_id: str, outcome: v.Outcome
) -> None:
    """Who came back at the address of somebody that was lost is in no job yet."""
    answer = door.tell(incarnation, run_id)
    assert (answer.outcome, answer.ended) == (outcome, None)
    assert not any(isinstance(notice, ports.JobOver) for notice in door.notices)
