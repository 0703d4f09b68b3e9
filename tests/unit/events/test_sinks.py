from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from pytest_elastic.clock import BootClock
from pytest_elastic.errors import UsageError
from pytest_elastic.events.codec import read_records
from pytest_elastic.events.model import Record, WorkersHeld
from pytest_elastic.events.sinks import FileSink, NullSink, SocketSink, make_sink
from pytest_elastic.file_thread import FileThread
from pytest_elastic.loop import Loop

DEADLINE_S = 60.0


def told(number: int, size: int = 0) -> Record:
    """Return a record with a number, as large as asked."""
    event = WorkersHeld(round=number, reason="x" * size)
    return Record(at=0.0, source="agent", node="n1", run_id="job", event=event)


def numbers(data: bytes) -> list[int]:
    """Return the numbers of the records in some bytes."""
    events = [record.event for record in read_records(data.split(b"\n"))]
    return [event.round for event in events if isinstance(event, WorkersHeld)]


@contextmanager
def listener(path: str) -> Iterator[socket.socket]:
    """Listen on a path."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen()
        sock.settimeout(DEADLINE_S)
        yield sock


def read_all(sock: socket.socket) -> bytes:
    """Read until the other side closes."""
    data = b""
    sock.settimeout(DEADLINE_S)
    while chunk := sock.recv(1 << 20):
        data += chunk
    return data


def test_a_file_gets_one_line_a_record_and_is_shared(loop: Loop, tmp_path: Path) -> None:
    """Two processes may append to one file: a line is one write."""
    path = tmp_path / "events.jsonl"
    with (
        closing(make_sink(f"file:{path}", loop)) as one,
        closing(make_sink(f"file:{path}", loop)) as other,
    ):
        for number, sink in enumerate((one, other, one), 1):
            sink.send(told(number))
            assert sink.flush(DEADLINE_S) == ""
    assert numbers(path.read_bytes()) == [1, 2, 3]


def test_a_disk_that_is_full_costs_records_and_is_counted() -> None:
    """An agent goes on when its events cannot be kept."""
    sink = FileSink("/dev/full")
    sink.send(told(1))
    assert sink.flush(DEADLINE_S) == "1 event is not in /dev/full: No space left on device"
    sink.close()
    sink.close()


def test_a_file_that_cannot_be_opened_yet_holds_up_nobody(tmp_path: Path) -> None:
    """A pipe without a reader hangs as a disk does; then all records come, in order."""
    path = tmp_path / "events"
    os.mkfifo(path)
    sink = FileSink(str(path))
    for number in range(300):
        sink.send(told(number))
    assert (
        sink.flush(0.01) == f"300 events are not in {path}: its file system gave no answer in time"
    )
    reading = os.open(path, os.O_RDONLY)
    assert sink.flush(DEADLINE_S) == ""
    sink.close()
    with open(reading, "rb") as file:
        assert numbers(file.read()) == list(range(300))


def test_a_file_that_hangs_costs_records_beyond_a_bound(tmp_path: Path) -> None:
    """Those that come first are kept."""
    path = tmp_path / "events"
    os.mkfifo(path)
    sink = FileSink(str(path))
    for number in range(10_500):
        sink.send(told(number))
    data = b""
    with open(path, "rb") as file:
        while b'"round":9990' not in data:
            data += file.read1()
        said = sink.flush(DEADLINE_S)
        sink.close()
        data += file.read()
    kept = numbers(data)
    assert kept == list(range(len(kept)))
    assert (
        said
        == f"{10_500 - len(kept)} events are not in {path}: its file system gave no answer in time"
    )
    assert 9_990 < len(kept) <= 10_000


def test_a_file_that_is_full_is_renamed_and_another_one_begins(tmp_path: Path) -> None:
    """By several processes that share it, too: what is newest is there, whole and in order."""
    path = tmp_path / "events"
    sinks = [FileSink(str(path), max_bytes=4000) for _ in range(3)]
    for number in range(300):
        sinks[number % 3].send(told(number))
        assert sinks[number % 3].flush(DEADLINE_S) == ""
        assert path.stat().st_size < 5000
    kept = numbers((tmp_path / "events.1").read_bytes()) + numbers(path.read_bytes())
    assert kept == list(range(300))[-len(kept) :]
    assert len(kept) > 15
    assert sorted(each.name for each in tmp_path.iterdir()) == ["events", "events.1"]
    for sink in sinks:
        sink.close()


def test_records_arrive_at_a_socket_in_order(loop: Loop, tmp_path: Path) -> None:
    """The first send connects."""
    path = str(tmp_path / "s")
    with listener(path) as server:
        sink = make_sink(f"unix:{path}", loop)
        for number in range(100):
            sink.send(told(number))
        connection, _ = server.accept()
        sink.close()
        with connection:
            assert numbers(read_all(connection)) == list(range(100))


def test_a_descriptor_above_1023_is_waited_for(loop: Loop, tmp_path: Path) -> None:
    """The agent of a large job has that many connections; `select` takes no such number."""
    path = str(tmp_path / "s")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with listener(path) as server, ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
        low = [os.open(os.devnull, os.O_RDONLY)]
        stack.callback(os.close, low[0])
        while low[-1] < 1023:
            low.append(os.dup(low[0]))
            stack.callback(os.close, low[-1])
        sink = SocketSink(path, loop)
        stack.callback(sink.close)
        for number in range(5):
            sink.send(told(number, 1 << 20))
        assert sink.flush(0.01) == ""
        connection, _ = server.accept()
        reading = FileThread()
        data: list[bytes] = []
        reading.do(lambda: data.append(read_all(connection)))
        sink.flush(DEADLINE_S)
        sink.close()
        assert reading.wait(DEADLINE_S)
        connection.close()
    assert numbers(data[0]) == list(range(5))


def test_records_wait_until_somebody_listens(loop: Loop, tmp_path: Path) -> None:
    """An agent that starts before the harness listens loses nothing."""
    path = str(tmp_path / "s")
    sink = SocketSink(path, loop)
    sink.send(told(1))
    with listener(path) as server:
        deadline = BootClock().now() + DEADLINE_S
        server.setblocking(False)
        connection = None
        while connection is None and BootClock().now() < deadline:
            sink.flush(0.01)
            try:
                connection, _ = server.accept()
            except BlockingIOError:
                continue
        assert connection is not None
        sink.close()
        with connection:
            assert numbers(read_all(connection)) == [1]


def test_without_a_listener_the_newest_records_are_kept(loop: Loop, tmp_path: Path) -> None:
    """The queue is bounded, and what is dropped is the oldest."""
    path = str(tmp_path / "s")
    sink = SocketSink(path, loop, max_queued_lines=3)
    for number in range(10):
        sink.send(told(number))
    with listener(path) as server:
        sink.flush(DEADLINE_S)
        connection, _ = server.accept()
        sink.close()
        with connection:
            assert numbers(read_all(connection)) == [7, 8, 9]


def test_a_listener_that_reads_nothing_never_blocks_the_sender(loop: Loop, tmp_path: Path) -> None:
    """What the kernel does not take waits; a line is never cut in two for the reader."""
    path = str(tmp_path / "s")
    with listener(path) as server:
        sink = SocketSink(path, loop, max_queued_lines=20)
        sink.send(told(0))
        connection, _ = server.accept()
        for number in range(1, 200):
            sink.send(told(number, size=20_000))
        os.set_blocking(connection.fileno(), False)
        data = b""
        deadline = BootClock().now() + DEADLINE_S
        while b'"round":199' not in data and BootClock().now() < deadline:
            try:
                data += connection.recv(1 << 20)
            except BlockingIOError:
                sink.flush(0.01)
        seen = numbers(data)
        assert seen == sorted(seen)
        assert seen[-1] == 199
        assert len(seen) < 200
        sink.close()
        connection.close()


def test_in_a_loop_the_queue_drains_by_itself(loop: Loop, tmp_path: Path) -> None:
    """With a watcher no further send is needed."""
    path = str(tmp_path / "s")
    data = b""
    with listener(path) as server:
        sink = SocketSink(path, loop)
        for number in range(50):
            sink.send(told(number, size=20_000))
        connection, _ = server.accept()
        connection.setblocking(False)

        def read() -> None:
            nonlocal data
            data += connection.recv(1 << 20)

        loop.watch(connection.fileno(), on_readable=read)
        deadline = loop.now() + DEADLINE_S
        while b'"round":49' not in data and loop.now() < deadline:
            loop.run_once(0.1)
        assert numbers(data) == list(range(50))
        loop.unwatch(connection.fileno())
        connection.close()
        sink.close()


def test_a_listener_that_goes_away_ends_nothing(loop: Loop, tmp_path: Path) -> None:
    """The sender notices at a later send, and tries again later still."""
    path = str(tmp_path / "s")
    sink = SocketSink(path, loop)
    with listener(path) as server:
        sink.send(told(1))
        server.accept()[0].close()
    for number in range(2, 5):
        sink.send(told(number))
    sink.close()
    sink.send(told(9))


def test_an_address_that_is_none_is_refused(loop: Loop, tmp_path: Path) -> None:
    """The message names the variable and what is expected."""
    assert isinstance(make_sink("", loop), NullSink)
    for url in ("tcp:1.2.3.4:5", "unix:", "file", f"file:{tmp_path}"):
        with pytest.raises(UsageError, match="events"):
            make_sink(url, loop)


@pytest.mark.parametrize("kind", ["file", "unix"])
def test_a_sink_takes_any_text(loop: Loop, tmp_path: Path, kind: str) -> None:
    """Half of a surrogate pair cannot be encoded: a sink that raised would end its agent."""
    path = str(tmp_path / "events")
    record = Record(
        at=0.0,
        source="agent",
        node="caf\udce9",
        run_id="\x1b[2J",
        event=WorkersHeld(round=7, reason="\ud800\n"),
    )
    if kind == "file":
        with closing(make_sink(f"file:{path}", loop)) as sink:
            sink.send(record)
            assert sink.flush(DEADLINE_S) == ""
        assert numbers(Path(path).read_bytes()) == [7]
        return
    with listener(path) as server, closing(make_sink(f"unix:{path}", loop)) as sink:
        sink.send(record)
        sink.flush(DEADLINE_S)
        sock, _ = server.accept()
        sink.close()
        with sock:
            assert numbers(read_all(sock)) == [7]


def test_a_file_of_events_is_the_users_own(loop: Loop, tmp_path: Path) -> None:
    """Command lines and environments are in it."""
    path = tmp_path / "events"
    with closing(make_sink(f"file:{path}", loop)) as sink:
        sink.send(told(1))
    assert path.stat().st_mode & 0o777 == 0o600
