"""What waits until a commit is written down goes out in the order in which it was decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from pytest_elastic.backends.granted_registry import GrantedRegistry
from pytest_elastic.backends.registry_place import where_in_file
from pytest_elastic.loop import Loop
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.model import Node, Settings
from pytest_elastic.rendezvous.registry import NodeSide
from tests.unit.rendezvous.test_ballot import seal

SETTINGS = Settings(run_id="r", min_nodes=2, max_nodes=2, max_restarts=1, quorum="granted")


class _Calls:
    """A store that names whoever asks, and writes when a test says so."""

    def __init__(self) -> None:
        self.writing: list[Callable[[Any, str], None]] = []

    def ask_registry(
        self,
        kind: str,
        call: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        on_done: Callable[[Any, str], None],
    ) -> None:
        del kind, timeout_s
        if call == "campaign":
            found = {"is_won": True, "create_revision": 1, "lease": 1, "ending": "", "record": ""}
            on_done({**found, "value": arguments["value"], "ttl_s": arguments["ttl_s"]}, "")
        elif call == "record":
            self.writing.append(on_done)


class _Side:
    """A node whose own member answers the first commit at once; the coordinator then stops it."""

    def __init__(self) -> None:
        self.node = Node(name="n1", incarnation="n1", address="n1", port=1, slots=1)
        self.performed: list[tuple[int, str]] = []
        self.on_commit: Callable[[], None] = lambda: None

    def look_at_place(self, then: Callable[[], None]) -> None:
        then()

    def tell_member(self, given: v.MemberInput) -> None:
        """Its member plays no part here."""

    def tell_coordinator(self, given: v.CoordinatorInput) -> None:
        """Nor does its coordinator."""

    def coordinate(self, *_arguments: object, **_named: object) -> None:
        """It decides by now."""

    def perform(self, command: v.CoordinatorCommand) -> None:
        assert isinstance(command, v.SendTo)
        self.performed.append((command.connection, type(command.message).__name__))
        if isinstance(command.message, m.Commit) and command.connection == 1:
            self.on_commit()


def _to(connection: int, message: m.Order) -> v.SendTo:
    return v.SendTo(connection=connection, message=message)


def test_what_follows_from_a_commit_comes_after_it_at_every_node() -> None:
    """The own node is told in the midst of it, and what it answers may stop the round at once."""
    loop, calls, side = Loop(), _Calls(), _Side()
    where = where_in_file("/nowhere", "r")
    registry = GrantedRegistry(loop, settings=SETTINGS, where=where, calls=calls)
    registry.open(cast("NodeSide", side))
    registry.find(1.0)

    def decide(message: m.Order) -> None:
        for connection in (1, 2):
            registry.pass_on(_to(connection, message))

    def go_on() -> None:
        decide(m.StopOrder(term=1, round=1, grace_s=0.0, reason="it failed"))
        decide(seal(1, 2, "n1", "n2"))
        decide(m.Commit(term=1, round=2, store_address="n1", store_port=2))
        side.on_commit = lambda: None

    side.on_commit = go_on
    decide(seal(1, 1, "n1", "n2"))
    decide(m.Commit(term=1, round=1, store_address="n1", store_port=1))
    first = [(1, "Seal"), (2, "Seal")]
    assert side.performed == first
    calls.writing.pop()(True, "")
    first += [(1, "Commit"), (2, "Commit"), (1, "StopOrder"), (2, "StopOrder"), *first]
    assert side.performed == first
    (written,) = calls.writing
    written(True, "")
    assert side.performed == [*first, (1, "Commit"), (2, "Commit")]
    loop.close()
