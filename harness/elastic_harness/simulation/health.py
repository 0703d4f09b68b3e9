"""Whether a job is well again in a healed world, judged by what its nodes do."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_harness.simulation.process import Process
from elastic_harness.simulation.world import World
from pytest_elastic.rendezvous.ballot import rank_of
from pytest_elastic.rendezvous.coordinator_phases import Phase
from pytest_elastic.rendezvous.member_phases import Link
from pytest_elastic.rendezvous.quorum import has_quorum

__all__ = ["SLOWEST_CLOCK", "problem_of", "seems_over"]

SLOWEST_CLOCK = 0.93
"""How fast a clock is at least, in seconds a second."""
_FIRST_TERM = 1
# Nothing is left to decide for a coordinator in these phases.
_DONE = frozenset({Phase.ENDING, Phase.OVER, Phase.DEPOSED})


def problem_of(
    world: World,
    *,
    left_out: str = "",
    is_host_lost: bool = False,
    healed_at: float = float("-inf"),
) -> str | None:
    """Say what is not well yet; None if everything is.

    `left_out` is a node that stays out of reach; `is_host_lost` says that the coordinator of a job
    without succession is gone, so that everybody has to notice. `healed_at` is since when all
    others can reach each other.
    """
    processes = world.every_process
    if any(process.is_frozen for process in processes if process.is_alive):
        return "somebody is still frozen"
    if is_host_lost:
        left = [p.name for p in processes if p.is_alive and p.agent.belongs]
        return f"{left} have not noticed that the coordinator is gone" if left else None
    host = world.host
    if host is None:
        return "nobody has started yet"
    here = [p for p in processes if p.is_alive and p.name != left_out]
    living = [p for p in here if p.agent.over is None]
    endpoints = world.endpoints
    if endpoints is not None and not world.starts and not endpoints.can_begin_a_job(left_out):
        return None
    if world.config.outlives_coordinator:
        return _problem_of_heirs(world, living, left_out, healed_at)
    if host.finished is not None or host.agent.over is not None:
        return _unaware([p for p in living if p.agent.belongs])
    return _not_running(world, living)


def seems_over(world: World) -> bool:
    """Tell whether nobody is left to whom anything could happen."""
    return not any(p.is_alive and p.agent.over is None for p in world.every_process)


def _unaware(living: Sequence[Process]) -> str | None:
    left = [p.name for p in living]
    return f"{left} have not noticed that the job is over" if left else None


def _not_running(world: World, living: Sequence[Process]) -> str | None:
    wanted = min(len(living), world.config.max_nodes)
    if wanted < world.config.min_nodes:
        return None
    running = [p for p in living if p.agent.progresses]
    if len(running) != wanted:
        names = [p.name for p in running]
        return f"{names} of {[p.name for p in living]} go on, {wanted} nodes should"
    return None


def _problem_of_heirs(
    world: World, living: Sequence[Process], left_out: str, healed_at: float
) -> str | None:
    """Say what is not well of a job that outlives its coordinator (R11, R12).

    Where its members elect, it must go on if more than half of the newest roster is here; what
    fewer may do is not judged, but for their safety.
    """
    is_granted = world.config.is_granted
    gone = [process.name for process in world.every_process if _decides_after_it_left(process)]
    if gone:
        return f"{gone} have left, and still decide"
    aware = [
        process
        for process in world.every_process
        if _knows_the_end(process)
        if process.name != left_out or is_granted  # it can tell nobody
    ]
    # An end that nobody knows any more, as all who could tell it were lost, is decided again (R10);
    # not where it is written down before anybody knows it.
    if any(is_granted or _could_tell(process, healed_at) for process in aware):
        ended_at = min(process.agent.timed_notices[-1][0] for process in aware)
        # Who came after the end, to a host that was started again, is another job.
        since = [(p, p.agent.belongs_since) for p in living]
        old = [p for p, at in since if at is not None and at <= ended_at]
        came = [p for p in living if _came_after_the_end(p, healed_at)]
        return _unaware([*old, *came])
    if is_granted:
        return _not_running(world, living)
    if world.host is not None and not world.host.is_alive:
        living = [p for p in living if p.agent.belongs]  # newcomers find nobody to ask
        if world.endpoints is None:
            living = [p for p in living if _knows_somebody(p, living)]
    deciding = [(p.coordinator.term, p.node.incarnation) for p in living if p.coordinator]
    if deciding:
        living = [p for p in living if not _is_left_over(p, living, deciding)]
    present = {p.node.incarnation for p in living}
    for roster in _rosters_that_decide(world, living):
        if 2 * len(present & roster) <= len(roster):
            return None
    return _not_running(world, living)


def _decides_after_it_left(process: Process) -> bool:
    """Tell whether a node was let go that decides, and goes on with that without a member (R4)."""
    over, coordinator = process.agent.over, process.coordinator
    if over is None or over.result != "drained" or coordinator is None:
        return False
    return process.is_alive and coordinator.phase not in _DONE


def _came_after_the_end(process: Process, healed_at: float) -> bool:
    """Tell whether a node was welcome, since all is healed, where the end was known (R11.8)."""
    ballot = process.member._succession.ballot  # noqa: SLF001
    host = process.world.by_incarnation.get(ballot.leader)
    if host is None or not _knows_the_end(host) or ballot.contact_at is None:
        return False
    return ballot.contact_at >= process.moment(healed_at)


def _knows_the_end(process: Process) -> bool:
    """Tell whether a node was told how the job has ended, by somebody's decision."""
    over = process.agent.over
    return over is not None and over.result in {"succeeded", "failed"}


def _could_tell(process: Process, healed_at: float) -> bool:
    """Tell whether a node that knew the end could have told it to all whom it could reach.

    A member need not stay for longer than `linger_s`, if somebody is out of its reach for all that
    time; whoever goes earlier says that everybody knows.
    """
    config = process.world.config
    if process.left_at is None:
        return process.is_alive
    stayed_s = process.left_at - process.agent.timed_notices[-1][0]
    has_stayed = stayed_s >= config.linger_s * SLOWEST_CLOCK
    return not has_stayed or process.left_at >= healed_at + config.lease_s


def _knows_somebody(process: Process, living: Sequence[Process]) -> bool:
    """Tell whether a node is in the job, or knows of anybody who is left whom it could ask.

    It may know the members of a round of long ago, all of whom are gone by now.
    """
    if process.coordinator is not None or process.member.link is Link.JOINED:
        return True
    known = {entry.incarnation for entry in process.member._succession.peers}  # noqa: SLF001
    return any(p.node.incarnation in known for p in living)


def _is_left_over(
    process: Process, living: Sequence[Process], deciding: Sequence[tuple[int, str]]
) -> bool:
    """Tell whether a node stands by a job that nobody can decide any more, as another has begun.

    It has promised more than to obey whoever decides now, and of those who would have to agree to
    a successor in its own job, too few are there; as it knows, or hears from them.
    """
    ballot = process.member._succession.ballot  # noqa: SLF001
    if ballot.seal is None or any(ballot.may_obey(*each) for each in deciding):
        return False
    asked = {entry.incarnation for each in ballot.voters for entry in each.members}
    ballots = [p.member._succession.ballot for p in living]  # noqa: SLF001
    joined = {b.incarnation for b in ballots if any(b.may_obey(*each) for each in deciding)}
    told = [b for b in ballots if b.incarnation in asked - joined]
    newest = max(told, key=lambda each: (rank_of(each.seal), each.commit is not None))
    # One of a first round that was given up cannot join another one under that term (R12).
    is_of_first = {ballot.promised} == {term for term, _ in deciding} == {_FIRST_TERM}
    present = {p.node.incarnation for p in living} - (joined if is_of_first else set())
    return not all(has_quorum(each, present) for each in newest.voters)


def _rosters_that_decide(world: World, living: Sequence[Process]) -> list[set[str]]:
    """Return the newest roster that was started, and the newest that somebody acknowledged."""
    rosters: list[set[str]] = []
    if world.starts:
        newest = max((a for _, a in world.starts), key=lambda a: a.round)
        rosters.append({entry.incarnation for entry in newest.roster})
    # What a node has acknowledged may have been committed, for all it knows: only it can tell.
    ballots = [p.member._succession.ballot for p in living]  # noqa: SLF001
    seals = [ballot.seal for ballot in ballots if ballot.seal is not None]
    if seals:
        seal = max(seals, key=rank_of)
        rosters.append({entry.incarnation for entry in seal.roster})
        if not any(b.commit is not None and b.commit.round == seal.round for b in ballots):
            # It may have been committed, or something else that followed the same rounds: R11.5.
            rosters += [{e.incarnation for e in each.members} for each in seal.electorates]
    if not rosters:
        rosters += _rosters_of_the_lost(world, living)
    return rosters


def _rosters_of_the_lost(world: World, living: Sequence[Process]) -> list[set[str]]:
    """Return the rosters with which somebody was elected who is lost.

    Whom the store names: the endpoint's host has given way to it, so nobody begins while those who
    elected it are gone. And for whom somebody has voted who is left, and may obey nobody of before.
    """
    place = world.doors.published
    incarnations = {place.incarnation} if place else set()
    incarnations |= {p.member._succession.ballot.choice for p in living}  # noqa: SLF001
    named = [p for p in world.every_process if p.node.incarnation in incarnations]
    seals = [p.member._succession.ballot.seal for p in named if not p.is_alive]  # noqa: SLF001
    return [{entry.incarnation for entry in seal.roster} for seal in seals if seal is not None]
