"""The console of an agent: it waits for nobody, and says what it left out."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

from pytest_elastic.loop import Loop
from pytest_elastic.workers.logs.console import Console, drain_consoles

LIMIT_S = 60.0
LINE = "x" * 99 + "\n"


def read(fd: int) -> bytes:
    """Read what is there."""
    data = b""
    os.set_blocking(fd, False)
    try:
        while chunk := os.read(fd, 65536):
            data += chunk
    except BlockingIOError:
        pass
    return data


def test_lines_without_room_are_left_out_and_how_many_is_said(loop: Loop) -> None:
    """Once somebody reads again; what was queued comes whole."""
    reading, writing = os.pipe()
    console = Console(loop, writing)
    for _ in range(20_000):
        console.write_lines(LINE)
    assert console.is_full
    shown = b""
    deadline = loop.now() + LIMIT_S
    while console.has_more:
        assert loop.now() < deadline
        shown += read(reading)
        console.flush()
    console.write_lines("the end\n")
    shown += read(reading)
    *lines, said, end = shown.decode().splitlines()
    assert set(lines) == {LINE[:-1]}
    assert said == f"[pytest-elastic: {20_000 - len(lines)} lines were left out here]"
    assert end == "the end"
    console.close()
    console.close()
    os.close(reading)
    os.close(writing)


def test_a_pipe_that_others_fill_is_not_waited_for(loop: Loop) -> None:
    """A worker's output may come between a look and a write; the flag of what they share stays."""
    reading, writing = os.pipe()
    console = Console(loop, writing)
    console.write(b"first\n")
    assert os.get_blocking(writing)
    assert not os.get_blocking(console.fileno())
    others = threading.Thread(target=lambda: os.write(writing, b"." * (1 << 20)), daemon=True)
    others.start()
    began = loop.now()
    for _ in range(2000):
        console.write(b"second\n" * 500)
    assert loop.now() - began < LIMIT_S
    assert others.is_alive()
    assert console.has_more
    while others.is_alive():
        read(reading)
    console.close()
    os.close(reading)
    os.close(writing)


def test_a_file_is_written_behind_what_is_in_it(loop: Loop, tmp_path: Path) -> None:
    """As a shell opens it: others write there too, at the same place."""
    path = tmp_path / "out"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"before\n")
    console = Console(loop, fd)
    console.write_lines("ours\n")
    os.write(fd, b"after\n")
    console.close()
    os.close(fd)
    assert path.read_bytes() == b"before\nours\nafter\n"


def test_a_socket_is_a_console_too(loop: Loop) -> None:
    """Some supervisors give one."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        console = Console(loop, ours.fileno())
        console.write_lines("hello\n")
        assert theirs.recv(100) == b"hello\n"
        console.close()


def test_a_closed_descriptor_is_no_error(loop: Loop) -> None:
    """Nobody can read it."""
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    console = Console(loop, writing)
    console.write_lines("lost\n")
    console.close()


def test_the_end_waits_for_a_console_that_goes_on_and_not_for_one_that_does_not(loop: Loop) -> None:
    """The whole time is bounded, however many there are."""
    pipes = [os.pipe() for _ in range(2)]
    consoles = [Console(loop, writing) for _, writing in pipes]
    for console in consoles:
        console.write(b"x" * 300_000)
    got = bytearray()

    def take() -> None:
        while len(got) < 300_000:
            got.extend(os.read(pipes[0][0], 65536))

    reader = threading.Thread(target=take)
    reader.start()
    began = loop.now()
    drain_consoles(loop, consoles, 0.5)
    assert 0.4 < loop.now() - began < LIMIT_S
    reader.join(LIMIT_S)
    assert len(got) == 300_000
    assert [console.has_more for console in consoles] == [False, True]
    for console in consoles:
        console.close()
    for fds in pipes:
        os.close(fds[0])
        os.close(fds[1])
