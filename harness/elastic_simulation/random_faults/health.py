"""Whether a job is well again in a healed world, judged by what its nodes do.

A job that outlives its leader goes on if a quorum of the newest decided record is here, and, where
a later record may be decided, a quorum of that. One that does not go on is exempt where the rules
say so, and only there: `Exemption` names the rule of each. A campaign's sums name them
(`Outcome.ending`), so that a stall which hides behind one shows there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from elastic_simulation.process import Process
from elastic_simulation.world import World
from pytest_elastic.rendezvous.consensus.records import Record
from pytest_elastic.rendezvous.consensus.voter import Voter
from pytest_elastic.rendezvous.follower.connection import ConnectionPhase
from pytest_elastic.rendezvous.leader.state import LeaderPhase
from pytest_elastic.rendezvous.vocabulary import Outcome

__all__ = ["SLOWEST_CLOCK", "Exemption", "Health", "health_of", "seems_over"]

SLOWEST_CLOCK = 0.93
"""How fast a clock is at least, in seconds a second."""
# Nothing is left to decide for a leader in these phases.
_DONE = frozenset({LeaderPhase.ENDING, LeaderPhase.OVER, LeaderPhase.DEPOSED})


class Exemption(Enum):
    """Why a job need not go on that is as well as it can be: the rule, and what it says."""

    ENDED = "R10: the job has ended, and all nodes that were in it know"
    TOO_FEW = "R2: fewer than `min_nodes` are here, and wait for the join timeout"
    UNFOUNDED = "R12: too few endpoints are served"
    FEW_NEW = "R12: fewer than `min_nodes` are new here, or of a round that the mark tells of"
    MINORITY = "R11: no quorum of the last decided record is here"
    UNDECIDED = "R11: it is not known whether a record was decided, nor is a quorum of it here"
    BEGUN_TWICE = "R12, not covered: hosts that the coordinator did not reach began another job"
    GIVEN_WAY = "R12, not covered: the endpoint's host gave way to one that was lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What is not well yet, None if all is; and as `exemption` why the job need not go on."""

    problem: str | None = None
    exemption: Exemption | None = None


def health_of(
    world: World,
    *,
    left_out: str = "",
    lost_leader: str = "",
    healed_at: float = float("-inf"),
) -> Health:
    """Say what is not well yet, and what is exempt.

    `left_out` is a node that stays out of reach; `lost_leader` is an incarnation that led a
    job without succession, so that all nodes that followed it have to notice. `healed_at` is since
    when all others can reach each other, and none is frozen.
    """
    processes = world.every_process
    if any(process.is_frozen for process in processes if process.is_alive):
        return Health(problem="a node is still frozen")
    host, config = world.host, world.config
    if host is None:
        return Health(problem="no node has started yet")
    here = [p for p in processes if p.is_alive and p.name != left_out]
    living = [p for p in here if p.agent.over is None]
    if config.is_granted:
        return _health_where_granted(world, living)
    if lost_leader and not config.has_succession:
        left = [p.name for p in processes if p.is_alive and _belongs_to(p, lost_leader)]
        why = f"{left} have not noticed that the leader is gone"
        return Health(problem=why) if left else Health(exemption=Exemption.ENDED)
    endpoints = world.endpoints
    if endpoints is not None and not world.starts and not endpoints.can_begin_a_job(left_out):
        return Health(exemption=Exemption.UNFOUNDED)
    if config.has_succession:
        return _health_of_successors(world, living, left_out, healed_at)
    if endpoints is not None:
        host = endpoints.host_that_began() or host
    if host.finished is not None or host.agent.over is not None:
        return _unaware([p for p in living if p.agent.belongs])
    health = _running(world, living)
    if endpoints is None or health.problem is None:
        return health
    exemption = _why_none_leads(living, world)
    if sum(p.leader is not None and not p.leader.address.is_founding for p in living) > 1:
        exemption = Exemption.BEGUN_TWICE
    return health if exemption is None else Health(exemption=exemption)


def _belongs_to(process: Process, incarnation: str) -> bool:
    """Tell whether a node is in the job of a leader; of several hosts, others may begin another."""
    leader = process.follower._connection.leader  # noqa: SLF001
    return process.agent.belongs and (leader is None or leader.incarnation == incarnation)


def seems_over(world: World) -> bool:
    """Tell whether no node is left in the job."""
    return not any(p.is_alive and p.agent.over is None for p in world.every_process)


def _unaware(living: Sequence[Process]) -> Health:
    left = [p.name for p in living]
    why = f"{left} have not noticed that the job is over"
    return Health(problem=why) if left else Health(exemption=Exemption.ENDED)


def _running(world: World, living: Sequence[Process]) -> Health:
    """Tell whether as many go on as may: those beyond `max_nodes` are spares (R7)."""
    wanted = min(len(living), world.config.max_nodes)
    if wanted < world.config.min_nodes:
        return Health(exemption=Exemption.TOO_FEW)
    running = [p for p in living if p.agent.progresses]
    if len(running) == wanted:
        return Health()
    names = [p.name for p in running]
    return Health(problem=f"{names} of {[p.name for p in living]} go on, {wanted} nodes should")


# --- jobs that outlive their leader ---------------------------------------------------------------


def _health_where_granted(world: World, living: Sequence[Process]) -> Health:
    """Judge a job whose leader is named by an etcd: what is decided stands there."""
    over = [process for process in world.every_process if process.agent.over is not None]
    gone = [process.name for process in over if _leads_after_it_left(process)]
    if gone:
        return Health(problem=f"{gone} have left, and still decide")
    aware = [process for process in over if _knows_the_end(process)]
    if aware:
        ended_at = min(process.agent.timed_notices[-1][0] for process in aware)
        return _after_the_end(world, living, ended_at)
    return _running(world, living)


def _health_of_successors(
    world: World, living: Sequence[Process], left_out: str, healed_at: float
) -> Health:
    over = [process for process in world.every_process if process.agent.over is not None]
    gone = [process.name for process in over if _leads_after_it_left(process)]
    if gone:
        return Health(problem=f"{gone} have left, and still decide")
    aware = [p for p in over if _knows_the_end(p) and p.name != left_out]
    # An end may be decided again if all nodes that knew it were lost (R10).
    tellers = [process for process in aware if _could_tell(process, healed_at)]
    if tellers:
        ended_at = min(process.agent.timed_notices[-1][0] for process in aware)
        # Nodes that know them ask them; if the endpoint is served, all nodes do.
        is_served = _is_served(world, left_out)
        asking = [p for p in living if is_served or any(_knows(p, each) for each in tellers)]
        return _after_the_end(world, asking, ended_at)
    all_living = living
    if not _is_served(world, left_out):
        # New nodes find a job at its endpoint only. A node may know none of the nodes that are
        # left, or none that knows them. Both go on looking.
        living = _who_can_meet([p for p in living if p.agent.belongs])
    health = _running(world, living)
    exemption = _why_none_leads(all_living, world) if health.problem is not None else None
    return health if exemption is None else Health(exemption=exemption)


def _after_the_end(world: World, living: Sequence[Process], ended_at: float) -> Health:
    """Judge the nodes that were in the job, and those that came later: they are another job."""
    since = [(p, p.agent.belongs_since) for p in living]
    old = [p for p, at in since if at is not None and at <= ended_at]
    health = _unaware(old)
    later = [p for p in living if p not in old]
    if health.problem is not None or world.host not in later:
        return health
    return _running(world, later)


def _leads_after_it_left(process: Process) -> bool:
    if not _has_left(process) or process.leader is None:
        return False
    return process.is_alive and process.leader.phase not in _DONE


def _could_tell(process: Process, healed_at: float) -> bool:
    """Tell whether a node that knew the end could have told it to all that it could reach."""
    config = process.world.config
    if process.left_at is None:
        return process.is_alive
    stayed_s = process.left_at - process.agent.timed_notices[-1][0]
    has_stayed = stayed_s >= config.linger_s * SLOWEST_CLOCK
    return not has_stayed or process.left_at >= healed_at + config.lease_s


def _who_can_meet(living: Sequence[Process]) -> Sequence[Process]:
    """Return the nodes that find each other, as one of two asks the other; of several groups one.

    That of a leader, or the largest.
    """
    left, groups = list(living), []
    while left:
        group = [left.pop(0)]
        for met in group:
            near = [p for p in left if _knows(met, p) or _knows(p, met)]
            left = [p for p in left if p not in near]
            group += near
        groups.append(group)
    return max(groups, key=lambda group: (any(p.leader for p in group), len(group)), default=[])


def _knows(process: Process, other: Process) -> bool:
    follower, incarnation = process.follower, other.node.incarnation
    leader = follower._connection.leader  # noqa: SLF001
    is_joined = follower.connection is ConnectionPhase.JOINED
    if is_joined and leader is not None:
        if leader.incarnation == incarnation:
            return True
        if not leader.is_founding:
            return False  # a node with a leader (a leader follows itself) asks no other
    return any(peer.incarnation == incarnation for peer in follower.peers)


def _why_none_leads(living: Sequence[Process], world: World) -> Exemption | None:
    """Tell whether the living nodes may go on; if not, by which rule."""
    voters: list[Voter] = [p.follower.voter for p in living]
    present = {voter.incarnation for voter in voters}
    seats = {voter.seat for voter in voters}
    leaders = [p.leader for p in living if p.leader is not None]
    bases = [voter.base for voter in voters if voter.base is not None]
    bases += [each._replication.base for each in leaders]  # noqa: SLF001
    if not bases:
        return Exemption.GIVEN_WAY
    why = _why_none_is_elected(bases, voters, present | seats)
    has_begun = any(each.number > 0 for each in bases)
    for each in leaders:
        if each._replication.base.number == 0 and world.endpoints is None:  # noqa: SLF001
            if has_begun and why is None:
                return None  # whatever it waits for: those of a job that has begun are enough
            came_with = each._first_round._of_before  # noqa: SLF001
            marked = _newest_that_has_ended(world, world.by_incarnation[each.node.incarnation])
            new = sum(came_with.get(incarnation, 0) <= marked for incarnation in present)
            return Exemption.FEW_NEW if new < world.config.min_nodes else None
    return why


def _why_none_is_elected(
    bases: Sequence[Record], voters: Sequence[Voter], present: Collection[str]
) -> Exemption | None:
    base = max(bases, key=lambda each: each.rank)
    if not base.configuration.has_quorum(present):
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
    job = world.marks.found_by(host)
    if job is None:
        return 0
    names = {*job.base.configuration.voters, *job.record.configuration.voters}
    ends = {Outcome.TOMBSTONE, Outcome.REFUSED}
    outcomes = [world.outcome(host, world.by_incarnation[name]) for name in sorted(names)]
    return job.number if all(outcome in ends for outcome in outcomes) else 0


def _knows_the_end(process: Process) -> bool:
    """Tell whether a node was told how the job has ended, by a leader's decision."""
    over = process.agent.over
    return over is not None and over.result in {"succeeded", "failed"}


def _is_served(world: World, left_out: str) -> bool:
    """Tell whether new nodes can find the leader: at any of the endpoints (R12.6)."""
    if world.endpoints is not None:
        return world.endpoints.is_served(left_out)
    return world.host is None or world.host.is_alive


def _has_left(process: Process) -> bool:
    over = process.agent.over
    return over is not None and over.result == "drained"
