"""The console shows what the log files say: whole lines, bounded, and without ever waiting."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pytest_elastic.loop import Loop
from pytest_elastic.workers.logs import tee as tee_module
from pytest_elastic.workers.logs.console import Console
from pytest_elastic.workers.logs.tee import Tee, TeeStream

LIMIT_S = 60.0


class Terminal:
    """A pipe in the place of a terminal, and what has come out of it."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        self.console = Console(loop, writing)
        self._writing = writing
        self.shown = b""

    def read(self) -> bytes:
        """Take what is there; return everything so far."""
        while True:
            try:
                data = os.read(self._reading, 65536)
            except BlockingIOError:
                return self.shown
            if not data:
                return self.shown
            self.shown += data

    def wait_until(self, is_so: Callable[[bytes], bool]) -> None:
        """Serve the loop until what was shown is as wanted."""
        deadline = self._loop.now() + LIMIT_S
        while not is_so(self.read()):
            assert self._loop.now() < deadline, self.shown[-500:]
            self._loop.run_once(0.05)

    def close(self) -> None:
        """Close both ends."""
        self.console.close()
        os.close(self._reading)
        os.close(self._writing)


@pytest.fixture
def terminal(loop: Loop) -> Iterator[Terminal]:
    """A terminal to be written to."""
    terminal = Terminal(loop)
    yield terminal
    terminal.close()


def stream(
    path: Path,
    terminal: Terminal,
    prefix: str = "[w0]:",
    filters: Sequence[str] = (),
    filtered: Path | None = None,
) -> TeeStream:
    """Return a stream that shows `path` on the terminal."""
    return TeeStream(
        path=str(path),
        prefix=prefix,
        console=terminal.console,
        filters=filters,
        filtered=None if filtered is None else str(filtered),
    )


def append(path: Path, data: bytes) -> None:
    """Write as a worker does."""
    with path.open("ab") as file:
        file.write(data)


def test_each_line_is_shown_once_with_its_prefix(
    loop: Loop, terminal: Terminal, tmp_path: Path
) -> None:
    """Lines appear as they are written, whole, and the last one without its newline at the end."""
    one, two = tmp_path / "one", tmp_path / "two"
    append(one, b"before the start\n")
    tee = Tee(loop, [stream(one, terminal, "[w0]:"), stream(two, terminal, "[w1]:")])
    tee.start()
    terminal.wait_until(lambda shown: shown == b"[w0]:before the start\n")
    append(two, b"half a ")
    append(one, b"first\nsecond\n")
    terminal.wait_until(lambda shown: shown.endswith(b"[w0]:first\n[w0]:second\n"))
    append(two, b"line\nunfinished")
    terminal.wait_until(lambda shown: shown.endswith(b"[w1]:half a line\n"))
    tee.close()
    assert terminal.read().endswith(b"[w1]:unfinished\n")


def test_what_is_left_at_the_end_is_shown(loop: Loop, terminal: Terminal, tmp_path: Path) -> None:
    """`close` needs no turn of the loop."""
    path = tmp_path / "log"
    tee = Tee(loop, [stream(path, terminal)])
    tee.start()
    append(path, b"last words\n")
    tee.close()
    assert terminal.read() == b"[w0]:last words\n"


def test_a_flood_is_cut_in_the_middle_and_that_is_said(
    loop: Loop, terminal: Terminal, tmp_path: Path
) -> None:
    """Of a file that runs away the end is shown, and where the rest is."""
    path = tmp_path / "log"
    tee = Tee(loop, [stream(path, terminal)])
    with path.open("wb") as file:
        file.truncate(1 << 30)  # a gigabyte, of which nothing is on the disk
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe end\n")
    tee.start()
    terminal.wait_until(lambda shown: shown.endswith(b"[w0]:the end\n"))
    tee.close()
    assert len(terminal.shown) < 200_000
    assert b"bytes are not shown here: see " + os.fsencode(path) in terminal.shown


def test_a_console_that_takes_all_is_shown_all(
    loop: Loop, terminal: Terminal, tmp_path: Path
) -> None:
    """However far the worker is ahead of who shows its output."""
    path = tmp_path / "log"
    tee = Tee(loop, [stream(path, terminal)])
    append(path, b"".join(b"%099d\n" % number for number in range(60_000)))
    tee.start()
    terminal.wait_until(lambda shown: shown.count(b"\n") == 60_000)
    tee.close()
    assert b"not shown" not in terminal.shown


def test_a_console_that_took_nothing_for_a_second_is_not_shown_what_it_missed(
    loop: Loop, terminal: Terminal, tmp_path: Path
) -> None:
    """It would lag behind by as much; what it is not shown is said."""
    path = tmp_path / "log"
    tee = Tee(loop, [stream(path, terminal)])
    lines = b"".join(b"%099d\n" % number for number in range(60_000))
    append(path, lines)
    tee.start()
    until = loop.now() + 3.0  # twenty turns are a second, unless the machine is busy
    while loop.now() < until:
        loop.run_once(0.1)
    append(path, lines + b"the end\n")
    terminal.wait_until(lambda shown: shown.endswith(b"[w0]:the end\n"))
    tee.close()
    assert b"bytes are not shown here: see " + os.fsencode(path) in terminal.shown


def test_a_console_that_nobody_reads_holds_up_nothing(
    loop: Loop, terminal: Terminal, tmp_path: Path
) -> None:
    """With the pipe full, every turn of the loop is short, and the end comes in time."""
    path = tmp_path / "log"
    append(path, b"x" * 99 + b"\n")
    tee = Tee(loop, [stream(path, terminal)])
    tee.start()
    for _ in range(30):
        append(path, (b"y" * 99 + b"\n") * 1000)
        began = loop.now()
        loop.run_once(0.06)
        assert loop.now() - began < 1.0
    began = loop.now()
    tee.close()
    assert loop.now() - began < 1.0
    assert terminal.read().startswith(b"[w0]:xxx")


def test_a_console_that_is_gone_is_no_error(loop: Loop, tmp_path: Path) -> None:
    """The reader of the output has gone: the files still have everything."""
    reading, writing = os.pipe()
    os.close(reading)
    path = tmp_path / "log"
    append(path, b"line\n")
    console = Console(loop, writing)
    tee = Tee(loop, [TeeStream(path=str(path), prefix="", console=console)])
    tee.start()
    tee.close()
    console.close()
    os.close(writing)


def test_filtered_lines_go_to_a_file_of_their_own(
    loop: Loop, terminal: Terminal, tmp_path: Path
) -> None:
    """Lines that contain one of the texts, of all workers, prefixed."""
    path, filtered = tmp_path / "log", tmp_path / "filtered"
    tee = Tee(loop, [stream(path, terminal, filters=["loss", "step"], filtered=filtered)])
    tee.start()
    append(path, b"the loss is 1\nnothing\nstep 2\n")
    tee.close()
    assert filtered.read_bytes() == b"[w0]:the loss is 1\n[w0]:step 2\n"


def test_filters_without_a_file_of_their_own_change_nothing(
    loop: Loop, terminal: Terminal, tmp_path: Path
) -> None:
    """A class of the user's may know of none, as with an older torch: each line is shown once."""
    path = tmp_path / "stdout.log"
    append(path, b"step 1\n")
    tee = Tee(loop, [stream(path, terminal, filters=["step"])])
    tee.start()
    tee.close()
    assert terminal.read() == b"[w0]:step 1\n"


@pytest.mark.parametrize("ends", ["close", "finish"])
def test_filters_see_what_the_console_is_not_shown(
    loop: Loop, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """A flood of which the console skips most, and a console that nobody reads, lose no line."""
    monkeypatch.setattr(tee_module, "_REST_S", 60.0)  # a busy machine takes long for so much
    path, filtered = tmp_path / "log", tmp_path / "filtered"
    flood = (b"y" * 99 + b"\n") * 100_000
    append(path, b"keep 0\n" + flood)
    tee = Tee(loop, [stream(path, terminal, filters=["keep"], filtered=filtered)])
    tee.start()
    for number in range(1, 5):
        append(path, b"keep %d\n" % number + flood)
        loop.run_once(0.06)
    append(path, b"keep 5")
    if ends == "close":
        tee.close()
    else:
        ended: list[bool] = []
        tee.finish(lambda: ended.append(True))
        terminal.wait_until(lambda _: bool(ended))
    assert filtered.read_bytes().splitlines() == [b"[w0]:keep %d" % each for each in range(6)]


def test_a_filtered_file_that_cannot_be_written_is_said_once(
    loop: Loop, terminal: Terminal, tmp_path: Path
) -> None:
    """And the console goes on."""
    path, filtered = tmp_path / "log", tmp_path / "no" / "filtered"
    tee = Tee(loop, [stream(path, terminal, filters=["loss"], filtered=filtered)])
    append(path, b"loss 1\nloss 2")
    tee.start()
    terminal.wait_until(lambda shown: b"cannot write" in shown)
    tee.close()
    said = f"[w0]:[cannot write {filtered}: No such file or directory]\n"
    assert terminal.read().decode() == f"[w0]:loss 1\n{said}[w0]:loss 2\n"


def test_a_line_without_end_is_shown_in_pieces(
    loop: Loop, terminal: Terminal, tmp_path: Path
) -> None:
    """A progress bar that never ends its line does not fill the memory."""
    path = tmp_path / "log"
    tee = Tee(loop, [stream(path, terminal)])
    tee.start()
    append(path, b"z" * 300_000)
    terminal.wait_until(lambda shown: shown.count(b"z") == 300_000)
    tee.close()
    assert terminal.read().count(b"\n") < 6


def test_a_file_that_hangs_holds_up_no_end_and_is_named(
    loop: Loop, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that nobody writes hangs as a disk does; what could be read is shown."""
    monkeypatch.setattr(tee_module, "_REST_S", 0.5)
    fine, hanging = tmp_path / "fine", tmp_path / "hanging"
    append(fine, b"line\n")
    os.mkfifo(hanging)
    tee = Tee(loop, [stream(fine, terminal, "[w0]:"), stream(hanging, terminal, "[w1]:")])
    began = loop.now()
    tee.start()
    ended: list[float] = []
    tee.finish(lambda: ended.append(loop.now()))
    while not ended:
        assert loop.now() < began + LIMIT_S
        before = loop.now()
        loop.run_once(0.5)
        assert loop.now() - before < 1.5
    assert 0.4 < ended[0] - began < 20.0
    for name, path in (("[w0]", fine), ("[w1]", hanging)):
        assert f"{name}:[the end of this output may be missing".encode() in terminal.read()
        assert f"gave no answer within 0.5 s: see {path}]\n".encode() in terminal.read()
    tee.close()
    hanging.open("wb").close()  # lets the thread go on to its end
    assert len(ended) == 1


def test_the_end_is_told_when_all_is_shown(loop: Loop, terminal: Terminal, tmp_path: Path) -> None:
    """In the loop, once."""
    path = tmp_path / "log"
    tee = Tee(loop, [stream(path, terminal)])
    tee.start()
    append(path, b"last words\n")
    shown: list[bytes] = []
    tee.finish(lambda: shown.append(terminal.read()))
    terminal.wait_until(lambda _: bool(shown))
    tee.close()
    assert shown == [b"[w0]:last words\n"]


@pytest.mark.parametrize(
    ("unreadable", "why"), [("/proc", "Is a directory"), ("/proc/self/mem", "Input/output error")]
)
def test_a_file_that_cannot_be_read_is_said_and_the_others_are_shown(
    loop: Loop, terminal: Terminal, tmp_path: Path, unreadable: str, why: str
) -> None:
    """A disk that fails ends no agent, when a file is opened or later."""
    path = tmp_path / "log"
    append(path, b"line\n")
    tee = Tee(loop, [stream(Path(unreadable), terminal, "[w0]:"), stream(path, terminal, "[w1]:")])
    tee.start()
    terminal.wait_until(lambda shown: shown.endswith(b"[w1]:line\n"))
    tee.close()
    assert terminal.read() == f"[w0]:[cannot show {unreadable}: {why}]\n[w1]:line\n".encode()


def test_nothing_is_polled(loop: Loop, terminal: Terminal, tmp_path: Path) -> None:
    """Without new output the loop sleeps."""
    tee = Tee(loop, [stream(tmp_path / "log", terminal)])
    tee.start()
    loop.run_once(0.2)
    began = loop.now()
    loop.run_once(0.3)
    assert loop.now() - began >= 0.29
    tee.close()
