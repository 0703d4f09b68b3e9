"""A history as a Chrome trace: open it in https://ui.perfetto.dev or chrome://tracing.

A process for the run (rounds and faults) and one for each node, with a thread for each lane. Times
are microseconds from the beginning of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from elastic_harness.history.history import History
from elastic_harness.report.moments import moments
from elastic_harness.report.spans import Span, fault_spans, lanes, round_spans

__all__ = ["trace_json"]

_RUN = 1  # the process number of the run itself; nodes follow


def trace_json(history: History) -> str:
    """Return the trace file's text."""
    events = list(_events(history))
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":"))


def _events(history: History) -> Iterator[dict[str, Any]]:
    start = history.start
    yield from _names(_RUN, "run", {1: "rounds", 2: "faults", 3: "moments"})
    for span in round_spans(history):
        yield _slice(span, start, _RUN, 1)
    for span in fault_spans(history):
        yield _slice(span, start, _RUN, 2)
    processes: dict[str, int] = {}
    threads: dict[str, dict[int, str]] = {}
    for lane in lanes(history):
        process = processes.setdefault(lane.node, _RUN + 1 + len(processes))
        names = threads.setdefault(lane.node, {})
        names[len(names) + 1] = lane.name
        for span in lane.spans:
            yield _slice(span, start, process, len(names))
    for node, process in processes.items():
        yield from _names(process, node, threads[node])
    for moment in moments(history):
        yield {
            "ph": "i",
            "s": "p" if moment.node in processes else "g",
            "name": moment.text,
            "cat": "moment",
            "pid": processes.get(moment.node, _RUN),
            "tid": 1 if moment.node in processes else 3,
            "ts": _microseconds(moment.at - start),
            "args": {"seq": list(moment.seqs)},
        }


def _names(process: int, name: str, threads: dict[int, str]) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}
    for number, thread in threads.items():
        args = {"name": thread}
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": number, "args": args}


def _slice(span: Span, start: float, process: int, thread: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.label,
        "cat": span.kind,
        "pid": process,
        "tid": thread,
        "ts": _microseconds(span.start - start),
        "dur": max(_microseconds(span.end - span.start), 1),
        "args": {"detail": span.detail, "seq": span.seq},
    }


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
