"""Who of those who are ready is in the next round (R7, R11)."""

from __future__ import annotations

from pytest_elastic.rendezvous.liveness import GrantedLease
from pytest_elastic.rendezvous.model import Node, Settings
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


def chosen(ready: list[Peer], most: int) -> set[str]:
    """Return the names of the next roster, of at most so many."""
    return {peer.node.name for peer in choose_roster(ready, None, most)}


def test_whoever_came_first_is_taken() -> None:
    """And all of them where there is room."""
    assert chosen(waiting("b", "a", "c"), 2) == {"a", "b"}
    assert chosen(waiting("b", "a", "c"), 3) == {"a", "b", "c"}
