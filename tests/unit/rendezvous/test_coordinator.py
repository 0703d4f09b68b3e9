"""The coordinator by itself: many members at once, and members that misbehave."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.coordinator import ALLOWED, CoordinatorMachine, Phase
from pytest_elastic.rendezvous.greeting import settings_as_values
from pytest_elastic.rendezvous.model import Node, Settings


def node(number: int) -> Node:
    """Return the node of a number, which is also the id of its connection."""
    return Node(name=f"n{number}", incarnation=f"i{number}", address="a", port=number, slots=1)


class Bench:
    """A coordinator on n1, and everything it commanded."""

    def __init__(self, low: int, high: int, *, quorum: str = "coordinator") -> None:
        self.settings = Settings(
            run_id="r",
            min_nodes=low,
            max_nodes=high,
            max_restarts=1,
            last_call_s=1.0,
            quorum=quorum,
        )
        self.machine = CoordinatorMachine(settings=self.settings, node=node(1), term=1, now=0.0)
        self.now = 0.0
        self.commands: list[v.CoordinatorCommand] = []
        self.never_checks: set[int] = set()

    def give(self, given: v.CoordinatorInput) -> None:
        """Hand in one input; who is asked whom it reaches, reaches everybody, or does not say."""
        commands = self.machine.step(given, self.now)
        self.commands += commands
        for command in commands:
            if isinstance(command, v.SendTo) and isinstance(command.message, m.CheckPeers):
                order = command.message
                if command.connection in self.never_checks:
                    continue
                checked = m.PeersChecked(term=order.term, number=order.number, unreached={})
                self.give(v.PeerMessage(connection=command.connection, message=checked))

    def say(self, number: int, message: m.Message) -> None:
        """Let a node say something."""
        self.give(v.PeerMessage(connection=number, message=message))

    def greet(self, *numbers: int) -> None:
        """Let nodes greet."""
        for number in numbers:
            hello = m.Hello(
                run_id="r", node=node(number), settings=settings_as_values(self.settings)
            )
            self.say(number, hello)

    def beat(self, *numbers: int) -> None:
        """Let nodes beat that have heard all that was said to them."""
        for number in numbers:
            heard = [
                command.message.count
                for command in self.commands
                if isinstance(command, v.SendTo)
                and isinstance(command.message, m.Beat)
                and command.connection == number
            ]
            self.say(number, m.Beat(count=int(self.now), echo=max(heard, default=0)))

    def sent(self, kind: type[m.Message]) -> list[int]:
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

    def run_round(self, *numbers: int) -> int:
        """Acknowledge the newest seal and open its store; return the round."""
        seal = next(
            command.message
            for command in reversed(self.commands)
            if isinstance(command, v.SendTo) and isinstance(command.message, m.Seal)
        )
        for number in numbers:
            self.say(number, m.SealAcknowledged(term=1, round=seal.round))
        host = int(seal.roster[0].name[1:])
        self.say(host, ports.StoreOpened(round=seal.round, address="a", port=5))
        return seal.round


def running(*numbers: int, low: int = 1) -> Bench:
    """Return a coordinator whose first round runs."""
    bench = Bench(low, len(numbers))
    bench.greet(*numbers)
    bench.run_round(*numbers)
    assert bench.machine.phase is Phase.RUNNING
    bench.now = 60.0
    for number in numbers:
        bench.say(number, m.Beat(count=1, echo=0))
    bench.commands.clear()
    return bench


def test_messages_per_node_and_round_do_not_grow_with_the_number_of_nodes() -> None:
    """Welcome, seal, commit, stop, and the question before a seal: however many nodes there are."""
    per_node = set()
    for count in (3, 30, 300):
        bench = Bench(count, count)
        numbers = range(1, count + 1)
        bench.greet(*numbers)
        round_ = bench.run_round(*numbers)
        bench.now = 60.0
        bench.say(2, ports.WorkersGone(round=round_))
        to = Counter(c.connection for c in bench.commands if isinstance(c, v.SendTo))
        per_node.add(max(to.values()))
        assert len(bench.commands) < 8 * count
    assert per_node == {6}


def test_a_round_of_ten_thousand_nodes_is_sealed_and_stopped_in_seconds() -> None:
    """No step looks at all nodes unless it says something to all of them."""
    count = 10_000
    bench = Bench(count, count)
    numbers = range(1, count + 1)
    began = time.process_time()
    bench.greet(*numbers)
    round_ = bench.run_round(*numbers)
    bench.now = 4.0
    for number in numbers:
        bench.say(number, m.Beat(count=1, echo=0))
    bench.say(7, ports.WorkersGone(round=round_))
    for number in numbers:
        bench.say(number, ports.WorkersGone(round=round_))
    assert len(bench.sent(m.Seal)) == 2 * count
    assert time.process_time() - began < 10.0


def test_a_member_that_never_says_whom_it_reaches_is_left_out_after_two_leases() -> None:
    """It beats, so that it is not lost; once it answers, it is in the next round."""
    bench = Bench(2, 3)
    bench.never_checks.add(3)
    bench.greet(1, 2, 3)
    for second in range(1, 11):
        assert not bench.sent(m.Seal)
        bench.now = float(second)
        bench.beat(1, 2, 3)
    assert sorted(bench.sent(m.Seal)) == [1, 2]
    assert bench.emitted(events.PeersUnreached) == 1
    bench.run_round(1, 2)
    bench.never_checks.clear()
    while not bench.sent(m.StopOrder) and bench.now < 60.0:
        bench.now += 1.0
        bench.beat(1, 2, 3)
    assert bench.sent(m.StopOrder) == [1, 2]


def test_a_member_that_sends_orders_is_disconnected_and_asked() -> None:
    """What only a coordinator may say ends the connection of whoever else says it."""
    bench = running(1, 2, 3)
    bench.say(2, m.JobEnded(term=1))
    assert v.Disconnect(connection=2) in bench.commands
    assert [c.name for c in bench.commands if isinstance(c, v.Probe)] == ["n2"]


def test_words_of_an_unknown_connection_are_not_heard() -> None:
    """Only greeted members have a say."""
    bench = running(1, 2)
    bench.say(99, ports.WorkersGone(round=1))
    bench.say(99, m.Beat(count=1, echo=0))
    assert bench.commands == []


@pytest.mark.parametrize(
    "stale",
    [
        ports.WorkersGone(round=7),
        ports.GroupSucceeded(round=7),
        ports.GroupFailed(round=7, failures=()),
        ports.StoreOpened(round=1, address="a", port=5),
        m.SealAcknowledged(term=1, round=1),
        m.EndAcknowledged(term=1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_news_of_another_round_or_time_change_nothing(stale: m.Message) -> None:
    """What arrives late, twice or from nowhere is not believed."""
    bench = running(1, 2)
    bench.say(2, stale)
    assert bench.commands == []
    assert bench.machine.phase is Phase.RUNNING


def test_without_its_own_agent_the_coordinator_ends_the_job() -> None:
    """Nobody in its own process takes part any more: it cannot go on serving the others."""
    bench = running(1, 2)
    bench.give(v.PeerLost(connection=1, reason="the member hung up"))
    assert bench.sent(m.StopOrder) == [2]
    bench.say(2, ports.WorkersGone(round=1))
    bench.give(v.ProbeAnswered(name="n1", incarnation="i1", outcome=v.Outcome.REFUSED))
    assert bench.sent(m.JobEnding) == [2]


def test_whoever_was_given_up_and_came_back_may_follow_one_that_leaves() -> None:
    """It is a newcomer, and has its voice in the last round still; the other is out of reach."""
    bench = Bench(3, 3, quorum="majority")
    bench.greet(1, 2, 3)
    round_ = bench.run_round(1, 2, 3)
    values = settings_as_values(bench.settings)
    bench.say(22, m.Hello(run_id="r", node=node(2), settings=values))
    bench.give(v.PeerLost(connection=3, reason="reset"))
    bench.say(1, ports.WorkersGone(round=round_))
    bench.say(1, ports.DrainRequested(reason="SIGTERM", grace_s=5.0))
    orders = [c.message for c in bench.commands if isinstance(c, v.SendTo)]
    assert [o.successor for o in orders if isinstance(o, m.StepDown)][:1] == ["i2"]
    assert not bench.sent(m.JobEnding)


def test_a_probe_that_is_answered_late_changes_nothing() -> None:
    """The suspect is back: whatever dialling it showed is out of date, but for a tombstone."""
    bench = running(1, 2)
    bench.give(v.PeerLost(connection=2, reason="reset"))
    hello = m.Hello(
        run_id="r",
        node=node(2),
        settings=settings_as_values(bench.settings),
        resumes_round=1,
    )
    bench.say(12, hello)
    bench.give(v.ProbeAnswered(name="n2", incarnation="i2", outcome=v.Outcome.REFUSED))
    assert bench.emitted(events.MemberLost) == 0
    bench.give(v.ProbeAnswered(name="n2", incarnation="i2", outcome=v.Outcome.TOMBSTONE))
    assert bench.emitted(events.MemberLost) == 1


def test_a_second_connection_of_a_member_replaces_the_first() -> None:
    """The member saw its connection end before the coordinator did."""
    bench = running(1, 2)
    hello = m.Hello(
        run_id="r",
        node=node(2),
        settings=settings_as_values(bench.settings),
        resumes_round=1,
    )
    bench.say(12, hello)
    assert v.Disconnect(connection=2) in bench.commands
    assert bench.sent(m.Welcome) == [12]
    bench.give(v.PeerLost(connection=2, reason="closed"))
    assert bench.machine.phase is Phase.RUNNING
    assert not [c for c in bench.commands if isinstance(c, v.Probe)]


def test_who_greets_after_finished_is_told_how_the_job_has_ended() -> None:
    """Nobody is waited for any more; whoever comes while the agent stays is told all the same."""
    bench = running(1, 2)
    for number in (1, 2):
        bench.say(number, ports.GroupSucceeded(round=1))
    for number in (1, 2):
        bench.say(number, m.EndAcknowledged(term=1))
    assert bench.commands[-1] == v.Finished(result="succeeded")
    assert bench.machine.wake_at() is None
    bench.commands.clear()
    bench.greet(3)
    (welcome,) = (command.message for command in bench.commands if isinstance(command, v.SendTo))
    assert isinstance(welcome, m.Welcome)
    assert welcome.ended is not None
    assert welcome.ended.result == "succeeded"
    bench.say(3, m.EndAcknowledged(term=1))
    bench.give(v.PeerLost(connection=3, reason="closed"))
    assert not [c for c in bench.commands if isinstance(c, v.Finished | v.Probe)]
    assert bench.machine.wake_at() is None


@pytest.mark.parametrize("knows", [True, False])
def test_who_comes_after_the_end_is_waited_for_until_it_knows(knows: bool) -> None:  # noqa: FBT001
    """Its connection may have ended before it could read what it was told."""
    bench = running(1, 2, 3)
    for number in (1, 2, 3):
        bench.say(number, ports.GroupSucceeded(round=1))
    bench.give(v.PeerLost(connection=3, reason="closed"))
    for number in (1, 2):
        bench.say(number, m.EndAcknowledged(term=1))
    assert bench.sent(m.JobEnded) == [1, 2]
    bench.greet(3)
    if knows:
        bench.say(3, m.EndAcknowledged(term=1))
    bench.give(v.PeerLost(connection=3, reason="closed"))
    has_finished = any(isinstance(command, v.Finished) for command in bench.commands)
    assert has_finished is knows


@pytest.mark.parametrize("is_heard", [True, False])
def test_an_end_that_others_know_to_hold_needs_no_majority_here(is_heard: bool) -> None:  # noqa: FBT001
    """Storm 73002035: they have ended that way, and come to no coordinator any more."""
    bench = Bench(2, 3, quorum="majority")
    bench.greet(1, 2, 3)
    bench.run_round(1, 2, 3)
    for number in (1, 2, 3):
        bench.say(number, ports.GroupSucceeded(round=1))
    bench.say(1, m.EndAcknowledged(term=1))
    if is_heard:
        ended = m.JobEnding(term=1, result="succeeded", reason="the workers of all nodes succeeded")
        bench.give(v.EndHeard(ending=ended))
    bench.now += bench.settings.lease_s + 0.1
    bench.give(v.TimePassed())
    assert bench.machine.phase is (Phase.OVER if is_heard else Phase.DEPOSED)


def test_whoever_dials_ends_no_job_that_runs() -> None:
    """Without a token anybody could; those whom the coordinator dials itself are asked."""
    bench = running(1, 2)
    bench.give(v.EndHeard(ending=m.JobEnding(term=1, result="failed", reason="forged")))
    assert bench.machine.phase is Phase.RUNNING


@pytest.mark.parametrize("phase", Phase)
def test_only_listed_changes_of_the_phase_are_possible(phase: Phase) -> None:
    """Anything else is a bug, and leaves everything as it was."""
    for target in set(Phase) - ALLOWED[phase]:
        machine = Bench(1, 1).machine
        machine.phase = phase
        with pytest.raises(AssertionError, match="cannot go"):
            machine._become(target)
        assert machine.phase is phase
