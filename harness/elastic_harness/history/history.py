"""The history: everything that happened in one run, in one order.

Records get a sequence number from 1 in the order in which the harness learned of them; `at` says
when they happened, all on the clock of one machine. `history.jsonl` is kept in step line by line,
so that what is on disk after a crash of the harness is all that was known. A file that is read back
is taken up to its first line that is torn, missing or changed; `damage` says which that is.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final, Generic, TypeVar, cast

from msgspec.structs import replace

from elastic_harness.history.events import (
    HISTORY_FORMAT,
    ClockCompared,
    RunClosed,
    RunStarted,
    StepCompleted,
)
from elastic_harness.history.worlds import Worlds
from pytest_elastic.errors import UsageError
from pytest_elastic.events.codec import decode_record, encode_record
from pytest_elastic.events.model import Event, Record

__all__ = ["Entry", "History", "unwritable"]

E_co = TypeVar("E_co", bound=Event, covariant=True)

# Whose records have the time of their node's clock.
_STATED_THERE: Final = ("worker", "agent")


@dataclass(frozen=True, slots=True)
class Entry(Generic[E_co]):
    """A record at its place in a history. `event` is typed where the query was."""

    seq: int
    record: Record

    @property
    def at(self) -> float:
        """When it happened."""
        return self.record.at

    @property
    def node(self) -> str:
        """Where it happened ("" for the run itself)."""
        return self.record.node

    @property
    def event(self) -> E_co:
        """What happened."""
        return cast("E_co", self.record.event)


def unwritable(path: str, error: OSError) -> UsageError:
    """Return what to say of a file of a run that cannot be written."""
    return UsageError(
        f"cannot write {path}: {error.strerror}",
        hint="Make room, or choose another folder (pytest: --elastic-artifacts, "
        "pytest-elastic chaos: --artifacts).",
    )


class History:
    """Records in order, with the worlds they tell of; optionally written to a file as they come."""

    def __init__(self, path: str | None = None) -> None:
        self._entries: list[Entry[Event]] = []
        self._by_class: dict[type[Event], list[Entry[Event]]] = {}
        self._path = path
        self._file: BinaryIO | None = None
        self._lines = hashlib.sha256()
        self.worlds = Worlds()
        # Why this is not all of the file that it was read from; empty when it is.
        self.damage = ""
        # What `by_other_clocks` has made, and of how many records.
        self._others: tuple[int, Sequence[History]] = (0, ())

    @classmethod
    def of(cls, records: Iterable[Record]) -> History:
        """Make a history from records at hand."""
        history = cls()
        for record in records:
            history.append(record)
        return history

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read a history back, up to the first line that is not as it was written (`damage`).

        Raises OSError, and UsageError for a file that another version of the harness has written.
        """
        history = cls()
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                record = decode_record(line)
                if record is None or not line.endswith(b"\n"):
                    history.damage = f"line {number} is torn, or no record"
                elif (found := _seq_of(line)) != number:
                    history.damage = f"record {found} stands where record {number} should"
                elif _is_changed(record.event, history._lines.hexdigest()):
                    history.damage = "its lines were changed after they were written"
                if history.damage or record is None:
                    history.damage += f": it is judged up to record {number - 1}"
                    break
                history._lines.update(line)
                history.append(record)
        found_format = history.run.event.format if history.run is not None else None
        if found_format != HISTORY_FORMAT:
            what = "no history" if found_format is None else f"a history of format {found_format}"
            raise UsageError(
                f"{os.fspath(path)} is {what}: format {HISTORY_FORMAT} is expected",
                hint="Judge it with the version of pytest-elastic that has written it.",
            )
        return history

    def append(self, record: Record) -> Entry[Event]:
        """Add a record at the end and return its entry; the file is opened where it is closed.

        Raises UsageError, once, when the file cannot be written: the record is kept in memory, and
        so are all that follow.
        """
        entry: Entry[Event] = Entry(len(self._entries) + 1, record)
        self._entries.append(entry)
        self._by_class.setdefault(type(record.event), []).append(entry)
        self.worlds.observe(record)
        if self._path is not None:
            line = (encode_record(record, seq=entry.seq) + "\n").encode()
            try:
                if self._file is None:
                    self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 (kept open)
                self._file.write(line)
            except OSError as error:
                path, self._path = self._path, None
                raise unwritable(path, error) from error
            self._lines.update(line)
        return entry

    def append_after_end(self, event: Event) -> None:
        """Add what was found out about a run that is over, at the time of its last record."""
        at = max((entry.at for entry in self._entries[-1:]), default=0.0)
        self.append(Record(at=at, source="engine", node="", run_id="", event=event))
        self.close()

    @property
    def digest(self) -> str:
        """The SHA-256 of the lines that were written or read so far, for `RunClosed`."""
        return self._lines.hexdigest()

    def close(self) -> None:
        """Close the file; the history itself stays readable. Harmless when there is none."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry[Event]]:
        return iter(self._entries)

    def __getitem__(self, seq: int) -> Entry[Event]:
        """Return the entry with a sequence number (from 1)."""
        if not 1 <= seq <= len(self._entries):
            raise IndexError(f"no record has the number {seq}: there are {len(self._entries)}")
        return self._entries[seq - 1]

    @property
    def entries(self) -> tuple[Entry[Event], ...]:
        """All entries, in order."""
        return tuple(self._entries)

    @property
    def records(self) -> tuple[Record, ...]:
        """All records, in order."""
        return tuple(entry.record for entry in self._entries)

    def of_kind(self, kind: type[E_co]) -> list[Entry[E_co]]:
        """Return the entries whose event is of one class, in order."""
        return cast("list[Entry[E_co]]", list(self._by_class.get(kind, ())))

    def first(self, kind: type[E_co]) -> Entry[E_co] | None:
        """Return the first entry of a class, if there is one."""
        found = self.of_kind(kind)
        return found[0] if found else None

    def last(self, kind: type[E_co]) -> Entry[E_co] | None:
        """Return the last entry of a class, if there is one."""
        found = self.of_kind(kind)
        return found[-1] if found else None

    def by_node(self) -> dict[str, list[Entry[Event]]]:
        """Return the entries of each node, in order of first appearance."""
        nodes: dict[str, list[Entry[Event]]] = {}
        for entry in self._entries:
            if entry.node:
                nodes.setdefault(entry.node, []).append(entry)
        return nodes

    def between(self, start: float, end: float) -> list[Entry[Event]]:
        """Return what happened from `start` (included) until `end` (excluded), in order of time."""
        inside = [entry for entry in self._entries if start <= entry.at < end]
        return sorted(inside, key=lambda entry: (entry.at, entry.seq))

    @property
    def clock_errors(self) -> Mapping[str, float]:
        """By how many seconds at most times may be off that nodes with other clocks have stated."""
        return {entry.node: entry.event.error_s for entry in self.of_kind(ClockCompared)}

    def by_other_clocks(self) -> Sequence[History]:
        """Return this history as it would be if those clocks had been off by all of that.

        First ahead and then behind; nothing where all nodes have one clock. What is true in both
        and here is true of every order of things that the clocks leave open, if it compares times
        of nodes with those of the harness.
        """
        errors = {node: error_s for node, error_s in self.clock_errors.items() if error_s}
        if not errors:
            return ()
        if self._others[0] != len(self):
            moved = (
                History.of(_moved(each, sign * errors.get(each.node, 0.0)) for each in self.records)
                for sign in (1, -1)
            )
            self._others = (len(self), tuple(moved))
        return self._others[1]

    @property
    def run(self) -> Entry[RunStarted] | None:
        """What was run, if the history says so."""
        return self.first(RunStarted)

    @property
    def start(self) -> float:
        """When the run began: the time that relative times count from."""
        if self.run is not None:
            return self.run.at
        return min((entry.at for entry in self._entries), default=0.0)


def _moved(record: Record, by_s: float) -> Record:
    if not by_s or record.source not in _STATED_THERE:
        return record
    event = record.event
    if isinstance(event, StepCompleted):
        event = replace(event, began_at=event.began_at + by_s)
    return replace(record, at=record.at + by_s, event=event)


def _seq_of(line: bytes) -> object:
    return json.loads(line).get("seq")


def _is_changed(event: Event, digest: str) -> bool:
    return isinstance(event, RunClosed) and event.digest != digest
