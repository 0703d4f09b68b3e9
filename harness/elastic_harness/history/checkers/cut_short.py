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

__all__ = ["nodes_ended_by_faults", "not_observed"]


def nodes_ended_by_faults(history: History) -> frozenset[str]:
    """Return the nodes whose launcher a fault has ended, or has broken for good."""
    ended = history.last(RunEnded)
    return frozenset(ended.event.ended_by_faults if ended is not None else ())


def not_observed(history: History, reason: str) -> Verdict:
    """Judge that there was nothing to see: unknown, unless the test had ended every launcher."""
    launchers = [
        entry for entry in history.of_kind(ProcessStarted) if entry.event.role == "launcher"
    ]
    if launchers and {entry.node for entry in launchers} <= nodes_ended_by_faults(history):
        last = history.last(RunEnded)
        assert last is not None, "what ended by faults is said at the end"
        return valid(f"{reason}, and the test itself had ended every launcher", (last.seq,))
    if history.of_kind(JobEnded) and not history.of_kind(WorkersStarted):
        # The launchers say that none was started: that may be what the scenario is about.
        reason += " (if none is to be started, `no_workers` asks for that)"
    return unknown(reason)
