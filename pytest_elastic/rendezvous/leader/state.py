"""What a leader knows: members, what becomes of them, and rounds and what they cost (R2, R3).

A round that has ended is judged once: when the next round is proposed, or when the end is decided.
Only then is it known whether its membership changed, and a worker that fails because the node
beside it died arrives before the news of that death.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from pytest_elastic.rendezvous.consensus.records import Record, Term
from pytest_elastic.rendezvous.consensus.replication import Replication
from pytest_elastic.rendezvous.leases import GrantedLease
from pytest_elastic.rendezvous.machine import Part, Shared
from pytest_elastic.rendezvous.model import Failure, Node, no_restart_left
from pytest_elastic.wire import Value

__all__ = [
    "LEADER_ALLOWED",
    "Budget",
    "Cause",
    "Change",
    "Departed",
    "Here",
    "LeaderPart",
    "LeaderPhase",
    "LeaderShared",
    "Peer",
    "Round",
    "Standing",
    "Suspected",
    "Verdict",
    "Went",
    "judge",
]

# Rounds without progress that a job may have beyond its restarts: a node that comes and goes costs
# nothing each time, and would otherwise restart the job for ever (torch #147064).
_SPARE_IDLE_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderShared(Shared):
    """What all parts of a leader have in common; `own` is the node that it runs on."""

    own: Node
    term: Term
    replication: Replication


class LeaderPart(Part):
    """A part of a leader."""

    def __init__(self, shared: LeaderShared) -> None:
        super().__init__(shared)
        self._own = shared.own
        self._term = shared.term
        self._replication = shared.replication

    def _is_own(self, peer: Peer) -> bool:
        """Tell whether a peer is the leader's own node, which needs no lease."""
        return peer.node.incarnation == self._own.incarnation


class LeaderPhase(Enum):
    """What a leader is doing with its job."""

    __hash__ = object.__hash__

    GATHERING = "gathering"  # no round; waits until enough members are ready
    STARTING = "starting"  # a round is proposed; waits until it may be started
    RUNNING = "running"  # workers run
    STOPPING = "stopping"  # waits until every worker is gone, or its node lost
    ENDING = "ending"  # the end is proposed; waits until all reachable nodes have it
    OVER = "over"  # the end is decided and told; answers late comers
    DEPOSED = "deposed"  # leads no more


LEADER_ALLOWED: dict[LeaderPhase, frozenset[LeaderPhase]] = {
    LeaderPhase.GATHERING: frozenset(
        {LeaderPhase.STARTING, LeaderPhase.ENDING, LeaderPhase.DEPOSED}
    ),
    LeaderPhase.STARTING: frozenset(
        {LeaderPhase.RUNNING, LeaderPhase.GATHERING, LeaderPhase.DEPOSED}
    ),
    LeaderPhase.RUNNING: frozenset({LeaderPhase.STOPPING, LeaderPhase.ENDING, LeaderPhase.DEPOSED}),
    LeaderPhase.STOPPING: frozenset({LeaderPhase.GATHERING, LeaderPhase.DEPOSED}),
    LeaderPhase.ENDING: frozenset({LeaderPhase.OVER, LeaderPhase.DEPOSED}),
    LeaderPhase.OVER: frozenset(),
    LeaderPhase.DEPOSED: frozenset(),
}


class Standing(Enum):
    """What a member has to do with rounds."""

    # There is one object of each; Enum hashes by name, in Python, at every look into a set.
    __hash__ = object.__hash__

    WAITING = "waiting"
    """In no round, or all workers of its last one are gone."""

    PROPOSED = "proposed"
    """In the roster of a round that is not started: no worker runs."""

    RUNNING = "running"
    """It was told to start: its workers run, or are being stopped."""

    SUCCEEDED = "succeeded"
    """Its workers all ended with status 0, in a round that goes on."""


@dataclass(slots=True, kw_only=True)
class Peer:
    """What the leader knows about one member.

    `round` is the newest one it was in the roster of. `connection` is None while it is suspect, and
    `lost_contact` says why.
    `inherited_until`: it has not come to this leader yet, and its workers may run until then
    under the one before (R11); None: it has come.
    `leaves_by`: it announced that it leaves, and its workers have until then; `leave_reason` why.
    """

    node: Node
    connection: int | None
    lease: GrantedLease
    came_at: float
    standing: Standing = Standing.WAITING
    round: int = 0
    leaves_by: float | None = None
    leave_reason: str = ""
    lost_contact: str = ""
    inherited_until: float | None = None

    @property
    def is_suspect(self) -> bool:
        """Its connection ended; whether it is lost is not known yet."""
        return self.connection is None

    @property
    def is_leaving(self) -> bool:
        """It announced that it leaves (R4)."""
        return self.leaves_by is not None

    @property
    def has_workers(self) -> bool:
        """Workers of a round may be running there."""
        return self.standing is Standing.RUNNING

    @property
    def is_ready(self) -> bool:
        """It can be in the next round."""
        return self.standing is Standing.WAITING and not self.is_suspect and self.leaves_by is None


class Here(Value):
    """A node was admitted; or `is_back`: it must be told again what it may have missed."""

    peer: Peer
    is_back: bool


class Suspected(Value):
    """A member's connection ended."""

    peer: Peer


Departed = Literal["lost", "left", "evicted"]


class Went(Value):
    """A member is a member no more. `safe_at`: its workers may run until then; None: they do not.

    `may_return`: its agent may still be alive, and ask. `how`: it was lost, it left, or it was
    evicted: alive, but not doing in time what it was told.
    """

    peer: Peer
    reason: str
    safe_at: float | None
    may_return: bool
    how: Departed


Change = Here | Suspected | Went


# --- rounds --------------------------------------------------------------------------------------


class Verdict(Enum):
    """What the end of a round means for the budget."""

    FREE = "free"
    CHARGED = "charged"
    JOB_FAILS = "job fails"


class Budget(Value):
    """What is left: `used` of `max_restarts`, and `idle_rounds` without progress in a row."""

    max_restarts: int
    used: int = 0
    idle_rounds: int = 0

    @property
    def max_idle_rounds(self) -> int:
        """How many rounds in a row may end without progress before the job does."""
        return self.max_restarts + _SPARE_IDLE_ROUNDS


class Cause(Enum):
    """Why a round is over, as far as it matters for what follows."""

    FAILURE = "a worker failed"
    LOSS = "a member was lost"
    CHANGE = "a member leaves, or nodes came"


@dataclass(slots=True, kw_only=True)
class Round:
    """One round, from its proposal in a record on. Members are named by their incarnations.

    `roster` are those of the record's that were members of this leader when it began with it.
    `missing` have yet to accept its record; `unfinished` have not reported success; `holding` are
    nodes whose workers are not known to be gone; `absent` are members no more, some of which were
    `evicted` while they were alive. `verdict` is what the round before it costs (R3).
    `unexplained`: a sentence, if an earlier leader had stopped it for a reason that went with that
    one; it is free then, unless a member that comes back tells of a failure.
    """

    record: Record
    roster: Sequence[Peer]
    at: float
    verdict: Verdict = Verdict.FREE
    missing: set[str] = field(default_factory=set)
    store: tuple[str, int] | None = None
    broken_by: str | None = None
    incarnations: frozenset[str] = field(init=False)
    unfinished: set[str] = field(default_factory=set)
    holding: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    evicted: set[str] = field(default_factory=set)
    first_failure: Failure | None = None
    has_success: bool = False
    stop_reason: str | None = None
    stop_cause: Cause | None = None
    stopped_at: float = 0.0
    lost_or_gained: str | None = None
    unexplained: str | None = None

    def __post_init__(self) -> None:
        self.incarnations = frozenset(entry.incarnation for entry in self.record.roster)

    @property
    def number(self) -> int:
        """Its number among the rounds of the job."""
        return self.record.round

    @property
    def names(self) -> Sequence[str]:
        """All its nodes, in rank order."""
        return tuple(entry.name for entry in self.record.roster)

    def stop_because(self, reason: str, cause: Cause) -> None:
        """Note why the round is over; the first reason stands."""
        if self.stop_reason is None:
            self.stop_reason, self.stop_cause = reason, cause

    @property
    def why_free(self) -> str | None:
        """What makes it free, if anything does."""
        return self.lost_or_gained or self.unexplained

    def is_full(self, max_nodes: int) -> bool:
        """Tell whether no other node could be in it."""
        return len(self.incarnations) - len(self.absent) >= max_nodes

    def why_ended(self) -> str:
        """Say why it is over, and why that is free if there is another reason for it."""
        reason = self.stop_reason or "it ended"
        return reason if self.why_free in {None, reason} else f"{reason}; free: {self.why_free}"


def judge(budget: Budget, ended: Round | None, next_roster: Sequence[str]) -> tuple[Verdict, str]:
    """Decide what `ended` costs if `next_roster` (incarnations) follows it, and say why.

    `ended` is None before the first round. `budget.idle_rounds` already counts `ended`.
    """
    cause = "it could not be started" if ended is None else ended.stop_reason or "it ended"
    if budget.idle_rounds >= budget.max_idle_rounds:
        return Verdict.JOB_FAILS, (
            f"{budget.idle_rounds} rounds in a row ended without progress, and "
            f"{budget.max_idle_rounds} end the job (max_restarts + {_SPARE_IDLE_ROUNDS}); "
            f"the last one because {cause}"
        )
    if ended is None:
        return Verdict.FREE, "no round has ended yet"
    if ended.why_free is not None:
        return Verdict.FREE, f"round {ended.number} is free: {ended.why_free}"
    if _has_changed(ended, set(next_roster)):
        return Verdict.FREE, f"round {ended.number} is free: the next one has other members"
    if budget.used >= budget.max_restarts:
        return Verdict.JOB_FAILS, f"{cause}, and {no_restart_left(budget.max_restarts)}"
    return Verdict.CHARGED, (
        f"round {ended.number} costs restart {budget.used + 1} of {budget.max_restarts}: {cause}"
    )


def _has_changed(ended: Round, following: set[str]) -> bool:
    """Tell whether other members make the round free.

    A failed one is free only without one of its members: a node that waits, or is slow to stop,
    has not made the worker fail.
    """
    if ended.stop_cause is Cause.FAILURE:
        return bool(ended.incarnations - following - ended.evicted)
    return ended.incarnations != following
