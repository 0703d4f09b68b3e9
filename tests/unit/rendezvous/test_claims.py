"""Who of those who are ready is in the next round (R7, R11)."""

from __future__ import annotations

from pytest_elastic.rendezvous.liveness import GrantedLease
from pytest_elastic.rendezvous.model import Electorate, Node, Settings
from pytest_elastic.rendezvous.peer import Peer
from pytest_elastic.rendezvous.round import choose_roster

SETTINGS = Settings(run_id="job", min_nodes=1, max_nodes=4, max_restarts=3)


def waiting(*names: str) -> list[Peer]:
    """Return members that wait, in the order in which they came."""
    return [
        Peer(
            node=Node(name=name, incarnation=name, address=name, port=1, slots=1),
            connection=at,
            lease=GrantedLease(SETTINGS, 0.0),
            came_at=float(at),
        )
        for at, name in enumerate(names)
    ]


def electorate(*names: str) -> Electorate:
    """Return the roster of a round, decided by the first of them."""
    members = tuple(peer.as_entry() for peer in waiting(*names))
    return Electorate(term=1, round=1, coordinator=names[0], members=members)


def chosen(ready: list[Peer], most: int, *electorates: Electorate) -> set[str]:
    """Return the names of the next roster, of at most so many."""
    return {peer.node.name for peer in choose_roster(ready, None, most, electorates)}


def test_whoever_came_first_is_taken_where_nobody_has_a_voice() -> None:
    """And all of them where there is room."""
    assert chosen(waiting("b", "a", "c"), 2) == {"a", "b"}
    assert chosen(waiting("b", "a", "c"), 3) == {"a", "b", "c"}


def test_who_has_a_voice_that_the_round_needs_goes_before_who_came_first() -> None:
    """Storm 2001901: three of four who waited had a voice, and the fourth took the place of one."""
    ready = waiting("new", "a", "b", "c")
    assert chosen(ready, 3, electorate("lost", "a", "b", "c")) == {"a", "b", "c"}


def test_more_voices_go_before_fewer() -> None:
    """A round that may have been committed, and the one before it: both need a quorum."""
    ready = waiting("late", "a", "b", "c")
    both = electorate("x", "a", "b", "late"), electorate("x", "a", "b", "c")
    assert chosen(ready, 2, *both) == {"a", "b"}
