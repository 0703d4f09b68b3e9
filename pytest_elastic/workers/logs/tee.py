"""Showing on the console what workers write to their log files, a prefix before each line.

The file is the truth and the console a view of it: a worker never waits for a slow terminal, and
one that prints a gigabyte costs the agent a bounded number of bytes a second. What is left out is
said, with the file that has it. Filtered lines go to a file and have a reader of their own, which
leaves nothing out, whatever the console does. The kernel tells when a file has grown (inotify);
nothing is polled. Files are touched on a thread, because a file system may hang; the console is
written in the loop.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field

from pytest_elastic.file_thread import FileThread
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.workers.logs.console import Console
from pytest_elastic.workers.logs.folders import LogSettings, WorkerLogs

__all__ = ["Tee", "TeeStream", "tee_streams"]

# How long a burst of writes is gathered before it is shown: a person sees no difference, and a
# worker that prints all the time wakes the agent 20 times a second and not thousands.
_GATHER_S = 0.05
# What is read at once: 80 MB a second, more than workers print for long. Splitting it into lines
# keeps Python's lock, and the loop from its work, for some milliseconds.
_CHUNK = 4 * 1024 * 1024
# Beyond this the middle is left out: where the console took nothing for a second, and would lag by
# many; and where it takes everything, as what is left at the end is read into memory.
_MAX_BEHIND_SLOW = 4 * 1024 * 1024
_MAX_BEHIND = 64 * 1024 * 1024
_SLOW_TURNS = 20
_KEEP_WHEN_SKIPPING = 64 * 1024
# A "line" without an end, such as a progress bar that uses carriage returns only.
_MAX_LINE = 64 * 1024
# How long the rest may take to read when the workers are gone: all other nodes wait.
_REST_S = 3.0
_IN_MODIFY = 0x2


@dataclass(frozen=True, slots=True, kw_only=True)
class TeeStream:
    """A log file to be shown: what each line begins with, and which lines go to `filtered` too."""

    path: str
    prefix: str
    console: Console
    filters: Sequence[str] = ()
    filtered: str | None = None


def tee_streams(
    logs: WorkerLogs, settings: LogSettings, *, prefix: str, consoles: tuple[Console, Console]
) -> list[TeeStream]:
    """Return the streams of one worker that are to be shown, each on the console of its kind."""
    stdout, stderr = consoles
    return [
        TeeStream(path=path, prefix=prefix, console=console, filters=filters, filtered=filtered)
        for path, console, filters, filtered in (
            (logs.tee_stdout, stdout, settings.stdout_filters, logs.filtered_stdout),
            (logs.tee_stderr, stderr, settings.stderr_filters, logs.filtered_stderr),
        )
        if path is not None
    ]


@dataclass(slots=True)
class _Tail:
    stream: TeeStream
    filtered: str | None = None  # where chosen lines go, instead of the console
    fd: int = -1
    line: bytearray = field(default_factory=bytearray)
    turns_full: int = 0  # of reading, one after the other, in which the console was full
    is_over: bool = False


class Tee:
    """Shows the log files of one round, from `start` to `finish` or `close`."""

    def __init__(self, loop: Loop, streams: Sequence[TeeStream]) -> None:
        self._loop = loop
        self._thread = FileThread()
        self._inotify = _Inotify()
        self._files = _Files(streams, self._inotify)
        self._timer: Timer | None = None
        self._on_finished: Callable[[], None] | None = None
        self._is_over = False

    def start(self) -> None:
        """Begin to show; the files are made here if the workers have not come to it yet."""
        self._loop.enable_thread_wakeup()
        self._thread.do(self._files.open)
        self._read_all()

    def finish(self, on_finished: Callable[[], None]) -> None:
        """Show the rest: the workers are gone. What finds no room waits in the console.

        `on_finished` is called in the loop, after three seconds at most; which files could not be
        read to their end by then is said.
        """
        self._begin_to_finish(on_finished)
        self._set_timer(_REST_S, self._end)

    def close(self) -> None:
        """Show the rest when the loop has ended, within the same time; `finish` is forgotten."""
        if self._is_over:
            return
        self._begin_to_finish(lambda: None)
        self._thread.wait(_REST_S)
        self._end()

    def _begin_to_finish(self, on_finished: Callable[[], None]) -> None:
        def read() -> None:
            self._files.read_rest()
            self._inotify.close()
            self._loop.call_from_thread(self._end)

        if self._on_finished is None:
            self._loop.unwatch(self._inotify.fd)  # which is the thread's alone from here
            self._thread.do(read)
        self._on_finished = on_finished

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._show()
        for tail in self._files.unread:
            where, why = "here", "a file system gave no answer"
            if tail.filtered is not None:
                where, why = f"in {tail.filtered}", "it was not read to its end"
            note = (
                f"the end of this output may be missing {where}, as {why} within {_REST_S:g} s:"
                f" see {tail.stream.path}"
            )
            tail.stream.console.write(_note(tail.stream, note))
        if self._timer is not None:
            self._timer.cancel()
        assert self._on_finished is not None, "it ends by finish or close"
        self._on_finished()

    def _read_all(self) -> None:
        """Have the thread read a chunk of each file whose console takes something."""
        full = {console for console in self._files.consoles if console.is_full}

        def read() -> None:
            is_more = self._files.read_chunks(full)
            self._loop.call_from_thread(lambda: self._chunks_read(is_more=is_more))

        self._thread.do(read)

    def _chunks_read(self, *, is_more: bool) -> None:
        if self._on_finished is not None:
            return
        self._show()
        if is_more or not self._inotify.sees_all:
            self._set_timer(_GATHER_S, self._read_all)
        else:
            self._loop.watch(self._inotify.fd, on_readable=self._grown)

    def _grown(self) -> None:
        # What has grown is found by reading; the events only wake us.
        if self._inotify.forget_events():
            self._loop.unwatch(self._inotify.fd)
            self._set_timer(_GATHER_S, self._read_all)

    def _show(self) -> None:
        for console, data in self._files.take():
            console.write(data)

    def _set_timer(self, after_s: float, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._loop.now() + after_s, callback)


class _Files:
    """The files of a Tee, for its thread; the loop takes what was read of them."""

    def __init__(self, streams: Sequence[TeeStream], inotify: _Inotify) -> None:
        self._tails = [_Tail(stream) for stream in streams]
        self._tails += [
            _Tail(stream, stream.filtered)
            for stream in streams
            if stream.filters and stream.filtered is not None
        ]
        self._inotify = inotify
        self._shown: deque[tuple[Console, bytes]] = deque()

    @property
    def consoles(self) -> Sequence[Console]:
        """Where they are shown."""
        return [tail.stream.console for tail in self._tails]

    @property
    def unread(self) -> Sequence[_Tail]:
        """Those that have not been read to their end."""
        return [tail for tail in self._tails if not tail.is_over]

    def take(self) -> Iterator[tuple[Console, bytes]]:
        """Return what is to be shown, once; for the loop."""
        while self._shown:
            yield self._shown.popleft()

    def open(self) -> None:
        """Open all; those that the workers have not come to are made."""
        for tail in self._tails:
            flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC
            try:
                tail.fd = os.open(tail.stream.path, flags, 0o644)
            except OSError as error:
                # The worker cannot write there either, and says so by its end.
                self._give_up(tail, error)
            else:
                self._inotify.add(tail.stream.path)

    def read_chunks(self, full: Container[Console]) -> bool:
        """Read a chunk of each, but for a full console; tell whether there is more."""
        is_more = False
        for tail in self._tails:
            if tail.filtered is None and tail.stream.console in full:
                tail.turns_full += 1
                is_more |= not tail.is_over
            else:
                is_more |= self._read(tail)
        return is_more

    def read_rest(self) -> None:
        """Read all to their ends, and close them."""
        for tail in self._tails:
            while self._read(tail):
                pass
            if tail.line:
                self._take_lines(tail, [bytes(tail.line)])
            self._close(tail)

    def _read(self, tail: _Tail) -> bool:
        """Read a chunk; tell whether there may be more."""
        if tail.is_over:
            return False
        try:
            if tail.filtered is None:
                self._skip_if_behind(tail)
            data = os.read(tail.fd, _CHUNK)
        except OSError as error:
            self._give_up(tail, error)
            return False
        tail.line += data
        *lines, rest = bytes(tail.line).split(b"\n")
        if len(rest) > _MAX_LINE:
            lines.append(rest)
            rest = b""
        tail.line = bytearray(rest)
        self._take_lines(tail, lines)
        return len(data) == _CHUNK and not tail.is_over

    def _take_lines(self, tail: _Tail, lines: Sequence[bytes]) -> None:
        """Show them, or write those that match to the filtered file."""
        prefix = tail.stream.prefix.encode(errors="replace")
        if tail.filtered is None:
            text = b"".join(prefix + line + b"\n" for line in lines)
            self._shown.append((tail.stream.console, text))
            return
        wanted = [text.encode() for text in tail.stream.filters]
        chosen = [line for line in lines if any(text in line for text in wanted)]
        try:
            if chosen:
                with open(tail.filtered, "ab") as filtered:
                    filtered.writelines(prefix + line + b"\n" for line in chosen)
        except OSError as error:
            self._say(tail, f"cannot write {tail.filtered}: {error.strerror}")
            tail.line.clear()
            self._close(tail)

    def _skip_if_behind(self, tail: _Tail) -> None:
        position = os.lseek(tail.fd, 0, os.SEEK_CUR)
        behind = os.fstat(tail.fd).st_size - position
        is_slow, tail.turns_full = tail.turns_full >= _SLOW_TURNS, 0
        if behind > (_MAX_BEHIND_SLOW if is_slow else _MAX_BEHIND):
            skipped = behind - _KEEP_WHEN_SKIPPING
            os.lseek(tail.fd, skipped, os.SEEK_CUR)
            tail.line.clear()
            self._say(tail, f"{skipped} bytes are not shown here: see {tail.stream.path}")

    def _give_up(self, tail: _Tail, error: OSError) -> None:
        act = "show" if tail.filtered is None else "filter"
        self._say(tail, f"cannot {act} {tail.stream.path}: {error.strerror}")
        self._close(tail)

    def _close(self, tail: _Tail) -> None:
        tail.is_over = True
        fd, tail.fd = tail.fd, -1
        if fd >= 0:
            os.close(fd)

    def _say(self, tail: _Tail, sentence: str) -> None:
        self._shown.append((tail.stream.console, _note(tail.stream, sentence)))


class _Inotify:
    """Tells when a file has grown; where the kernel cannot (`sees_all`), files are to be read."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self.sees_all = self.fd >= 0

    def add(self, path: str) -> None:
        """Tell of this file too."""
        if self.sees_all:
            watched = self._libc.inotify_add_watch(self.fd, os.fsencode(path), _IN_MODIFY)
            self.sees_all = watched >= 0

    def forget_events(self) -> bool:
        """Take the events that are there; tell whether there were any."""
        try:
            return bool(os.read(self.fd, 65536))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Tell of nothing more."""
        if self.fd >= 0:
            os.close(self.fd)


def _note(stream: TeeStream, sentence: str) -> bytes:
    return f"{stream.prefix}[{sentence}]\n".encode(errors="replace")
