"""Jobs that their test has ended itself, maybe before there was anything to see.

Who kills all nodes of a job, or tells them to leave, does not ask whether its workers had got as
far as to say hello by then; a slow machine must not make a difference. What was seen is judged as
ever.
"""

from __future__ import annotations

from elastic_harness.history.events import ProcessStarted, RunEnded
from elastic_harness.history.history import History
from elastic_harness.history.verdict import Verdict, unknown, valid
from pytest_elastic.events.model import JobEnded, WorkersStarted

__all__ = ["is_stopped", "nodes_ended_by_faults", "not_observed"]


def is_stopped(history: History) -> bool:
    """Tell whether the test itself ended the run, while the job was still going on."""
    ended = history.last(RunEnded)
    return ended is not None and ended.event.outcome == "stopped"


def nodes_ended_by_faults(history: History) -> frozenset[str]:
    """Return the nodes whose launcher a fault has ended, or has broken for good."""
    ended = history.last(RunEnded)
    return frozenset(ended.event.ended_by_faults if ended is not None else ())


def not_observed(history: History, reason: str) -> Verdict:
    """Judge that there was nothing to see: unknown, unless the test has ended the job before."""
    if is_stopped(history):
        return valid(f"{reason}, and the test itself ended the run", _end_of(history))
    launchers = [
        entry for entry in history.of_kind(ProcessStarted) if entry.event.role == "launcher"
    ]
    if launchers and {entry.node for entry in launchers} <= nodes_ended_by_faults(history):
        return valid(f"{reason}, and the test itself had ended every launcher", _end_of(history))
    if history.of_kind(JobEnded) and not history.of_kind(WorkersStarted):
        # The launchers say that none was started: that may be what the scenario is about.
        reason += " (if none is to be started, `no_workers` asks for that)"
    return unknown(reason)


def _end_of(history: History) -> tuple[int, ...]:
    ended = history.last(RunEnded)
    return () if ended is None else (ended.seq,)
