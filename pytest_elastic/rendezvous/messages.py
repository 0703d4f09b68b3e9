"""What followers and the leader of a job say to each other, and what any agent may be asked.

Every order carries the term of the leader that gave it. Several reports are the agent's own
requests (`ports`), passed on as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.consensus.records import Record, Term
from pytest_elastic.rendezvous.model import Node

__all__ = [
    "AppendRecord",
    "DialPeers",
    "Dismissed",
    "Heartbeat",
    "JoinAccepted",
    "JoinRequest",
    "LeaderAddress",
    "LeaderAnnounced",
    "LeaderResigned",
    "Order",
    "PeersDialled",
    "Question",
    "RecordAccepted",
    "RecordDecided",
    "Report",
    "Standby",
    "StatusAnswer",
    "StatusRequest",
    "StopRound",
    "VoteAnswer",
    "VoteRequest",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Beat `count` of a side; `echo` is the newest of the other side's that this one grants (R6).

    Count 0 is an answer, and is not answered. `lease_s`: for how long, if less than a lease.
    """

    count: int
    echo: int
    lease_s: float | None = None


# --- reports: follower to leader -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """The first message on a connection: who I am, what I was told to do, what I still have.

    `resumes_round` is the round that this node still stands by, 0 for none; `term`, `number` (of a
    round) and `restarts_used` are the highest that it knows, `meant_for` the incarnation that it
    wants to join.
    """

    run_id: str
    node: Node
    settings: Mapping[str, float | str]
    resumes_round: int
    term: Term
    number: int
    restarts_used: int
    meant_for: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordAccepted:
    """This voter, or member, has accepted the record of that number."""

    term: Term
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersDialled:
    """Every node in `DialPeers` was dialled; `unreached` says how each failed dial ended (R13)."""

    term: Term
    number: int
    unreached: Mapping[str, str]


Report = (
    JoinRequest
    | Heartbeat
    | RecordAccepted
    | PeersDialled
    | ports.StoreOpened
    | ports.StoreFailed
    | ports.GroupSucceeded
    | ports.GroupFailed
    | ports.WorkersGone
    | ports.DrainRequested
)


# --- orders: leader to follower ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAccepted:
    """You are a member, under this name; `resumed`: your round stands, and is still yours.

    `is_over`: the job is, and its end follows; `is_founding`: it has no round yet. `number` is that
    of the newest round that the leader knows; `lease_s` as in `Heartbeat`.
    """

    term: Term
    name: str
    leader: str
    incarnation: str
    resumed: bool
    is_over: bool
    is_founding: bool
    number: int
    lease_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DialPeers:
    """Dial these nodes and report the unreachable ones (R13). Replaces an earlier order."""

    term: Term
    number: int
    peers: Sequence[Node]
    answer_within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRecord:
    """Accept this record, which follows `base`, a decided one (AppendEntries)."""

    term: Term
    record: Record
    base: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDecided:
    """The record is decided. With a store, the round that it made is started: start its workers.

    Of the end of the job, `unaware` (incarnations) may still come and ask.
    """

    term: Term
    number: int
    store_address: str = ""
    store_port: int = 0
    unaware: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRound:
    """The round is over: stop its workers, and say when they are gone."""

    term: Term
    round: int
    grace_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """A round goes on without you, for this reason; `roster` can be asked for the leader."""

    term: Term
    number: int
    round: int
    reason: str
    restarts_used: int
    roster: Sequence[Node]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismissed:
    """You are no member: for good (you were refused, or have left), or until you ask again.

    Then your round goes on without you, as you were too slow or silent: kill its workers first.
    """

    term: Term
    reason: str
    is_final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderResigned:
    """I lead no more. `successor` (an incarnation) is to stand at once (TimeoutNow); `left`: I go.

    `higher` is the counter of a term that another node has promised, 0 for none.
    """

    term: Term
    reason: str
    left: bool = False
    successor: str = ""
    higher: int = 0


Order = (
    JoinAccepted
    | Heartbeat
    | DialPeers
    | AppendRecord
    | RecordDecided
    | StopRound
    | Standby
    | ports.PeerDraining
    | Dismissed
    | LeaderResigned
)


# --- asked of an agent's listening port ----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAddress:
    """Where the leader of a term is. `is_founding`: nothing is decided there: it may give way."""

    term: Term
    name: str
    incarnation: str
    address: str
    port: int
    is_founding: bool = False

    def goes_before(self, other: LeaderAddress) -> bool:
        """Tell whether this one leads, where both are heard of: a job that runs is no new one."""
        if self.is_founding is not other.is_founding:
            return other.is_founding
        return self.term > other.term


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRequest:
    """Asks a node of this run which one it is, and what it knows of the job."""

    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusAnswer:
    """Which node is behind a port. A tombstone's keeper answers for an agent that has ended.

    `leader`: the one it follows, if it is in contact; `ended`: the decided end, if it knows that,
    and `has_end`: whether it has accepted one. `number` (of a round) and `restarts_used` are the
    highest that it knows.
    """

    incarnation: str
    is_tombstone: bool = False
    leader: LeaderAddress | None = None
    ended: Record | None = None
    has_end: bool = False
    number: int = 0
    restarts_used: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    """Asks for a vote; of a pre-vote, nothing is promised (Raft thesis, 9.6)."""

    run_id: str
    term: Term
    is_pre_vote: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteAnswer:
    """What a voter says, and what it knows, whether it grants its vote or not.

    `record` is the newest one that it has accepted, `base` the newest decided one below it, and
    `started` where the store of the record's round is, if it was started. `contact_age_s`: how long
    ago it heard a leader, or voted for another. `patience_s`: after how long to ask again. `up_s`:
    for how long a host of one of several endpoints has been up, which may have voted before.
    """

    term: Term
    voter: str
    is_granted: bool
    reason: str
    record: Record | None
    base: Record | None
    started: RecordDecided | None
    number: int
    restarts_used: int
    contact_age_s: float | None
    patience_s: float
    leader: LeaderAddress | None
    up_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAnnounced:
    """Announces the leader to a node of this run; needs no answer."""

    run_id: str
    leader: LeaderAddress


Question = StatusRequest | VoteRequest | LeaderAnnounced
Answer = StatusAnswer | VoteAnswer
