"""Who may be in a round together, and how the leader finds that out (R13)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_elastic.rendezvous.consensus.records import Term
from pytest_elastic.rendezvous.consensus.replication import Recovered, Replication
from pytest_elastic.rendezvous.leader.members import Members
from pytest_elastic.rendezvous.leader.state import LeaderShared, Peer
from pytest_elastic.rendezvous.leases import GrantedLease
from pytest_elastic.rendezvous.messages import DialPeers, PeersDialled
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.reachability import (
    FULL_MESH,
    PeerDials,
    Reachability,
    mutually_reachable,
    neighbours,
)
from pytest_elastic.rendezvous.settings import Settings
from pytest_elastic.rendezvous.vocabulary import Answered, Emit, Outcome, SendTo
from tests.unit.rendezvous.samples import FOUNDING, entries

TERM = Term(1, "n0")
SETTINGS = Settings(run_id="job", min_nodes=1, max_nodes=100, max_restarts=3)
Reaches = Callable[[str, str], bool]


def cut(*parts: str) -> Reaches:
    """Return a network of several parts; who is in two of them is a bridge."""
    return lambda a, b: any(a in part.split() and b in part.split() for part in parts)


def unreached(names: Sequence[str], reaches: Reaches) -> Mapping[str, list[str]]:
    """Return what members would find if each dialled each."""
    return {a: [b for b in names if a != b and not reaches(a, b)] for a in names}


# --- who dials whom ------------------------------------------------------------------------------


@given(st.integers(min_value=2, max_value=200), st.data())
def test_some_dial_goes_across_every_cut(count: int, data: st.DataObject) -> None:
    """However a roster is cut in two, somebody notices."""
    side = set(data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=count - 1)))
    dials = {(a, b) for a in range(count) for b in neighbours(a, count)}
    assert any((a in side) != (b in side) for a, b in dials)
    assert all(a != b and 0 <= b < count for a, b in dials)


def test_a_large_roster_is_dialled_sparsely_and_a_small_one_fully() -> None:
    """Dials grow with the digits of the number of members; the host of the store gets all."""
    assert len(neighbours(5000, 10_000)) <= 15
    assert all(0 in neighbours(position, 100) for position in range(1, 100))
    assert len(neighbours(3, FULL_MESH)) == FULL_MESH - 1
    assert len(neighbours(3, 100, is_thorough=True)) == 99


# --- who is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "reaches", "kept"),
    [
        ("a b c", cut("a b c"), "a b c"),
        ("a b c", cut("a b", "a c"), "a b"),
        ("a b c d", cut("a b", "c d"), "a b"),
        ("a b c d e", cut("a b", "c d e"), "c d e"),
        ("a b c d e", cut("a b c", "c d e"), "a b c"),
        ("a b c d e", cut("a b c d", "e"), "a b c d"),
        ("a b c d e", cut("a b", "b c", "c d", "d e", "e a"), "a b"),
        ("a b c", lambda a, b: (a, b) != ("c", "b"), "a b"),
    ],
    ids=["whole", "one pair", "halves", "majority", "bridge", "one alone", "ring", "one-way"],
)
def test_the_largest_part_is_kept_and_of_equals_the_strongest(
    names: str, reaches: Reaches, kept: str
) -> None:
    """The order of the names is that of the claims."""
    claims = names.split()
    assert " ".join(mutually_reachable(claims, unreached=unreached(claims, reaches))) == kept


@given(
    st.integers(1, 12),
    st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=40),
)
def test_whoever_is_kept_reaches_all_others_and_nobody_is_left_out_in_vain(
    count: int, missing: Iterable[tuple[int, int]]
) -> None:
    """All of the set reach each other, it cannot be added to, and it keeps the order of claims."""
    names = [chr(ord("a") + index) for index in range(count)]
    pairs = {(names[a], names[b]) for a, b in missing if a != b and a < count and b < count}
    kept = mutually_reachable(names, unreached=unreached(names, lambda a, b: (a, b) not in pairs))
    apart = pairs | {(b, a) for a, b in pairs}
    assert list(kept) == sorted(kept)
    assert not any((a, b) in apart for a in kept for b in kept)
    assert all(any((out, one) in apart for one in kept) for out in set(names) - set(kept))


def test_newcomers_never_displace_survivors() -> None:
    """However many they are, those who were in the last round go before them."""
    survivors, newcomers = ["a", "b"], ["v", "w", "x", "y", "z"]
    reaches = cut("a b z", "a v w x y z")
    found = unreached([*survivors, *newcomers], reaches)
    assert mutually_reachable(survivors, newcomers, unreached=found) == ("a", "b", "z")


# --- a sweep -------------------------------------------------------------------------------------


class Bench:
    """What a leader knows, members that dial, and a network between them."""

    def __init__(self, count: int, reaches: Reaches) -> None:
        own = entries("n0")[0]
        recovered = Recovered(
            term=TERM, base=FOUNDING, record=FOUNDING, started=None, contact_at=0.0
        )
        replication = Replication(SETTINGS, "n0", recovered, 0.0)
        shared = LeaderShared(settings=SETTINGS, own=own, term=TERM, replication=replication)
        self.outbox, self.deadlines = shared.out, shared.deadlines
        self.members = Members(shared)
        self.peers = self.members.peers
        self.peers |= {f"n{index}": _peer(f"n{index}", index) for index in range(count)}
        self.reach = Reachability(shared, self.members)
        self.reaches = reaches
        self.diallers = {name: PeerDials() for name in self.peers}
        self.dials = 0

    def run(self, *, silent: str = "") -> None:
        """Let everybody dial and answer until nobody is asked; `silent` hears and says nothing."""
        while commands := self.outbox.take():
            for command in commands:
                if isinstance(command, Emit):
                    continue
                assert isinstance(command, SendTo)
                assert isinstance(command.message, DialPeers)
                name = f"n{command.connection}"
                if name != silent:
                    self.answer(name, command.message)

    def answer(self, name: str, order: DialPeers) -> None:
        dialler, report = self.diallers[name], None
        for probe in dialler.begin(order):
            self.dials += 1
            outcome = Outcome.ALIVE if self.reaches(name, probe.node.name) else Outcome.SILENT
            report = dialler.take(Answered(incarnation=probe.node.incarnation, outcome=outcome))
        report = report or dialler.answer()
        assert report is not None, "all have been dialled"
        self.reach.take(self.peers[name], report)


def _peer(name: str, connection: int) -> Peer:
    node = Node(name=name, incarnation=name, address=name, port=1, slots=1)
    return Peer(
        node=node,
        connection=connection,
        lease=GrantedLease(SETTINGS, 0.0),
        came_at=float(connection),
    )


def test_a_sweep_covers_its_roster_once_all_have_answered() -> None:
    """Not before; and a subset of it is covered too."""
    bench = Bench(4, cut("n0 n1 n2 n3"))
    everybody = [*bench.peers.values()]
    bench.reach.sweep(everybody)
    bench.run(silent="n2")
    assert bench.reach.is_pending
    assert not bench.reach.covers(everybody[:1])
    bench.reach.sweep(everybody)
    bench.run()
    assert bench.reach.covers(everybody)
    assert bench.reach.covers(everybody[:1])
    bench.reach.end_sweep()
    assert not bench.reach.covers(everybody[:1])


def test_an_order_that_is_said_again_is_answered_and_not_carried_out_again() -> None:
    """The answer may have been lost with the connection."""
    bench = Bench(2, cut("n0 n1"))
    bench.reach.sweep([*bench.peers.values()])
    orders = bench.outbox.take()
    for _ in range(2):
        for command in orders:
            assert isinstance(command, SendTo)
            assert isinstance(command.message, DialPeers)
            bench.answer(f"n{command.connection}", command.message)
    assert bench.dials == 2


@pytest.mark.parametrize("how", ["forget", "set_aside"])
def test_a_member_that_is_lost_is_not_waited_for(how: str) -> None:
    """Nor are those who still dial it: a new sweep is wanted at once."""
    bench = Bench(3, cut("n0 n1 n2"))
    bench.reach.sweep([*bench.peers.values()])
    getattr(bench.reach, how)("n2")
    del bench.peers["n2"]
    assert not bench.reach.is_pending
    assert not bench.reach.covers(bench.peers.values())
    bench.outbox.take()
    bench.reach.sweep([*bench.peers.values()])
    bench.run()
    assert bench.reach.covers(bench.peers.values())


def test_a_large_roster_with_a_gap_is_looked_at_closely() -> None:
    """Sparse dials show that there is a cut; all of them, where: the larger part is kept whole."""
    names = [f"n{index}" for index in range(40)]
    left = set(names[::3])
    bench = Bench(40, lambda a, b: (a in left) == (b in left))
    bench.reach.sweep([*bench.peers.values()])
    bench.run()
    assert bench.reach.covers(bench.peers.values())
    assert set(mutually_reachable(names, unreached=bench.reach.unreached)) == set(names) - left


def test_a_link_that_failed_is_known_until_its_own_end_has_tried_it_again() -> None:
    """What the other end reaches proves nothing about this direction."""
    network = {"is_whole": False}
    bench = Bench(3, lambda a, b: network["is_whole"] or (a, b) != ("n1", "n2"))
    reach = bench.reach
    assert reach.retries_at(0.0) is None
    reach.sweep([*bench.peers.values()])
    bench.run()
    assert reach.unreached == {"n1": {"n2": "silent"}}
    assert reach.retries_at(10.0) == 15.0
    reach.retry()
    bench.run()
    assert reach.unreached == {"n1": {"n2": "silent"}}
    assert bench.dials == 6 + 1
    network["is_whole"] = True
    reach.retry()
    bench.run()
    assert not reach.unreached
    assert reach.retries_at(20.0) is None


def test_who_cannot_hear_the_question_is_asked_at_a_later_look() -> None:
    """A suspect has no connection: a question to it would wait for its answer for ever."""
    bench = Bench(3, lambda a, b: (a, b) != ("n1", "n2"))
    bench.reach.sweep([*bench.peers.values()])
    bench.run()
    connection, bench.peers["n1"].connection = bench.peers["n1"].connection, None
    bench.reach.retry()
    bench.run()
    bench.peers["n1"].connection = connection
    before = bench.dials
    bench.reach.retry()
    bench.run()
    assert bench.dials == before + 1


def test_who_was_asked_again_and_says_nothing_is_asked_once_more() -> None:
    """Two leases after the question; not before, as dials that fail take one."""
    network = {"is_whole": False}
    bench = Bench(3, lambda a, b: network["is_whole"] or (a, b) != ("n1", "n2"))
    reach, overdue = bench.reach, bench.reach.overdue
    reach.sweep([*bench.peers.values()])
    bench.run()
    assert not overdue(0.0)
    reach.retry()
    bench.run(silent="n1")
    network["is_whole"] = True
    assert not overdue(5.0)
    reach.retry()
    bench.run()
    assert not overdue(14.9)
    ((silent, report),) = overdue(15.0)
    assert (silent.node.name, report.unreached) == ("n1", {"n2": "no answer"})
    reach.take(silent, report)
    assert reach.unreached == {"n1": {"n2": "no answer"}}
    reach.retry()
    bench.run()
    assert not reach.unreached
    assert not overdue(30.0)


def test_who_was_late_itself_waits_for_the_answers_anew() -> None:
    """They may be there, and not read yet."""
    bench = Bench(2, cut("n0 n1"))
    deadlines, members = bench.deadlines, bench.members
    bench.reach.sweep([*bench.peers.values()])
    bench.run(silent="n1")
    assert not bench.reach.overdue(0.0)
    assert deadlines.wake_at == 10.0
    deadlines.clear()
    members.judges_from = 61.0
    assert not bench.reach.overdue(60.0)
    assert deadlines.wake_at == 61.0
    ((silent, _),) = bench.reach.overdue(61.0)
    assert silent is bench.peers["n1"]


def test_answers_about_members_that_are_gone_leave_nothing_behind() -> None:
    """A node that left meanwhile is in no list, or a retry would look for it in vain."""
    bench = Bench(3, cut("n0 n1"))
    bench.reach.sweep([*bench.peers.values()])
    del bench.peers["n2"]
    bench.reach.forget("n2")
    order = bench.outbox.take()[0]
    assert isinstance(order, SendTo)
    assert isinstance(order.message, DialPeers)
    report = PeersDialled(term=TERM, number=order.message.number, unreached={"n2": "silent"})
    bench.reach.take(bench.peers["n0"], report)
    assert not bench.reach.unreached
    bench.reach.retry()
    assert not bench.outbox.take()


def test_a_member_that_was_just_dropped_is_dialled_by_nobody() -> None:
    """It is forgotten a moment after it is gone: storm 1001138 tried its link again in between."""
    bench = Bench(3, lambda a, b: (a, b) not in {("n1", "n2"), ("n2", "n1")})
    bench.reach.sweep([*bench.peers.values()])
    bench.run()
    assert set(bench.reach.unreached) == {"n1", "n2"}
    del bench.peers["n2"]
    assert not bench.reach.described()
    bench.reach.retry()
    assert not bench.outbox.take()
