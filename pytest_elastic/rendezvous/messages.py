"""What members and the coordinator say to each other.

Reports go from a member to the coordinator, orders come back, beats go both ways, and a question is
asked of any agent's listening port: whether it lives, who decides now, for its vote. Several
reports are the agent's own requests (`ports`), passed on as they are. All of them are values;
`wire` turns them into JSON and back.

Every order carries the term of the coordinator that gave it. Rounds are never numbered twice: a
round that was sealed and could not be committed leaves a gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.model import Electorate, Failure, Node, RosterEntry

__all__ = [
    "Announcement",
    "Answer",
    "Beat",
    "CheckPeers",
    "Commit",
    "EndAcknowledged",
    "Evicted",
    "Hello",
    "JobEnded",
    "JobEnding",
    "LeaveGranted",
    "Message",
    "Order",
    "PeersChecked",
    "Place",
    "PlaceAnswer",
    "PlaceRequest",
    "ProbeAnswer",
    "ProbeRequest",
    "Question",
    "Refusal",
    "Report",
    "Seal",
    "SealAcknowledged",
    "SpareNotice",
    "StepDown",
    "StopOrder",
    "VoteAnswer",
    "VoteRequest",
    "Welcome",
]


# --- both ways -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """I am here: this is my beat `count`, and `echo` is the newest of yours that I grant you.

    The whole of R6: a side's lease runs from the send time of the newest own beat that came back
    as an `echo`. Counts start at 1 on each connection; greeting and welcome are beat 0 of each
    side; a beat that is numbered 0 is an answer and is not answered. `grant_s` is for how long,
    from then, if that is less than a lease: no coordinator grants more than it has itself (R11).
    """

    count: int
    echo: int
    grant_s: float | None = None


# --- reports: member to coordinator --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message on a connection: who I am, what I was told to do, what I still have.

    `settings` are all of `Settings` as plain values, so that a difference can be named (R14).
    `meant_for` is the incarnation that it seeks, and `resumes_round` the round this node was sealed
    into and still stands by, 0 for a newcomer: it comes back only into the round of its workers.
    `term`, `newest_round` and `restarts_used` are the highest that this node ever heard of, so that
    no coordinator reuses a number; `term` is also one below which it obeys nobody (R11).
    `sealed_term` and `sealed_round` are those of the highest seal that it acknowledged, 0 if none.
    """

    run_id: str
    node: Node
    settings: Mapping[str, float | str]
    resumes_round: int = 0
    term: int = 0
    newest_round: int = 0
    restarts_used: int = 0
    meant_for: str = ""
    sealed_term: int = 0
    sealed_round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SealAcknowledged:
    """This member has the roster of `round` and waits for its commit."""

    term: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersChecked:
    """Everybody whom that order named was dialled; `unreached` says how for those who were not."""

    term: int
    number: int
    unreached: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAcknowledged:
    """This member knows how the job ends, and would treat losing the coordinator as that end."""

    term: int


Report = (
    Hello
    | Beat
    | PeersChecked
    | SealAcknowledged
    | EndAcknowledged
    | ports.StoreOpened
    | ports.StoreFailed
    | ports.GroupSucceeded
    | ports.GroupFailed
    | ports.WorkersGone
    | ports.DrainRequested
)


# --- orders: coordinator to member ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """You are a member. `name` is yours from now on: a default name may have got a suffix.

    `resumed`: your round stands and is still yours; what you missed follows. `coordinator` is the
    name of the node that decides, to be named when it is lost, `incarnation` its own: somebody else
    may be at an address by now. `grant_s` as in `Beat`. `ended`: how the job has, which needs none.
    """

    term: int
    name: str
    coordinator: str
    incarnation: str
    resumed: bool = False
    newest_round: int = 0
    grant_s: float | None = None
    ended: JobEnding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """You may not take part. `is_final`: asking again would give the same answer.

    Not final is only the answer to a node that would resume a round which goes on without it: it
    kills its workers and greets again as a newcomer.
    """

    term: int
    reason: str
    is_final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPeers:
    """Dial these, and say whom you did not reach (R13). Takes the place of an earlier order."""

    term: int
    number: int
    peers: Sequence[RosterEntry]
    answer_within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """A round is sealed: this is its roster. Acknowledge; rank 0 also opens the worker store.

    Sent to the members of the roster: all of the assignment but the store's address. And to the
    `endorsers` (incarnations): who are not in it, and acknowledge it. For those who may have to go
    on with it (R11): `sealed_by` is who did, `electorates` are the rosters one of which was the
    last committed one, `idle_rounds` is what the budget of R3 counts.
    """

    term: int
    round: int
    roster: Sequence[RosterEntry]
    spares: Sequence[str]
    restart_count: int
    max_restarts: int
    sealed_by: str = ""
    electorates: Sequence[Electorate] = ()
    endorsers: Sequence[str] = ()
    idle_rounds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The sealed round is committed: start its workers with this store."""

    term: int
    round: int
    store_address: str
    store_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrder:
    """The round is over: stop the workers and say when they are gone."""

    term: int
    round: int
    grace_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareNotice:
    """A round was sealed without you, for this reason: wait for a place (R7, R13).

    `roster` are those who can be asked who decides, should the coordinator be lost (R11);
    `restarts_used` goes on with you, should everybody else be lost.
    """

    term: int
    round: int
    reason: str
    restarts_used: int
    roster: Sequence[RosterEntry] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGranted:
    """You asked to leave, and you may."""

    term: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """The round goes on without you: kill its workers; you may come back as a newcomer."""

    term: int
    round: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnding:
    """The job ends like this. Acknowledge; until `JobEnded`, losing me means the same (R10).

    `result` is "succeeded", "failed" or "lost", as in `ports.JobOver`. `members` are all whom it
    concerns, as far as the coordinator knows, where others may have to tell them.
    """

    term: int
    result: str
    reason: str
    first_failure: Failure | None = None
    members: Sequence[RosterEntry] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """Everybody who can be reached knows the end: it holds.

    `unaware` (incarnations) may still come and ask: who hears this stays a while for them, and
    tells those of them whom `JobEnding` names (R10).
    """

    term: int
    unaware: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDown:
    """I decide no more: I have lost my mandate, or I leave and hand over (R11).

    `left` is the incarnation of a node that leaves with this, empty if none does, and has renounced
    its voice in the electorates from that of round `left_after` on; `successor`, that of the member
    who is to stand for election at once. `promised` is the term that somebody has promised, None if
    nobody has: whoever follows needs a higher one. `newest_round` is the newest round that the
    coordinator has heard of, 0 if it does not say.
    """

    term: int
    reason: str
    left: str = ""
    left_after: int = 0
    successor: str = ""
    promised: int | None = None
    newest_round: int = 0


Order = (
    Welcome
    | Refusal
    | Beat
    | CheckPeers
    | Seal
    | Commit
    | StopOrder
    | SpareNotice
    | ports.PeerDraining
    | LeaveGranted
    | Evicted
    | JobEnding
    | JobEnded
    | StepDown
)


# --- asked of an agent's listening port ----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """Asks whether an incarnation of an agent of this run lives behind the port (R5).

    `ended`: how its job has ended, if this is to tell it so; the answer says if it knows (R10).
    """

    run_id: str
    incarnation: str
    ended: JobEnding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """What lives behind this port: `incarnation`, and whether it has ended (a tombstone).

    A tombstone is given by the keeper that outlived its agent, once no worker is left. An agent
    says what it has heard of: a round, restarts used by then, that the job ends, how it has ended.
    """

    incarnation: str
    is_tombstone: bool
    newest_round: int = 0
    restarts_used: int = 0
    is_ending: bool = False
    ended: JobEnding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the coordinator of `term` is, and which incarnation of an agent it runs in."""

    term: int
    name: str
    incarnation: str
    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRequest:
    """Asks a node of this run who decides; `ending`: how the job ends, if the asker was told."""

    run_id: str
    ending: JobEnding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceAnswer:
    """Who decides, as far as this node can tell: it is a member there; None: it is not.

    `ending` is how the job ends, if this node was told, `ended` the same, if it knows that it has.
    """

    place: Place | None
    ending: JobEnding | None = None
    ended: JobEnding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    """Asks for a vote in the election of `term` (R11).

    `is_trial`: what would the answer be? Nothing is promised, and no term is raised by it.
    """

    run_id: str
    term: int
    candidate: str
    is_trial: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteAnswer:
    """What a voter says to a `VoteRequest`, and what it knows, whatever it says.

    `term` is the highest it has promised to obey. With `is_granted` in an election that is no
    trial, it obeys no lower one from then on, and votes for nobody else in this one. `seal` is the
    highest it ever acknowledged, `commit` that of the same round if it has come.
    `contact_age_s` is how long ago it last heard a coordinator, or voted for another candidate;
    None: never. `ending` is how the job ends, as far as it was told, `ended` the same, if it knows
    that this holds; `place`, who decides, if it is in contact. `patience_s` is after how long
    asking again makes sense. `left` are incarnations that have renounced their voices, as far as it
    was told, each with the round from whose electorate on it does not count.
    """

    term: int
    voter: str
    is_granted: bool
    reason: str
    patience_s: float = 0.0
    seal: Seal | None = None
    commit: Commit | None = None
    newest_round: int = 0
    restarts_used: int = 0
    contact_age_s: float | None = None
    ending: JobEnding | None = None
    ended: JobEnding | None = None
    place: Place | None = None
    left: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """Tells a node of this run who decides from now on; needs no answer."""

    run_id: str
    place: Place


Question = ProbeRequest | PlaceRequest | VoteRequest | Announcement
"""What may be said first at an agent's listening port, besides a greeting."""

Answer = ProbeAnswer | PlaceAnswer | VoteAnswer

Message = Report | Order | Question | Answer
