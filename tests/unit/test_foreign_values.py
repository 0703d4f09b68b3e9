"""What comes from outside is refused, or can be sent, shown and written to every sink."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_elastic.channel import read_object, write_object
from pytest_elastic.events.model import NodeSpared, Record
from pytest_elastic.events.sinks import Sink, make_sink
from pytest_elastic.loop import Loop
from pytest_elastic.printed import printable
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.consensus.records import NO_TERM, End, KnownJob
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.registries.mark_file import MarkFile
from pytest_elastic.rendezvous.registries.registry import as_text, read_text
from pytest_elastic.rendezvous.vocabulary import WriteRecord
from pytest_elastic.wire import Message, kind_of
from pytest_elastic.workers.error_file import WorkerError, read_error_file, write_error_file
from tests.unit.rendezvous.message_samples import ANSWER, FAILURE, LEADER, MESSAGES, RECORD, STORE

HOST = Node(name="n1", incarnation="a", address="10.0.0.1", port=4000, slots=2)
JOB = KnownJob(record=RECORD, base=RECORD, number=3, restarts_used=1)


def _message(text: str) -> object:
    fields = read_object(text.encode(errors="surrogatepass"))
    try:
        return None if fields is None else m.decode(fields)
    except m.BadMessage as error:
        # It is said to the other node, printed, and stated in an event.
        return m.Dismissed(term=NO_TERM, reason=error.message, is_final=True)


def _error_file(text: str) -> object:
    """Return what every node is told of a worker that left such a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "error.json")
        path.write_bytes(text.encode(errors="surrogatepass"))
        said = read_error_file(str(path))
    if said is None:
        return None
    failure = replace(
        FAILURE, message=said.message, traceback=said.traceback, timestamp=said.timestamp
    )
    ended = End(result="failed", reason=said.message, first_failure=failure)
    return replace(ANSWER, base=replace(RECORD, end=ended))


def _mark(text: str) -> object:
    with tempfile.TemporaryDirectory() as folder:
        marks = MarkFile(lambda: folder, "job", "n1:29400")
        marks.write(JOB)
        assert marks.wait(60.0)
        (path,) = Path(folder).iterdir()
        head, _, body = path.read_text().partition("\n")
        path.write_text(head + "\n" + json.dumps({**json.loads(body), **json.loads(text)}))
        found = marks.read()
    return found and found.job


def _sample_error_file() -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "error.json")
        error = WorkerError(message="m", traceback="t", timestamp=12, error_code=1)
        write_error_file(str(path), error)
        return path.read_text()


def _text(cls: type[object]) -> Callable[[str], object]:
    return lambda text: read_text(cls, text, "r", None)


DECODERS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    **{kind_of(type(message)): (json.dumps(m.encode(message)), _message) for message in MESSAGES},
    "leader in a store": (as_text(LEADER, "r", None), _text(m.LeaderAddress)),
    "host in a store": (as_text(HOST, "r", None), _text(Node)),
    "written record": (
        as_text(WriteRecord(record=RECORD, decided=STORE), "r", None),
        _text(WriteRecord),
    ),
    "mark": (json.dumps(msgspec.to_builtins(JOB)), _mark),
    "error file": (_sample_error_file(), _error_file),
}

# No text, what a terminal obeys, and numbers of more than 64 bits or of none.
_NASTY = [
    "\ud800",
    "caf\udce9\x1b[2J\n",
    "9" * 400,
    10**300,
    2**63,
    -(2**63),
    1e300,
    math.inf,
    math.nan,
]
_TEXT = st.text(st.characters(categories=None))
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=4,
)


def _places(value: object, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each value in a JSON value."""
    inner = enumerate(value) if isinstance(value, list) else ()
    for key, each in value.items() if isinstance(value, dict) else inner:
        yield (*at, key)
        yield from _places(each, (*at, key))


def _changed(text: str, place: tuple[Any, ...], value: object) -> str:
    whole = json.loads(text)
    holder = whole
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return json.dumps(whole)


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from _leaves(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


@pytest.fixture(scope="module")
def sinks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Sink]]:
    """Return one of each kind that a user can name; nobody listens at the socket yet."""
    folder = tmp_path_factory.mktemp("sinks")
    with (
        closing(Loop()) as loop,
        closing(make_sink(f"file:{folder / 'file'}", loop)) as file,
        closing(make_sink(f"unix:{folder / 'socket'}", loop)) as unix,
    ):
        yield [file, unix]


@pytest.mark.parametrize("kind", DECODERS)
def test_no_broken_text_and_no_huge_number_gets_in(kind: str, sinks: list[Sink]) -> None:
    """Each value of something sound is replaced by each of them."""
    sample, decode = DECODERS[kind]
    assert decode(sample) is not None
    for place in _places(json.loads(sample)):
        for value in _NASTY:
            _check(decode(_changed(sample, place, value)), sinks)


@pytest.mark.parametrize("kind", DECODERS)
@given(data=st.data())
def test_what_is_taken_from_outside_can_be_sent_shown_and_written(
    kind: str, data: st.DataObject, sinks: list[Sink]
) -> None:
    """One value of something sound is replaced by anything at all."""
    sample, decode = DECODERS[kind]
    place = data.draw(st.sampled_from(list(_places(json.loads(sample)))))
    _check(decode(_changed(sample, place, data.draw(_VALUES))), sinks)


def _check(value: object, sinks: list[Sink]) -> None:
    """Send, show and write what a decoder has made; None is what it refused."""
    if value is None:
        return
    fields = msgspec.to_builtins(value)
    assert read_object(write_object(fields)) == json.loads(json.dumps(fields))
    if isinstance(value, Message):
        sent = read_object(write_object(m.encode(value)))
        assert sent is not None
        assert m.decode(sent) == value
    for leaf in _leaves(fields):
        if isinstance(leaf, str):
            leaf.encode()
            printable(leaf).encode()
        elif isinstance(leaf, int | float):
            assert math.isfinite(leaf)
            assert abs(leaf) < 2**63 or isinstance(leaf, float)
    event = NodeSpared(round=1, reason=" ".join(str(leaf) for leaf in _leaves(fields)))
    for sink in sinks:
        sink.send(Record(at=0.0, source="agent", node=event.reason, run_id="r", event=event))
        assert sink.flush(60.0) == ""
