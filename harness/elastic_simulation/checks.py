"""What must hold at every moment of every simulated run, judged from outside the machines.

A moment is judged when it happens, with nothing but what nodes do and what agents were told, so
that the judge is fast and shares no code with what it judges.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator

from elastic_simulation.process import Process
from elastic_simulation.world import World
from pytest_elastic.events import model as events
from pytest_elastic.rendezvous.model import Assignment

__all__ = ["Violation", "Watch"]

# How a job ends by a leader's decision; a lost one is merely given up.
_DECIDED = frozenset({"succeeded", "failed"})
# Why a job is lost that waited for nodes, and how fast the waiting node's clock may be.
_TOO_FEW = re.compile(r"\d+ of at least \d+ nodes were ready within")
_FASTEST_CLOCK = 1.07
# Why a round is over, where a worker of it failed.
_FAILED = re.compile(r"(rank \d+ on|workers of) \S+ failed")


class Violation(AssertionError):
    """A promise of the rendezvous was broken; the text says which, and by which node."""


class Watch:
    """Looks at a world whenever workers start or end, and remembers what was promised."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.worker_failures = 0
        """How many times a worker was made to fail: each may cost one restart, nothing else may."""
        self._assignments: dict[int, Assignment] = {}
        self._newest: dict[str, int] = {}
        self._started_at: dict[int, float] = {}
        self._past: set[str] = set()  # whose job is over; what starts after it is another one
        self._past_ends: set[str] = set()  # why those have ended
        self._began_at = 0.0
        self._written_at: float | None = None  # the end that stood in an etcd by then
        self._seen = 0
        self._had_enough = False  # workers ran on enough nodes when last looked at
        self._had_enough_at: float | None = None
        world.watchers.append(self.look)
        self._proposed: set[tuple[str, int, int]] = set()
        world.listeners += [self._judge_patience, self._judge_grant, self._judge_number]

    def look(self) -> None:
        """Judge the present moment."""
        starts = self.world.starts
        while self._seen < len(starts):
            self._judge_start(*starts[self._seen])
            self._seen += 1
        running: dict[int, list[str]] = {}
        for process in self.world.every_process:
            agent = process.agent
            if agent.is_running and not agent.is_held and agent.assignment is not None:
                if process.is_suspended:
                    continue  # nothing of its machine runs
                running.setdefault(agent.assignment.round, []).append(process.node.incarnation)
        if len(running) > 1:
            raise Violation(f"at {self.world.time:.3f} two worlds run at once: {running}")
        if self._had_enough:
            self._had_enough_at = self.world.time
        needed = self.world.config.min_nodes
        self._had_enough = any(len(nodes) >= needed for nodes in running.values())

    def _judge_patience(self, _: Process, said: object) -> None:
        """A job that is short of nodes waits for the join timeout before it ends (R2, R5).

        Workers of nodes that were lost may have run on until their lease ended.
        """
        if not isinstance(said, events.JobEnding) or not _TOO_FEW.match(said.reason):
            return
        config, since = self.world.config, self._had_enough_at
        if since is None:
            return
        waited_s = self.world.time - since
        least_s = config.join_timeout_s / _FASTEST_CLOCK - config.lease_s - config.drift_s
        if waited_s < least_s:
            raise Violation(
                f"after {waited_s:.1f} s of a join timeout of {config.join_timeout_s:g} s: "
                f"{said.reason}"
            )

    def _judge_grant(self, named: Process, said: object) -> None:
        """Only the node that etcd names may lead (R6)."""
        if not isinstance(said, events.CoordinatorStarted) or not self.world.config.is_granted:
            return
        for process in self.world.every_process:
            if process is not named and process.is_alive and self.world.may_decide(process):
                raise Violation(
                    f"at {self.world.time:.3f} {named.name} is named, and {process.name} may decide"
                )

    def _judge_number(self, process: Process, said: object) -> None:
        """A leader gives no two rounds of a term one number, given up or not (R2)."""
        if not isinstance(said, events.RoundSealed):
            return
        key = (process.node.incarnation, said.term, said.round)
        if key in self._proposed:
            raise Violation(f"{process.name} used the number {said.round} for two rounds")
        self._proposed.add(key)

    def _judge_start(self, incarnation: str, assignment: Assignment) -> None:
        """One round is one roster, one count, one store; its ranks are those of the roster."""
        roster, config = assignment.roster, self.world.config
        round_, used = assignment.round, assignment.restart_count
        if roster[assignment.group_rank].incarnation != incarnation:
            raise Violation(f"{incarnation} was started with another node's rank: {roster}")
        if len({entry.name for entry in roster}) != len(roster):
            raise Violation(f"a name has two ranks in round {round_}: {roster}")
        if not config.min_nodes <= len(roster) <= config.max_nodes:
            raise Violation(f"round {round_} has {len(roster)} nodes")
        if round_ <= self._newest.get(incarnation, 0):
            raise Violation(f"{incarnation} was started again with the number {round_}")
        self._forget_the_dead(assignment)
        self._forget_what_has_ended(assignment)
        self._newest[incarnation] = round_
        self._started_at.setdefault(round_, self.world.time)
        first = self._assignments.setdefault(round_, assignment)
        if first is not assignment and _common(first) != _common(assignment):
            raise Violation(f"round {round_} is not the same for all: {first} / {assignment}")
        if used > config.max_restarts:
            raise Violation(f"{used} restarts of {config.max_restarts}")
        if used > self.worker_failures:
            raise Violation(f"{used} restarts for {self.worker_failures} failures")
        earlier = max(
            (a.restart_count for number, a in self._assignments.items() if number < round_),
            default=0,
        )
        if used < earlier:
            raise Violation(f"the restart count went back from {earlier} to {used} in {round_}")

    def _forget_the_dead(self, assignment: Assignment) -> None:
        """Begin anew where no node is left that could know of the rounds before.

        Or so few that they can have no round of their own, none of which is in this one, and which
        the host's mark does not name, as it left before they voted (R12).
        """
        known = self._assignments.get(assignment.round)
        if known is None or _common(known) == _common(assignment):
            return
        old = [
            process
            for process in self.world.every_process
            if process.node.incarnation in self._newest and process.is_alive
        ]
        left = {process.node.incarnation for process in old if process.agent.over is None}
        is_new = left.isdisjoint(entry.incarnation for entry in assignment.roster)
        is_new = is_new and left.isdisjoint(self._marked(assignment))
        if not left or (is_new and len(left) < self.world.config.min_nodes):
            self._assignments.clear()
            self._started_at.clear()
            self._newest.clear()

    def _marked(self, assignment: Assignment) -> Collection[str]:
        """Return the voters that a host's mark names; all nodes where no mark was found."""
        for entry in assignment.roster:
            job = self.world.marks.found_by(self.world.by_incarnation[entry.incarnation])
            if job is not None:
                return {*job.base.configuration.voters, *job.record.configuration.voters}
        return {process.node.incarnation for process in self.world.every_process}

    def _forget_what_has_ended(self, following: Assignment) -> None:
        """Begin anew where a job has ended, and all its nodes know that, or are dead.

        Where the end stands in an etcd, a node of it may still be away while new nodes begin.
        """
        every = self.world.every_process
        past, written_at = self._past, self.world.end_written_at
        over = [p for p in every if p.node.incarnation not in past and self._was_told(p)]
        ends = [process.agent.timed_notices[-1][0] for process in over]
        if written_at is not None and written_at != self._written_at:
            ends.append(written_at)
        if not ends:
            return
        ended_at = min(ends)
        old = [
            process
            for process in every
            if process.agent.belongs_since is not None and process.agent.belongs_since <= ended_at
        ]
        is_unaware = any(process.is_alive and process.agent.over is None for process in old)
        old_ones = {process.node.incarnation for process in old}
        is_new = not any(entry.incarnation in old_ones for entry in following.roster)
        if is_unaware and not (is_new and self.world.config.is_granted):
            return
        self.judge_ends()
        self.judge_budget()
        self._past |= {process.node.incarnation for process in (*over, *old)}
        self._past_ends |= {event.reason for event in self._announced()}
        self._began_at, self._written_at = self.world.time, written_at
        self._had_enough, self._had_enough_at = False, None
        self._assignments.clear()
        self._started_at.clear()
        self._newest.clear()

    def _was_told(self, process: Process) -> bool:
        """Tell whether the agent of a process has ended as was decided, and did not give up.

        That may be "lost", where the leader has left, or "drained", for a node that leaves.
        """
        over = process.agent.over
        if over is None or over.result in _DECIDED:
            return over is not None
        return any(over.reason == each.reason for each in self._announced())

    def _announced(self, since: float = 0.0) -> Iterator[events.JobEnding]:
        for at, _, event in self.world.events:
            if at >= since and isinstance(event, events.JobEnding):
                yield event

    def judge_budget(self) -> None:
        """Judge what each round cost, from rosters and losses alone (R3)."""
        rounds = sorted(self._assignments.values(), key=lambda each: each.round)
        for ended, following in itertools.pairwise(rounds):
            if self._was_followed(ended, following):
                continue  # what its coordinator knew of the end of a round may be lost with it
            if self._was_committed_between(ended.round, following.round):
                continue  # no node lived to start it, so that its roster is not known here
            cost = following.restart_count - ended.restart_count
            why_free = self._why_free(ended, following)
            if cost not in {0, 1} or (cost == 1 and why_free):
                raise Violation(
                    f"round {ended.round} cost {cost}, and {why_free or 'nothing had changed'}"
                )
            if cost == 0 and not why_free and not self._has_changed(ended, following):
                raise Violation(f"round {ended.round} cost {cost}, and nothing had changed")

    def _why_free(self, ended: Assignment, following: Assignment) -> str:
        """Say which members make a round free; newcomers and slow nodes do not where one failed."""
        old, new = ({entry.incarnation for entry in each.roster} for each in (ended, following))
        if self._has_failed(ended):
            slow = {
                event.member
                for event in self._between(ended, following)
                if isinstance(event, events.MemberLost) and _is_slow(event)
            }
            old -= {entry.incarnation for entry in ended.roster if entry.name in slow}
            return "members of it are gone" if old - new else ""
        return "its members changed" if old != new else ""

    def _has_failed(self, ended: Assignment) -> bool:
        """Tell whether a round was over because a worker failed."""
        reasons = [event.reason for event in self.world.ended() if event.round == ended.round]
        return any(_FAILED.match(reason) for reason in reasons[-1:])

    def _was_followed(self, ended: Assignment, following: Assignment) -> bool:
        """Tell whether another leader decided the later round, under that term or another.

        A node whose grant ran out may be granted the same term again, and one that comes back at
        the endpoint begins under the first.
        """
        since, until = self._sealed_at(ended, following), self._started_at[following.round]
        return ended.term != following.term or any(
            isinstance(event, events.CoordinatorStarted) and since < at <= until
            for at, _, event in self.world.events
        )

    def _was_committed_between(self, first: int, last: int) -> bool:
        """Tell whether a round was committed that no node was there to start."""
        return any(
            first < event.round < last and not event.reason.startswith("given up before")
            for event in self.world.ended()
        )

    def _has_changed(self, ended: Assignment, following: Assignment) -> bool:
        """Tell whether a member of a round went, or a newcomer ended it, before the next."""
        names = {entry.name for entry in ended.roster}
        has_failed = self._has_failed(ended)
        for event in self._between(ended, following):
            if (
                isinstance(event, events.MemberLost | events.MemberLeft)
                and event.member in names
                and not (has_failed and _is_slow(event))
            ):
                return True
            if isinstance(event, events.RoundEnded) and event.reason.endswith("came"):
                return True
        return False

    def _between(self, ended: Assignment, following: Assignment) -> Iterator[events.Event]:
        """Yield what happened from the seal of a round to the start of the next."""
        until = self._started_at[following.round]
        since = self._sealed_at(ended, following)
        for at, _, event in self.world.events:
            if since <= at <= until:
                yield event

    def _sealed_at(self, ended: Assignment, following: Assignment) -> float:
        """Return when a round was sealed; it is decided a moment before any node starts it."""
        until = self._started_at[following.round]
        return max(
            at
            for at, _, event in self.world.events
            if isinstance(event, events.RoundSealed) and event.round == ended.round and at <= until
        )

    def judge_evictions(self) -> None:
        """No node is given up for being slow, if none was made slow."""
        evicted = [event for event in self.world.of(events.MemberLost) if "not gone" in str(event)]
        if evicted:
            raise Violation(f"given up, though every node did as told: {evicted}")

    def judge_ends(self) -> None:
        """Judge how the job ended for all nodes, as far as it did.

        A node may hear late, from an etcd, how the job before it has ended.
        """
        old = self._past_ends - {event.reason for event in self._announced(self._began_at)}
        ends = {
            process.node.incarnation: process.agent.over.result
            for process in self.world.every_process
            if process.agent.over is not None and process.node.incarnation not in self._past
            if process.agent.over.reason not in old
        }
        decided = {result for result in ends.values() if result in _DECIDED}
        if len(decided) > 1:
            raise Violation(f"the job ended in two ways: {ends}")
        announced = self.world.of(events.JobEnding)
        # An end that no node has heard of may be lost with its coordinator, and decided again.
        if len(announced) > 1 and not self.world.config.outlives_coordinator:
            raise Violation(f"the end was decided more than once: {announced}")
        if decided and not announced:
            raise Violation(f"no leader decided the end: {ends}")


def _common(assignment: Assignment) -> tuple[object, ...]:
    """Return what must be the same in every assignment of a round."""
    return (
        tuple(assignment.roster),
        assignment.restart_count,
        assignment.term,
        assignment.store_address,
        assignment.store_port,
    )


def _is_slow(event: events.Event) -> bool:
    """Tell whether a member was given up that was alive, and had not given up its round itself."""
    return (
        isinstance(event, events.MemberLost)
        and event.cause == "evicted"
        and not event.detail.startswith("its lease ran out")
    )
