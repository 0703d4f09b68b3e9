"""Why a run failed, by its history: the worker that failed first, and where the living ones stood.

A worker has failed by itself when it raised or exited on its own account: not when a fault ended
it, when its launcher stopped it, or when it only noticed that another one was gone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from elastic_harness.history.events import (
    FaultFired,
    LastLinesSeen,
    NodeStopped,
    ProcessExited,
    RunEnded,
    StackSeen,
    WorkerRaised,
)
from elastic_harness.history.history import Entry, History
from elastic_harness.history.stacks import is_in_collective, place_in_script
from elastic_harness.history.worlds import WorkerView, World
from pytest_elastic.events.model import (
    AgentExited,
    AgentStalled,
    JobEnded,
    JobEnding,
    LeaseLost,
    WorkerExited,
)
from pytest_elastic.exit_codes import exit_text
from pytest_elastic.rendezvous.model import natural_key

__all__ = [
    "FailedWorker",
    "failed_first",
    "first_failure",
    "hung_when_done",
    "is_about_others",
    "leases_lost_unasked",
    "lines_of",
    "node_of_first_failure",
    "number_list",
    "where_ranks_stand",
    "why_it_ended",
    "words_of",
]

# Faults that end the workers they are aimed at, or those of the nodes they are aimed at.
_ENDING = frozenset({
    "abort", "crash", "device_assert", "exit", "kill", "kill_agent", "kill_store", "leave",
    "nccl_abort", "oom", "power_cut", "preempt", "raise", "reboot", "replace", "segfault",
})  # fmt: skip
# What gloo, NCCL and the store say of a peer that is gone, and torchrun of a worker.
_OF_OTHERS = re.compile(
    r"ChildFailedError|KeyboardInterrupt|Connection (?:closed|reset|refused)|Broken pipe"
    r"|closed by (?:remote )?peer|likely closed|pair closure|failed to recv|recvValue failed"
    r"|Socket ?Timeout|Timed out waiting|collective operation timeout|heartbeat monitor"
    r"|NCCL (?:error|communicator)|ncclRemoteError",
    re.IGNORECASE,
)
_MAX_LINES = 6
_MAX_GROUPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedWorker:
    """A worker that has failed by itself; `raised` and `exit_code` as far as they are known."""

    node: str
    rank: int
    pid: int
    at: float
    raised: WorkerRaised | None = None
    exit_code: int | None = None
    message: str = ""

    def __str__(self) -> str:
        """Say which worker failed, how and why in one line."""
        text = f"rank {self.rank} on {self.node}"
        if self.raised is not None and self.raised.thread:
            text += f", thread {self.raised.thread}"
        if self.exit_code is not None:
            text += f", {exit_text(self.exit_code)}"
        if self.raised is None and self.exit_code is None:
            return f"{text} was gone first (pid {self.pid})"
        why = words_of(self.raised) if self.raised is not None else _last_line(self.message)
        return f"{text}: {why}" if why else text


def failed_first(history: History) -> FailedWorker | None:
    """Return the worker that failed by itself before all others; None if there was none.

    Workers that only noticed that another one was gone come after all others.
    """
    found = [each for world in history.worlds.rounds for each in _failures_in(history, world)]
    if found:
        return min(found, key=lambda each: each[:2])[2]
    return next(_failed_threads(history), None) or _ended_first(history)


def first_failure(history: History) -> str:
    """Return the job's first failure in one line; empty when there was none.

    A worker that failed by itself comes before the one that the launcher calls the first: that one
    may only have noticed.
    """
    first, told = failed_first(history), _told_first(history)
    if told and first is not None and first.raised is None:
        # The launcher knows the message of the same worker.
        is_same = (told.get("node"), told.get("rank")) == (first.node, first.rank)
        return _text_of(told) if is_same else str(first)
    if first is not None:
        return str(first)
    if told:
        return _text_of(told)
    if (failed := _exited_first(history)) is not None:
        return str(failed)
    # A worker that goes when the run is over has not failed: its node is being taken away.
    end = _end_of(history)
    gone = [
        worker
        for world in history.worlds.rounds
        for worker in world.workers.values()
        if worker.gone_seq is not None and worker.gone_seq < end and not worker.finished
    ]
    worker = min(gone, key=lambda each: each.gone_at or 0.0, default=None)
    if worker is not None:
        return str(_gone(worker))
    launcher = _launcher_that_failed(history)
    if launcher is None or not history.worlds.rounds:
        return ""
    return f"the launcher of {launcher.node}, {exit_text(launcher.event.exit_code)}"


def node_of_first_failure(history: History) -> str:
    """Return the node of the job's first failure; empty when there was none, or it is not known."""
    first = failed_first(history) or _exited_first(history)
    if first is not None:
        return first.node
    if told := _told_first(history):
        return str(told.get("node", ""))
    launcher = _launcher_that_failed(history)
    return "" if launcher is None else launcher.node


def _launcher_that_failed(history: History) -> Entry[ProcessExited] | None:
    """Return the first launcher that ended with an error; it may not even have begun."""
    return next(
        (
            ended
            for ended in history.of_kind(ProcessExited)
            if ended.event.role == "launcher" and ended.event.exit_code > 0
        ),
        None,
    )


def why_it_ended(history: History) -> str:
    """Return why the launcher ended a job that did not succeed; empty if it says nothing.

    A node that was cut off may call a job lost that succeeds on the others.
    """
    said: list[JobEnding | JobEnded] = [each.event for each in history.of_kind(JobEnding)]
    said += [each.event for each in history.of_kind(JobEnded)]
    if any(each.result == "succeeded" for each in said):
        return ""
    if (job := next((each for each in said if each.result != "drained"), None)) is not None:
        return f"{job.result}: {job.reason}"
    agents = history.of_kind(AgentExited)
    # One that was told to leave ends as by a signal, and has given nothing up.
    alone = next((e for e in agents if 0 < e.event.exit_code < 128 and e.event.reason), None)
    return "" if alone is None else f"{alone.node} gave up: {alone.event.reason}"


def leases_lost_unasked(history: History) -> str:
    """Return which nodes lost their lease by no fault, or may have; else "".

    That is before anything could have cost them that, or after an agent stood still that no fault
    had hit. Launchers that get no processor time are late with their heartbeats. What hits workers
    alone costs no lease.
    """
    faults = [each for each in history.of_kind(FaultFired) if each.event.disturbs]
    causes = [
        each.at for each in faults if each.event.nodes or each.event.links or not each.event.workers
    ]
    causes += [each.at for each in (*history.of_kind(ProcessExited), *history.of_kind(NodeStopped))]
    before = min(causes, default=float("inf"))
    stalls = [
        each
        for each in history.of_kind(AgentStalled)
        if not any(each.node in fault.event.nodes and fault.at < each.at for fault in faults)
    ]
    after = min((each.at - each.event.stalled_s for each in stalls), default=float("inf"))
    lost = history.of_kind(LeaseLost)
    nodes = [each.node for each in lost if each.at < before or after < each.at]
    if not nodes:
        return ""
    times = "once" if len(nodes) == 1 else f"{len(nodes)} times"
    seen = ""
    if stalls:
        stalled = stalls[0]
        seen = f" (the agent of {stalled.node} stood still for {stalled.event.stalled_s:.1f} s)"
    return (
        f"{times} on {', '.join(sorted(set(nodes), key=natural_key))}, by no fault{seen}: was this "
        "machine short of processor time? Run less at once, or set a longer lease (--rdzv-conf)"
    )


def _told_first(history: History) -> Mapping[str, Any]:
    """Return what the launcher holds to be the first failure; empty if it says nothing."""
    return next(
        (e.event.first_failure for e in history.of_kind(JobEnded) if e.event.first_failure), {}
    )


def _text_of(told: Mapping[str, Any]) -> str:
    code = told.get("exit_code")
    how = exit_text(code) if isinstance(code, int) else "failed"
    message = _last_line(str(told.get("message") or ""))
    text = f"rank {told.get('rank', '?')} on {told.get('node', '?')}, {how}"
    return f"{text}: {message}" if message else text


def _exited_first(history: History) -> FailedWorker | None:
    for entry in history.of_kind(WorkerExited):
        event = entry.event
        if event.cause == "failed":
            return FailedWorker(
                node=entry.node,
                rank=event.rank,
                pid=0,
                at=entry.at,
                exit_code=event.exit_code,
                message=event.message,
            )
    return None


def _gone(worker: WorkerView) -> FailedWorker:
    return FailedWorker(
        node=worker.node,
        rank=worker.rank,
        pid=worker.pid,
        at=worker.gone_at or 0.0,
        exit_code=worker.exit_code,
    )


# What a failure is worth: it explains itself, says nothing, or only says that others are gone.
_EXPLAINS, _SILENT, _NOTICED = range(3)


def _failures_in(history: History, world: World) -> Iterator[tuple[int, float, FailedWorker]]:
    """Yield the workers of a round that failed, with what that is worth, and when."""
    by_fault = {worker.pid for worker in world.workers.values() if _is_ended(history, worker)}
    for worker in world.workers.values():
        if worker.pid in by_fault:
            continue
        failed = _failure_of(history, world, worker)
        if failed is not None:
            text = words_of(failed.raised) if failed.raised is not None else failed.message
            worth = _NOTICED if is_about_others(text) else _EXPLAINS
        else:
            failed = _vanished(history, worker)
            worth = _SILENT
        if failed is not None and not (by_fault and worth != _EXPLAINS):
            yield worth, failed.at, failed


def _vanished(history: History, worker: WorkerView) -> FailedWorker | None:
    """Return a worker that was gone in the middle of things, under a launcher that tells nothing.

    What it stopped itself is gone like that too, but later.
    """
    if worker.gone_at is None or history.of_kind(WorkerExited):
        return None
    if worker.finished and not worker.has_failed:
        return None
    if (worker.gone_seq or 0) > _end_of(history):
        return None
    return _gone(worker)


def _failure_of(history: History, world: World, worker: WorkerView) -> FailedWorker | None:
    end = _end_of(history)
    raised = next(
        (
            entry
            for entry in history.of_kind(WorkerRaised)
            if entry.event.pid == worker.pid
            and not entry.event.thread
            and worker.hello_seq < entry.seq < end
        ),
        None,
    )
    exited = next(
        (
            entry
            for entry in history.of_kind(WorkerExited)
            if (entry.node, entry.event.rank) == (worker.node, worker.rank)
            and entry.event.round == world.round
            and worker.hello_seq < entry.seq < end
        ),
        None,
    )
    has_failed = exited is not None and exited.event.cause == "failed"
    if raised is None and not has_failed:
        return None
    times = [entry.at for entry in (raised, exited if has_failed else None) if entry is not None]
    return FailedWorker(
        node=worker.node,
        rank=worker.rank,
        pid=worker.pid,
        at=min(times),
        raised=raised.event if raised is not None else None,
        exit_code=exited.event.exit_code if exited is not None and has_failed else None,
        message=exited.event.message if exited is not None else "",
    )


def _failed_threads(history: History) -> Iterator[FailedWorker]:
    """Yield the workers in which a thread has failed that is not the main one."""
    for entry in history.of_kind(WorkerRaised):
        if entry.event.thread and entry.seq < _end_of(history):
            event = entry.event
            yield FailedWorker(
                node=entry.node, rank=event.rank, pid=event.pid, at=entry.at, raised=event
            )


def _ended_first(history: History) -> FailedWorker | None:
    """Return the worker that ended first in a failed job's last round, if no launcher says more.

    A worker that ends with an exit code, in order, says nothing of that code itself; if all of them
    did after as many steps, they have come to the end of the training.
    """
    ended = history.last(RunEnded)
    world = history.worlds.current
    if ended is None or ended.event.outcome != "failed" or world is None:
        return None
    steps = {worker.steps_done for worker in world.workers.values()}
    if world.is_finished and len(steps) == 1 and steps != {0}:
        return None
    workers = [worker for worker in world.workers.values() if worker.gone_at is not None]
    if history.of_kind(WorkerExited) or any(_is_ended(history, worker) for worker in workers):
        return None
    first = min(workers, key=lambda worker: worker.gone_at or 0.0, default=None)
    if first is None or (first.gone_seq or 0) > ended.seq:
        return None
    return _gone(first)


def _is_ended(history: History, worker: WorkerView) -> bool:
    """Tell whether a fault has ended a worker, or its node, while it lived."""
    for entry in history.of_kind(FaultFired):
        lived = entry.seq > worker.hello_seq and entry.seq < (worker.gone_seq or entry.seq + 1)
        if entry.event.fault not in _ENDING or not lived:
            continue
        for target in entry.event.targets:
            if target in (worker.node, f"rank {worker.rank}") or f"pid {worker.pid})" in target:
                return True
    return False


def _end_of(history: History) -> int:
    """Return the number of the record with which a run ended: what comes later is our doing."""
    ended = history.last(RunEnded)
    return ended.seq if ended is not None else len(history) + 1


def is_about_others(text: str) -> bool:
    """Tell whether an error only says that another worker is gone."""
    return bool(_OF_OTHERS.search(text))


def words_of(raised: WorkerRaised) -> str:
    """Return an exception as the last line of its traceback has it."""
    message = raised.message.strip()
    return _harmless(f"{raised.error}: {message.splitlines()[0]}" if message else raised.error)


def _last_line(message: str) -> str:
    return message.strip().splitlines()[-1] if message.strip() else ""


def lines_of(history: History, failed: FailedWorker) -> list[str]:
    """Return what a failed worker printed last, or else where its exception came from."""
    seen = [e.event for e in history.of_kind(LastLinesSeen) if e.event.pid == failed.pid]
    if seen:
        said = words_of(failed.raised) if failed.raised is not None else ""
        shown = [
            line
            for line in seen[-1].lines
            if not line.startswith("Traceback (most") and line.strip() != said
        ]
        return [_harmless(line) for line in shown[-_MAX_LINES:]]
    if failed.raised is not None and failed.raised.frames:
        place = place_in_script(failed.raised.frames) or failed.raised.frames[0]
        return [f"at {_harmless(place)}"]
    return []


# --- where they stand --------------------------------------------------------------------------


def where_ranks_stand(history: History) -> list[str]:
    """Return a line for each place where ranks stood when a run ended that hung.

    The ranks that are missing from a collective in which others are come first.
    """
    groups: dict[tuple[bool, str], list[tuple[int, str]]] = {}
    for entry in history.of_kind(StackSeen):
        event = entry.event
        is_in = not event.reason and is_in_collective(event.frames)
        groups.setdefault((is_in, _place_of(event)), []).append((event.rank, entry.node))
    is_collective = any(is_in for is_in, _ in groups)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], len(item[1]), item[1]))
    lines = []
    for (is_in, place), ranks in ordered[:_MAX_GROUPS]:
        numbers = number_list(rank for rank, _ in ranks)
        who = f"rank {numbers} on {ranks[0][1]}" if len(ranks) == 1 else f"ranks {numbers}"
        how = ", in a collective" if is_in else ", not in the collective"
        lines.append(f"{who}{how if is_collective else ''}: {place}")
    if len(ordered) > _MAX_GROUPS:
        lines.append(f"and {len(ordered) - _MAX_GROUPS} more places")
    return lines


def hung_when_done(history: History, steps: int) -> str:
    """Return where ranks stood whose job had done all steps and hung in no Python function.

    Empty if it had not, or if one of its living ranks stood in a function.
    """
    seen = {entry.event.pid: entry.event for entry in history.of_kind(StackSeen)}
    places = []
    for worker in history.worlds.current.workers.values() if history.worlds.current else ():
        event = seen.get(worker.pid)
        functions = [e.rpartition(" in ")[2] for e in event.frames] if event is not None else []
        if worker.last_step != steps or not (worker.finished or functions == ["<module>"]):
            return ""
        if event is not None:
            places.append(f"rank {worker.rank} stood at {_place_of(event)}")
    return ", ".join(places)


def _place_of(event: StackSeen) -> str:
    if event.reason:
        return event.reason
    place = place_in_script(event.frames)
    shown = place or event.frames[0]
    path, _, function = shown.rpartition(" in ")
    text = f"{os.path.basename(path)} in {function}"
    if any("/observe/probe/elastic_probe" in frame for frame in event.frames):
        return f"{text}, held by the harness"
    inner = event.frames[: event.frames.index(place)] if place else ()
    called = [frame.rpartition(" in ")[2] for frame in inner]
    called = [name for name in called if name != "wrapper"]  # torch logs its calls
    if called and called[-1] not in event.source:
        text += f" ({called[-1]})"
    return _harmless(f"{text}: {event.source}" if event.source else text)


# --- words -------------------------------------------------------------------------------------


def _harmless(line: str) -> str:
    """Return a line of a worker's without what would move the cursor or change its colours."""
    return "".join(c if c.isprintable() else " " for c in line.expandtabs(4))


def number_list(numbers: Iterable[int]) -> str:
    """Return numbers with runs folded: `0-3, 6`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
