"""What must come to pass: recovery, and the shape of the rounds it takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BeforeValidator

from elastic_harness.finding import Finding
from elastic_harness.history.checkers.never_seen import dead_at_the_end
from elastic_harness.history.checkers.registry import NoParameters, Parameters, checker
from elastic_harness.history.events import FaultEffective, FaultFired, FaultHealed, RunEnded
from elastic_harness.history.history import Entry, History
from elastic_harness.history.verdict import Verdict, invalid, unknown, valid
from elastic_harness.history.worlds import World
from elastic_harness.scenario.actions import CheckedScenario
from elastic_harness.scenario.fields import Listed, Seconds
from pytest_elastic.events.model import RoundCommitted

__all__ = [
    "moment",
    "progress",
    "rank_reassigned",
    "rank_stability",
    "recovered",
    "recovery_time",
    "restarts",
    "world_sizes",
]

_NOTHING_FORMED = "no round formed"


def formed_worlds(history: History) -> list[World]:
    """Return the rounds in which every rank said hello, in order."""
    return [world for world in history.worlds.rounds if world.formed_at is not None]


def moment(history: History, name: str) -> Entry[Any] | None:
    """Return when a fault fired (`crash`) or was healed (`crash.healed`), if it was.

    Of an entry with `every`, the first of its firings (`chaos#2`, where `chaos#1` hit nothing).
    """
    fault, dot, what = name.partition(".")
    kind: type[FaultFired | FaultHealed] = FaultHealed if what == "healed" else FaultFired
    if dot and what not in ("fired", "healed"):
        return None
    for entry in history.of_kind(kind):
        if fault in (entry.event.id, entry.event.id.partition("#")[0]):
            return entry
    return None


def _hellos(worlds: Iterable[World]) -> list[int]:
    return [worker.hello_seq for world in worlds for worker in world.workers.values()]


class RestartsParameters(Parameters):
    """`restarts: 1`, or bounds."""

    exactly: int | None = None
    at_least: int | None = None
    at_most: int | None = None

    def model_post_init(self, context: object) -> None:
        if (self.exactly, self.at_least, self.at_most) == (None, None, None):
            raise ValueError("say how many: a number, at_least or at_most")
        if self.exactly is not None and (self.at_least, self.at_most) != (None, None):
            raise ValueError("a number needs no at_least or at_most beside it")
        for bound in (self.exactly, self.at_least, self.at_most):
            if bound is not None and bound < 0:
                raise ValueError(f"{bound} is no number of restarts: 0 or more is expected")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(
                f"nothing is at least {self.at_least} and at most {self.at_most}: turn them round"
            )

    def findings(self, scenario: CheckedScenario) -> Iterator[Finding]:
        wanted, budget = self.exactly or self.at_least or 0, scenario.spec.job.max_restarts
        if wanted > budget:
            yield Finding(
                f"{wanted} restarts are more than the job may have: `max_restarts` is {budget}"
            )


@checker("restarts", RestartsParameters, shorthand="exactly", is_said_once=True)
def restarts(history: History, parameters: RestartsParameters) -> Verdict:
    """So many restarts were charged, as workers or launchers were told; jobs are added up."""
    most: dict[tuple[str, int], int] = {}
    for world in history.worlds.rounds:
        job, count = (world.run_id, world.job), world.restart_count
        if count is None:
            return unknown(
                f"no worker of round {world.ordinal} was told a restart count", _hellos([world])
            )
        most[job] = max(count, most.get(job, count))
    # Of a round whose workers died before they could say hello, only launchers know.
    told = [
        ((entry.record.run_id, history.worlds.job_of(entry.seq)), entry)
        for entry in history.of_kind(RoundCommitted)
    ]
    for job, entry in told:
        most[job] = max(entry.event.restart_count, most.get(job, entry.event.restart_count))
    if not most:
        return unknown("no worker said hello, so that none was told a restart count")
    found = sum(most.values())
    proof = _hellos(
        world
        for world in history.worlds.rounds
        if world.restart_count == most[world.run_id, world.job]
    )
    proof += [entry.seq for job, entry in told if entry.event.restart_count == most[job]]
    if parameters.exactly is not None and found != parameters.exactly:
        return invalid(f"{found} restarts, {parameters.exactly} were expected", proof)
    if parameters.at_least is not None and found < parameters.at_least:
        return invalid(f"{found} restarts, at least {parameters.at_least} were expected", proof)
    if parameters.at_most is not None and found > parameters.at_most:
        return invalid(f"{found} restarts, at most {parameters.at_most} were expected", proof)
    return valid(f"{found} restarts", proof)


class WorldSizesParameters(Parameters):
    """`world_sizes: [4, 4]`."""

    sizes: Listed[int]

    def model_post_init(self, context: object) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError("one world or more is expected, each of one rank or more")

    def findings(self, scenario: CheckedScenario) -> Iterator[Finding]:
        for place, size in enumerate(self.sizes):
            yield from scenario.no_world(size, "sizes", place)


@checker("world_sizes", WorldSizesParameters, shorthand="sizes", is_said_once=True)
def world_sizes(history: History, parameters: WorldSizesParameters) -> Verdict:
    """The rounds that formed had these world sizes, in this order."""
    formed = formed_worlds(history)
    if not formed:
        return unknown(_NOTHING_FORMED)
    found = tuple(world.world_size for world in formed)
    if found != parameters.sizes:
        return invalid(
            f"world sizes were {list(found)}, {list(parameters.sizes)} were expected",
            _hellos(formed),
        )
    return valid(f"world sizes were {list(found)}", _hellos(formed))


def _bare_seconds(value: object) -> object:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return value


class RecoveryTimeParameters(Parameters):
    """`recovery_time: {at_most: 2s, after: crash}`; without `after`, every fault counts."""

    at_most: Annotated[Seconds, BeforeValidator(_bare_seconds)]
    after: str | None = None

    def findings(self, scenario: CheckedScenario) -> Iterator[Finding]:
        yield from scenario.no_firing(self.after, "after")


@checker("recovery_time", RecoveryTimeParameters, shorthand="at_most")
def recovery_time(history: History, parameters: RecoveryTimeParameters) -> Verdict:
    """So long at most from a fault to the first step that all ranks of a later round completed."""
    if parameters.after is not None:
        start = moment(history, parameters.after)
        if start is None:
            return unknown(f"nothing called {parameters.after!r} happened")
        starts: list[Entry[Any]] = [start]
    else:
        starts = [entry for entry in history.of_kind(FaultFired) if entry.event.disturbs]
        if not starts:
            return unknown("no fault fired that disturbs a job")
    times: list[float] = []
    proof: list[int] = []
    for start in starts:
        later = [
            (world.progressed_at, world)
            for world in history.worlds.rounds
            if world.started_at >= start.at and world.progressed_at is not None
        ]
        if not later:
            if not any(w.steps for world in history.worlds.rounds for w in world.workers.values()):
                return unknown("no step of any worker was observed", (start.seq,))
            return invalid(f"after {start.event.id}, no later round made progress", (start.seq,))
        progressed_at, first = min(later, key=lambda pair: pair[0])
        took = progressed_at - start.at
        steps = [worker.steps[0].seq for worker in first.workers.values()]
        if took > parameters.at_most:
            return invalid(
                f"{took:.2f} s from {start.event.id} to the first step of round "
                f"{first.ordinal}, {parameters.at_most:g} s were allowed",
                (start.seq, *steps),
            )
        times.append(took)
        proof += [start.seq, *steps]
    return valid(f"recovered in {max(times):.2f} s", proof)


class ProgressParameters(Parameters):
    """`progress: {steps: 10, after: heal}`."""

    steps: int
    after: str | None = None

    def model_post_init(self, context: object) -> None:
        if self.steps < 1:
            raise ValueError(f"{self.steps} steps are no progress")

    def findings(self, scenario: CheckedScenario) -> Iterator[Finding]:
        yield from scenario.no_firing(self.after, "after")


@checker("progress", ProgressParameters, shorthand="steps")
def progress(history: History, parameters: ProgressParameters) -> Verdict:
    """Every rank of the last round completed so many steps, begun after a moment if asked so."""
    since = float("-inf")
    if parameters.after is not None:
        start = moment(history, parameters.after)
        if start is None:
            return unknown(f"nothing called {parameters.after!r} happened")
        since = start.at
    formed = formed_worlds(history)
    if not formed:
        return unknown(_NOTHING_FORMED)
    if not any(worker.steps for world in formed for worker in world.workers.values()):
        return unknown("no step of any worker was observed")
    last = formed[-1]
    for worker in last.workers.values():
        done = [step for step in worker.steps if step.began_at >= since]
        if len(done) < parameters.steps:
            return invalid(
                f"rank {worker.rank} completed {len(done)} steps in round {last.ordinal}, "
                f"{parameters.steps} were expected",
                (worker.hello_seq, *(step.seq for step in done[-1:])),
            )
    return valid(f"every rank of round {last.ordinal} completed {parameters.steps} steps")


@checker("recovered", NoParameters)
def recovered(history: History, _: NoParameters) -> Verdict:
    """After the last fault, and the last heal, every rank got on; or the job had succeeded."""
    ended = history.last(RunEnded)
    # What is healed after the end is nothing that the job had to recover from.
    faults: list[Entry[Any]] = [
        entry
        for entry in (*history.of_kind(FaultEffective), *history.of_kind(FaultHealed))
        if ended is None or entry.seq < ended.seq
    ]
    if not faults:
        return unknown("no fault took effect, so there was nothing to recover from")
    last_fault = max(faults, key=lambda entry: entry.seq)
    formed = formed_worlds(history)
    if not formed:
        return unknown(_NOTHING_FORMED)
    last = formed[-1]
    steps = [
        next((step for step in worker.steps if step.began_at >= last_fault.at), None)
        for worker in last.workers.values()
    ]
    done = [step.seq for step in steps if step is not None]
    name = f"{last_fault.event.id} ({last_fault.event.kind})"
    if len(done) == len(steps):
        return valid(f"every rank of round {last.ordinal} got on after {name}", done)
    if ended is not None and ended.event.outcome == "succeeded":
        for worker, gone in dead_at_the_end(history):
            return unknown(
                f"rank {worker.rank} on {worker.node} died, and no round came after that, though "
                "all launchers exited with 0",
                (gone, ended.seq),
            )
        if last.started_at < last_fault.at:
            return valid(f"the job had its success before, or soon after, {name}", (ended.seq,))
        return unknown(
            f"round {last.ordinal} began after {name}, and {len(done)} of its {len(steps)} ranks "
            "completed a step: whether there was anything left to do is not known",
            (last_fault.seq, ended.seq),
        )
    return invalid(
        f"after {name}, {len(done)} of {len(steps)} ranks of round {last.ordinal}, the last one, "
        "completed a step",
        (last_fault.seq,),
    )


@checker("rank_stability", NoParameters)
def rank_stability(history: History, _: NoParameters) -> Verdict:
    """Nodes that stay keep their order of ranks, and newcomers stand where one left, or last."""
    formed = formed_worlds(history)
    # A job that begins anew knows nothing of the order of the one before.
    pairs = [
        (old, new)
        for old, new in pairwise(formed)
        if (old.run_id, old.job) == (new.run_id, new.job)
    ]
    if not pairs:
        return unknown("there were not two rounds of one job to compare")
    for old, new in pairs:
        stayed_before = [node for node in old.nodes if node in new.nodes]
        stayed_after = [node for node in new.nodes if node in old.nodes]
        proof = _hellos((old, new))
        if stayed_before != stayed_after:
            return invalid(
                f"nodes {', '.join(stayed_before)} of round {old.ordinal} came back as "
                f"{', '.join(stayed_after)} in round {new.ordinal}",
                proof,
            )
        if (problem := _newcomer_in_between(old, new)) is not None:
            return invalid(problem, proof)
    return valid(f"ranks kept their order over {len(formed)} rounds")


def _newcomer_in_between(old: World, new: World) -> str | None:
    """Each newcomer before the last survivor needs a node that left from that very gap."""
    gaps_old = _strangers_by_gap(old.nodes, new.nodes)
    gaps_new = _strangers_by_gap(new.nodes, old.nodes)
    for gap, newcomers in list(gaps_new.items())[:-1]:
        if len(newcomers) > len(gaps_old.get(gap, ())):
            place = f"after {gap}" if gap else "in front of all"
            return (
                f"{newcomers[-1]} came into round {new.ordinal} before nodes that were there, "
                f"{place}, where no node had left"
            )
    return None


def _strangers_by_gap(nodes: tuple[str, ...], others: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the nodes not among the others, by the common node that stands before them."""
    gap = ""
    gaps: dict[str, list[str]] = {"": []}
    for node in nodes:
        if node in others:
            gap = node
            gaps[gap] = []
        else:
            gaps[gap].append(node)
    return gaps


@checker("rank_reassigned", NoParameters, is_occurrence=True)
def rank_reassigned(history: History, _: NoParameters) -> Verdict:
    """Some worker's place came back with another rank in a later round (an occurrence)."""
    formed = formed_worlds(history)
    if not formed:
        return unknown(_NOTHING_FORMED)
    last_rank: dict[tuple[str, int, str, int], tuple[int, int]] = {}
    for world in formed:
        for worker in world.workers.values():
            place = (world.run_id, world.job, worker.node, worker.local_rank)
            rank, seq = last_rank.get(place, (worker.rank, worker.hello_seq))
            if rank != worker.rank:
                return valid(
                    f"local rank {worker.local_rank} of {worker.node} went from rank {rank} to "
                    f"{worker.rank} in round {world.ordinal}",
                    (seq, worker.hello_seq),
                )
            last_rank[place] = (worker.rank, worker.hello_seq)
    return invalid("every place kept its rank")
