"""What nodes say, for tests that look for it among all that was said."""

from __future__ import annotations

from elastic_simulation.world import World

from pytest_elastic.rendezvous import messages as m

__all__ = [
    "asks_for_a_vote",
    "asks_who_is_reached",
    "has_accepted_the_end",
    "is_of_moment",
    "lets_go",
]


def asks_who_is_reached(message: object) -> bool:
    """Tell whether a message orders a follower to dial the others (R13)."""
    return isinstance(message, m.DialPeers)


def asks_for_a_vote(message: object) -> bool:
    """Tell whether a message asks for a vote in earnest."""
    if not isinstance(message, m.Question):
        return False
    return message.term is not None and not message.is_pre_vote


def is_of_moment(message: object, moment: str) -> bool:
    """Tell whether a message is of a moment of a round: "stop", "propose", "accept", "decide"."""
    kinds = {
        "stop": m.StopRound,
        "propose": m.AppendRecord,
        "accept": m.RecordAccepted,
        "decide": m.RecordDecided,
    }
    return isinstance(message, kinds[moment])


def lets_go(message: object) -> bool:
    """Tell whether a message lets a follower go that leaves."""
    return isinstance(message, m.Dismissed) and message.is_final


def has_accepted_the_end(world: World, name: str) -> bool:
    """Tell whether the newest message is a node's word that it knows the end."""
    _, source, _, message = world.sent[-1]
    return source == name and isinstance(message, m.RecordAccepted)
