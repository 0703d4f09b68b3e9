"""A leader on n1 that begins a job, and everything it commanded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict, replace

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import Term, founding_record
from pytest_elastic.rendezvous.consensus.replication import Recovered
from pytest_elastic.rendezvous.leader.leader import Leader
from pytest_elastic.rendezvous.leader.state import LeaderPhase
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.settings import Settings

__all__ = ["TERM", "Bench", "node", "running"]

TERM = Term(1, "i1")


def node(number: int) -> Node:
    """Return the node of a number, which is also the id of its connection."""
    return Node(name=f"n{number}", incarnation=f"i{number}", address="a", port=number, slots=1)


class Bench:
    """A leader on n1 that founds a job of `low` to `high` nodes."""

    def __init__(self, low: int, high: int, *, quorum: str = "coordinator") -> None:
        self.settings = Settings(
            run_id="r",
            min_nodes=low,
            max_nodes=high,
            max_restarts=1,
            last_call_s=1.0,
            quorum=quorum,
        )
        self.now = 0.0
        base = founding_record([node(1)])
        recovered = Recovered(term=TERM, base=base, record=base, started=None, contact_at=0.0)
        self.machine = Leader(
            settings=self.settings, node=node(1), recovered=recovered, now=self.now
        )
        self.commands: list[v.LeaderCommand] = []
        self.never_dials: set[int] = set()

    def give(self, given: v.LeaderInput) -> None:
        """Hand in one input; who is asked whom it reaches, reaches everybody, or does not say."""
        commands = self.machine.step(given, self.now)
        self.commands += commands
        for command in commands:
            if isinstance(command, v.SendTo) and isinstance(command.message, m.DialPeers):
                order = command.message
                if command.connection in self.never_dials:
                    continue
                dialled = m.PeersDialled(term=order.term, number=order.number, unreached={})
                self.give(v.PeerMessage(connection=command.connection, message=dialled))

    def say(self, connection: int, message: Any) -> None:  # noqa: ANN401 (what no member may say, too)
        """Let the other end of a connection say something."""
        self.give(v.PeerMessage(connection=connection, message=message))

    def request(self, of: int, /, **changed: Any) -> m.JoinRequest:  # noqa: ANN401 (fields by name)
        """Return the join request of a node that knows of no job, but for these fields."""
        fresh = m.JoinRequest(
            run_id="r",
            node=node(of),
            settings=asdict(self.settings),
            resumes_round=0,
            term=Term(0, ""),
            number=0,
            restarts_used=0,
            meant_for="",
        )
        return replace(fresh, **changed)

    def join(self, *numbers: int) -> None:
        """Let nodes ask to join."""
        for number in numbers:
            self.say(number, self.request(number))

    def beat(self, *numbers: int) -> None:
        """Let nodes beat that have heard all that was said to them."""
        for number in numbers:
            heard = [beat.count for beat in self.messages(m.Heartbeat, to=number)]
            self.say(number, m.Heartbeat(count=int(self.now), echo=max(heard, default=0)))

    def messages(self, kind: type[Any], *, to: int | None = None) -> list[Any]:
        """Return what was sent of a kind, to one connection or to all, in order."""
        return [
            command.message
            for command in self.commands
            if isinstance(command, v.SendTo)
            and isinstance(command.message, kind)
            and to in {None, command.connection}
        ]

    def sent(self, kind: type[Any]) -> list[int]:
        """Return to whom a kind of message was sent, in order."""
        return [
            command.connection
            for command in self.commands
            if isinstance(command, v.SendTo) and isinstance(command.message, kind)
        ]

    def emitted(self, kind: type[events.Event]) -> int:
        """Return how often a kind of event was emitted."""
        return len(
            [c for c in self.commands if isinstance(c, v.Emit) and isinstance(c.event, kind)]
        )

    def accept(self, *numbers: int) -> m.AppendRecord:
        """Let nodes accept the newest record; return what they were sent."""
        append: m.AppendRecord = self.messages(m.AppendRecord)[-1]
        for number in numbers:
            self.say(number, m.RecordAccepted(term=TERM, number=append.record.number))
        return append

    def run_round(self, *numbers: int) -> int:
        """Let nodes accept the newest round, and the first of them open its store; return it."""
        record = self.accept(*numbers).record
        host = int(record.roster[0].name[1:])
        self.say(host, ports.StoreOpened(round=record.round, address="a", port=5))
        return record.round

    def expect(self, phase: LeaderPhase) -> None:
        """See that the leader is in a phase."""
        assert self.machine.phase is phase

    @property
    def refusals(self) -> Mapping[int, str]:
        """Return who was refused, and why."""
        return dict(
            zip(
                self.sent(m.Dismissed),
                [each.reason for each in self.messages(m.Dismissed)],
                strict=True,
            )
        )


def running(*numbers: int, low: int = 1, quorum: str = "coordinator") -> Bench:
    """Return a leader whose first round runs, 60 s later."""
    bench = Bench(low, len(numbers), quorum=quorum)
    bench.join(*numbers)
    bench.run_round(*numbers)
    bench.expect(LeaderPhase.RUNNING)
    if quorum == "coordinator":
        bench.now = 60.0
    for number in numbers:
        bench.say(number, m.Heartbeat(count=1, echo=0))
    bench.commands.clear()
    return bench
