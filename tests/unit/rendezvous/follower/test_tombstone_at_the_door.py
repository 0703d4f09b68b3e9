"""The follower by itself: what it makes of who answers in place of its leader."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import Configuration, Record, Term, founding_record
from pytest_elastic.rendezvous.follower.connection import ConnectionPhase
from pytest_elastic.rendezvous.follower.follower import Follower
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.settings import Settings

TERM = Term(1, "i1")
NODES = [
    Node(name=f"n{one}", incarnation=f"i{one}", address="a", port=one, slots=1) for one in (1, 2, 3)
]


class Bench:
    """The follower on n2, in a round of three under n1, and everything it commanded."""

    def __init__(self, quorum: str) -> None:
        settings = Settings(run_id="r", min_nodes=2, max_nodes=3, max_restarts=1, quorum=quorum)
        self.follower = Follower(node=NODES[1], settings=settings)
        self.commands: list[Any] = []
        leader = m.LeaderAddress(term=TERM, name="n1", incarnation="i1", address="a", port=1)
        voters = ("i1", "i2", "i3") if quorum == "majority" else ("i1",)
        record = Record(
            term=TERM,
            origin=TERM,
            number=1,
            round=1,
            roster=tuple(node for node in NODES),
            configuration=Configuration(voters=voters, tie_breaker="i1"),
        )
        self.give(v.Start())
        self.give(v.LeaderFound(leader=leader))
        self.give(v.Connected())
        accepted = m.JoinAccepted(
            term=TERM,
            name="n2",
            leader="n1",
            resumed=False,
            is_over=False,
            is_founding=False,
            number=0,
            lease_s=None,
        )
        self.hear(accepted)
        base = founding_record([NODES[0]])
        self.hear(m.AppendRecord(term=TERM, record=record, base=base))
        self.hear(m.RecordDecided(term=TERM, number=1, store_address="a", store_port=9))

    def give(self, given: v.FollowerInput, now: float = 0.0) -> None:
        """Hand in one input."""
        self.commands += self.follower.step(given, now)

    def hear(self, message: Any, now: float = 0.0) -> None:  # noqa: ANN401 (of this core)
        """Hand in a message from the other end of the connection."""
        self.give(v.MessageReceived(message=message), now)

    def lose_leader(self, answered_by: str) -> None:
        """Let the connection end, and the keeper of an incarnation answer the next join request."""
        self.give(v.ConnectionLost(reason="closed"), 1.0)
        self.give(v.Connected(), 1.0)
        assert self.follower.connection is ConnectionPhase.JOINING
        self.commands.clear()
        self.hear(m.Answer(incarnation=answered_by, is_tombstone=True), 1.0)

    def said(self, kind: type[Any]) -> list[Any]:
        """Return the commands of a kind, or what the agent was told of one."""
        told = [one.notice if isinstance(one, v.Notify) else one for one in self.commands]
        return [one for one in told if isinstance(one, kind)]


def test_the_tombstone_of_the_leader_lets_a_follower_stand_at_once() -> None:
    """Nobody needs to wait for the lease of an agent whose keeper says that it has ended."""
    bench = Bench("majority")
    bench.lose_leader("i1")
    wake_at = bench.follower.wake_at()
    assert wake_at is not None
    bench.give(v.TimePassed(), wake_at)
    assert [asked.node.incarnation for asked in bench.said(v.Ask)] == ["i1", "i3"]
    assert wake_at < 1.5


def test_the_tombstone_of_the_only_leader_ends_the_job() -> None:
    """Without succession the job ends with it."""
    bench = Bench("coordinator")
    bench.lose_leader("i1")
    assert [over.result for over in bench.said(ports.JobOver)] == ["lost"]


@pytest.mark.parametrize("quorum", ["coordinator", "majority"])
def test_the_tombstone_of_another_incarnation_proves_nothing(quorum: str) -> None:
    """Another job's keeper may have got the port: the lease is waited for."""
    bench = Bench(quorum)
    bench.lose_leader("i9")
    assert bench.follower.connection is ConnectionPhase.RESTING
    bench.give(v.TimePassed(), 1.5)
    assert not bench.said(ports.JobOver)
    assert not bench.said(v.Ask)
