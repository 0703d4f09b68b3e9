"""How the run itself went: how it ended, whether the faults took, whether all of it was seen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Discriminator, Tag

from elastic_harness.finding import Finding
from elastic_harness.history.checkers.never_seen import (
    dead_at_the_end,
    is_stopped,
    never_started,
    nodes_ended_by_faults,
    not_observed,
)
from elastic_harness.history.checkers.registry import NoParameters, Parameters, checker
from elastic_harness.history.events import (
    FaultEffective,
    FaultFired,
    FaultIneffective,
    FaultPlanned,
    LogMatched,
    NodeStarted,
    NodeStopped,
    OutputRead,
    ProcessExited,
    ProcessStarted,
    RunEnded,
    SurvivorFound,
    SurvivorsSought,
    SwitchDropped,
    WorkerHello,
)
from elastic_harness.history.history import Entry, History
from elastic_harness.history.verdict import Verdict, invalid, unknown, valid
from elastic_harness.history.worlds import Step, WorkerView
from elastic_harness.scenario.actions import CheckedScenario
from pytest_elastic.events.model import (
    EVENT_KINDS,
    AgentStarted,
    JobEnded,
    RoundCommitted,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
)
from pytest_elastic.exit_codes import exit_text

__all__ = [
    "ends_in_time",
    "exit_codes",
    "faults_effective",
    "job",
    "log_contains",
    "no_strays",
    "no_survivors",
    "no_workers",
    "switch_clean",
    "why_unheard",
    "why_unread",
    "workers_observed",
]

# A worker that begins a step so long after its launcher has ended trains on without it.
_TRAINS_ON_S = 1.0
_NO_END = "the history has no end: the harness was stopped before the run was over"


@checker("no_survivors", NoParameters, is_default=True, needs_workers=False, needs_end=True)
def no_survivors(history: History, _: NoParameters) -> Verdict:
    """No process outlives the job."""
    survivors = history.of_kind(SurvivorFound)
    if survivors:
        first = survivors[0]
        return invalid(
            f"{len(survivors)} processes outlived their launcher, first on {first.node}: "
            f"{first.event.command} (pid {first.event.pid})",
            [entry.seq for entry in survivors],
        )
    for exit_, worker, step in _steps_without_launcher(history):
        return invalid(
            f"rank {worker.rank} on {exit_.node} began a step {step.began_at - exit_.at:.1f} s "
            f"after its launcher had ended with {exit_.event.exit_code}",
            (exit_.seq, step.seq),
        )
    ended = history.last(RunEnded)
    if ended is None:
        return unknown(_NO_END)
    sought = {node for entry in history.of_kind(SurvivorsSought) for node in entry.event.nodes}
    began = _launched_afresh(history, ended.seq)
    over = {
        entry.node
        for entry in _launcher_exits(history)
        if began.get(entry.node, 0) < entry.seq < ended.seq
    }
    if unsought := sorted(over - sought - _nodes_gone(history, ended)):
        return unknown(f"what was left on {', '.join(unsought)} was never looked at", (ended.seq,))
    if not over and ended.event.outcome in ("limit", "unmet", "aborted"):
        return unknown("the run was over before any launcher had ended", (ended.seq,))
    nodes = ", ".join(sorted(over)) or "any node"
    return valid(f"nothing outlived the launchers that ended on {nodes}", (ended.seq,))


def _steps_without_launcher(
    history: History,
) -> Iterator[tuple[Entry[ProcessExited], WorkerView, Step]]:
    """Yield the steps of workers that trained on when their launcher had ended by itself.

    Who is told to end may take as long as `SurvivorsSought` waits: what trains was not told.
    """
    for entry in _launcher_exits(history):
        if not 0 <= entry.event.exit_code < 128:
            continue  # it, or what a shell ran for it, was killed: so will its workers be
        for world in history.worlds.rounds:
            for worker in world.workers.values():
                if worker.node == entry.node and worker.hello_seq < entry.seq:
                    late = (e for e in worker.steps if e.began_at > entry.at + _TRAINS_ON_S)
                    yield from ((entry, worker, step) for step in late)


def _launcher_exits(history: History) -> list[Entry[ProcessExited]]:
    return [e for e in history.of_kind(ProcessExited) if e.event.role == "launcher"]


def _launched_afresh(history: History, end: int) -> dict[str, int]:
    """Return when nodes were started on which a launcher began: what ran there before was gone."""
    up: dict[str, int] = {}
    launched: dict[str, int] = {}
    for entry in history:
        event = entry.event
        if entry.seq < end and isinstance(event, NodeStarted):
            up[entry.node] = entry.seq
        elif entry.seq < end and isinstance(event, ProcessStarted) and event.role == "launcher":
            launched[entry.node] = up.get(entry.node, 0)
    return launched


def _nodes_gone(history: History, ended: Entry[RunEnded]) -> set[str]:
    """Return the nodes that were down when survivors were sought: their processes went with them.

    A fault may take a node away after the run's end and before the search. The teardown may not.
    """
    searched = history.last(SurvivorsSought) or ended
    is_up: dict[str, bool] = {}
    for entry in history:
        event = entry.event
        if entry.seq < ended.seq and isinstance(event, NodeStarted):
            is_up[entry.node] = True
        elif isinstance(event, NodeStopped) and (
            entry.seq < ended.seq or (entry.seq < searched.seq and event.cause != "teardown")
        ):
            is_up[entry.node] = False
    return {node for node, up in is_up.items() if not up}


@checker("faults_effective", NoParameters, is_default=True, needs_workers=False)
def faults_effective(history: History, _: NoParameters) -> Verdict:
    """Every planned fault fired and had its effect; else the run proves nothing."""
    effective = {entry.event.id for entry in history.of_kind(FaultEffective)}
    ineffective = [e for e in history.of_kind(FaultIneffective) if e.event.id not in effective]
    failed = [entry for entry in ineffective if not entry.event.is_optional]
    if failed:
        return unknown(
            "; ".join(f"{entry.event.id}: {entry.event.reason}" for entry in failed),
            [entry.seq for entry in failed],
        )
    optional = {e.event.id for e in history.of_kind(FaultPlanned) if e.event.is_optional}
    known = effective | optional | {entry.event.id for entry in ineffective}
    fired = {entry.event.id: entry for entry in history.of_kind(FaultFired)}
    if silent := [entry for id, entry in fired.items() if id not in known]:
        names = ", ".join(entry.event.id for entry in silent)
        return unknown(f"no effect was seen of: {names}", [entry.seq for entry in silent])
    if never := [e for e in history.of_kind(FaultPlanned) if e.event.id not in known]:
        names = ", ".join(entry.event.id for entry in never)
        return unknown(f"the run ended before these fired: {names}", [e.seq for e in never])
    idle = len((optional | {entry.event.id for entry in ineffective}) - effective)
    idle_text = f", {idle} optional ones did nothing" if idle else ""
    return valid(f"{len(effective)} faults fired and had their effect{idle_text}")


@checker("ends_in_time", NoParameters, is_default=True, needs_workers=False, needs_end=True)
def ends_in_time(history: History, _: NoParameters) -> Verdict:
    """The job ends before the scenario's limit."""
    ended = history.last(RunEnded)
    if ended is None:
        return unknown(_NO_END)
    if ended.event.outcome == "limit":
        reason = ended.event.reason or f"the job did not end within {_limit(history)}"
        return invalid(reason, (ended.seq,))
    if ended.event.outcome in ("unmet", "aborted"):
        return unknown(f"the run was ended before the job was: {ended.event.outcome}", (ended.seq,))
    return valid(f"the run ended after {ended.at - history.start:.1f} s", (ended.seq,))


def _limit(history: History) -> str:
    return f"{history.run.event.limit_s:g} s" if history.run is not None else "its limit"


@checker("workers_observed", NoParameters, is_default=True)
def workers_observed(history: History, _: NoParameters) -> Verdict:
    """Every worker said hello, and every step was heard of: the rest cannot be judged."""
    hellos = history.of_kind(WorkerHello)
    started = history.of_kind(WorkersStarted)
    if not hellos and not started:
        if any(entry.event.role == "launcher" for entry in history.of_kind(ProcessExited)):
            return not_observed(history, "a launcher ran to its end and no worker said hello")
        return not_observed(history, "no worker said hello")
    said = {(*_job_and_round(history, entry), entry.event.rank) for entry in hellos}
    ended = {
        (*_job_and_round(history, entry), entry.event.rank): entry.event.exit_code
        for entry in history.of_kind(WorkerExited)
    }
    stopped = nodes_ended_by_faults(history)
    newest = {entry.node: entry.seq for entry in started}
    unheard: list[str] = []
    for entry in started:
        for rank in entry.event.ranks:
            key = (*_job_and_round(history, entry), rank)
            # One that died before its first line could not speak, and does no harm; nor could one
            # whose node was ended.
            if key in said or ended.get(key, 0) != 0:
                continue
            who = f"rank {rank} of round {entry.event.round} was started on {entry.node}"
            if entry.node in stopped:
                unheard.append(f"; {who}, which a fault ended, and never said hello")
            elif key not in ended and is_stopped(history) and newest[entry.node] == entry.seq:
                unheard.append(f"; {who}, and the test ended the run before it said hello")
            else:
                return unknown(f"{who} and never said hello", (entry.seq,))
    for world in history.worlds.rounds:
        stepping = [worker for worker in world.workers.values() if worker.steps]
        missing = sorted(set(range(world.world_size)) - set(world.workers)) if stepping else []
        idle = set(missing).intersection(never_started(history, world) if missing else ())
        for rank in sorted(idle):
            unheard.append(f"; rank {rank} of round {world.ordinal} was never started")
            missing.remove(rank)
        if missing:
            return unknown(
                f"round {world.ordinal} made steps while ranks "
                f"{', '.join(map(str, missing))} had never said hello",
                (stepping[0].steps[0].seq,),
            )
        for worker in world.workers.values():
            if worker.dropped:
                return unknown(
                    f"{worker.dropped} reports of rank {worker.rank} in round {world.ordinal} were "
                    "lost: the harness was too slow",
                    (worker.hello_seq,),
                )
            for before, after in pairwise(worker.steps):
                if after.count != before.count + 1:
                    return unknown(
                        f"steps {before.count + 1} to {after.count - 1} of rank {worker.rank} in "
                        f"round {world.ordinal} were not heard of: the harness was too slow",
                        (before.seq, after.seq),
                    )
    return valid(f"{len(hellos)} workers said hello, and every step was heard of{''.join(unheard)}")


def _job_and_round(
    history: History, entry: Entry[WorkerHello | WorkersStarted | WorkerExited | WorkersStopped]
) -> tuple[str, int, str, int | None]:
    """Return run id, job, node and round of what happened to a worker."""
    job = history.worlds.job_of(entry.seq)
    return entry.record.run_id, job, entry.node, entry.event.round


@checker("switch_clean", NoParameters, is_default=True, needs_workers=False)
def switch_clean(history: History, _: NoParameters) -> Verdict:
    """The harness's own switches lost nothing, and kept nothing back, by themselves."""
    dropped = history.of_kind(SwitchDropped)
    if dropped:
        packets = sum(entry.event.packets for entry in dropped)
        return unknown(
            f"the harness's own switch lost {packets} packets, or kept them back",
            [entry.seq for entry in dropped],
        )
    return valid("no packet was dropped by the harness itself")


# --- on request ----------------------------------------------------------------------------------


class JobParameters(Parameters):
    """`job: succeeded`."""

    outcome: Literal["succeeded", "failed", "drained"]


@checker(
    "job",
    JobParameters,
    shorthand="outcome",
    is_said_once=True,
    needs_workers=False,
    needs_end=True,
)
def job(history: History, parameters: JobParameters) -> Verdict:
    """The job ends as expected: succeeded, failed or drained."""
    ended = history.last(RunEnded)
    if ended is None:
        return unknown(_NO_END)
    found = ended.event.outcome
    if found == parameters.outcome == "succeeded":
        return _succeeded(history, ended)
    if found == parameters.outcome:
        return valid(f"the job {_with_was(found)}", (ended.seq,))
    if found == "limit":
        return invalid(f"the job did not end within {_limit(history)}", (ended.seq,))
    if found not in ("succeeded", "failed", "drained"):
        return unknown(f"the run was ended before the job was: {found}", (ended.seq,))
    codes = ", ".join(f"{node} {code}" for node, code in sorted(ended.event.exit_codes.items()))
    reason = f"the job {_with_was(found)}, it should have {parameters.outcome}"
    if parameters.outcome == "drained":
        reason = f"the job {_with_was(found)}, it should have been drained"
    proof = [ended.seq]
    if (decided := history.last(JobEnded)) is not None:
        reason += f": {decided.event.reason}"
        proof.insert(0, decided.seq)
    reason += f" (exit codes: {codes or 'none'})"
    exempt = nodes_ended_by_faults(history)
    if 0 in (code for node, code in ended.event.exit_codes.items() if node not in exempt):
        reason += (
            "; it asks this of every launcher that no fault has ended: where one side goes on and "
            "the other is lost, `exit_codes` says it node by node"
        )
    return invalid(reason, proof)


def _succeeded(history: History, ended: Entry[RunEnded]) -> Verdict:
    """Judge launchers that ended with 0 by what they said themselves, and by who was dead."""
    exempt = nodes_ended_by_faults(history)
    said = {each.node: each for each in history.of_kind(JobEnded) if each.node not in exempt}
    for node, told in sorted(said.items()):
        if told.event.result in ("failed", "lost"):
            return invalid(
                f"the launcher of {node} exited with 0, though it had said that the job "
                f"{'was ' * (told.event.result == 'lost')}{told.event.result}: {told.event.reason}",
                (told.seq, ended.seq),
            )
    for worker, gone in dead_at_the_end(history):
        return unknown(
            f"rank {worker.rank} on {worker.node} {_how_it_died(worker)}, no "
            "round came after that, and all launchers exited with 0: whether the job did its work "
            "is not known (`finished_at` asks for its last step)",
            (gone, ended.seq),
        )
    return valid("the job succeeded", (ended.seq,))


def _how_it_died(worker: WorkerView) -> str:
    if worker.raised or worker.exit_code is None:
        return "raised" if worker.raised else "was ended"
    return f"ended with {exit_text(worker.exit_code)}"


def _with_was(outcome: str) -> str:
    return "was drained" if outcome == "drained" else outcome


class ExitCodesParameters(Parameters):
    """`exit_codes: 0` for all launchers, `exit_codes: {n1: 0, n2: 1}` for some."""

    expected: Annotated[
        Annotated[int, Tag("code")] | Annotated[Mapping[str, int], Tag("nodes")],
        Discriminator(lambda value: "nodes" if isinstance(value, Mapping) else "code"),
    ]

    def model_post_init(self, context: object) -> None:
        expected = self.expected
        for code in (expected,) if isinstance(expected, int) else expected.values():
            if not -64 <= code <= 255:
                raise ValueError(f"{code} is no exit code: 0 to 255, or -9 for signal 9")

    def findings(self, scenario: CheckedScenario) -> Iterator[Finding]:
        for name in self.expected if isinstance(self.expected, Mapping) else ():
            yield from scenario.no_node(name, name)


@checker(
    "exit_codes",
    ExitCodesParameters,
    shorthand="expected",
    is_said_once=True,
    needs_workers=False,
    needs_end=True,
)
def exit_codes(history: History, parameters: ExitCodesParameters) -> Verdict:
    """Launchers end with the expected exit codes (negative: by that signal)."""
    ended = history.last(RunEnded)
    starts = {e.node: e.seq for e in history.of_kind(ProcessStarted) if e.event.role == "launcher"}
    # What ends after the run is killed by the harness itself, and a node's newest launcher counts.
    last = {
        entry.node: entry
        for entry in _launcher_exits(history)
        if entry.seq > starts.get(entry.node, 0) and (ended is None or entry.seq < ended.seq)
    }
    if not last:
        return unknown("no launcher was seen to end")
    expected = parameters.expected
    nodes = {*starts, *last}
    wanted = dict.fromkeys(nodes, expected) if isinstance(expected, int) else dict(expected)
    for node, code in sorted(wanted.items()):
        found = last.get(node)
        if found is None:
            return unknown(f"the launcher on {node} was not seen to end by itself")
        if found.event.exit_code != code:
            return invalid(
                f"the launcher on {node} ended with {found.event.exit_code}, {code} was expected",
                (found.seq,),
            )
    return valid("all exit codes are as expected", [entry.seq for entry in last.values()])


@checker("no_workers", NoParameters, needs_workers=False, needs_end=True)
def no_workers(history: History, _: NoParameters) -> Verdict:
    """The job ended, and no launcher ever started a worker; asked for, nothing of workers is."""
    for kind in (WorkersStarted, RoundCommitted, WorkerHello, WorkerExited):
        if (found := history.first(kind)) is not None:
            return invalid(f"workers of {found.node} were started: {kind.kind}", (found.seq,))
    ended = history.last(RunEnded)
    if ended is None:
        return unknown(_NO_END)
    if ended.event.outcome not in ("succeeded", "failed", "drained"):
        return unknown(f"the run was ended before the job was: {ended.event.outcome}", (ended.seq,))
    starts = [e for e in history.of_kind(ProcessStarted) if e.event.role == "launcher"]
    if not starts:
        return unknown("no launcher was started")
    # A worker that says nothing is heard of by its launcher only: each start must have been heard.
    if node := _node_without_events(history):
        return unknown(
            f"the launcher on {node} states no events, so that it is not known whether it "
            "started workers"
        )
    return valid(f"{len(starts)} launchers ended, and none had started a worker", (ended.seq,))


@checker("no_strays", NoParameters)
def no_strays(history: History, _: NoParameters) -> Verdict:
    """Workers that end well leave no process behind for their launcher to end."""
    stopped = history.of_kind(WorkersStopped)
    for entry in stopped:
        if entry.event.strays:
            return invalid(
                f"round {entry.event.round} left {len(entry.event.strays)} processes behind on "
                f"{entry.node}, which the launcher ended: {entry.event.strays[0]}",
                (entry.seq,),
            )
    if survivors := history.of_kind(SurvivorFound):
        first = survivors[0]
        return invalid(f"left behind on {first.node}: {first.event.command}", (first.seq,))
    told = {_job_and_round(history, entry) for entry in stopped}
    if not stopped:
        return unknown("no launcher says what workers have left behind")
    for started in history.of_kind(WorkersStarted):
        if _job_and_round(history, started) not in told:
            return unknown(
                f"the launcher on {started.node} does not say what the workers of round "
                f"{started.event.round} left behind",
                (started.seq,),
            )
    return valid(f"workers of {len(stopped)} groups left nothing behind", [e.seq for e in stopped])


def _node_without_events(history: History, *, spare: Collection[str] = ()) -> str | None:
    """Return the first node with a launcher that was never heard of."""
    starts = [e for e in history.of_kind(ProcessStarted) if e.event.role == "launcher"]
    began = Counter(entry.node for entry in history.of_kind(AgentStarted))
    left = Counter(entry.node for entry in history.of_kind(JobEnded))
    for node, count in Counter(entry.node for entry in starts).items():
        if max(began[node], left[node]) < count and node not in spare:
            return node
    return None


def why_unheard(history: History, kind: str) -> str | None:
    """Say why an event that is not in the history may have happened all the same, or None."""
    found = EVENT_KINDS.get(kind)
    if found is None or found.__module__ != AgentStarted.__module__:
        return None  # what the harness itself sees
    if node := _node_without_events(history, spare=nodes_ended_by_faults(history)):
        return f"the launcher on {node} states no events, so that none of {kind!r} could be seen"
    return None


def why_unread(history: History, pattern: str) -> str | None:
    """Say why a line that is not in the history may have been printed all the same, or None."""
    read = history.last(OutputRead)
    if read is None:
        return "the history does not say how far the output was read"
    if read.event.unread:
        return f"not read to their end: {', '.join(read.event.unread)}"
    if left_out := read.event.left_out.get(pattern, 0):
        return f"{left_out} lines that matched {pattern!r} are not in the history"
    return None


class LogContainsParameters(Parameters):
    """`log_contains: "regex"`, or with a node."""

    pattern: str
    node: str | None = None

    def model_post_init(self, context: object) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"{self.pattern!r} is no regular expression: {error}") from error
        if not self.pattern:
            raise ValueError("an empty pattern matches every line")

    def findings(self, scenario: CheckedScenario) -> Iterator[Finding]:
        yield from scenario.no_node(self.node, "node")


@checker(
    "log_contains",
    LogContainsParameters,
    shorthand="pattern",
    may_be_seen=True,
    needs_workers=False,
)
def log_contains(history: History, parameters: LogContainsParameters) -> Verdict:
    """A line of a launcher's or worker's output matches a regular expression."""
    regex = re.compile(parameters.pattern)
    for entry in history.of_kind(LogMatched):
        is_there = parameters.node in (None, entry.node)
        if is_there and (
            entry.event.pattern == parameters.pattern or regex.search(entry.event.line)
        ):
            return valid(f"seen on {entry.node}: {entry.event.line.strip()}", (entry.seq,))
    watched = history.run.event.settings.get("log_patterns", ()) if history.run is not None else ()
    if parameters.pattern not in watched:
        return unknown(f"the logs were not watched for {parameters.pattern!r} during the run")
    if (why := why_unread(history, parameters.pattern)) is not None:
        return unknown(why)
    where = f"on {parameters.node} " if parameters.node else ""
    return invalid(f"no line {where}matched {parameters.pattern!r}")
