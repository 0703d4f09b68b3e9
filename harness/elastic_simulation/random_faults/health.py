"""Whether a job is well again in a healed world, judged by what its nodes do.

A job that does not go on is exempt where the rules say so, and only there: `Exemption` names the
rule of each. A campaign's sums name them (`Outcome.ending`), so that a stall which hides behind one
shows there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from elastic_simulation.process import Process
from elastic_simulation.world import World
from pytest_elastic.events.model import MemberLeft
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.ballot import electorate_of, rank_of, voters_of
from pytest_elastic.rendezvous.coordinator_phases import Phase
from pytest_elastic.rendezvous.member_phases import Link
from pytest_elastic.rendezvous.model import Electorate
from pytest_elastic.rendezvous.quorum import has_quorum

__all__ = ["SLOWEST_CLOCK", "Exemption", "Health", "health_of", "seems_over"]

SLOWEST_CLOCK = 0.93
"""How fast a clock is at least, in seconds a second."""
_FIRST_TERM = 1
# Nothing is left to decide for a coordinator in these phases.
_DONE = frozenset({Phase.ENDING, Phase.OVER, Phase.DEPOSED})


class Exemption(Enum):
    """Why a job need not go on that is as well as it can be: the rule, and what it says."""

    ENDED = "R10: the job has ended, and everybody who was in it knows"
    TOO_FEW = "R2: fewer than `min_nodes` are here, who wait for the join timeout"
    UNFOUNDED = "R12.5: too few endpoints are served, or a founder that was lost holds them"
    FEW_NEW = "R12.9: fewer than `min_nodes` are new here, or of a round that the mark tells of"
    MINORITY = "R11.10: no quorum of the last round is here"
    UNDECIDED = "R11.5: it is not known whether a round was committed, nor is a quorum of all here"
    NOT_BEGUN = "R11.5: nobody who saw the first round committed is here, and there may be another"
    GIVEN_WAY = "R12, not covered: the endpoint's host gave way to one that was lost, with a quorum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What is not well yet; None if everything is. `exemption`: why nobody need go on, if so."""

    problem: str | None = None
    exemption: Exemption | None = None


def health_of(
    world: World,
    *,
    left_out: str = "",
    is_host_lost: bool = False,
    healed_at: float = float("-inf"),
) -> Health:
    """Say what is not well yet, and what is exempt.

    `left_out` is a node that stays out of reach; `is_host_lost` says that the coordinator of a job
    without succession is gone, so that everybody has to notice. `healed_at` is since when all
    others can reach each other, and nobody stands still.
    """
    processes = world.every_process
    if any(process.is_frozen for process in processes if process.is_alive):
        return Health(problem="somebody is still frozen")
    if is_host_lost:
        left = [p.name for p in processes if p.is_alive and p.agent.belongs]
        why = f"{left} have not noticed that the coordinator is gone"
        return Health(problem=why) if left else Health(exemption=Exemption.ENDED)
    host = world.host
    if host is None:
        return Health(problem="nobody has started yet")
    here = [p for p in processes if p.is_alive and p.name != left_out]
    living = [p for p in here if p.agent.over is None]
    endpoints = world.endpoints
    if endpoints is not None and not world.starts and not endpoints.can_begin_a_job(left_out):
        return Health(exemption=Exemption.UNFOUNDED)
    if world.config.outlives_coordinator:
        return _health_of_heirs(world, living, left_out, healed_at)
    if host.finished is not None or host.agent.over is not None:
        return unaware([p for p in living if p.agent.belongs])
    return running(world, living)


def seems_over(world: World) -> bool:
    """Tell whether nobody is left to whom anything could happen."""
    return not any(p.is_alive and p.agent.over is None for p in world.every_process)


def unaware(living: Sequence[Process]) -> Health:
    left = [p.name for p in living]
    why = f"{left} have not noticed that the job is over"
    return Health(problem=why) if left else Health(exemption=Exemption.ENDED)


def running(world: World, living: Sequence[Process]) -> Health:
    """Tell whether as many go on as may: those beyond `max_nodes` are spares (R7)."""
    wanted = min(len(living), world.config.max_nodes)
    if wanted < world.config.min_nodes:
        return Health(exemption=Exemption.TOO_FEW)
    running = [p for p in living if p.agent.progresses]
    if len(running) == wanted:
        return Health()
    names = [p.name for p in running]
    return Health(problem=f"{names} of {[p.name for p in living]} go on, {wanted} nodes should")


# --- jobs that outlive their coordinator ---------------------------------------------------------


def _health_of_heirs(
    world: World, living: Sequence[Process], left_out: str, healed_at: float
) -> Health:
    """Judge a job that outlives its coordinator (R11, R12)."""
    is_granted = world.config.is_granted
    over = [process for process in world.every_process if process.agent.over is not None]
    gone = [process.name for process in over if _decides_after_it_left(process)]
    if gone:
        return Health(problem=f"{gone} have left, and still decide")
    aware = [
        process
        for process in over
        if knows_the_end(process)
        if process.name != left_out or is_granted  # it can tell nobody
    ]
    # An end that nobody knows any more, as all who could tell it were lost, is decided again (R10);
    # not where it is written down before anybody knows it.
    if any(is_granted or _could_tell(process, healed_at) for process in aware):
        ended_at = min(process.agent.timed_notices[-1][0] for process in aware)
        return _after_the_end(world, living, ended_at, healed_at)
    if is_granted:
        return running(world, living)
    if not is_served(world, left_out):
        # R12: new nodes find a job at its endpoint, and by nobody else. R11.10: a node may know
        # none of those who are left. Both go on looking.
        living = [p for p in living if p.agent.belongs and _knows_somebody(p, living)]
    deciding = [(p.coordinator.term, p.node.incarnation) for p in living if p.coordinator]
    if deciding:
        living = [p for p in living if not _is_left_over(p, living, deciding)]
    health = running(world, living)
    exemption = _why_nobody_decides(world, living) if health.problem is not None else None
    return health if exemption is None else Health(exemption=exemption)


def _after_the_end(
    world: World, living: Sequence[Process], ended_at: float, healed_at: float
) -> Health:
    """Judge those who were in the job, and those who came later: they are another job.

    That one has a host where the endpoint was started again since.
    """
    since = [(p, p.agent.belongs_since) for p in living]
    old = [p for p, at in since if at is not None and at <= ended_at]
    came = [p for p in living if _came_after_the_end(p, healed_at)]
    health = unaware([*old, *came])
    later = [p for p in living if p not in old]
    if health.problem is not None or world.host not in later:
        return health
    return running(world, later)


def _decides_after_it_left(process: Process) -> bool:
    """Tell whether a node was let go that decides, and goes on with that without a member (R4)."""
    if not has_left(process) or process.coordinator is None:
        return False
    return process.is_alive and process.coordinator.phase not in _DONE


def _came_after_the_end(process: Process, healed_at: float) -> bool:
    """Tell whether a node was welcome, since all is healed, where the end was known (R11.8)."""
    ballot = process.member._succession.ballot  # noqa: SLF001
    host = process.world.by_incarnation.get(ballot.leader)
    if host is None or not knows_the_end(host) or ballot.contact_at is None:
        return False
    return float(ballot.contact_at) >= process.moment(healed_at)


def knows_the_end(process: Process) -> bool:
    """Tell whether a node was told how the job has ended, by somebody's decision."""
    over = process.agent.over
    return over is not None and over.result in {"succeeded", "failed"}


def is_served(world: World, left_out: str) -> bool:
    """Tell whether new nodes can find who decides: at any of the endpoints (R12.6)."""
    if world.endpoints is not None:
        return world.endpoints.is_served(left_out)
    return world.host is None or world.host.is_alive


def _could_tell(process: Process, healed_at: float) -> bool:
    """Tell whether a node that knew the end could have told it to all whom it could reach.

    A member need not stay for longer than `linger_s`, if somebody is out of its reach for all that
    time; whoever goes earlier says that everybody knows. Who is not named in the announcement goes
    at once, and says nothing by that: it came when all was over, and others stay for who was in
    the job.
    """
    config = process.world.config
    if process.left_at is None:
        return process.is_alive
    ending = process.member.ending
    named = {entry.incarnation for entry in ending.members} if ending is not None else set()
    if process.coordinator is None and named and process.node.incarnation not in named:
        return False
    stayed_s = process.left_at - process.agent.timed_notices[-1][0]
    has_stayed = stayed_s >= config.linger_s * SLOWEST_CLOCK
    return not has_stayed or process.left_at >= healed_at + config.lease_s


def _knows_somebody(process: Process, living: Sequence[Process]) -> bool:
    """Tell whether a node is in the job, or knows of anybody who is left whom it could ask.

    It may know the members of a round of long ago, all of whom are gone by now (R11.10).
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
    a successor in its own job, too few are there; as it knows, or hears from them. Or it has voted
    for somebody who was lost before any round was committed. (R12, not covered: it ends as lost
    after the join timeout.)
    """
    ballot = process.member._succession.ballot  # noqa: SLF001
    if any(ballot.may_obey(*each) for each in deciding):
        return False
    if ballot.seal is None:
        chosen = process.world.by_incarnation.get(ballot.choice)
        return chosen is not None and not chosen.is_alive
    asked = {entry.incarnation for each in ballot.voters for entry in each.members}
    ballots = [p.member._succession.ballot for p in living]  # noqa: SLF001
    joined = {b.incarnation for b in ballots if any(b.may_obey(*each) for each in deciding)}
    told = [b for b in ballots if b.incarnation in asked - joined]
    newest = max(told, key=lambda each: (rank_of(each.seal), each.commit is not None))
    # One of a first round that was given up cannot join another one under that term (R12).
    is_of_first = {ballot.promised} == {term for term, _ in deciding} == {_FIRST_TERM}
    present = {p.node.incarnation for p in living} - (joined if is_of_first else set())
    return not all(has_quorum(each, present) for each in newest.voters)


def _renounced(world: World, living: Sequence[Process]) -> Mapping[str, int]:
    """Return whose voices do not count, and since which round's electorate (R11.9).

    As far as somebody who is here was told: who left is known to whoever decides since then, and to
    all to whom its coordinator handed over; of these, those matter who could stand.
    """
    left = {(p.name, p.node.incarnation) for p in world.every_process if has_left(p)}
    known: dict[str, int] = {}
    for process in living:
        if process.member._succession.ballot.seal is not None:  # noqa: SLF001
            told = process.member._succession.candidate.left  # noqa: SLF001
            known |= {who: min(since, known.get(who, since)) for who, since in told.items()}
        if process.coordinator is not None:
            since = process.coordinator._started_at  # noqa: SLF001
            names = {
                event.member
                for at, name, event in world.events
                if isinstance(event, MemberLeft)
                if name == process.name and process.moment(at) >= since
            }
            known |= {incarnation: 0 for name, incarnation in left if name in names}
    return known


def _agrees(electorate: Electorate, present: set[str], left: Mapping[str, int]) -> bool:
    """Tell whether those who are here are a quorum, without whom has left since."""
    return has_quorum(
        electorate, present, {n for n, since in left.items() if since <= electorate.round}
    )


def has_left(process: Process) -> bool:
    over = process.agent.over
    return over is not None and over.result == "drained"


def _why_nobody_decides(world: World, living: Sequence[Process]) -> Exemption | None:
    """Tell whether those who are here may go on; if not, by which rule.

    They need a quorum of the newest round that was started, and of the newest seal that one of them
    has acknowledged: it may have been committed, for all they know.
    """
    present = {p.node.incarnation for p in living}
    left = _renounced(world, living)
    if _is_decided(living, present, left):
        return Exemption.FEW_NEW if _wait_for_new_ones(world, living) else None
    if world.starts and not _agrees(_newest_started(world), present, left):
        return Exemption.MINORITY
    ballots = [p.member._succession.ballot for p in living]  # noqa: SLF001
    seals = [ballot.seal for ballot in ballots if ballot.seal is not None]
    if not seals:
        is_held = not world.starts and not all(
            has_quorum(each, present) for each in _electorates_of_the_lost(world)
        )
        return Exemption.GIVEN_WAY if is_held else None
    seal = max(seals, key=rank_of)
    if any(b.commit is not None and b.commit.round == seal.round for b in ballots):
        return None if _agrees(electorate_of(seal), present, left) else Exemption.MINORITY
    is_later = any(ballot.newest_round > seal.round for ballot in ballots)
    if not seal.electorates and (world.config.could_be_two or is_later):
        return Exemption.NOT_BEGUN
    came_to = {ballot.incarnation: ballot.newest_round for ballot in ballots}
    who = voters_of(seal, is_committed=False, came_to=came_to)
    return None if all(_agrees(each, present, left) for each in who) else Exemption.UNDECIDED


def _wait_for_new_ones(world: World, living: Sequence[Process]) -> bool:
    """Tell whether too few new nodes are here for a first round (R12.9).

    Who was told of a round is none, unless the mark tells of that round, or of a later one, and
    that nobody of it may be left.
    """
    host = world.host
    if host is None or [p for p in living if p.coordinator is not None] != [host]:
        return False
    if host.member._succession.ballot.seal is not None:  # noqa: SLF001
        return False  # it was in a round itself
    told = {p.name: job.round for p in living if (job := p.member.known_job) is not None}
    marked = _newest_that_has_ended(world, host)
    new = [p for p in living if p is host or told.get(p.name, 0) <= marked]
    return len(new) < world.config.min_nodes


def _newest_that_has_ended(world: World, host: Process) -> int:
    """Return the round of the mark that a host found, 0 if there was none or one may go on."""
    job = world.marks.found_by(host)
    if job is None:
        return 0
    names = {entry.incarnation for each in job.electorates for entry in each.members}
    left = [world.by_incarnation[name] for name in names.difference(job.left)]
    ends = {v.Outcome.TOMBSTONE, v.Outcome.REFUSED}
    return job.round if all(world.outcome(host, each) in ends for each in left) else 0


def _is_decided(living: Sequence[Process], present: set[str], left: Mapping[str, int]) -> bool:
    """Tell whether one who decides has a quorum here of all whose agreement it needs."""
    return any(
        all(_agrees(each, present, left) for each in process.coordinator._mandate.electorates)  # noqa: SLF001
        for process in living
        if process.coordinator is not None
    )


def _newest_started(world: World) -> Electorate:
    """Return the electorate of the newest round whose workers were started anywhere.

    Who decided it, to whom a tie goes, is known from the seals that nodes hold; "" if none does.
    """
    newest = max((a for _, a in world.starts), key=lambda a: a.round)
    seals = [p.member._succession.ballot.seal for p in world.every_process]  # noqa: SLF001
    held = [seal for seal in seals if seal is not None]
    known = [electorate_of(seal) for seal in held]
    known += [each for seal in held for each in seal.electorates]
    of_it = [each for each in known if (each.round, each.term) == (newest.round, newest.term)]
    coordinator = of_it[0].coordinator if of_it else ""
    return Electorate(
        term=newest.term, round=newest.round, coordinator=coordinator, members=newest.roster
    )


def _electorates_of_the_lost(world: World) -> Iterable[Electorate]:
    """Return those with which somebody was elected who is lost, and whom the store names.

    The endpoint's host has given way to it, so nobody begins while those who elected it are gone.
    """
    place = world.inquiries.published
    named = world.by_incarnation.get(place.incarnation) if place else None
    seal = named.member._succession.ballot.seal if named else None  # noqa: SLF001
    is_lost = named is not None and not named.is_alive
    return [electorate_of(seal)] if is_lost and seal is not None else []
