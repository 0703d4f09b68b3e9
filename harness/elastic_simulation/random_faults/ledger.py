"""What campaigns have come to, in a file: one line of JSON for each range of seeds that is done.

A campaign that is given a ledger goes on where it was stopped, and its totals are those of all that
the ledger holds of the same kind. Ranges of other kinds (another quorum, say) may be in one file.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_simulation.random_faults.campaign import Finding, Tally
from pytest_elastic.errors import UsageError

__all__ = ["Entry", "Ledger", "shown_seeds", "summary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A range of seeds that is done: which kind of runs, what they came to, and how long.

    `cpu_s` is processor time.
    """

    kind: str
    seeds: range
    tally: Tally
    cpu_s: float


class Ledger:
    """The entries of a file, and a way to add one; a path of None keeps them in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.entries: list[Entry] = list(_read(path)) if path is not None else []

    def add(self, entry: Entry) -> None:
        """Write an entry down at once, so that it outlives this process."""
        self.entries.append(entry)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(_as_json(entry)) + "\n")

    def of(self, kind: str) -> list[Entry]:
        """Return the entries of one kind, in the order in which they were done."""
        return [entry for entry in self.entries if entry.kind == kind]

    def missing(self, kind: str, wanted: Sequence[range]) -> list[range]:
        """Return what is not done of some ranges, in pieces."""
        done = _joined(self.of(kind))
        missing: list[range] = []
        for seeds in wanted:
            first = seeds.start
            for start, end in done:
                if start < seeds.stop and end > first:
                    missing += [range(first, start)] if start > first else []
                    first = end
            missing += [range(first, seeds.stop)] if first < seeds.stop else []
        return missing


def summary(entries: Sequence[Entry]) -> str:
    """Return the totals of some entries as one line."""
    tally, cpu_s = Tally(), 0.0
    for entry in entries:
        tally.merge(entry.tally)
        cpu_s += entry.cpu_s
    found = sorted({finding.seed for finding in tally.findings})
    uncounted = tally.runs - tally.counted - len(tally.findings)
    rate = tally.counted / cpu_s if cpu_s else 0.0
    return (
        f"{tally.counted} counted, {uncounted} not counted, {len(tally.findings)} violations"
        + (f" (seeds {', '.join(map(str, found))})" if found else "")
        + f"; {rate:.0f} counted a second of processor time"
    )


def shown_seeds(entries: Sequence[Entry]) -> str:
    """Return the seeds of some entries as ranges, those that follow each other joined."""
    return ", ".join(f"{first}..{end}" for first, end in _joined(entries)) or "none"


def _joined(entries: Sequence[Entry]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for seeds in sorted((entry.seeds for entry in entries), key=lambda each: each.start):
        if joined and joined[-1][1] >= seeds.start:
            joined[-1] = (joined[-1][0], max(joined[-1][1], seeds.stop))
        else:
            joined.append((seeds.start, seeds.stop))
    return joined


def _as_json(entry: Entry) -> dict[str, Any]:
    tally = entry.tally
    return {
        "kind": entry.kind,
        "first": entry.seeds.start,
        "end": entry.seeds.stop,
        "cpu_s": round(entry.cpu_s, 3),
        "runs": tally.runs,
        "counted": tally.counted,
        "faults": tally.faults,
        "rounds": tally.rounds,
        "virtual_s": round(tally.virtual_s, 3),
        "endings": dict(tally.endings),
        "findings": [dataclasses.asdict(finding) for finding in tally.findings],
    }


def _read(path: Path) -> Iterator[Entry]:
    if not path.exists():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            fields = json.loads(line)
            yield Entry(
                kind=fields.pop("kind"),
                seeds=range(fields.pop("first"), fields.pop("end")),
                cpu_s=fields.pop("cpu_s"),
                tally=Tally(
                    endings=Counter(fields.pop("endings")),
                    findings=[Finding(**each) for each in fields.pop("findings")],
                    **fields,
                ),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"cannot read line {number} of the ledger {str(path)!r}: {error}",
                hint="a file that --ledger has written is expected",
            ) from error
