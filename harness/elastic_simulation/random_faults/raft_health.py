"""Whether a job is well again whose nodes run the Raft-shaped core.

A job that outlives its leader goes on if a quorum of the newest decided record is here, and, where
a later record may be decided, a quorum of that. Everything else that is exempt is in `Exemption`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elastic_simulation.process import Process
from elastic_simulation.random_faults import health as h
from elastic_simulation.random_faults.health import Exemption, Health
from elastic_simulation.world import World
from pytest_elastic.rendezvous.core.phases import ConnectionPhase, LeaderPhase
from pytest_elastic.rendezvous.core.records import Record
from pytest_elastic.rendezvous.core.voter import Voter
from pytest_elastic.rendezvous.vocabulary import Outcome

__all__ = ["health_of"]

_DONE = frozenset({LeaderPhase.ENDING, LeaderPhase.OVER, LeaderPhase.DEPOSED})


def health_of(
    world: World,
    *,
    left_out: str = "",
    is_host_lost: bool = False,
    healed_at: float = float("-inf"),
) -> Health:
    """Say what is not well yet, and what is exempt; as `health.health_of`."""
    is_frozen = any(p.is_frozen for p in world.every_process if p.is_alive)
    if world.config.is_granted and not is_frozen and world.host is not None:
        return _health_where_granted(world, left_out)
    if not world.config.has_succession or is_frozen or world.host is None:
        return h.health_of(world, left_out=left_out, is_host_lost=is_host_lost)
    living = [
        p for p in world.every_process if p.is_alive and p.name != left_out and p.agent.over is None
    ]
    endpoints = world.endpoints
    if endpoints is not None and not world.starts and not endpoints.can_begin_a_job(left_out):
        return Health(exemption=Exemption.UNFOUNDED)
    return _health_of_successors(world, living, left_out, healed_at)


def _health_where_granted(world: World, left_out: str) -> Health:
    """Judge a job whose leader is named by an etcd: what is decided stands there."""
    here = [p for p in world.every_process if p.is_alive and p.name != left_out]
    living = [p for p in here if p.agent.over is None]
    over = [process for process in world.every_process if process.agent.over is not None]
    gone = [process.name for process in over if _leads_after_it_left(process)]
    if gone:
        return Health(problem=f"{gone} have left, and still decide")
    aware = [process for process in over if h.knows_the_end(process)]
    if aware:
        ended_at = min(process.agent.timed_notices[-1][0] for process in aware)
        return _after_the_end(world, living, ended_at)
    return h.running(world, living)


def _health_of_successors(
    world: World, living: Sequence[Process], left_out: str, healed_at: float
) -> Health:
    over = [process for process in world.every_process if process.agent.over is not None]
    gone = [process.name for process in over if _leads_after_it_left(process)]
    if gone:
        return Health(problem=f"{gone} have left, and still decide")
    aware = [p for p in over if h.knows_the_end(p) and p.name != left_out]
    # An end that nobody knows any more, as all who could tell it were lost, is decided again (R10).
    if any(_could_tell(process, healed_at) for process in aware):
        ended_at = min(process.agent.timed_notices[-1][0] for process in aware)
        return _after_the_end(world, living, ended_at)
    everybody = living
    if not h.is_served(world, left_out):
        # New nodes find a job at its endpoint, and by nobody else. A node may know none of those
        # who are left. Both go on looking.
        living = [p for p in living if p.agent.belongs and _knows_somebody(p, living)]
    health = h.running(world, living)
    exemption = _why_nobody_leads(everybody, world) if health.problem is not None else None
    return health if exemption is None else Health(exemption=exemption)


def _after_the_end(world: World, living: Sequence[Process], ended_at: float) -> Health:
    """Judge those who were in the job, and those who came later: they are another job."""
    since = [(p, p.agent.belongs_since) for p in living]
    old = [p for p, at in since if at is not None and at <= ended_at]
    health = h.unaware(old)
    later = [p for p in living if p not in old]
    if health.problem is not None or world.host not in later:
        return health
    return h.running(world, later)


def _leads_after_it_left(process: Process) -> bool:
    if not h.has_left(process) or process.coordinator is None:
        return False
    return process.is_alive and process.coordinator.phase not in _DONE


def _could_tell(process: Process, healed_at: float) -> bool:
    """Tell whether a node that knew the end could have told it to all whom it could reach."""
    config = process.world.config
    if process.left_at is None:
        return process.is_alive
    stayed_s = process.left_at - process.agent.timed_notices[-1][0]
    has_stayed = stayed_s >= config.linger_s * h.SLOWEST_CLOCK
    return not has_stayed or process.left_at >= healed_at + config.lease_s


def _knows_somebody(process: Process, living: Sequence[Process]) -> bool:
    if process.coordinator is not None or process.member.connection is ConnectionPhase.JOINED:
        return True
    known = {entry.incarnation for entry in process.member.peers}
    return any(p.node.incarnation in known for p in living)


def _why_nobody_leads(living: Sequence[Process], world: World) -> Exemption | None:
    """Tell whether those who are here may go on; if not, by which rule."""
    voters: list[Voter] = [p.member.voter for p in living]
    present = {voter.incarnation for voter in voters}
    seats = {voter.seat for voter in voters}
    leaders = [p.coordinator for p in living if p.coordinator is not None]
    for each in leaders:
        if each._replication.base.number == 0 and world.endpoints is None:  # noqa: SLF001
            came_with = each._first_round._of_before  # noqa: SLF001
            marked = _newest_that_has_ended(world, world.by_incarnation[each.node.incarnation])
            new = sum(came_with.get(incarnation, 0) <= marked for incarnation in present)
            return Exemption.FEW_NEW if new < world.config.min_nodes else None
    bases = [voter.base for voter in voters if voter.base is not None]
    bases += [each._replication.base for each in leaders]  # noqa: SLF001
    if not bases:
        return Exemption.GIVEN_WAY
    base = max(bases, key=lambda each: each.rank)
    if not base.configuration.has_quorum(present | seats):
        return Exemption.MINORITY
    records = [voter.record for voter in voters if voter.record is not None]
    pending = max(records, key=lambda each: each.rank, default=base)
    if pending.rank <= base.rank or not _may_be_decided(pending, base, voters):
        return None
    return None if pending.configuration.has_quorum(present) else Exemption.UNDECIDED


def _may_be_decided(pending: Record, base: Record, voters: Sequence[Voter]) -> bool:
    never = [
        voter.incarnation
        for voter in voters
        if voter.record is None or voter.record.identity != pending.identity
    ]
    return pending.may_be_decided(base, never)


def _newest_that_has_ended(world: World, host: Process) -> int:
    """Return the number of the mark that a host found, 0 if there was none or one may go on."""
    job: Any = world.marks.found_by(host)  # of this core
    if job is None:
        return 0
    names = {*job.base.configuration.voters, *job.record.configuration.voters}
    ends = {Outcome.TOMBSTONE, Outcome.REFUSED}
    outcomes = [world.outcome(host, world.by_incarnation[name]) for name in sorted(names)]
    return int(job.number) if all(outcome in ends for outcome in outcomes) else 0
