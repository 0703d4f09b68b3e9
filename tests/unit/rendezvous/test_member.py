"""The member by itself: one input, the commands it gives."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.member import (
    LINK_ALLOWED,
    PART_ALLOWED,
    Link,
    MemberMachine,
    Part,
)
from pytest_elastic.rendezvous.model import Node, RosterEntry, Settings

SETTINGS = Settings(run_id="r", min_nodes=1, max_nodes=3, max_restarts=1, join_timeout_s=60.0)
NODE = Node(name="n2", incarnation="i2", address="n2", port=2, slots=2)
ROSTER = tuple(
    RosterEntry(name=f"n{number}", incarnation=f"i{number}", address=f"n{number}", slots=2)
    for number in (1, 2)
)
FOUND = v.CoordinatorFound(address="n1", port=1, term=4, incarnation="i1")
SEAL = m.Seal(term=4, round=7, roster=ROSTER, spares=(), restart_count=1, max_restarts=1)
COMMIT = m.Commit(term=4, round=7, store_address="n1", store_port=99)


class Bench:
    """A member, and everything it commanded since the last look."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.member = MemberMachine(node=NODE, settings=settings)
        self.now = 100.0
        self.commands: list[v.MemberCommand] = []

    def give(self, *inputs: v.MemberInput | m.Message, after_s: float = 0.0) -> None:
        """Hand in inputs; messages are what the coordinator says."""
        self.now += after_s
        for given in inputs:
            if isinstance(given, _INPUTS):
                self.commands += self.member.step(given, self.now)
            else:
                said = v.MessageReceived(message=given)  # type: ignore[arg-type]  # what is left
                self.commands += self.member.step(said, self.now)

    def taken(self) -> list[v.MemberCommand]:
        """Return the commands since the last look, beats left out."""
        commands, self.commands = self.commands, []
        return [
            command
            for command in commands
            if not (isinstance(command, v.Send) and isinstance(command.message, m.Beat))
        ]

    def pass_time(self, until: float) -> None:
        """Let timers run as a driver does, until a time."""
        while (wake := self.member.wake_at()) is not None and wake <= until:
            self.now = max(self.now, wake)
            self.commands += self.member.step(v.TimePassed(), self.now)
        self.now = until


_INPUTS = (
    v.Start,
    v.CoordinatorFound,
    v.CoordinatorNotFound,
    v.Connected,
    v.DialFailed,
    v.ConnectionLost,
    v.Announced,
    v.EndHeard,
    v.MessageReceived,
    v.TimePassed,
    ports.StoreOpened,
    ports.GroupSucceeded,
    ports.GroupFailed,
    ports.WorkersGone,
    ports.DrainRequested,
)


def following() -> Bench:
    """Return a member of a job with succession, welcomed under term 4, that has lost n1 since."""
    bench = Bench(dataclasses.replace(SETTINGS, quorum="majority"))
    bench.give(v.Start(), FOUND, v.Connected())
    bench.give(m.Welcome(term=4, name="n2", coordinator="n1", incarnation="i1"), SEAL, COMMIT)
    return bench


def test_an_announcement_is_void_when_another_coordinator_goes_on() -> None:
    """It has heard of no end, and will say so if it does."""
    bench = following()
    bench.give(m.JobEnding(term=4, result="failed", reason="x"))
    assert bench.member.ending is not None
    bench.give(v.ConnectionLost(reason="cut"))
    bench.give(v.Announced(place=m.Place(term=5, name="n3", incarnation="i3", address="a", port=3)))
    bench.pass_time(bench.now)
    bench.give(v.Connected())
    bench.give(m.Welcome(term=5, name="n2", coordinator="n3", incarnation="i3", resumed=True))
    assert bench.member.link is Link.JOINED
    assert bench.member.ending is None


@pytest.mark.parametrize(("term", "told"), [(3, None), (4, 5)])
def test_a_second_coordinator_under_one_term_is_told_by_a_member_of_the_first(
    term: int, told: int | None
) -> None:
    """Both have to go, and nobody else may know of both; an older one is no second."""
    bench = following()
    bench.taken()
    bench.give(
        v.Announced(place=m.Place(term=term, name="n3", incarnation="i3", address="a", port=3))
    )
    bench.pass_time(bench.now)
    bench.give(v.Connected())
    hellos = [c.message for c in bench.taken() if isinstance(c, v.Send)]
    assert [h.term for h in hellos if isinstance(h, m.Hello)] == ([] if told is None else [told])


def held_by(bench: Bench) -> str | None:
    """Return the result of the end that a member was told of."""
    return None if bench.member.ending is None else bench.member.ending.result


@pytest.mark.parametrize(("term", "held"), [(3, None), (4, "failed")])
def test_an_announcement_is_heard_of_by_who_has_lost_its_coordinator(
    term: int, held: str | None
) -> None:
    """One of an older coordinator means nothing; nobody goes by any at once."""
    bench = following()
    heard = v.EndHeard(ending=m.JobEnding(term=term, result="failed", reason="x"), holds=False)
    bench.give(heard)
    assert held_by(bench) is None
    bench.give(v.ConnectionLost(reason="cut"), heard)
    assert held_by(bench) == held
    assert bench.member.link is not Link.OVER


def joined() -> Bench:
    """Return a member that was welcomed."""
    bench = Bench()
    bench.give(v.Start(), FOUND, v.Connected())
    bench.give(m.Welcome(term=4, name="n2", coordinator="n1", incarnation="i1"))
    bench.taken()
    return bench


def running() -> Bench:
    """Return a member whose workers run."""
    bench = joined()
    bench.give(SEAL, COMMIT)
    bench.taken()
    return bench


def over(bench: Bench) -> ports.JobOver:
    """Return the last word to the agent; this node is not needed for a moment longer."""
    *_, last, released = bench.taken()
    assert released == v.Released()
    assert isinstance(last, v.Notify)
    assert isinstance(last.notice, ports.JobOver)
    return last.notice


def test_one_that_was_elected_and_is_published_is_told_of_a_second_one() -> None:
    """This node has obeyed another under that term: it goes there, and tells a higher one."""
    bench = Bench(dataclasses.replace(SETTINGS, quorum="majority"))
    welcome = m.Welcome(term=4, name="n2", coordinator="n1", incarnation="i1")
    went = m.StepDown(term=4, reason="n3 has acknowledged round 8")
    bench.give(v.Start(), FOUND, v.Connected(), welcome, SEAL, went)
    bench.pass_time(bench.now + 1.0)
    bench.give(v.CoordinatorFound(address="n3", port=3, term=4, incarnation="i3"), v.Connected())
    hellos = [c.message for c in bench.taken() if isinstance(c, v.Send)]
    assert [(h.term, h.meant_for) for h in hellos if isinstance(h, m.Hello)][1:] == [(5, "i3")]


def test_it_looks_for_the_coordinator_dials_it_and_greets() -> None:
    """Each step follows the answer to the one before."""
    bench = Bench()
    bench.give(v.Start())
    assert [type(command) for command in bench.taken()] == [v.FindCoordinator]
    bench.give(FOUND)
    assert [type(command) for command in bench.taken()] == [v.Dial]
    bench.give(v.Connected())
    [greeting] = bench.taken()
    assert isinstance(greeting, v.Send)
    assert isinstance(greeting.message, m.Hello)
    assert greeting.message.resumes_round == 0


def test_the_first_beat_follows_the_welcome_at_once() -> None:
    """The lease of the first round must not wait for a beat interval."""
    bench = Bench()
    bench.give(v.Start(), FOUND, v.Connected())
    bench.commands.clear()
    bench.give(m.Welcome(term=4, name="n2", coordinator="n1", incarnation="i1"))
    assert bench.commands == [v.Send(message=m.Beat(count=1, echo=0))]


def test_a_seal_is_acknowledged_and_a_commit_starts_workers_with_their_lease() -> None:
    """The keeper knows its deadline before there is anything to kill."""
    bench = joined()
    bench.give(SEAL)
    assert bench.taken() == [v.Send(message=m.SealAcknowledged(term=4, round=7))]
    bench.give(COMMIT)
    lease, start = bench.taken()
    assert lease == v.Notify(notice=ports.LeaseExtended(until=105.0))
    assert isinstance(start, v.Notify)
    assert isinstance(start.notice, ports.StartWorkers)
    assert start.notice.assignment.group_rank == 1
    assert start.notice.assignment.store_port == 99


@pytest.mark.parametrize(
    "order",
    [
        dataclasses.replace(SEAL, term=3),
        dataclasses.replace(COMMIT, term=3),
        m.StopOrder(term=3, round=7, grace_s=1.0, reason=""),
        m.Evicted(term=3, round=7, reason=""),
        m.JobEnding(term=3, result="succeeded", reason=""),
        m.JobEnded(term=3),
        m.LeaveGranted(term=3, reason=""),
    ],
    ids=lambda order: type(order).__name__,
)
def test_orders_of_another_term_change_nothing(order: m.Message) -> None:
    """A coordinator of before has nothing to say."""
    bench = running()
    bench.give(order)
    assert bench.taken() == []
    assert bench.member.part is Part.RUNNING


def test_a_welcome_of_an_older_term_is_not_believed() -> None:
    """Whoever decides under an older term than this node has seen was replaced."""
    bench = running()
    bench.give(v.ConnectionLost(reason="reset"), v.Connected())
    bench.give(m.Welcome(term=3, name="n2", coordinator="n9", incarnation="i9", resumed=True))
    assert bench.member.link is Link.RESTING


def test_with_contact_lost_it_holds_dials_again_and_resumes() -> None:
    """SIGSTOP first, then the network; the greeting names the round it stands by."""
    bench = running()
    bench.give(v.ConnectionLost(reason="reset"))
    hold, dial = bench.taken()
    assert isinstance(hold, v.Notify)
    assert isinstance(hold.notice, ports.HoldWorkers)
    assert dial == v.Dial(address="n1", port=1, answer_within_s=5.0)
    bench.give(v.Connected())
    [greeting] = bench.taken()
    assert isinstance(greeting, v.Send)
    assert isinstance(greeting.message, m.Hello)
    assert greeting.message.resumes_round == 7
    bench.give(m.Welcome(term=4, name="n2", coordinator="n1", incarnation="i1", resumed=True))
    assert v.Notify(notice=ports.ReleaseWorkers(round=7)) in bench.taken()


def test_it_fences_at_the_deadline_it_told_the_keeper() -> None:
    """Both look at the same moment; whoever is there first kills."""
    bench = running()
    bench.pass_time(until=104.74)
    assert not [c for c in bench.taken() if isinstance(c, v.Notify)]
    bench.pass_time(until=104.76)
    notices = [command.notice for command in bench.taken() if isinstance(command, v.Notify)]
    assert [type(notice) for notice in notices] == [ports.Fence]


def test_after_fencing_it_greets_as_a_newcomer_and_not_before_all_is_dead() -> None:
    """A greeting that resumes nothing is a promise that nothing runs."""
    bench = running()
    bench.pass_time(until=106.0)
    assert not [c for c in bench.taken() if isinstance(c, v.Dial | v.FindCoordinator)]
    bench.give(ports.WorkersGone(round=7))
    assert [type(command) for command in bench.taken()] == [v.FindCoordinator]
    bench.give(FOUND, v.Connected())
    greeting = bench.taken()[-1]
    assert isinstance(greeting, v.Send)
    assert isinstance(greeting.message, m.Hello)
    assert greeting.message.resumes_round == 0
    assert greeting.message.newest_round == 7
    assert greeting.message.restarts_used == 1


def test_a_tombstone_at_the_door_ends_the_search() -> None:
    """The keeper of the coordinator's agent answers the greeting: the job is lost."""
    bench = running()
    bench.give(v.ConnectionLost(reason="reset"), v.Connected())
    bench.taken()
    bench.give(m.ProbeAnswer(incarnation="i1", is_tombstone=True))
    last = over(bench)
    assert last.result == "lost"
    assert "lost n1 (n1:1)" in last.reason


def test_the_tombstone_of_somebody_else_proves_nothing() -> None:
    """Another job's keeper may have got the port."""
    bench = running()
    bench.give(v.ConnectionLost(reason="reset"), v.Connected())
    bench.give(m.ProbeAnswer(incarnation="another", is_tombstone=True))
    assert bench.member.link is Link.RESTING


def test_a_node_that_never_joined_gives_up_after_the_join_timeout() -> None:
    """It names the last problem."""
    bench = Bench()
    bench.give(v.Start())
    while bench.member.link is not Link.OVER:
        bench.give(v.CoordinatorNotFound(reason="connection refused"), after_s=1.0)
        bench.pass_time(until=bench.now + 0.2)
        assert bench.now < 200.0
    last = over(bench)
    assert last.result == "lost"
    assert "no coordinator was reached within 60 s (connection refused)" in last.reason
    assert 160.0 <= bench.now < 162.0


def test_a_driver_that_breaks_its_promise_to_answer_is_not_waited_for_for_ever() -> None:
    """Lookups, dials and greetings have a deadline here too."""
    bench = Bench()
    bench.give(v.Start())
    bench.pass_time(until=107.0)
    assert bench.member.link is Link.SEEKING  # asked again
    assert len([c for c in bench.taken() if isinstance(c, v.FindCoordinator)]) == 2
    bench.give(FOUND)
    bench.pass_time(until=120.0)  # the dial is given up, and the coordinator looked for again
    asked = [type(c) for c in bench.taken() if isinstance(c, v.Hangup | v.FindCoordinator)]
    assert asked[:2] == [v.Hangup, v.FindCoordinator]


def test_a_repeated_seal_is_acknowledged_again_and_a_repeated_commit_starts_nothing_twice() -> None:
    """What is said again after a reconnection harms nothing."""
    bench = joined()
    bench.give(SEAL, SEAL)
    assert bench.taken() == 2 * [v.Send(message=m.SealAcknowledged(term=4, round=7))]
    bench.give(COMMIT, SEAL, COMMIT)
    starts = [
        command
        for command in bench.taken()
        if isinstance(command, v.Notify) and isinstance(command.notice, ports.StartWorkers)
    ]
    assert len(starts) == 1


def test_after_the_last_word_nothing_is_said_or_done() -> None:
    """The machine is finished, whatever still arrives."""
    bench = running()
    bench.give(m.JobEnding(term=4, result="succeeded", reason=""), m.JobEnded(term=4))
    assert over(bench).result == "succeeded"
    bench.give(COMMIT, v.TimePassed(), ports.WorkersGone(round=7), after_s=100.0)
    assert bench.taken() == []
    assert bench.member.wake_at() is None


def test_its_own_coordinator_needs_no_lease() -> None:
    """In one process, nothing can come between them: no deadline, and no loss by silence."""
    bench = Bench()
    bench.give(v.Start(), dataclasses.replace(FOUND, is_here=True), v.Connected())
    bench.give(m.Welcome(term=4, name="n2", coordinator="n2", incarnation="i1"), SEAL, COMMIT)
    assert v.Notify(notice=ports.LeaseExtended(until=None)) in bench.taken()
    bench.pass_time(until=1000.0)
    assert bench.member.part is Part.RUNNING


@pytest.mark.parametrize("link", Link)
def test_only_listed_changes_of_the_link_are_possible(link: Link) -> None:
    """Anything else is a bug, and leaves everything as it was."""
    for target in set(Link) - LINK_ALLOWED[link]:
        member = MemberMachine(node=NODE, settings=SETTINGS)
        member._link.phase = link
        with pytest.raises(AssertionError, match="cannot go"):
            member._link.become(target)
        assert member.link is link


@pytest.mark.parametrize("part", Part)
def test_only_listed_changes_of_the_part_are_possible(part: Part) -> None:
    """Anything else is a bug, and leaves everything as it was."""
    for target in set(Part) - PART_ALLOWED[part]:
        member = MemberMachine(node=NODE, settings=SETTINGS)
        member._part.phase = part
        with pytest.raises(AssertionError, match="cannot go"):
            member._part.become(target)
        assert member.part is part


def test_a_spare_knows_how_many_restarts_were_used() -> None:
    """It may be the only one that is left of the job, and greets who serves the endpoint again."""
    bench = joined()
    bench.give(m.SpareNotice(term=4, round=7, reason="full", restarts_used=2))
    bench.taken()
    bench.give(v.ConnectionLost(reason="reset"), v.Connected())
    [hello] = [each.message for each in bench.taken() if isinstance(each, v.Send)]
    assert isinstance(hello, m.Hello)
    assert (hello.newest_round, hello.restarts_used) == (7, 2)
