"""Workers that live and do not get on: one that hangs, one that is slow."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar, Final, Literal

from pydantic import Field, model_validator

from elastic_harness.cluster.process import ProcessRef, is_running
from elastic_harness.faults.context import (
    IN_FORCE,
    Evidence,
    FaultContext,
    FaultImpossible,
    HealOrdered,
    InForce,
    Proved,
    Sleep,
    Steps,
    Until,
    Waits,
    wait_for_proof,
)
from elastic_harness.faults.fault import with_exclude
from elastic_harness.faults.workers.worker import (
    ORDER_S,
    WorkerFault,
    facts_of,
    listed,
    order,
    wait_for_answer,
)
from elastic_harness.future import Future, gather
from elastic_harness.scenario.engine.situation import Situation, Targets, WorkerRef
from elastic_harness.scenario.fields import Fraction, Seconds

__all__ = ["HangWorker", "SlowWorker", "processes_of", "run_by_turns", "stop_and_see"]

# The kernel stops a process at its next return to user space; only one stuck in a driver is slower.
_STOP_S: Final = 5.0
# What is stopped by turns is seen so in the first ones, unless signals do nothing to it.
_TURNS: Final = 3
_MOST_TRIES: Final = 50
STOPPED: Final = frozenset({"T", "t"})
# Peers finish the step they are in, then wait for the rank that does not come. A machine on which a
# step takes longer than the first of these needs a longer `limit` anyway.
_PEERS_STOP_S: Final = 20.0
_PEERS_STILL_S: Final = 1.0


class HangWorker(WorkerFault):
    """A worker lives and does nothing: `how` it stands still is stop, gil or collective.

    `stop`: SIGSTOP, the whole process. `gil`: it waits in native code and keeps the interpreter's
    lock, so that no other Python thread and no signal handler of its own runs. `collective`: it
    does not come to its next collective, in which its peers wait; its threads and handlers run.
    Stands for a deadlock, a data loader that never returns, a native call that blocks, a rank that
    took another branch than its peers. Does not stand for: a hang inside a GPU kernel or in NCCL's
    own threads, a process that the kernel cannot kill.
    """

    name = "hang"
    proof = (
        "`stop`: state T after this SIGSTOP, and not before; `gil`: the worker acknowledged this "
        "order; `collective`: that too, and its peers, which run, completed no step for 1 s"
    )
    is_healable: ClassVar[bool] = True
    pauses: ClassVar[bool] = True

    how: Literal["stop", "gil", "collective"] = "stop"

    @model_validator(mode="after")
    def _has_peers(self) -> HangWorker:
        chosen = with_exclude(self.worker, self.exclude)
        is_all = any(term.kind == "all" for term in chosen.terms) and not chosen.exclude
        if self.how == "collective" and is_all:
            raise ValueError("where all ranks stay away, no rank waits for them in a collective")
        return self

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        targets = super().resolve(situation, stream=stream)
        chosen = {worker.rank for worker in targets.workers}
        peers = tuple(each for each in situation.workers if each.rank not in chosen)
        return Targets(workers=targets.workers, peers=peers)

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        if self.how == "stop":
            return (yield from stop_and_see(context, processes_of(targets.workers), owner=id))
        if self.how == "collective" and not targets.peers:
            raise FaultImpossible(
                f"{listed(targets.workers)} has no peer that could wait for it in a collective"
            )
        act = "hold_gil" if self.how == "gil" else "stand"
        order(context, targets.workers, {"do": "act", "act": act}, "hang", by=id)
        yield InForce.NEEDS_JOB
        for worker in targets.workers:
            yield from wait_for_answer(context, worker, act, ("began",), by=id, within_s=ORDER_S)
        if self.how == "gil":
            return Evidence(
                text=f"{listed(targets.workers)} keeps the interpreter's lock",
                facts={"acknowledged": True, "workers": facts_of(targets.workers, {})},
            )
        yield from _see_peers_wait(context, targets)
        return Evidence(
            text=f"{listed(targets.workers)} stays away; its {len(targets.peers)} peers wait",
            facts={
                "acknowledged": True,
                "workers": facts_of(targets.workers, {}),
                "waiting": facts_of(targets.peers, {}),
            },
        )

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from context.stops.release(id)
        for worker in targets.workers if self.how != "stop" else ():
            context.probes.order(worker.process, {"do": "resume"})
        return f"{listed(targets.workers)} may go on"


def _see_peers_wait(context: FaultContext, targets: Targets) -> Steps:
    """Wait until no peer has completed a step for a while, though all of them live."""
    deadline = context.now() + _PEERS_STOP_S * context.patience
    while context.now() < deadline:
        steps = [context.probes.steps_of(peer.process) for peer in targets.peers]
        yield Sleep(seconds=_PEERS_STILL_S)
        states = yield from gather(context.cluster.state(peer.process) for peer in targets.peers)
        if all(state in STOPPED or not is_running(state) for state in states):
            raise FaultImpossible("every peer has ended or is stopped: none waits in a collective")
        if steps == [context.probes.steps_of(peer.process) for peer in targets.peers]:
            return ""
    raise FaultImpossible(
        f"{listed(targets.workers)} stays away, and its peers go on completing steps: nothing they "
        "do waits for it"
    )


class SlowWorker(WorkerFault):
    """A worker runs for `share` of the time only, in turns of `period`; stopped in between.

    A worker that is started in its place is fast again. Stands for a straggler: a hot processor,
    a noisy neighbour, a thread too many. Does not stand for: slow memory or a slow GPU (its kernels
    run on), a slow network, a machine that is short of processors (that is `cpu_limit`). It
    continues what a launcher may have stopped on purpose in the meantime.
    """

    name = "slow"
    proof = "seen running before, and stopped (state T) in, each of three turns"
    is_healable: ClassVar[bool] = True
    pauses: ClassVar[bool] = True

    share: Fraction = 0.2
    period: Seconds = Field(default=0.1, ge=0.01, le=10.0)

    @model_validator(mode="after")
    def _is_slower(self) -> SlowWorker:
        if not 0 < self.share < 1:
            raise ValueError("`share` is more than 0% (that is `hang`) and less than 100%")
        return self

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        return (
            yield from run_by_turns(
                context,
                processes_of(targets.workers),
                owner=id,
                share=self.share,
                period_s=self.period,
                who=listed(targets.workers),
            )
        )

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from context.stops.release(id)
        return f"{listed(targets.workers)} runs all the time"


def processes_of(workers: tuple[WorkerRef, ...]) -> list[ProcessRef]:
    """Return the processes of workers."""
    return [worker.process for worker in workers]


def are_stopped(context: FaultContext, processes: Sequence[ProcessRef]) -> Future[bool]:
    """Tell whether all of these processes stand still."""
    states = gather(context.cluster.state(process) for process in processes)
    return states.then(lambda found: all(state in STOPPED for state in found))


def stop_and_see(context: FaultContext, processes: list[ProcessRef], *, owner: str) -> Steps:
    """Stop processes by SIGSTOP and wait until they stand; it is in force in between.

    One that other faults have stopped already has to stand when all of them are healed.
    """
    others: dict[ProcessRef, frozenset[str]] = {}

    def is_alone() -> bool:
        return all(
            known.isdisjoint(context.stops.owners_of(each)) for each, known in others.items()
        )

    def look() -> Waits[bool]:
        return is_alone() and (yield from are_stopped(context, processes))

    for process in processes:
        is_stopped = (yield from context.cluster.state(process)) in STOPPED
        known = context.stops.owners_of(process)
        if is_stopped and not known:
            raise FaultImpossible(f"process {process.pid} was stopped already, and by no fault")
        if is_stopped:
            others[process] = frozenset(known)
        if not (yield from context.stops.stop(owner, process)):
            raise FaultImpossible(f"process {process.pid} had ended before it was stopped")
    pids = ", ".join(str(each.pid) for each in processes)
    if not others:
        yield IN_FORCE
        yield Until(
            condition=lambda: are_stopped(context, processes),
            within_s=_STOP_S,
            otherwise=f"not stopped: one of {pids}",
        )
    elif not (yield from wait_for_proof(context, look)):
        process, names = next(iter(others.items()))
        raise FaultImpossible(
            f"process {process.pid} was stopped by {', '.join(sorted(names))} already, and was not "
            "seen to stand by this fault alone: let it outlast the other"
        )
    return Evidence(
        text=f"state T: {pids}",
        facts={"signal": "SIGSTOP", "state": "T", "pids": [each.pid for each in processes]},
    )


def run_by_turns(
    context: FaultContext,
    processes: list[ProcessRef],
    *,
    owner: str,
    share: float,
    period_s: float,
    who: str,
) -> Steps:
    """Stop and continue processes in turns until the heal; proven by three stops that were seen.

    A turn counts if all of them ran before it and stood still in it.
    """
    yield InForce.NEEDS_JOB
    turns = 0
    try:
        for tried in itertools.count(1):
            states = yield from gather(context.cluster.state(each) for each in processes)
            ran = [
                each for each, state in zip(processes, states, strict=True) if state not in STOPPED
            ]
            sent = yield from gather(context.stops.stop(owner, each) for each in processes)
            there = [each for each, is_sent in zip(processes, sent, strict=True) if is_sent]
            if not there:
                break
            yield Sleep(seconds=period_s * (1 - share))
            is_stopped = yield from are_stopped(context, there)
            turns += is_stopped and all(each in ran for each in there)
            yield from context.stops.release(owner)
            if turns < _TURNS and tried == _MOST_TRIES:
                raise FaultImpossible(
                    f"{who} was told to stop, and {turns} times it was seen to run and then to stop"
                )
            if turns == _TURNS:
                yield Proved(
                    evidence=Evidence(
                        text=f"{who} stopped for {1 - share:.0%} of the time",
                        facts={"turns": turns, "pids": [each.pid for each in there]},
                    )
                )
            yield Sleep(seconds=period_s * share)
    except HealOrdered:
        pass
    finally:
        context.stops.release(owner)
    if turns < _TURNS:
        raise FaultImpossible(f"{who} was stopped in {turns} turns only before it ended")
    return f"{who} stopped {turns} times"
