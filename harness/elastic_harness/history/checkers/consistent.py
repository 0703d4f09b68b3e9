"""Whether the records of a history agree with each other.

Much is in a history twice: a launcher says which workers it starts, and each worker says which it
is. Where the two contradict each other, or where a process speaks that was never started or that is
dead, a record is missing or wrong, and no verdict on such a history is worth anything: it is
unknown. Only where a worker was told something else than its launcher says that it was, the job
itself is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from elastic_harness.history.checkers.registry import NoParameters, checker
from elastic_harness.history.events import (
    FaultEffective,
    FaultFired,
    FaultHealed,
    FaultPlanned,
    GroupFormed,
    NodeStarted,
    NodeStopped,
    ParametersHashed,
    ProcessExited,
    ProcessStarted,
    ResumeObserved,
    RunClosed,
    RunEnded,
    RunStarted,
    StepCompleted,
    SurvivorsSought,
    WorkerFinished,
    WorkerGone,
    WorkerHello,
)
from elastic_harness.history.history import Entry, History
from elastic_harness.history.verdict import Verdict, invalid, unknown, valid
from pytest_elastic.events.model import (
    CoordinatorStarted,
    Event,
    RoundCommitted,
    RoundEnded,
    RoundSealed,
    WorkerExited,
    WorkersStarted,
)

__all__ = ["consistent"]

# A time that is computed from another one may differ from it in its last digits.
_ROUNDING_S: Final = 1e-4
_OBEDIENT: Final = frozenset({0, 143, -15})
# Sources of steps that go up one by one from where the worker resumes.
_OF_OPTIMIZER: Final = frozenset({"state", "parameters"})
# The exit code of a worker whose program could not be started, as a shell has it.
_NO_PROGRAM: Final = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Two records that cannot both be right, or one that needs another which is not there."""

    what: str
    events: tuple[int, ...]
    is_of_job: bool = False


@checker("consistent", NoParameters, is_default=True, needs_workers=False, knows_clock_errors=True)
def consistent(history: History, _: NoParameters) -> Verdict:
    """The records of the history agree with each other."""
    found = [each for look in _LOOKS for each in look(history)]
    for each in found:
        if each.is_of_job:
            return invalid(each.what, each.events)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return unknown(f"the history contradicts itself: {found[0].what}{more}", found[0].events)
    return valid(f"{len(history)} records agree with each other")


# --- workers -------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Worker:
    """What one process has said so far.

    `newest` is what the next record may not be earlier than. Where it resumes is seen from its
    first step, and told before it, with a later time: a step's time is that of its end.
    """

    hello: Entry[WorkerHello]
    newest: Entry[Event]
    said: list[Entry[Event]] = field(default_factory=list)
    steps: list[Entry[StepCompleted]] = field(default_factory=list)
    gone: Entry[WorkerGone] | None = None


_SAID: Final = (
    GroupFormed,
    ResumeObserved,
    StepCompleted,
    ParametersHashed,
    WorkerFinished,
    WorkerGone,
)


def _workers(history: History) -> Iterator[Contradiction]:
    """A worker says hello first and once, stays what it is, and is silent when it is dead."""
    by_pid: dict[int, _Worker] = {}
    for entry in history:
        event = entry.event
        if isinstance(event, WorkerHello):
            before = by_pid.get(event.pid)
            if before is not None and before.gone is None:
                what = f"the process {event.pid} said hello twice"
                yield Contradiction(what=what, events=(before.hello.seq, entry.seq))
            by_pid[event.pid] = _Worker(hello=Entry(entry.seq, entry.record), newest=entry)
        elif isinstance(event, _SAID):
            worker = by_pid.get(event.pid)
            if worker is None:
                what = f"{event.kind} of the process {event.pid}, which never said hello"
                yield Contradiction(what=what, events=(entry.seq,))
                continue
            # That a worker is gone the harness says, by its own clock.
            is_ours = isinstance(event, WorkerGone)
            apart_s = history.clock_errors.get(entry.node, 0.0) if is_ours else 0.0
            yield from _saying(worker, entry, apart_s)
            worker.said.append(entry)


def _saying(worker: _Worker, entry: Entry[Event], apart_s: float) -> Iterator[Contradiction]:
    event, hello = entry.event, worker.hello
    who = f"rank {hello.event.rank} on {hello.node}"
    proof = (hello.seq, entry.seq)
    last = worker.said[-1] if worker.said else None
    rank = getattr(event, "rank", hello.event.rank)
    here = (entry.node, rank, entry.record.run_id)
    if here != (hello.node, hello.event.rank, hello.event.run_id):
        what = f"{who} said hello, and {event.kind} as rank {rank} on {entry.node}"
        yield Contradiction(what=what, events=proof)
    if worker.gone is not None:
        what = f"{event.kind} of {who}, which was gone"
        yield Contradiction(what=what, events=(worker.gone.seq, entry.seq))
    elif (
        last is not None
        and isinstance(last.event, WorkerFinished)
        and not isinstance(event, WorkerGone)
    ):
        what = f"{event.kind} of {who}, which had finished"
        yield Contradiction(what=what, events=(last.seq, entry.seq))
    if entry.at < worker.newest.at - _ROUNDING_S - apart_s:
        what = f"{event.kind} of {who} is earlier than what it had said before"
        yield Contradiction(what=what, events=(worker.newest.seq, entry.seq))
    if not isinstance(event, ResumeObserved):
        worker.newest = entry
    if isinstance(event, WorkerGone):
        worker.gone = Entry(entry.seq, entry.record)
    elif isinstance(event, GroupFormed) and event.world_size > hello.event.world_size:
        what = f"{who} is one of {hello.event.world_size}, and its group has {event.world_size}"
        yield Contradiction(what=what, events=proof)
    elif isinstance(event, ParametersHashed):
        if last is not None and isinstance(last.event, ParametersHashed):
            yield Contradiction(what=f"the parameters of {who} were hashed twice", events=proof)
        done = worker.steps[-1].event.step if worker.steps else None
        if None not in (done, event.step) and done != event.step:
            what = f"{who} ended with step {event.step}, and its last one was {done}"
            yield Contradiction(what=what, events=(worker.steps[-1].seq, entry.seq))
    elif isinstance(event, StepCompleted):
        yield from _step(worker, Entry(entry.seq, entry.record), who)


def _step(worker: _Worker, entry: Entry[StepCompleted], who: str) -> Iterator[Contradiction]:
    """Steps are counted from 1, none begins before the one before it ends."""
    step, before = entry.event, worker.steps[-1] if worker.steps else None
    proof = (before.seq if before is not None else worker.hello.seq, entry.seq)
    is_again = before is not None and before.event.count == step.count
    if before is None:
        if step.count != 1:
            what = f"the first step of {who} was its number {step.count}"
            yield Contradiction(what=what, events=proof)
    elif is_again and before.event.step_source == step.step_source:
        yield Contradiction(what=f"{who} completed its step {step.count} twice", events=proof)
    elif step.count < before.event.count:
        what = f"step {step.count} of {who} follows its step {before.event.count}"
        yield Contradiction(what=what, events=proof)
    since = before.at if before is not None and not is_again else worker.hello.at
    if not since - _ROUNDING_S <= step.began_at <= entry.at + _ROUNDING_S:
        what = f"step {step.count} of {who} did not begin after the one before, and before its end"
        yield Contradiction(what=what, events=proof)
    earlier = before.event.step if before is not None else _resumed_at(worker)
    if before is None and step.step_source in _OF_OPTIMIZER and earlier is None:
        yield Contradiction(what=f"{who} never said where it resumes", events=proof)
    is_counted = step.step_source in _OF_OPTIMIZER and (
        before is None or before.event.step_source == step.step_source
    )
    # An optimizer may skip a step of its own (a gradient scaler's overflow), and never two at once.
    if is_counted and earlier is not None and step.step is not None:
        low = 0 if before is not None else 1
        if not low <= step.step - earlier <= 1:
            yield Contradiction(what=f"{who} went from step {earlier} to {step.step}", events=proof)
    if is_again:
        worker.steps.pop()
    worker.steps.append(entry)


def _resumed_at(worker: _Worker) -> int | None:
    # Who learns more takes back what it said before: the newest word counts.
    said = (each.event for each in reversed(worker.said))
    return next((each.step for each in said if isinstance(each, ResumeObserved)), None)


def _worlds(history: History) -> Iterator[Contradiction]:
    """The workers of a round form one group, and are gone when a later round begins there."""
    rounds = [world for world in history.worlds.rounds if world.round is not None]
    groups: dict[int, Entry[GroupFormed]] = {}
    for entry in history.of_kind(GroupFormed):
        found = history.worlds.worker_of(entry.event.pid)
        if found is None or found[0].round is None or entry.event.world_size != found[0].world_size:
            continue
        one = groups.setdefault(found[0].ordinal, entry)
        if one.event.nonce != entry.event.nonce:
            what = f"the ranks {one.event.rank} and {entry.event.rank} of a round met in two groups"
            yield Contradiction(what=what, events=(one.seq, entry.seq))
    for place, new in enumerate(rounds):
        for worker in new.workers.values():
            for old in rounds[:place]:
                if (old.run_id, old.job) != (new.run_id, new.job) or old.round == new.round:
                    continue
                for other in old.workers.values():
                    is_here = other.node == worker.node and other.hello_seq < worker.hello_seq
                    is_told = other.pid in worker.hello.alive_before
                    is_gone = other.gone_seq is not None and other.gone_seq < worker.hello_seq
                    if is_here and is_gone == is_told:
                        state = "gone" if is_gone else "alive"
                        what = (
                            f"when rank {worker.rank} of round {new.round} said hello on "
                            f"{worker.node}, the process {other.pid} was {state}, and it was "
                            "found otherwise"
                        )
                        yield Contradiction(what=what, events=(other.hello_seq, worker.hello_seq))


# --- rounds --------------------------------------------------------------------------------------


def _rounds(history: History) -> Iterator[Contradiction]:
    """What a launcher was told of a round, what it started, and what its workers were told."""
    job_of = history.worlds.job_of
    told: dict[tuple[str, int, str, int], list[Entry[RoundCommitted]]] = {}
    for entry in history.of_kind(RoundCommitted):
        event = entry.event
        key = (entry.record.run_id, job_of(entry.seq), entry.node, event.round)
        told.setdefault(key, []).append(entry)
        if entry.node in event.roster and event.roster.index(entry.node) != event.group_rank:
            what = f"{entry.node} is number {event.group_rank} of {', '.join(event.roster)}"
            yield Contradiction(what=what, events=(entry.seq,))
    sealed = {
        (e.record.run_id, job_of(e.seq), e.event.term, e.event.round): e
        for e in history.of_kind(RoundSealed)
    }
    for (run_id, job, node, number), commits in told.items():
        for commit in commits:
            seal = sealed.get((run_id, job, commit.event.term, number))
            if seal is not None and (seal.event.roster, seal.event.restart_count) != (
                commit.event.roster,
                commit.event.restart_count,
            ):
                what = f"round {number} was sealed otherwise than {node} was told"
                yield Contradiction(what=what, events=(seal.seq, commit.seq))
    started: dict[tuple[str, int, str, int], Entry[WorkersStarted]] = {}
    for start in history.of_kind(WorkersStarted):
        key = (start.record.run_id, job_of(start.seq), start.node, start.event.round)
        if key in started:
            what = f"{start.node} started the workers of round {start.event.round} twice"
            yield Contradiction(what=what, events=(started[key].seq, start.seq))
        started[key] = start
        if told and key not in told:
            what = f"{start.node} started round {start.event.round} and was never told to"
            yield Contradiction(what=what, events=(start.seq,))
    yield from _said_twice(history)
    is_alive = {
        (worker.hello.run_id, world.job, worker.node, world.round, worker.rank): worker.is_alive
        for world in history.worlds.rounds
        for worker in world.workers.values()
    }
    exits = [
        ((each.record.run_id, job_of(each.seq), each.node, each.event.round), each)
        for each in history.of_kind(WorkerExited)
    ]
    # A launcher that could not start one of them never says that all of them run.
    unable = {
        key
        for key, exited in exits
        if exited.event.exit_code == _NO_PROGRAM and (*key, exited.event.rank) not in is_alive
    }
    for key, exited in exits:
        number = exited.event.round
        ranks = started[key].event.ranks if key in started else ()
        if exited.event.rank not in ranks and key not in unable:
            what = f"rank {exited.event.rank} of round {number} ended on {exited.node}, "
            what += "whose launcher never said that it had started it"
            yield Contradiction(what=what, events=(exited.seq,))
        if is_alive.get((*key, exited.event.rank)) and history.last(RunClosed) is not None:
            what = f"rank {exited.event.rank} of round {number} ended, and was not seen to be gone"
            yield Contradiction(what=what, events=(exited.seq,))
    for hello in history.of_kind(WorkerHello):
        if hello.event.round is None:
            continue
        key = (hello.event.run_id, job_of(hello.seq), hello.node, hello.event.round)
        commits = told.get(key, [])
        if commits and not any(_is_as_told(hello.event, commit.event) for commit in commits):
            what = (
                f"rank {hello.event.rank} on {hello.node} was told something else of round "
                f"{hello.event.round} than its launcher was"
            )
            yield Contradiction(what=what, events=(commits[-1].seq, hello.seq), is_of_job=True)


def _said_twice(history: History) -> Iterator[Contradiction]:
    """A round is sealed and ended once in a term, told to a node once, and its workers end once."""
    first: dict[tuple[object, ...], Entry[Event]] = {}
    terms: dict[str, int] = {}  # the newest of each coordinator
    ended: dict[tuple[str, int | None], Entry[RoundEnded]] = {}
    for entry in history:
        event, incarnation = entry.event, entry.record.incarnation
        if isinstance(event, CoordinatorStarted | RoundSealed):
            terms[incarnation] = event.term
        if not isinstance(event, RoundSealed | RoundCommitted | RoundEnded | WorkerExited):
            continue
        # A coordinator that is elected again may end again what it had not decided.
        is_end = isinstance(event, RoundEnded)
        term = terms.get(incarnation) if is_end else getattr(event, "term", None)
        who = history.worlds.job_of(entry.seq), entry.record.run_id, entry.node, incarnation
        key = (event.kind, *who, event.round, getattr(event, "rank", None), term)
        if first.setdefault(key, entry) is not entry:
            what = f"{entry.node} said {event.kind} of round {event.round} twice"
            yield Contradiction(what=what, events=(first[key].seq, entry.seq))
        if isinstance(event, RoundEnded):
            ended[incarnation, term] = Entry(entry.seq, entry.record)
        elif isinstance(event, RoundSealed):
            before = ended.pop((incarnation, term), None)
            if before is None or event.round != before.event.round + 1:
                continue  # another coordinator may have come in between
            if before.event.restarts_used != event.restart_count:
                what = f"{before.event.restarts_used} restarts were used when round "
                what += f"{before.event.round} ended, and round {event.round} begins with "
                what += str(event.restart_count)
                yield Contradiction(what=what, events=(before.seq, entry.seq))
    sealed = {each.event.round for each in history.of_kind(RoundSealed)}
    numbered: list[Entry[Any]] = [
        *history.of_kind(RoundCommitted),
        *history.of_kind(RoundEnded),
    ]
    for told in numbered:
        if sealed and told.event.round not in sealed:
            what = f"{told.event.kind} of round {told.event.round}, which was never proposed"
            yield Contradiction(what=what, events=(told.seq,))


def _is_as_told(hello: WorkerHello, commit: RoundCommitted) -> bool:
    return (hello.world_size, hello.restart_count, hello.group_rank, hello.master_port) == (
        commit.world_size,
        commit.restart_count,
        commit.group_rank,
        commit.master_port,
    )


# --- nodes, processes, faults --------------------------------------------------------------------


def _nodes(history: History) -> Iterator[Contradiction]:
    """Nodes start and stop in turn, and no process runs, or speaks, on one that is down."""
    up: dict[str, Entry[Event]] = {}
    down: dict[str, Entry[Event]] = {}
    if not history.of_kind(NodeStarted):
        return
    for entry in history:
        node, event = entry.node, entry.event
        if isinstance(event, NodeStarted):
            if node in up:
                what = f"{node} started, and was up"
                yield Contradiction(what=what, events=(up[node].seq, entry.seq))
            up[node] = entry
        elif isinstance(event, NodeStopped):
            if node not in up:
                yield Contradiction(what=f"{node} stopped, and was not up", events=(entry.seq,))
            up.pop(node, None)
            down[node] = entry
        elif isinstance(event, ProcessStarted | WorkerHello) and node not in up:
            what = f"{event.kind} on {node}, which was not up"
            yield Contradiction(what=what, events=(entry.seq,))
    # A simulated cluster is not torn down.
    is_torn_down = any(each.event.cause == "teardown" for each in history.of_kind(NodeStopped))
    closed = history.last(RunClosed)
    if closed is not None and up and is_torn_down:
        what = f"all is undone, and {', '.join(sorted(up))} was not stopped"
        yield Contradiction(what=what, events=(closed.seq,))


def _launchers(history: History) -> Iterator[Contradiction]:
    """Every process that ends was started, ends once, and ends as the run says."""
    running: dict[tuple[str, int], Entry[ProcessStarted]] = {}
    codes: dict[str, Entry[ProcessExited]] = {}
    launchers: set[str] = set()
    ended = history.last(RunEnded)
    for entry in history:
        event = entry.event
        if isinstance(event, ProcessStarted):
            if (entry.node, event.pid) in running:
                what = f"the process {event.pid} on {entry.node} was started twice"
                yield Contradiction(what=what, events=(entry.seq,))
            running[entry.node, event.pid] = Entry(entry.seq, entry.record)
            launchers.add(entry.node)
            if event.role == "launcher" and (ended is None or entry.seq < ended.seq):
                codes.pop(entry.node, None)  # the run tells of a node's newest one
        elif isinstance(event, ProcessExited):
            start = running.pop((entry.node, event.pid), None)
            is_known = start is not None and start.event.role == event.role
            if not is_known and history.of_kind(ProcessStarted):
                what = f"the {event.role} {event.pid} on {entry.node} ended, and was not running"
                yield Contradiction(what=what, events=(entry.seq,))
            launchers.add(entry.node)
            if event.role == "launcher" and (ended is None or entry.seq < ended.seq):
                codes[entry.node] = Entry(entry.seq, entry.record)
    if ended is None:
        return
    if strangers := sorted(set(ended.event.ended_by_faults) - launchers):
        what = f"a fault is said to have ended {', '.join(strangers)}: no launcher ran there"
        yield Contradiction(what=what, events=(ended.seq,))
    found = {node: entry.event.exit_code for node, entry in codes.items()}
    if found != dict(ended.event.exit_codes):
        what = f"launchers ended with {found}, and the run says {dict(ended.event.exit_codes)}"
        proof = [entry.seq for entry in codes.values()]
        yield Contradiction(what=what, events=(*proof, ended.seq))
    said = ended.event.outcome
    if said in ("succeeded", "failed", "drained") and said != _outcome(ended.event, found):
        what = f"the job {said}, and its launchers ended with {found}"
        yield Contradiction(what=what, events=(ended.seq,))


def _outcome(ended: RunEnded, codes: Mapping[str, int]) -> str:
    counting = [code for node, code in codes.items() if node not in ended.ended_by_faults]
    if counting:
        return "failed" if any(counting) else "succeeded"
    return "drained" if codes and set(codes.values()) <= _OBEDIENT else "failed"


def _faults(history: History) -> Iterator[Contradiction]:
    """A fault is planned, fires, acts and is healed, in this order; none fires twice."""
    planned: set[str] = set()
    fired: set[str] = set()
    for entry in history:
        event = entry.event
        if isinstance(event, FaultPlanned):
            if event.id in planned:
                yield Contradiction(what=f"{event.id} was planned twice", events=(entry.seq,))
            planned.add(event.id)
        elif isinstance(event, FaultFired):
            if event.id not in planned:
                yield Contradiction(what=f"{event.id} fired unplanned", events=(entry.seq,))
            if event.id in fired:
                yield Contradiction(what=f"{event.id} fired twice", events=(entry.seq,))
            fired.add(event.id)
        elif isinstance(event, FaultEffective | FaultHealed) and event.id not in fired:
            what = f"{event.kind} of {event.id}, which had not fired"
            yield Contradiction(what=what, events=(entry.seq,))


# --- the run -------------------------------------------------------------------------------------


def _run(history: History) -> Iterator[Contradiction]:
    """The run begins, ends and is closed once, and everything happens in between."""
    for kind in (RunStarted, RunEnded, SurvivorsSought, RunClosed):
        if len(found := history.of_kind(kind)) > 1:
            yield Contradiction(what=f"{kind.kind} twice", events=tuple(e.seq for e in found))
    started, closed = history.run, history.last(RunClosed)
    if started is not None and started.seq != 1:
        yield Contradiction(what="the run started after its first record", events=(started.seq,))
    for entry in history:
        if started is not None and entry.at < started.at - _ROUNDING_S:
            what = f"{entry.event.kind} is earlier than the start of the run"
            yield Contradiction(what=what, events=(started.seq, entry.seq))
        if closed is not None and entry.at > closed.at + _ROUNDING_S and entry.seq < closed.seq:
            what = f"{entry.event.kind} is later than the end of the run"
            yield Contradiction(what=what, events=(entry.seq, closed.seq))
    own = [entry for entry in history if entry.record.source == "engine"]
    for before, after in pairwise(own):
        if after.at < before.at - _ROUNDING_S:
            what = f"{after.event.kind} is earlier than the {before.event.kind} before it"
            yield Contradiction(what=what, events=(before.seq, after.seq))


_LOOKS: Final[tuple[Callable[[History], Iterator[Contradiction]], ...]] = (
    _run,
    _workers,
    _worlds,
    _rounds,
    _nodes,
    _launchers,
    _faults,
)
