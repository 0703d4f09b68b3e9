"""Showing on the console what workers write to their log files, a prefix before each line.

The file is the truth and the console a view of it: a worker never waits for a slow terminal, and
one that prints a gigabyte costs the agent a bounded number of bytes a second. What is left out is
said, with the file that has it. The kernel tells when a file has grown (inotify); nothing is
polled.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_elastic.loop import Loop, Timer
from pytest_elastic.workers.console import Console
from pytest_elastic.workers.logs import LogSettings, WorkerLogs

__all__ = ["Tee", "TeeStream", "tee_streams"]

# How long a burst of writes is gathered before it is shown: a person sees no difference, and a
# worker that prints all the time wakes the agent 20 times a second and not thousands.
_GATHER_S = 0.05
_CHUNK = 128 * 1024
# Beyond this the console would lag by seconds: the middle is left out.
_MAX_BEHIND = 4 * 1024 * 1024
_KEEP_WHEN_SKIPPING = 64 * 1024
# A "line" without an end, such as a progress bar that uses carriage returns only.
_MAX_LINE = 64 * 1024
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
    logs: WorkerLogs, settings: LogSettings, *, prefix: str, stdout: Console, stderr: Console
) -> list[TeeStream]:
    """Return the streams of one worker that are to be shown, each on the console of its kind."""
    streams = []
    for path, is_shown, console, filters, name in (
        (logs.stdout, logs.tee.stdout, stdout, settings.stdout_filters, "stdout"),
        (logs.stderr, logs.tee.stderr, stderr, settings.stderr_filters, "stderr"),
    ):
        if path is not None and is_shown:
            attempt = os.path.dirname(os.path.dirname(path))
            streams.append(
                TeeStream(
                    path=path,
                    prefix=prefix,
                    console=console,
                    filters=filters,
                    filtered=os.path.join(attempt, f"filtered_{name}.log"),
                )
            )
    return streams


@dataclass(slots=True)
class _Tail:
    stream: TeeStream
    fd: int = -1
    line: bytearray = field(default_factory=bytearray)
    is_filtering: bool = True


class Tee:
    """Shows the log files of one round, from `start` to `finish`."""

    def __init__(self, loop: Loop, streams: Sequence[TeeStream]) -> None:
        self._loop = loop
        self._tails = [_Tail(stream) for stream in streams]
        self._inotify = -1
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to show; the files are made here if the workers have not come to it yet."""
        if not self._tails:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for tail in self._tails:
            flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC
            try:
                tail.fd = os.open(tail.stream.path, flags, 0o644)
            except OSError as error:
                # The worker cannot write there either, and says so by its end.
                self._note(tail, f"cannot show {tail.stream.path}: {error.strerror}")
                continue
            if self._inotify >= 0:
                watched = libc.inotify_add_watch(
                    self._inotify, os.fsencode(tail.stream.path), _IN_MODIFY
                )
                if watched < 0:
                    self._stop_watching()
        if self._inotify >= 0:
            self._loop.watch(self._inotify, on_readable=self._grown)
        self._read_later()

    def finish(self) -> None:
        """Show the rest and stop: the workers are gone. What finds no room waits in the console."""
        for tail in self._tails:
            if tail.fd < 0:
                continue
            self._skip_if_behind(tail)
            while self._read(tail):
                pass
            if tail.line:
                self._show(tail, [bytes(tail.line)])
            os.close(tail.fd)
            tail.fd = -1
        self._stop_watching()
        if self._timer is not None:
            self._timer.cancel()

    def _grown(self) -> None:
        # What has grown is found by reading; the events only wake us.
        try:
            os.read(self._inotify, 65536)
        except BlockingIOError:
            return
        self._loop.unwatch(self._inotify)
        self._read_later()

    def _read_later(self) -> None:
        self._timer = self._loop.call_at(self._loop.now() + _GATHER_S, self._read_all)

    def _read_all(self) -> None:
        is_more = False
        for tail in self._tails:
            if tail.fd < 0:
                continue
            if not tail.stream.console.is_full:
                self._skip_if_behind(tail)
                is_more |= self._read(tail)
            else:
                is_more = True
        if is_more or self._inotify < 0:
            self._read_later()
        else:
            self._loop.watch(self._inotify, on_readable=self._grown)

    def _read(self, tail: _Tail) -> bool:
        """Show one chunk; tell whether there may be more."""
        data = os.read(tail.fd, _CHUNK)
        tail.line += data
        *lines, rest = bytes(tail.line).split(b"\n")
        if len(rest) > _MAX_LINE:
            lines.append(rest)
            rest = b""
        tail.line = bytearray(rest)
        self._show(tail, lines)
        return len(data) == _CHUNK

    def _show(self, tail: _Tail, lines: Sequence[bytes]) -> None:
        prefix = tail.stream.prefix.encode(errors="replace")
        tail.stream.console.write(b"".join(prefix + line + b"\n" for line in lines))
        wanted = [text.encode() for text in tail.stream.filters]
        if wanted and tail.stream.filtered is not None and tail.is_filtering:
            chosen = [line for line in lines if any(text in line for text in wanted)]
            try:
                if chosen:
                    with open(tail.stream.filtered, "ab") as filtered:
                        filtered.writelines(prefix + line + b"\n" for line in chosen)
            except OSError as error:
                tail.is_filtering = False
                self._note(tail, f"cannot write {tail.stream.filtered}: {error.strerror}")

    def _note(self, tail: _Tail, sentence: str) -> None:
        prefix = tail.stream.prefix.encode(errors="replace")
        tail.stream.console.write(prefix + f"[{sentence}]\n".encode(errors="replace"))

    def _skip_if_behind(self, tail: _Tail) -> None:
        position = os.lseek(tail.fd, 0, os.SEEK_CUR)
        behind = os.fstat(tail.fd).st_size - position
        if behind > _MAX_BEHIND:
            skipped = behind - _KEEP_WHEN_SKIPPING
            os.lseek(tail.fd, skipped, os.SEEK_CUR)
            tail.line.clear()
            self._note(tail, f"{skipped} bytes are not shown here: see {tail.stream.path}")

    def _stop_watching(self) -> None:
        if self._inotify >= 0:
            self._loop.unwatch(self._inotify)
            os.close(self._inotify)
            self._inotify = -1
