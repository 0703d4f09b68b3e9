"""Recorded histories are changed, one fact at a time, and no change may be judged valid.

    python -m tests.judge.mutants                           all changes of the histories here
    python -m tests.judge.mutants hang --sample 200 --seed 7
    python -m tests.judge.mutants --artifacts=DIR           of the runs that pytest has kept in DIR

A change drops a record, repeats it, moves it, or says something else in a field that judges read;
`unseen.py` has those that cannot be noticed, and why. A change that is judged valid and is not
named there is a survivor, and makes the exit code 1. What a file's digest would notice is none of
this: the records are judged as they are.
"""

from __future__ import annotations

import argparse
import glob
import gzip
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from elastic_harness.history.history import History
from elastic_harness.history.judge import judge, overall
from elastic_harness.history.verdict import Verdict
from msgspec.structs import replace

from pytest_elastic.events.codec import read_records
from pytest_elastic.events.model import Record
from tests.judge.unseen import reason_unseen

__all__ = ["RECORDED", "Change", "changes_of", "load", "verdict_on"]

RECORDED: Final = os.path.join(os.path.dirname(__file__), "recorded")

# The facts that judges read, by the kind of the record; every record has a time and a place, too.
FACTS: Final[Mapping[str, tuple[str, ...]]] = {
    "run_started": ("nodes_min", "nodes_max", "nproc_per_node", "max_restarts"),
    "clause_planned": ("key", "checker", "is_negated", "is_optional"),
    "clause_judged": ("key", "outcome"),
    "fault_planned": ("id", "is_optional"),
    "fault_fired": ("id",),
    "fault_effective": ("id",),
    "fault_healed": ("id",),
    "node_started": ("incarnation",),
    "node_stopped": (),
    "process_started": ("pid", "role"),
    "process_exited": ("pid", "role", "exit_code"),
    "worker_hello": (
        "pid", "start_time", "rank", "local_rank", "group_rank", "world_size", "restart_count",
        "max_restarts", "master_addr", "master_port", "run_id", "round", "alive_before",
    ),
    "group_formed": ("pid", "rank", "world_size", "nonce"),
    "resume_observed": ("pid", "rank", "step"),
    "step_completed": ("pid", "rank", "count", "step", "began_at"),
    "parameters_hashed": ("pid", "rank", "step", "digest"),
    "samples_drawn": ("pid", "rank", "count", "step", "epoch", "batches"),
    "worker_finished": ("pid", "rank"),
    "worker_gone": ("pid", "rank"),
    "round_sealed": ("round", "roster", "restart_count"),
    "round_committed": (
        "round", "roster", "group_rank", "world_size", "restart_count", "master_addr",
        "master_port",
    ),
    "workers_started": ("round", "ranks"),
    "worker_exited": ("round", "rank", "exit_code"),
    "round_ended": ("round", "charged", "restarts_used"),
    "survivors_sought": ("nodes",),
    "run_ended": ("outcome", "exit_codes", "ended_by_faults"),
    "run_closed": (),
}  # fmt: skip
_OTHER_WORDS: Final = {
    "succeeded": "failed", "failed": "succeeded", "drained": "failed", "valid": "invalid",
    "launcher": "auxiliary", "auxiliary": "launcher",
}  # fmt: skip
# Longer than anything that was recorded takes.
_LONG_S: Final = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a history; `what` is its kind (`drop worker_hello`), `seq` the record's."""

    what: str
    seq: int
    make: Callable[[], list[Record]]


def load(path: str) -> list[Record]:
    """Read a recorded history, whole or packed."""
    if path.endswith(".gz"):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            return list(read_records(lines))
    with open(path, encoding="utf-8") as lines:
        return list(read_records(lines))


def verdict_on(records: Iterable[Record]) -> Verdict:
    """Return the one verdict on a run."""
    return overall(judge(History.of(records)))


def changes_of(records: Sequence[Record]) -> Iterator[Change]:
    """Yield every change of a history, in the order of its records."""
    nodes = sorted({record.node for record in records if record.node})
    for place, record in enumerate(records):
        kind = record.event.kind
        if kind not in FACTS:
            continue
        seq = place + 1
        yield Change(what=f"drop {kind}", seq=seq, make=_putting(records, place))
        yield Change(what=f"repeat {kind}", seq=seq, make=_putting(records, place, record, record))
        if (later := _next_of_same(records, place)) is not None:
            yield Change(what=f"move {kind}", seq=seq, make=_moving(records, place, later))
        for sign, word in ((1, "late"), (-1, "early")):
            moved = replace(record, at=record.at + sign * _LONG_S)
            yield Change(what=f"{word} {kind}", seq=seq, make=_putting(records, place, moved))
        if record.node:
            elsewhere = next((node for node in nodes if node != record.node), "n99")
            other = replace(record, node=elsewhere)
            yield Change(what=f"edit {kind}.node", seq=seq, make=_putting(records, place, other))
        for name in FACTS[kind]:
            for value in _others(getattr(record.event, name)):
                event = replace(record.event, **{name: value})
                other = replace(record, event=event)
                what = f"edit {kind}.{name}"
                yield Change(what=what, seq=seq, make=_putting(records, place, other))


def _putting(records: Sequence[Record], place: int, *instead: Record) -> Callable[[], list[Record]]:
    return lambda: [*records[:place], *instead, *records[place + 1 :]]


def _moving(records: Sequence[Record], place: int, later: int) -> Callable[[], list[Record]]:
    def make() -> list[Record]:
        moved = [*records[:place], *records[place + 1 : later + 1], records[place]]
        return [*moved, *records[later + 1 :]]

    return make


def _next_of_same(records: Sequence[Record], place: int) -> int | None:
    """Return the place of the next record by, or of, the same process, node or run."""
    own = _told_of(records[place])
    places = [each for each in range(place + 1, len(records)) if records[each].event.kind in FACTS]
    return next((each for each in places if _told_of(records[each]) == own), None)


def _told_of(record: Record) -> tuple[object, ...]:
    who = getattr(record.event, "pid", "") if record.source in ("worker", "cluster") else ""
    fault = getattr(record.event, "id", "")
    return record.source, record.node, record.incarnation, who, fault


def _others(value: Any) -> list[Any]:  # any field of any event
    """Return what else a field may say."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value - 1]
        case float():
            return [value + _LONG_S, value - _LONG_S]
        case str():
            return [_OTHER_WORDS.get(value, f"{value}-other" if value else "other")]
        case dict() if value:
            first = next(iter(value))
            less = {key: each for key, each in value.items() if key != first}
            return [less, {**value, first: _others(value[first])[0]}]
        case dict():
            return [{"n1": 1}]
        case tuple() if value:
            return [value[1:], (*value[:-1], _others(value[-1])[0])]
        case tuple():
            return [(1,)]
        case _:
            return []


def _recorded(names: Sequence[str], artifacts: str | None) -> dict[str, str]:
    if artifacts is not None:
        paths = sorted(glob.glob(os.path.join(artifacts, "*", "history.jsonl")))
        found = {os.path.basename(os.path.dirname(path)): path for path in paths}
    else:
        paths = sorted(glob.glob(os.path.join(RECORDED, "*.jsonl.gz")))
        found = {os.path.basename(path).removesuffix(".jsonl.gz"): path for path in paths}
    return {name: path for name, path in found.items() if not names or name in names}


def main(arguments: Sequence[str]) -> int:
    """Judge every change, or a sample; print the survivors and the numbers."""
    parser = argparse.ArgumentParser(prog="python -m tests.judge.mutants")
    parser.add_argument("names", nargs="*", help="some of the recorded histories")
    parser.add_argument("--artifacts", metavar="DIR", help="where pytest has kept runs")
    parser.add_argument("--sample", type=int, help="only so many changes of each history")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--unseen", action="store_true", help="count what is excused, by kind")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    counts: Counter[str] = Counter()
    excused: Counter[str] = Counter()
    for name, path in _recorded(options.names, options.artifacts).items():
        records = load(path)
        verdict = verdict_on(records)
        if not verdict.is_valid:
            print(f"{name}: left out, it is {verdict.outcome.value}: {verdict.reason}")
            continue
        changes = list(changes_of(records))
        if options.sample is not None:
            chosen = random.Random(options.seed)
            changes = chosen.sample(changes, min(options.sample, len(changes)))
        for change in changes:
            if not verdict_on(change.make()).is_valid:
                counts["killed"] += 1
            elif reason_unseen(change.what, records, change.seq - 1):
                counts["excused"] += 1
                excused[change.what] += 1
            else:
                counts["survived"] += 1
                print(
                    f"{name}: record {change.seq}: {change.what}: {records[change.seq - 1]!r:.250}"
                )
    if options.sample is not None:
        print(
            f"seed {options.seed}: python -m tests.judge.mutants --sample {options.sample} "
            f"--seed {options.seed}"
        )
    if options.unseen:
        for what, count in excused.most_common():
            print(f"{count:6}  {what}")
    numbers = ", ".join(f"{counts[each]} {each}" for each in ("killed", "survived", "excused"))
    print(f"{counts.total()} changes in {time.monotonic() - began:.0f} s: {numbers}")
    return 1 if counts["survived"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
