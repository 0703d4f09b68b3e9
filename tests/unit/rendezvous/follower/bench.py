"""The follower of n2, and everything it commanded since the last look."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import End, Record, Term
from pytest_elastic.rendezvous.follower.connection import ConnectionPhase
from pytest_elastic.rendezvous.follower.follower import Follower
from pytest_elastic.rendezvous.follower.worker_group import GroupPhase
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.settings import Settings
from tests.unit.rendezvous.samples import FOUNDING, decided, leader_address, record_of

__all__ = [
    "ACCEPTED",
    "APPEND",
    "FOUND",
    "LEADER",
    "MAJORITY",
    "ROUND",
    "SETTINGS",
    "STARTED",
    "TERM",
    "Bench",
    "append_end",
    "following",
    "joined",
    "over",
    "running",
]

SETTINGS = Settings(run_id="r", min_nodes=1, max_nodes=3, max_restarts=1, join_timeout_s=60.0)
MAJORITY = replace(SETTINGS, quorum="majority")
NODE = Node(name="n2", incarnation="n2", address="n2", port=2, slots=2)
TERM = Term(4, "n1")
LEADER = leader_address("n1", 4)
FOUND = v.LeaderFound(leader=LEADER)
ACCEPTED = m.JoinAccepted(
    term=TERM,
    name="n2",
    leader="n1",
    resumed=False,
    is_over=False,
    is_founding=False,
    number=0,
    lease_s=None,
)
ROUND = replace(record_of(7, "n1", "n2", counter=4), restart_count=1, max_restarts=1)
APPEND = m.AppendRecord(term=TERM, record=ROUND, base=FOUNDING)
STARTED = replace(decided(ROUND), store_port=99)

_INPUTS = (
    v.Start,
    v.Bootstrap,
    v.LeaderFound,
    v.LeaderNotFound,
    v.LeaderHeard,
    v.EndHeard,
    v.Connected,
    v.DialFailed,
    v.ConnectionLost,
    v.MessageReceived,
    v.Asked,
    v.Answered,
    v.TimePassed,
    ports.StoreOpened,
    ports.GroupSucceeded,
    ports.GroupFailed,
    ports.WorkersGone,
    ports.DrainRequested,
)


class Bench:
    """A follower that is told things one by one."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.follower = Follower(node=NODE, settings=settings)
        self.now = 100.0
        self.commands: list[v.FollowerCommand] = []

    def give(self, *inputs: Any, after_s: float = 0.0) -> None:  # noqa: ANN401 (inputs and orders)
        """Hand in inputs; what is none is what the leader says."""
        self.now += after_s
        for given in inputs:
            said = given if isinstance(given, _INPUTS) else v.MessageReceived(message=given)
            self.commands += self.follower.step(said, self.now)

    def taken(self) -> list[v.FollowerCommand]:
        """Return the commands since the last look, beats left out."""
        commands, self.commands = self.commands, []
        return [
            command
            for command in commands
            if not (isinstance(command, v.Send) and isinstance(command.message, m.Heartbeat))
        ]

    def said(self) -> list[m.Report]:
        """Return what was said to the leader since the last look, beats left out."""
        return [command.message for command in self.taken() if isinstance(command, v.Send)]

    def told(self) -> list[ports.Notice]:
        """Return what the agent was told since the last look."""
        return [command.notice for command in self.taken() if isinstance(command, v.Notify)]

    def pass_time(self, until: float) -> None:
        """Let timers run as a driver does, until a time."""
        while (wake := self.follower.wake_at()) is not None and wake <= until:
            self.now = max(self.now, wake)
            self.commands += self.follower.step(v.TimePassed(), self.now)
        self.now = max(self.now, until)

    def expect(
        self, connection: ConnectionPhase | None = None, group: GroupPhase | None = None
    ) -> None:
        """See what stands between the node and its leader, and what its workers are doing."""
        if connection is not None:
            assert self.follower.connection is connection
        if group is not None:
            assert self.follower.group is group


def joined(settings: Settings = SETTINGS) -> Bench:
    """Return a follower that was accepted under term 4."""
    bench = Bench(settings)
    bench.give(v.Start(), FOUND, v.Connected(), ACCEPTED)
    bench.expect(ConnectionPhase.JOINED)
    bench.taken()
    return bench


def running(settings: Settings = SETTINGS) -> Bench:
    """Return a follower whose workers run in round 7."""
    bench = joined(settings)
    bench.give(APPEND, STARTED)
    bench.expect(group=GroupPhase.RUNNING)
    bench.taken()
    return bench


def following() -> Bench:
    """Return one that runs in a job with succession."""
    return running(MAJORITY)


def append_end(number: int = 8, *, result: str = "failed") -> m.AppendRecord:
    """Return the order to accept the end of the job, after round 7."""
    return m.AppendRecord(term=TERM, record=end_record(number, result=result), base=ROUND)


def end_record(number: int = 8, *, result: str = "failed") -> Record:
    """Return the record of the end of the job, after round 7."""
    return replace(ROUND, number=number, end=End(result=result, reason="x"))


def over(bench: Bench) -> ports.JobOver:
    """Return the last word to the agent; this node is not needed for a moment longer."""
    *_, last, released = bench.taken()
    assert released == v.Released()
    assert isinstance(last, v.Notify)
    assert isinstance(last.notice, ports.JobOver)
    return last.notice
