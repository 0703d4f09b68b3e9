"""What must never be false of any round, under any fault: the invariants of membership."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from elastic_harness.history.checkers.never_seen import (
    NOBODY,
    held_twice,
    not_observed,
    unexplained_ranks,
)
from elastic_harness.history.checkers.registry import NoParameters, checker
from elastic_harness.history.events import (
    FaultFired,
    FaultHealed,
    WorkerHello,
)
from elastic_harness.history.history import History
from elastic_harness.history.verdict import Verdict, invalid, unknown, valid
from elastic_harness.history.worlds import Step, WorkerView, World
from pytest_elastic.events.model import RoundCommitted, WorkersStarted

__all__ = [
    "agreement",
    "no_overlap",
    "one_world",
    "ranks",
    "split_brain",
]

# A process that is continued after a pause finishes what it was about to do before its keeper
# can fence it (R6): steps that begin this soon after such a heal are the pause's doing.
_RESUME_GRACE_S = 1.0


@checker("ranks", NoParameters, is_default=True)
def ranks(history: History, _: NoParameters) -> Verdict:
    """Ranks of a round are unique, contiguous from 0, and agreed by all ranks and nodes."""
    worlds = history.worlds.rounds
    if not worlds:
        return not_observed(history, NOBODY)
    problem = _rank_given_twice(worlds) or _rank_against_launcher(history)
    for world in worlds:
        problem = problem or _wrong_ranks(world) or _wrong_places(world)
    problem = problem or held_twice(history)
    if problem is not None:
        return problem
    for world in worlds:
        if world.formed_at is None and (missing := unexplained_ranks(history, world)):
            return unknown(
                f"ranks {', '.join(map(str, missing))} of round {world.name} never said hello: "
                "whether they were given is not known",
                [worker.hello_seq for worker in world.workers.values()],
            )
    formed = sum(world.formed_at is not None for world in worlds)
    broken = len(worlds) - formed
    cut = f"; {broken} more were cut short while they formed" if broken else ""
    return valid(f"{formed} rounds with every rank from 0 on given once{cut}")


def _rank_given_twice(worlds: list[World]) -> Verdict | None:
    """Two worlds of one number exist only because a rank was taken (see worlds.py)."""
    holders: dict[tuple[str, int, int, int], WorkerView] = {}
    for world in worlds:
        if world.round is None:
            continue
        for worker in world.workers.values():
            key = (world.run_id, world.job, world.round, worker.rank)
            other = holders.setdefault(key, worker)
            if other is not worker:
                return invalid(
                    f"rank {worker.rank} of round {world.name} was given to two workers, "
                    f"on {other.node} and on {worker.node}",
                    (other.hello_seq, worker.hello_seq),
                )
    return None


def _wrong_ranks(world: World) -> Verdict | None:
    bases: dict[str, WorkerView] = {}
    owners: dict[int, WorkerView] = {}
    for worker in world.workers.values():
        hello = worker.hello
        if not 0 <= worker.rank < hello.world_size:
            return invalid(
                f"{worker.node} in round {world.name} has rank {worker.rank}, "
                f"outside a world of {hello.world_size}",
                (worker.hello_seq,),
            )
        first = bases.setdefault(worker.node, worker)
        # The ranks of a node are a block: they grow with the local rank.
        if first.rank - first.local_rank != worker.rank - worker.local_rank:
            return invalid(
                f"{worker.node} in round {world.name} has local ranks {first.local_rank} and "
                f"{worker.local_rank} as ranks {first.rank} and {worker.rank}",
                (first.hello_seq, worker.hello_seq),
            )
        if hello.group_rank is None:
            continue
        owner = owners.setdefault(hello.group_rank, worker)
        if owner.node != worker.node or first.hello.group_rank != hello.group_rank:
            return invalid(
                f"group ranks of round {world.name} are not one for each node: "
                f"{owner.node} and {worker.node}, "
                f"{first.hello.group_rank} and {hello.group_rank}",
                (owner.hello_seq, first.hello_seq, worker.hello_seq),
            )
    return None


def _wrong_places(world: World) -> Verdict | None:
    """Of a round that formed, group ranks are 0, 1, 2 ..., and so are local ranks on each node."""
    if world.formed_at is None:
        return None
    groups = {worker.hello.group_rank for worker in world.workers.values()} - {None}
    if groups and groups != set(range(len(world.nodes))):
        return invalid(
            f"the {len(world.nodes)} nodes of round {world.name} have group ranks "
            f"{', '.join(sorted(map(str, groups)))}",
            [worker.hello_seq for worker in world.workers.values()],
        )
    for node in world.nodes:
        workers = [worker for worker in world.workers.values() if worker.node == node]
        for worker in workers:
            told = worker.hello.group_world_size, worker.hello.local_world_size
            sizes = len(world.nodes), len(workers)
            if any(each not in (None, size) for each, size in zip(told, sizes, strict=True)):
                return invalid(
                    f"rank {worker.rank} on {node} was told of GROUP_WORLD_SIZE {told[0]} and "
                    f"LOCAL_WORLD_SIZE {told[1]} in round {world.name}, which has {sizes[0]} "
                    f"nodes, and {sizes[1]} workers there",
                    (worker.hello_seq,),
                )
        found = sorted(worker.local_rank for worker in workers)
        if found != list(range(len(found))):
            return invalid(
                f"{node} in round {world.name} has local ranks {', '.join(map(str, found))}",
                [worker.hello_seq for worker in workers],
            )
    return None


def _rank_against_launcher(history: History) -> Verdict | None:
    """The ranks that agents say they started are those that workers say they have."""
    for started in history.of_kind(WorkersStarted):
        event, job = started.event, history.worlds.job_of(started.seq)
        told = (event.round, started.record.run_id, job)
        for world in history.worlds.rounds:
            if (world.round, world.run_id, world.job) != told:
                continue
            for worker in world.workers.values():
                if worker.node == started.node and worker.rank not in event.ranks:
                    return invalid(
                        f"{worker.node} started ranks {list(event.ranks)} of round "
                        f"{event.round}, but a worker there says rank {worker.rank}",
                        (started.seq, worker.hello_seq),
                    )
    return None


@checker("agreement", NoParameters, is_default=True)
def agreement(history: History, _: NoParameters) -> Verdict:
    """All ranks of a round were told the same world size, address, restart count and budget.

    Where the launcher counts the restarts of each node, that is so for the ranks of a node.
    """
    worlds = history.worlds.rounds
    if not worlds:
        return not_observed(history, NOBODY)
    names = ["world_size", "master_addr", "master_port", "max_restarts"]
    if history.run is None or not history.run.event.settings.get("counts_by_node"):
        names.append("restart_count")
    for world in worlds:
        told = [(worker, worker.hello) for worker in world.workers.values()]
        for name in names:
            values: dict[object, WorkerView] = {}
            for worker, hello in told:
                values.setdefault(getattr(hello, name), worker)
            if len(values) > 1:
                (one, a), (other, b) = list(values.items())[:2]
                return invalid(
                    f"round {world.name} disagrees about {name}: rank {a.rank} on {a.node} "
                    f"was told {one}, rank {b.rank} on {b.node} {other}",
                    (a.hello_seq, b.hello_seq),
                )
    problem = _run_ids_disagree(worlds) or _other_budget(history) or _nodes_disagree(history)
    return problem or valid("all ranks of every round were told the same")


def _run_ids_disagree(worlds: list[World]) -> Verdict | None:
    """Workers of one process group were told one run id, whichever worlds that makes of them."""
    newest: dict[str | None, WorkerView] = {}
    for worker in (each for world in worlds for each in world.workers.values() if each.nonce):
        a = newest.get(worker.nonce, worker)
        newest[worker.nonce] = worker
        # An old nonce is read again in a store that outlives a round (worlds.py).
        are_together = a.gone_at is None or a.gone_at > worker.hello_at
        if are_together and a.hello.run_id != worker.hello.run_id:
            return invalid(
                f"one process group disagrees about run_id: rank {a.rank} on {a.node} was told "
                f"{a.hello.run_id!r}, rank {worker.rank} on {worker.node} {worker.hello.run_id!r}",
                (a.hello_seq, worker.hello_seq),
            )
    return None


def _other_budget(history: History) -> Verdict | None:
    """Where the launcher was given the budget, its workers are told of it."""
    run = history.run
    if run is None or not run.event.settings.get("gives_max_restarts"):
        return None
    for entry in history.of_kind(WorkerHello):
        if entry.event.max_restarts not in (None, run.event.max_restarts):
            return invalid(
                f"rank {entry.event.rank} on {entry.node} was told max_restarts "
                f"{entry.event.max_restarts}, {run.event.max_restarts} was asked for",
                (entry.seq,),
            )
    return None


def _nodes_disagree(history: History) -> Verdict | None:
    """Every node that was told to start a round was told the same round."""
    first: dict[tuple[str, int, int, int], tuple[int, str, tuple[object, ...]]] = {}
    for entry in history.of_kind(RoundCommitted):
        event = entry.event
        told = (
            event.roster,
            event.world_size,
            event.restart_count,
            event.master_addr,
            event.master_port,
        )
        key = (entry.record.run_id, history.worlds.job_of(entry.seq), event.term, event.round)
        seq, node, earlier = first.setdefault(key, (entry.seq, entry.node, told))
        if earlier != told:
            return invalid(
                f"round {event.round} was committed differently on {node} and on {entry.node}",
                (seq, entry.seq),
            )
    return None


@checker("one_world", NoParameters, is_default=True, knows_clock_errors=True)
def one_world(history: History, _: NoParameters) -> Verdict:
    """No step of an older round begins after all ranks of a newer one completed their first."""
    worlds = history.worlds.rounds
    if not worlds:
        return not_observed(history, NOBODY)
    errors = history.clock_errors
    undecided: Verdict | None = None
    for old, worker, step, new in _late_steps(history):
        late_s, error_s = _lateness(errors, worker, step, new)
        if new.progressed_at is None:
            undecided = unknown(
                f"rank {worker.rank} on {worker.node} began a step of round {old.name} after a "
                f"rank of round {new.name} had completed one, and not of all of its ranks a step "
                "was seen",
                (step.seq,),
            )
            continue
        if abs(late_s) <= error_s:
            undecided = unknown(
                f"whether rank {worker.rank} on {worker.node} began a step of round {old.name} "
                f"before every rank of round {new.name} had completed one, their clocks do not "
                f"tell: it is {1000 * abs(late_s):.1f} ms, and they are known to "
                f"{1000 * error_s:.1f} ms",
                (step.seq,),
            )
        if late_s <= error_s:
            continue
        return invalid(
            f"rank {worker.rank} on {worker.node} began a step of round {old.name} after every "
            f"rank of round {new.name} had completed one: two worlds at once",
            (step.seq, *(each.steps[0].seq for each in new.workers.values())),
        )
    if undecided is not None:
        return undecided
    has_steps = any(worker.steps for world in worlds for worker in world.workers.values())
    if not has_steps and _has_overlap(worlds):
        return unknown("rounds overlapped, and no step of any worker was observed")
    return valid("no step of an older round began once a newer one was under way")


def _lateness(
    errors: Mapping[str, float], worker: WorkerView, step: Step, new: World
) -> tuple[float, float]:
    """Return by how much a step was late, and by how much that may be off.

    Times of one node are exact, those of several as far as their clocks were compared. Of the
    workers that it is later than, it is the one for which that is least certain.
    """
    found: list[tuple[float, float]] = []
    for each in (worker for worker in new.workers.values() if worker.steps):
        error_s = 0.0
        if each.node != worker.node:
            error_s = errors.get(worker.node, 0.0) + errors.get(each.node, 0.0)
        found.append((step.began_at - each.steps[0].at, error_s))
    return min(found, key=lambda late: late[0] - late[1])


def _late_steps(history: History) -> Iterator[tuple[World, WorkerView, Step, World]]:
    """Yield (old world, worker, its step, newer world) for each step that may be late.

    Of a newer world in which some rank was never seen to step, the first step of another counts.
    """
    worlds = history.worlds.rounds
    error_s = 2 * max(history.clock_errors.values(), default=0.0)
    exempt = _resumes(history)
    for index, old in enumerate(worlds):
        for new in worlds[index + 1 :]:
            begun = [worker.steps[0].at for worker in new.workers.values() if worker.steps]
            if not begun or new.run_id != old.run_id:
                continue
            limit = min(begun) if new.progressed_at is None else new.progressed_at - error_s
            for worker in old.workers.values():
                for step in worker.steps:
                    is_late = step.began_at > limit
                    if is_late and not _is_exempt(worker, step.began_at, exempt):
                        yield old, worker, step, new


def _resumes(history: History) -> list[tuple[float, FaultFired]]:
    """Return when faults that stop processes were healed, with what they had stopped."""
    paused = {
        entry.event.id: entry.event for entry in history.of_kind(FaultFired) if entry.event.pauses
    }
    return [
        (entry.at, paused[entry.event.id])
        for entry in history.of_kind(FaultHealed)
        if entry.event.id in paused
    ]


def _is_exempt(
    worker: WorkerView, began_at: float, resumes: list[tuple[float, FaultFired]]
) -> bool:
    # A stopped worker's step began before the stop or right after the continue; its time between
    # the two is the fault's.
    itself = (worker.node, worker.rank, worker.pid)
    return any(
        healed_at <= began_at <= healed_at + _RESUME_GRACE_S
        and (itself in fired.workers or worker.node in fired.nodes)
        for healed_at, fired in resumes
    )


def _has_overlap(worlds: list[World]) -> bool:
    for old, new in pairwise(worlds):
        if old.run_id == new.run_id and (old.ended_at is None or old.ended_at > new.started_at):
            return True
    return False


@checker("split_brain", NoParameters, is_occurrence=True, knows_clock_errors=True)
def split_brain(history: History, _: NoParameters) -> Verdict:
    """Two rounds of one job made steps at the same time (an occurrence)."""
    errors = history.clock_errors
    for old, worker, step, new in _late_steps(history):
        late_s, error_s = _lateness(errors, worker, step, new)
        if new.progressed_at is not None and late_s > error_s:
            return valid(
                f"round {old.name} went on (rank {worker.rank} on {worker.node}) while round "
                f"{new.name} was under way",
                (step.seq,),
            )
    verdict = one_world.check(history, NoParameters())
    return verdict if not verdict.is_valid else invalid("no two rounds were under way at once")


@checker("no_overlap", NoParameters, is_default=True)
def no_overlap(history: History, _: NoParameters) -> Verdict:
    """No worker of an older round is alive on a node when one of a newer round says hello there."""
    hellos = history.of_kind(WorkerHello)
    if not hellos:
        return not_observed(history, NOBODY)
    seqs: dict[int, int] = {}
    for entry in hellos:
        if entry.event.alive_before:
            older = entry.event.alive_before
            return invalid(
                f"when rank {entry.event.rank} said hello on {entry.node}, "
                f"{len(older)} workers of an older round were alive there "
                f"(pids {', '.join(map(str, older))})",
                (*(seqs[pid] for pid in older if pid in seqs), entry.seq),
            )
        seqs[entry.event.pid] = entry.seq
    return valid(f"{len(hellos)} workers said hello on nodes clear of older rounds")
