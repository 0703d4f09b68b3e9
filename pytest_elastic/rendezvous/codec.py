"""Messages as JSON objects, and which of them are believed: `encode` and `decode` are inverse.

Without a token any peer may claim any term or round, and a node that went on from there would soon
reach the largest number that a message may hold. So `what_is_unbelievable` finds numbers that are
further from what is known than a job can go in years (R15).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

import msgspec

from pytest_elastic.errors import RendezvousError
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.consensus.records import Record, Term
from pytest_elastic.rendezvous.messages import Heartbeat, LeaderAddress, RecordDecided
from pytest_elastic.rendezvous.vocabulary import Outcome
from pytest_elastic.wire import Message, Value

__all__ = [
    "FORMAT",
    "BadMessage",
    "Known",
    "decode",
    "encode",
    "is_believable",
    "outcome_of",
    "what_is_unbelievable",
]

# Raised whenever a message changes its meaning; nodes of different formats refuse each other (R14).
FORMAT = 3


class BadMessage(RendezvousError):
    """What arrived is not a message of ours; the connection it came on is of no use."""


# All that is sent, by what it says that it is. (msgspec looks a union's classes up each time.)
_CLASS_OF: Mapping[object, type[Message]] = {
    cls.__struct_config__.tag: cls for cls in get_args(m.Report | m.Order | m.Question | m.Answer)
}


def encode(message: Message) -> dict[str, Any]:
    """Return the message as a JSON object with its `format` and its `kind`."""
    return {"format": FORMAT, **msgspec.to_builtins(message)}


def decode(fields: Mapping[str, Any]) -> Any:  # noqa: ANN401 (any message)
    """Return the message that a JSON object stands for; raises BadMessage for anything else."""
    values = dict(fields)
    found_format = values.pop("format", None)
    if found_format != FORMAT:
        raise BadMessage(
            f"cannot read a message of format {found_format!r}: this node speaks format {FORMAT}."
            " All nodes of a job need the same version of pytest-elastic."
        )
    kind = values.get("kind")
    message_class = _CLASS_OF.get(kind) if isinstance(kind, str) else None
    if message_class is None:
        raise BadMessage(f"cannot read a message of the unknown kind {kind!r:.80}")
    try:
        return msgspec.convert(values, message_class)
    except msgspec.ValidationError as error:
        raise BadMessage(f"cannot read a {kind}: {error!s:.80}") from error


def outcome_of(message: object, incarnation: str) -> Outcome:
    """Tell what an answer shows; incarnation "" asks any agent."""
    match message:
        case m.StatusAnswer(incarnation=own) if incarnation in {"", own}:
            return Outcome.TOMBSTONE if message.is_tombstone else Outcome.ALIVE
        case m.VoteAnswer(voter=own) if incarnation in {"", own}:
            return Outcome.ALIVE
        case _:
            return Outcome.REFUSED


# 136 years of elections, one each second. Who wants to use up all numbers that way has to be
# believed two thousand million times, each of which costs an election.
_MOST_AHEAD = 2**32
# Of a job of which nothing is known: what is left above it is enough for all that follows.
_FARTHEST = 2**61
_NUMBERS = frozenset({"number", "round", "resumes_round", "higher"})
_RESTARTS = frozenset({"restarts_used", "restart_count"})
_NESTED = Record | LeaderAddress | RecordDecided


class Known(Value):
    """What a node knows: the counter of a term, the newest round (0: none), restarts allowed."""

    counter: int
    round: int
    max_restarts: int


def is_believable(number: int, known: int) -> bool:
    """Tell whether a term or a round may be that of a job that was at `known`, 0: not known."""
    return number <= (known + _MOST_AHEAD if known else _FARTHEST)


def what_is_unbelievable(message: Value, known: Known) -> str | None:
    """Say what a message tells that cannot be, None for nothing."""
    if isinstance(message, Heartbeat):  # most often, and it tells nothing
        return None
    for name, value in _numbers_in(message):
        if name in _RESTARTS:
            if value > known.max_restarts:
                return f"it tells of {value} restarts, and {known.max_restarts} are allowed"
        elif not is_believable(value, known.counter if name == "term" else known.round):
            return f"it tells of {name} {value}, to which no job comes"
    return None


def _numbers_in(message: Value) -> Iterator[tuple[str, int]]:
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if isinstance(value, Term):
            yield "term", value.counter
        elif name == "higher":
            yield "term", value
        elif name in _NUMBERS or name in _RESTARTS:
            yield name, value
        elif isinstance(value, _NESTED):
            yield from _numbers_in(value)
