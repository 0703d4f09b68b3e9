"""Records as JSON lines, and back.

One line is one record, with the format's number first:

    {"v":1,"at":12.5,"source":"agent","node":"n1","run_id":"job","kind":"node_spared","event":{"round":2}}

Reading is forgiving, because a history is read when something has gone wrong: a kind that is not
known here, or a known kind without the fields it must have, becomes an `UnknownEvent` that keeps
everything and is written back as it was; fields that a newer writer added are left out; a line that
is no record at all (the last one of a process that was killed while writing) is `None`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from pytest_elastic.events.model import EVENT_KINDS, Event, Record
from pytest_elastic.plain import field_names
from pytest_elastic.printed import without_surrogates

__all__ = [
    "FORMAT",
    "UnknownEvent",
    "decode_record",
    "encode_record",
    "event_from",
    "kind_of",
    "read_records",
]

FORMAT = 1

# A JSON value has no useful static type; the reader checks it.
JsonValue: TypeAlias = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEvent(Event):
    """An event this version does not know: `name` is its kind on the wire, `fields` all it said."""

    kind: ClassVar[str] = "unknown"
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)


def kind_of(event: Event) -> str:
    """Return an event's kind as it is written on the wire."""
    return event.name if isinstance(event, UnknownEvent) else event.kind


def encode_record(record: Record, *, seq: int | None = None) -> str:
    """Return the record as one line of JSON, without the line's end.

    `seq` is the record's place in a history; readers of a stream do without.
    """
    event = record.event
    fields = event.fields if isinstance(event, UnknownEvent) else _fields_of(event)
    line: dict[str, Any] = {"v": FORMAT}
    if seq is not None:
        line["seq"] = seq
    line |= {"at": record.at, "source": record.source, "node": record.node}
    line["run_id"] = record.run_id
    if record.incarnation:
        line["incarnation"] = record.incarnation
    line |= {"kind": kind_of(event), "event": fields}
    # In ASCII: it can be written anywhere, whatever is in it, and shown on any terminal.
    return json.dumps(line, separators=(",", ":"), default=str).replace("\x7f", "\\u007f")


def decode_record(line: str | bytes) -> Record | None:
    """Return the record that a line stands for, or None when it is not one of ours or torn."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or not isinstance(values.get("v"), int):
        return None
    if _has_escapes(line):
        values = _as_text(values)
    kind, at, fields = values.get("kind"), values.get("at"), values.get("event", {})
    if not isinstance(kind, str) or not isinstance(fields, dict):
        return None
    if not isinstance(at, int | float) or isinstance(at, bool) or not math.isfinite(at):
        return None
    return Record(
        at=float(at),
        source=str(values.get("source", "")),
        node=str(values.get("node", "")),
        run_id=str(values.get("run_id", "")),
        incarnation=str(values.get("incarnation", "")),
        event=event_from(kind, fields),
    )


def read_records(lines: Iterable[str | bytes]) -> Iterator[Record]:
    """Return the records among lines, in order; whatever is not a record is passed over."""
    for line in lines:
        if (record := decode_record(line)) is not None:
            yield record


def _fields_of(event: Event) -> dict[str, Any]:
    # What is in them is left as it is: steps come by the thousand.
    return {name: getattr(event, name) for name in field_names(type(event))}


def event_from(kind: str, fields: Mapping[str, Any]) -> Event:
    """Return the event of a kind, with its fields as JSON has them; `UnknownEvent` for nonsense."""
    event_type = EVENT_KINDS.get(kind)
    if event_type is None:
        return UnknownEvent(name=kind, fields=fields)
    values: dict[str, Any] = {}
    for each in dataclasses.fields(event_type):
        if each.name not in fields:
            continue
        value = _frozen(fields[each.name])
        if not _fits(value, str(each.type)):
            return UnknownEvent(name=kind, fields=fields)
        values[each.name] = value
    try:
        return event_type(**values)
    except (TypeError, ValueError):
        return UnknownEvent(name=kind, fields=fields)


def _frozen(value: JsonValue) -> JsonValue:
    """Return a JSON value with its arrays as tuples, as events hold them."""
    if isinstance(value, list):
        return tuple(_frozen(each) for each in value)
    return value


def _has_escapes(line: str | bytes) -> bool:
    return "\\u" in line if isinstance(line, str) else b"\\u" in line


def _as_text(value: JsonValue) -> JsonValue:
    """Return a JSON value whose texts can be encoded: bytes that were no UTF-8 stand as escapes."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, list):
        return [_as_text(each) for each in value]
    if isinstance(value, dict):
        return {without_surrogates(key): _as_text(each) for key, each in value.items()}
    return value


def _is_integer(value: JsonValue) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# By annotation as it is written in the event's class; a type that is not here is taken on trust.
_FITS: dict[str, Callable[[Any], bool]] = {
    "int": _is_integer,
    "float": _is_number,
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int | None": lambda value: value is None or _is_integer(value),
    "float | None": lambda value: value is None or _is_number(value),
    "str | None": lambda value: value is None or isinstance(value, str),
    "tuple[int, ...]": lambda value: isinstance(value, tuple) and all(map(_is_integer, value)),
    "tuple[str, ...]": lambda value: (
        isinstance(value, tuple) and all(isinstance(each, str) for each in value)
    ),
    "Mapping[str, Any]": lambda value: isinstance(value, dict),
    "Mapping[str, str]": lambda value: isinstance(value, dict),
    "Mapping[str, int]": lambda value: isinstance(value, dict),
}


def _fits(value: JsonValue, annotation: str) -> bool:
    fits = _FITS.get(annotation)
    return fits is None or fits(value)
