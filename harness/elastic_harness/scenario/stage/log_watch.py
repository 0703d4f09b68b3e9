"""Waits for lines in the output of launchers and workers, without reading more than is asked for.

Logs are looked at on a timer, and only while a pattern is waited for. A file that grows
faster is read in pieces, one after the other with the loop's other work in between, so that neither
memory nor answers suffer from a job that prints a gigabyte. A pattern that is asked for later is
looked for from the beginning of each file, in the same way.

A line is complete when its newline is there, or when no process can write to the file any more.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from elastic_harness.cluster.facets import LogFile, Logs
from elastic_harness.history.events import OutputRead
from pytest_elastic.loop import Loop, Timer

__all__ = ["FoundLine", "LogWatch"]

_LOOK_S = 0.05
# What one look reads of one file: it takes a millisecond or two.
_CHUNK = 256 * 1024
# A few hundred megabytes, on a machine that is busy with something else.
_CATCH_UP_S = 10.0
# A pattern that every line matches shall not make a history of every line. A line is left out only
# behind others of the same pattern, node and source: no clause that asks for one misses it.
_MOST_PER_LOOK = 20
# A progress bar of an hour is one line; what is longer than this is no line, and is cut.
_LONGEST_LINE = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLine:
    """A line that matches; `file` is relative to the node's folder.

    `was_there`: it had been written before the pattern was asked for.
    """

    node: str
    file: str
    pattern: str
    line: str
    source: str | int | None
    was_there: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A pattern in one file; what begins before `was_there_until` is older than the question."""

    regex: re.Pattern[str]
    was_there_until: int


@dataclass(slots=True, kw_only=True, eq=False)
class _Cursor:
    """How far one file was read for some patterns; `rest` is the line that has no end yet."""

    wanted: dict[str, _Wanted]
    offset: int = 0
    rest: bytearray = field(default_factory=bytearray)


@dataclass(slots=True, kw_only=True, eq=False)
class _File:
    """One log. `problem` is why it cannot be read now, `lost` why some of it never will be."""

    path: str
    node: str
    name: str
    size: int = 0
    identity: tuple[int, int] | None = None
    cursors: list[_Cursor] = field(default_factory=list)
    problem: str = ""
    lost: str = ""

    @property
    def is_behind(self) -> bool:
        """Tell whether there is something that was not read for every pattern."""
        return any(cursor.offset < self.size for cursor in self.cursors)


class LogWatch:
    """Follows every `*.log` below `folder/<node>/` and reports lines that match.

    `log_source_of(file, line)` says whose line it is: no source's lines hide another's.
    """

    def __init__(
        self,
        loop: Loop,
        logs: Logs,
        folder: str,
        on_line: Callable[[FoundLine], None],
        *,
        log_source_of: Callable[[str, str], str | int | None],
    ) -> None:
        self._loop = loop
        self._logs = logs
        self._folder = folder
        self._on_line = on_line
        self._log_source_of = log_source_of
        self._patterns: dict[tuple[str, str | None], re.Pattern[str]] = {}
        self._files: dict[str, _File] = {}
        self._left_out: Counter[str] = Counter()
        self._timer: Timer | None = None
        self._is_closed = False

    def watch(self, pattern: re.Pattern[str], node: str | None) -> None:
        """Report lines that match, those that were written before included."""
        self._patterns.setdefault((pattern.pattern, node), pattern)
        for file in self._find_files():
            self._ask_of(file, was_there_until=file.size)
        if self._timer is None and not self._is_closed:
            self._timer = self._loop.call_at(self._loop.now(), self._look)

    @property
    def unread(self) -> list[str]:
        """The files that are waited on and were not read to their end, by node and name.

        With the reason in parentheses, where there is one beyond that there was no time yet.
        """
        if not self._patterns:
            return []
        links = [file for file in self._logs.list(self._folder) if file.link_to]
        found = [
            f"{os.path.relpath(file.path, self._folder)} (a link to {file.link_to})"
            for file in links
        ]
        there = {file.path for file in self._find_files()}
        for file in self._files.values():
            if file.path not in there:
                file.problem = "No such file or directory"
            self._ask_of(file)
            if not file.cursors:
                continue
            if reason := file.problem or file.lost:
                found.append(f"{file.node}/{file.name} ({reason})")
            elif file.is_behind:
                found.append(f"{file.node}/{file.name}")
        return sorted(found)

    def catch_up(self) -> None:
        """Read what is there to its end, now; for when nothing is left to write any more.

        The last line of a file counts then, ended or not. Gives up after a while: what is unread
        then is said to be.
        """
        deadline = self._loop.now() + _CATCH_UP_S
        is_behind = True
        while is_behind and self._loop.now() < deadline:
            is_behind = self._read_a_piece_of_each()
        for file in tuple(self._files.values()):
            if not file.is_behind:
                self._end_lines(file)

    def output_read(self) -> OutputRead:
        """Read what is there to its end, and return how far that went; for the end of a run."""
        self.catch_up()
        return OutputRead(unread=tuple(self.unread), left_out=dict(sorted(self._left_out.items())))

    def close(self) -> None:
        """Stop looking."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if self._is_closed:
            return
        wait_s = 0.0 if self._read_a_piece_of_each() else _LOOK_S
        self._timer = self._loop.call_at(self._loop.now() + wait_s, self._look)

    def _read_a_piece_of_each(self) -> bool:
        """Read on in every file; tell whether there is more."""
        is_behind = False
        for file in self._find_files():
            is_behind |= self._read(file)
        return is_behind

    # --- which files ---------------------------------------------------------------------------

    def _find_files(self) -> Iterator[_File]:
        """Yield every log that is there; a link is none, as what it leads to has its own name."""
        for found in self._logs.list(self._folder):
            if not found.link_to:
                file = self._file(found.path)
                self._update(file, found)
                yield file

    def _file(self, path: str) -> _File:
        if path not in self._files:
            node, _, name = os.path.relpath(path, self._folder).partition(os.sep)
            self._files[path] = _File(path=path, node=node, name=name)
        return self._files[path]

    def _ask_of(self, file: _File, *, was_there_until: int = 0) -> None:
        """Begin at the beginning of a file with the patterns that are new to it."""
        known = {text for cursor in file.cursors for text in cursor.wanted}
        wanted = {
            text: _Wanted(regex=regex, was_there_until=was_there_until)
            for (text, node), regex in self._patterns.items()
            if node in (None, file.node) and text not in known
        }
        if wanted:
            file.cursors.append(_Cursor(wanted=wanted))

    # --- reading -------------------------------------------------------------------------------

    def _update(self, file: _File, found: LogFile) -> None:
        """Note how long a file is; begin again where it is not the one it was."""
        if found.problem:
            file.problem = found.problem
            return
        is_other = file.identity not in (None, found.identity)
        if is_other or found.size < file.size:
            file.lost = (
                "it was replaced by another file while it was read"
                if is_other
                else f"it shrank from {file.size} to {found.size} bytes while it was read"
            )
            self._end_lines(file)
            for cursor in file.cursors:
                cursor.offset = 0
        file.identity, file.size = found.identity, found.size

    def _read(self, file: _File) -> bool:
        """Read a piece of a file for each pattern; tell whether there is more."""
        self._ask_of(file)
        if not (file.is_behind or any(cursor.rest for cursor in file.cursors)):
            return False
        try:
            for cursor in tuple(file.cursors):
                if cursor in file.cursors:  # reporting may have had all of it read
                    self._take(file, cursor, self._logs.read(file.path, cursor.offset, _CHUNK))
            if not file.is_behind and self._logs.is_complete(file.path, file.size):
                self._end_lines(file)
        except OSError as error:
            file.problem = error.strerror or "it cannot be read"
            return False
        file.problem = ""
        self._join_cursors(file)
        return file.is_behind

    def _take(self, file: _File, cursor: _Cursor, data: bytes) -> None:
        """Report the lines that end in the next piece of a file."""
        if not data:
            return
        begins_at = cursor.offset - len(cursor.rest)
        cursor.offset += len(data)
        file.size = max(file.size, cursor.offset)
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(cursor.rest) + lines[0]
            cursor.rest = bytearray()
        cursor.rest += rest
        if len(cursor.rest) > _LONGEST_LINE:
            file.lost = f"a line of it is longer than {_LONGEST_LINE} bytes"
            lines.append(bytes(cursor.rest))
            cursor.rest = bytearray()
        self._report(file, cursor, lines, begins_at)

    def _end_lines(self, file: _File) -> None:
        """Take what has no newline for a line: nothing will be added to it."""
        for cursor in tuple(file.cursors):
            if cursor.rest:
                line, cursor.rest = bytes(cursor.rest), bytearray()
                self._report(file, cursor, [line], cursor.offset - len(line))

    def _join_cursors(self, file: _File) -> None:
        """Read once for all patterns that have got as far as each other."""
        joined: dict[tuple[int, int], _Cursor] = {}
        for cursor in file.cursors:
            other = joined.setdefault((cursor.offset, len(cursor.rest)), cursor)
            other.wanted.update(cursor.wanted)
        file.cursors = list(joined.values())

    def _report(self, file: _File, cursor: _Cursor, lines: list[bytes], begins_at: int) -> None:
        starts = []
        for line in lines:
            starts.append(begins_at)
            begins_at += len(line) + 1
        texts = [line.decode("utf-8", "replace") for line in lines]
        for pattern, wanted in tuple(cursor.wanted.items()):
            # A line is reported once, however many wait for the same pattern.
            reported: Counter[str | int | None] = Counter()
            for text, start in zip(texts, starts, strict=True):
                if not wanted.regex.search(text):
                    continue
                source = self._log_source_of(file.name, text)
                reported[source] += 1
                if reported[source] > _MOST_PER_LOOK:
                    self._left_out[pattern] += 1
                    continue
                self._on_line(
                    FoundLine(
                        node=file.node,
                        file=file.name,
                        pattern=pattern,
                        line=text[:1000],
                        source=source,
                        was_there=start < wanted.was_there_until,
                    )
                )
