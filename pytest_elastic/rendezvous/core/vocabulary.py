"""What drivers tell the two machines, and what these tell them to do.

The rules for a driver are those of `rendezvous.vocabulary`, whose inputs and commands are used
where they say nothing of terms. What is here has a term of this core's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.core.messages import (
    LeaderAddress,
    LeaderRequest,
    RecordDecided,
    VoteAnswer,
    VoteRequest,
)
from pytest_elastic.rendezvous.core.records import Mark, Record, Term
from pytest_elastic.rendezvous.model import RosterEntry

__all__ = [
    "AskVote",
    "Asked",
    "Bootstrap",
    "EndHeard",
    "FollowerCommand",
    "FollowerInput",
    "Lead",
    "LeaderCommand",
    "LeaderFound",
    "LeaderHeard",
    "LeaderInput",
    "RecordWritten",
    "Recovered",
    "VoteAnswered",
    "WriteRecord",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a new leader goes on with.

    `base` is decided. `record` is the same one, or one on it that may be, and is proposed again.
    `started` is where the store of its round is, None if nobody knows that it was started.
    `heard_at` is when each of those who voted was asked, `contact_at` when one of them last heard a
    leader, and `began_at` when this node began to look for the job; `mark` is what it found on its
    machine then. `granted_until`: how long it may lead, where somebody outside says so. `seats`
    says which incarnation of each host has voted for it.
    """

    term: Term
    base: Record
    record: Record
    started: RecordDecided | None
    contact_at: float
    lost: str = ""
    has_left: bool = False
    began_at: float = 0.0
    mark: Mark | None = None
    granted_until: float | None = None
    seats: Mapping[str, str] = field(default_factory=dict)
    number: int = 0
    restarts_used: int = 0
    heard_at: Mapping[str, float] = field(default_factory=dict)

    @property
    def why_followed(self) -> str:
        """Why this leader follows the one before it: that one left, or was lost."""
        return f"{self.lost} left" if self.has_left else f"{self.lost} was lost"

    @property
    def known(self) -> Sequence[RosterEntry]:
        """Everybody who may look for a leader now."""
        entries = {entry.incarnation: entry for entry in (*self.base.roster, *self.record.roster)}
        return tuple(entries.values())


# --- inputs and commands of the follower ---------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """This node hosts an endpoint: it may found the job, with the voters of `base`, the hosts.

    `mark`: what its machine remembers of the job that was here before. `seat`: with several
    endpoints, the voter that this host is, named by its place, as all who come back there are; it
    is said again when more hosts are known.
    """

    base: Record
    mark: Mark | None = None
    seat: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderFound:
    """The registry names this leader; `is_here`: it runs in this process."""

    leader: LeaderAddress
    is_here: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderHeard:
    """Somebody said who leads: the leader itself, or a node that follows it."""

    leader: LeaderAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class EndHeard:
    """Somebody who was asked has said how the job has ended."""

    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Somebody asks at our listening port; `connection` is where an `AnswerTo` goes."""

    connection: int
    question: VoteRequest | LeaderRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteAnswered:
    """What `AskVote` brought; None: no answer."""

    incarnation: str
    request: VoteRequest
    answer: VoteAnswer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskVote:
    """Ask an agent for its vote, over a short connection; answered by `VoteAnswered`."""

    incarnation: str
    address: str
    port: int
    request: VoteRequest
    answer_within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """This node was elected: run the leader, with what was recovered, and announce it."""

    recovered: Recovered


# --- where somebody outside is the only voter (quorum=granted) ------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRecord:
    """Write this record down while the key is ours: that decides it. `decided` tells its store."""

    record: Record
    decided: RecordDecided


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordWritten:
    """The record of that number is written down."""

    number: int


FollowerInput = (
    v.Start
    | v.Moved
    | Bootstrap
    | LeaderFound
    | v.CoordinatorNotFound
    | LeaderHeard
    | EndHeard
    | v.Connected
    | v.DialFailed
    | v.ConnectionLost
    | v.MessageReceived
    | Asked
    | VoteAnswered
    | v.ProbeAnswered
    | v.TimePassed
    | ports.Request
)

FollowerCommand = (
    v.Notify
    | v.FindCoordinator
    | v.Dial
    | v.Send
    | v.Hangup
    | v.Probe
    | v.Emit
    | AskVote
    | v.AnswerTo
    | v.HandOver
    | Lead
    | v.Released
)

_Peers = v.PeerMessage | v.PeerLost | v.ProbeAnswered
_Rights = LeaderHeard | v.HandOver | v.MandateExtended | RecordWritten
LeaderInput = _Peers | _Rights | v.TimePassed

LeaderCommand = (
    v.SendTo | v.Disconnect | v.Probe | v.Emit | v.Finished | v.SteppedDown | WriteRecord
)
