"""Records as JSON lines, and back.

One line is one record, with the format's number first:

    {"v":1,"at":12.5,"source":"agent","node":"n1","run_id":"job","kind":"node_spared","event":{"round":2}}

Reading is forgiving, because a history is read when something has gone wrong: a kind that is not
known here, or a known kind without the fields it must have, becomes an `UnknownEvent` that keeps
everything and is written back as it was; fields that a newer writer added are left out; a line that
is no record at all (the last one of a process that was killed while writing) is `None`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

import msgspec

from pytest_elastic.events.model import EVENT_KINDS, Event, Record
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


class UnknownEvent(Event):
    """An event this version does not know: `name` is its kind on the wire, `fields` all it said."""

    kind: ClassVar[str] = "unknown"
    name: str
    fields: Mapping[str, Any] = msgspec.field(default_factory=dict)


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
    return {name: getattr(event, name) for name in event.__struct_fields__}


def event_from(kind: str, fields: Mapping[str, Any]) -> Event:
    """Return the event of a kind, with its fields as JSON has them; `UnknownEvent` for nonsense."""
    event_type = EVENT_KINDS.get(kind)
    if event_type is None:
        return UnknownEvent(name=kind, fields=fields)
    try:
        return msgspec.convert(fields, event_type)
    except msgspec.ValidationError:
        return UnknownEvent(name=kind, fields=fields)


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
