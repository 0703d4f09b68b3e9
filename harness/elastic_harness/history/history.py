"""The history: everything that happened in one run, in one order.

Records get a sequence number from 1 in the order in which the harness learned of them; `at` says
when they happened, all on the clock of one machine. `history.jsonl` is kept in step line by line,
so that what is on disk after a crash of the harness is all that was known.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TextIO, TypeVar, cast

from elastic_harness.history.events import RunStarted
from elastic_harness.history.worlds import Worlds
from pytest_elastic.events.codec import encode_record, kind_of, read_records
from pytest_elastic.events.model import Event, Record

__all__ = ["Entry", "History"]

E_co = TypeVar("E_co", bound=Event, covariant=True)


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


class History:
    """Records in order, with the worlds they tell of; optionally written to a file as they come."""

    def __init__(self, path: str | None = None) -> None:
        self._entries: list[Entry[Event]] = []
        self._by_kind: dict[str, list[Entry[Event]]] = {}
        self._file: TextIO | None = None
        self.worlds = Worlds()
        if path is not None:
            self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 (kept open)

    @classmethod
    def of(cls, records: Iterable[Record]) -> History:
        """Make a history from records at hand."""
        history = cls()
        for record in records:
            history.append(record)
        return history

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read a history back; torn and foreign lines are passed over. Raises OSError."""
        with open(path, "rb") as lines:
            return cls.of(read_records(lines))

    def append(self, record: Record) -> Entry[Event]:
        """Add a record at the end and return its entry."""
        entry: Entry[Event] = Entry(len(self._entries) + 1, record)
        self._entries.append(entry)
        self._by_kind.setdefault(kind_of(record.event), []).append(entry)
        self.worlds.observe(record)
        if self._file is not None:
            self._file.write(encode_record(record, seq=entry.seq) + "\n")
        return entry

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
        return cast("list[Entry[E_co]]", list(self._by_kind.get(kind.kind, ())))

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
    def run(self) -> Entry[RunStarted] | None:
        """What was run, if the history says so."""
        return self.first(RunStarted)

    @property
    def start(self) -> float:
        """When the run began: the time that relative times count from."""
        if self.run is not None:
            return self.run.at
        return min((entry.at for entry in self._entries), default=0.0)
