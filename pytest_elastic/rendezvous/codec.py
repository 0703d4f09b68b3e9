"""Messages as JSON objects, and which of them are believed: `encode` and `decode` are inverse.

Never pickle: what comes from a socket is checked field by field against the message's own types,
and whatever is not exactly a message of ours is refused with a reason. The checks are made from the
dataclasses themselves, so a new field cannot be forgotten here.

Without a token any peer may claim any term or round, and a node that went on from there would soon
reach the largest number that a message may hold. So `what_is_unbelievable` finds numbers that are
further from what is known than a job can go in years (R15).
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_elastic.errors import RendezvousError
from pytest_elastic.plain import as_object, field_names
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.consensus.records import Record, Term
from pytest_elastic.rendezvous.messages import Heartbeat, LeaderAddress, RecordDecided
from pytest_elastic.rendezvous.vocabulary import Outcome

__all__ = [
    "FORMAT",
    "BadMessage",
    "Known",
    "decode",
    "encode",
    "is_believable",
    "kind_of",
    "outcome_of",
    "read_dataclass",
    "what_is_unbelievable",
]

# Raised whenever a message changes its meaning; nodes of different formats refuse each other (R14).
FORMAT = 3


_AS_THEY_ARE = frozenset({str, int, bool})
# Whole numbers have 64 bits: one of thousands of digits is read, and cannot be written or counted.
_MOST = 2**63 - 1


class BadMessage(RendezvousError):
    """What arrived is not a message of ours; the connection it came on is of no use."""


def encode(message: object) -> dict[str, Any]:
    """Return the message as a JSON object with its `format` and its `kind`."""
    kind = _KIND_OF.get(type(message))
    assert kind is not None, f"{type(message).__name__} is not a message"
    return {"format": FORMAT, "kind": kind, **as_object(message)}


def decode(fields: Mapping[str, Any]) -> Any:  # noqa: ANN401 (any message)
    """Return the message that a JSON object stands for; raises BadMessage for anything else."""
    values = dict(fields)
    found_format, kind = values.pop("format", None), values.pop("kind", None)
    if found_format != FORMAT:
        raise BadMessage(
            f"cannot read a message of format {found_format!r}: this node speaks format {FORMAT}."
            " All nodes of a job need the same version of pytest-elastic."
        )
    message_type = _TYPE_OF.get(kind) if isinstance(kind, str) else None
    if message_type is None:
        raise BadMessage(f"cannot read a message of the unknown kind {kind!r:.80}")
    return read_dataclass(message_type, values, str(kind))


def read_dataclass(cls: type[Any], values: object, where: str) -> object:
    """Build `cls` from a JSON object with exactly its fields; defaults may be left out."""
    fields = _read_mapping(values, where)
    hints = _hints_of(cls)
    unknown = sorted(set(fields) - set(hints))
    if unknown:
        raise BadMessage(f"{where}: unknown field {unknown[0]!r:.80}")
    read = {
        # Most values of a long roster need no second look.
        name: value
        if type(value) is (hint := hints[name])
        and hint in _AS_THEY_ARE
        and (not isinstance(value, int) or -_MOST <= value <= _MOST)
        else _read(hint, value, f"{where}.{name}")
        for name, value in fields.items()
    }
    try:
        return cls(**read)
    except TypeError as error:
        raise BadMessage(f"{where}: {error}") from error


def _read(hint: object, value: object, where: str) -> object:
    """Check one value against its type; sequences become tuples."""
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return read_dataclass(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        if not isinstance(value, list | tuple) or len(value) != len(hint._fields):
            raise BadMessage(f"{where}: {hint.__name__} is expected, found {value!r:.80}")
        kinds = typing.get_type_hints(hint).values()
        fields: Any = [_read(kind, each, where) for kind, each in zip(kinds, value, strict=True)]
        return hint(*fields)
    if origin in {typing.Union, types.UnionType}:
        return _read_union(typing.get_args(hint), value, where)
    if origin is Sequence:
        if not isinstance(value, list | tuple):
            raise BadMessage(f"{where}: a list is expected, found {value!r:.80}")
        item = typing.get_args(hint)[0]
        return tuple(_read(item, entry, f"{where}[{i}]") for i, entry in enumerate(value))
    if origin is Mapping:
        item = typing.get_args(hint)[1]
        entries = _read_mapping(value, where).items()
        return {key: _read(item, entry, f"{where}.{key}") for key, entry in entries}
    return _read_scalar(hint, value, where)


def _read_mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise BadMessage(f"{where}: an object is expected, found {value!r:.80}")
    return value


def _read_union(hints: Sequence[object], value: object, where: str) -> object:
    """Check a value that may be of one of several types; None is one of the types."""
    if value is None and type(None) in hints:
        return None
    problem: BadMessage | None = None
    for hint in hints:
        if hint is not type(None):
            try:
                return _read(hint, value, where)
            except BadMessage as error:
                problem = error
    assert problem is not None, "a union has a type that is not None"
    raise problem


def _read_scalar(hint: object, value: object, where: str) -> object:
    """Check a plain value; whole numbers will do for a float, booleans are not numbers."""
    if isinstance(value, int) and not isinstance(value, bool) and hint in {int, float}:
        if abs(value) > _MOST:
            raise BadMessage(f"{where}: a number of 64 bits is expected, found {value!r:.80}")
        return hint(value)
    if hint is float and isinstance(value, float):
        if not math.isfinite(value):
            raise BadMessage(f"{where}: a finite number is expected, found {value!r}")
        return value
    if (hint is str and isinstance(value, str)) or (hint is bool and isinstance(value, bool)):
        return value
    expected = getattr(hint, "__name__", str(hint))
    raise BadMessage(f"{where}: {expected} is expected, found {value!r:.80}")


def _hints_of(cls: type[Any]) -> dict[str, object]:
    """Return the fields of a class with their types; resolving them is slow, so once a class."""
    hints = _HINTS.get(cls)
    if hints is None:
        hints = _HINTS[cls] = typing.get_type_hints(cls)
    return hints


_HINTS: dict[type[Any], dict[str, object]] = {}


def kind_of(cls: type[Any]) -> str:
    """Return a class's name in snake case: JoinRequest is "join_request"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


_TYPE_OF: dict[str, type[Any]] = {
    kind_of(cls): cls
    for cls in (
        m.AppendRecord,
        m.DialPeers,
        m.Dismissed,
        m.Heartbeat,
        m.JoinAccepted,
        m.JoinRequest,
        m.LeaderAnnounced,
        m.LeaderResigned,
        m.PeersDialled,
        m.RecordAccepted,
        m.RecordDecided,
        m.Standby,
        m.StatusAnswer,
        m.StatusRequest,
        m.StopRound,
        m.VoteAnswer,
        m.VoteRequest,
        ports.DrainRequested,
        ports.GroupFailed,
        ports.GroupSucceeded,
        ports.PeerDraining,
        ports.StoreFailed,
        ports.StoreOpened,
        ports.WorkersGone,
    )
}
_KIND_OF: dict[type[Any], str] = {cls: kind for kind, cls in _TYPE_OF.items()}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a node knows: the counter of a term, the newest round (0: none), restarts allowed."""

    counter: int
    round: int
    max_restarts: int


def is_believable(number: int, known: int) -> bool:
    """Tell whether a term or a round may be that of a job that was at `known`, 0: not known."""
    return number <= (known + _MOST_AHEAD if known else _FARTHEST)


def what_is_unbelievable(message: object, known: Known) -> str | None:
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


def _numbers_in(message: Any) -> Iterator[tuple[str, int]]:  # noqa: ANN401 (any dataclass)
    for name in field_names(type(message)):
        value = getattr(message, name)
        if isinstance(value, Term):
            yield "term", value.counter
        elif name == "higher":
            yield "term", value
        elif name in _NUMBERS or name in _RESTARTS:
            yield name, value
        elif isinstance(value, _NESTED):
            yield from _numbers_in(value)
