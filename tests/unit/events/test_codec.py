from __future__ import annotations

import json
from typing import Any

import pytest
from elastic_harness.history import events as harness_events
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_elastic.events.codec import (
    UnknownEvent,
    decode_record,
    encode_record,
    kind_of,
    read_records,
)
from pytest_elastic.events.model import EVENT_KINDS, Event, NodeSpared, Record, RoundSealed

assert harness_events.RunEnded.kind in EVENT_KINDS, "importing the harness's events registers them"

# By annotation, as it is written in the event classes: a new one needs a sample here.
SAMPLES: dict[str, Any] = {
    "int": 3,
    "float": 0.5,
    "str": "n1",
    "bool": True,
    "int | None": None,
    "str | None": "x",
    "tuple[int, ...]": (1, 2),
    "tuple[str, ...]": ("a", "b"),
    "tuple[tuple[int, ...], ...]": ((1, 2), (3,)),
    "tuple[tuple[str, ...], ...]": (("a", "b"), ("c",)),
    "tuple[float, ...]": (0.5, 2.0),
    "tuple[float | None, ...]": (0.5, None),
    "tuple[Mapping[str, Any], ...]": ({"a": 1},),
    "Mapping[str, Any]": {"a": {"b": 1}},
    "Mapping[str, str]": {"a": "b"},
    "Mapping[str, int]": {"a": 1},
    "float | None": 1.5,
    "Any": {"a": {"b": 1}},
    "tuple[tuple[str, int, int], ...]": (("n1", 0, 5),),
    "tuple[tuple[str, str], ...]": (("n1", "n2"),),
}


def sample(kind: type[Event]) -> Event:
    """Return an event of a kind with something in every field."""
    return kind(**{name: SAMPLES[kind.__annotations__[name]] for name in kind.__struct_fields__})


def record(event: Event) -> Record:
    """Return a record of an event."""
    return Record(at=1.25, source="agent", node="n1", run_id="job", event=event, incarnation="i1")


@pytest.mark.parametrize("kind", sorted(EVENT_KINDS))
def test_every_event_survives_the_way_to_a_line_and_back(kind: str) -> None:
    """Whatever agents and harness can state can be read back as it was."""
    told = record(sample(EVENT_KINDS[kind]))
    line = encode_record(told)
    assert "\n" not in line
    assert decode_record(line) == told
    assert decode_record(line.encode()) == told


def test_a_line_shown_whole() -> None:
    """The format, as other programs read it."""
    event = RoundSealed(
        round=2, term=1, roster=("n1", "n2"), spares=(), restart_count=0, reason="two are in"
    )
    assert encode_record(record(event), seq=7) == (
        '{"v":1,"seq":7,"at":1.25,"source":"agent","node":"n1","run_id":"job","incarnation":"i1",'
        '"kind":"round_sealed","event":{"round":2,"term":1,"roster":["n1","n2"],"spares":[],'
        '"restart_count":0,"reason":"two are in"}}'
    )


def test_an_unknown_kind_is_kept_and_written_back_as_it_was() -> None:
    """A newer launcher's events pass through an older harness."""
    line = json.dumps({"v": 2, "at": 1, "kind": "node_painted", "event": {"colour": "red"}})
    read = decode_record(line)
    assert read is not None
    assert read.event == UnknownEvent(name="node_painted", fields={"colour": "red"})
    assert kind_of(read.event) == "node_painted"
    assert decode_record(encode_record(read)) == read


def test_fields_that_are_new_are_left_out_and_missing_or_wrong_ones_make_it_unknown() -> None:
    """A known kind is either what its class promises, or not of that class."""

    def read(event: dict[str, Any]) -> Event:
        line = json.dumps({"v": 1, "at": 1, "kind": "node_spared", "event": event})
        found = decode_record(line)
        assert found is not None
        return found.event

    assert read({"round": 2, "colour": "red"}) == NodeSpared(round=2)
    assert isinstance(read({}), UnknownEvent)
    assert isinstance(read({"round": "two"}), UnknownEvent)
    assert isinstance(read({"round": True}), UnknownEvent)


def test_a_torn_line_is_no_record_wherever_it_was_cut() -> None:
    """A process killed while writing costs one record."""
    line = encode_record(record(NodeSpared(round=2))).encode()
    assert [decode_record(line[:cut]) for cut in range(len(line))] == [None] * len(line)
    whole = [line, line[:-9], b"", b"GET / HTTP/1.1", line]
    assert [each.event for each in read_records(whole)] == [NodeSpared(round=2)] * 2


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_fail(noise: bytes) -> None:
    """Anything may be on the other end of a socket."""
    decode_record(noise)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=10,
    ),
    st.sampled_from(["v", "at", "kind", "event", "node"]),
)
def test_no_json_makes_the_reader_fail(value: object, key: str) -> None:
    """Nor does JSON that is nearly one of ours."""
    line = json.loads(encode_record(record(NodeSpared(round=2))))
    line[key] = value
    decode_record(json.dumps(line))
    decode_record(json.dumps(value))


# Any text that Python can hold, halves of surrogate pairs included.
ANY_TEXT = st.text(st.characters(categories=None))


@given(text=ANY_TEXT)
def test_any_text_can_be_written_shown_and_read_back_as_text(text: str) -> None:
    """What is no text stands as escapes then."""
    event = NodeSpared(round=1, reason=text)
    told = replace(record(event), node=text, run_id=text)
    line = encode_record(told)
    assert line.isascii()
    assert line.isprintable()
    found = decode_record(line.encode())
    assert found is not None
    assert found.node.encode() == text.encode(errors="backslashreplace")
    assert isinstance(found.event, NodeSpared)
    assert found.event.reason == found.node == found.run_id


def test_a_line_that_is_too_deep_is_no_record() -> None:
    """A stranger may write it into a file of ours."""
    assert decode_record('{"v":1,"event":' + '{"a":' * 100_000) is None
