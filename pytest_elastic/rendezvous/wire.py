"""Messages as JSON objects: `encode` and `decode` are each other's inverse.

Never pickle: what comes from a socket is checked field by field against the message's own types,
and whatever is not exactly a message of ours is refused with a reason. The checks are made from the
dataclasses themselves, so a new field cannot be forgotten here.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_elastic.errors import RendezvousError
from pytest_elastic.plain import as_object
from pytest_elastic.rendezvous import messages, ports
from pytest_elastic.rendezvous.messages import Message

__all__ = ["FORMAT", "BadMessage", "decode", "encode", "kind_of", "of_format", "read_dataclass"]

# Raised whenever a message changes its meaning; nodes of different formats refuse each other (R14).
FORMAT = 1


_AS_THEY_ARE = frozenset({str, int, bool})
# Whole numbers have 64 bits: one of thousands of digits is read, and cannot be written or counted.
_MOST = 2**63 - 1


class BadMessage(RendezvousError):
    """What arrived is not a message of ours; the connection it came on is of no use."""


def encode(message: Message) -> dict[str, Any]:
    """Return the message as a JSON object with its `format` and its `kind`."""
    kind = _KIND_OF.get(type(message))
    assert kind is not None, f"{type(message).__name__} is not a message"
    return {"format": FORMAT, "kind": kind, **as_object(message)}


def decode(fields: Mapping[str, Any]) -> Message:
    """Return the message that a JSON object stands for; raises BadMessage for anything else."""
    values = of_format(fields, FORMAT)
    kind = values.pop("kind", None)
    message_type = _TYPE_OF.get(kind) if isinstance(kind, str) else None
    if message_type is None:
        raise BadMessage(f"cannot read a message of the unknown kind {kind!r:.80}")
    return typing.cast("Message", read_dataclass(message_type, values, str(kind)))


def of_format(fields: Mapping[str, Any], expected: int) -> dict[str, Any]:
    """Return the fields of a message without its format; raises BadMessage for another format."""
    values = dict(fields)
    found_format = values.pop("format", None)
    if found_format != expected:
        raise BadMessage(
            f"cannot read a message of format {found_format!r}: this node speaks format {expected}."
            " All nodes of a job need the same version of pytest-elastic."
        )
    return values


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
    """Return a class's name in snake case: SealAcknowledged is "seal_acknowledged"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


_TYPE_OF: dict[str, type[Any]] = {
    kind_of(cls): cls
    for cls in (
        messages.Announcement,
        messages.Beat,
        messages.CheckPeers,
        messages.Commit,
        messages.EndAcknowledged,
        messages.Evicted,
        messages.Hello,
        messages.JobEnded,
        messages.JobEnding,
        messages.LeaveGranted,
        messages.PeersChecked,
        messages.PlaceAnswer,
        messages.PlaceRequest,
        messages.ProbeAnswer,
        messages.ProbeRequest,
        messages.Refusal,
        messages.Seal,
        messages.SealAcknowledged,
        messages.SpareNotice,
        messages.StepDown,
        messages.StopOrder,
        messages.VoteAnswer,
        messages.VoteRequest,
        messages.Welcome,
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
