"""What followers and the leader of a job say to each other, and what any agent may be asked.

Every order carries the term of the leader that gave it. Several reports are the agent's own
requests (`ports`), passed on as they are. `encode` makes a JSON object of a message, and `decode`
the message again.

Without a token any peer may claim any term or round, and a node that went on from there would soon
reach the largest number that a message may hold. So `what_is_unbelievable` finds numbers that are
further from what is known than a job can go in years (R15).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

import msgspec

from pytest_elastic.errors import RendezvousError
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.consensus.records import NO_TERM, Record, Term
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.wire import Float, Integer, Message, Value

__all__ = [
    "FORMAT",
    "Agent",
    "Answer",
    "AppendRecord",
    "BadMessage",
    "DialPeers",
    "Dismissed",
    "Heartbeat",
    "JoinAccepted",
    "JoinRequest",
    "Known",
    "LeaderAddress",
    "LeaderResigned",
    "Order",
    "PeersDialled",
    "Question",
    "RecordAccepted",
    "RecordDecided",
    "Report",
    "Standby",
    "StopRound",
    "decode",
    "encode",
    "is_believable",
    "what_is_unbelievable",
]


class Heartbeat(Message):
    """Beat `count` of a side; `echo` is the newest of the other side's that this one grants (R6).

    Count 0 is an answer, and is not answered. `lease_s`: for how long, if less than a lease.
    """

    count: Integer
    echo: Integer
    lease_s: Float | None = None


# --- reports: follower to leader -----------------------------------------------------------------


class JoinRequest(Message):
    """The first message on a connection: who I am, what I was told to do, what I still have.

    `resumes_round` is the round that this node still stands by, 0 for none; `term`, `number` (of a
    round) and `restarts_used` are the highest that it knows, `meant_for` the incarnation that it
    wants to join.
    """

    run_id: str
    node: Node
    settings: Mapping[str, Float | str]
    resumes_round: Integer
    term: Term
    number: Integer
    restarts_used: Integer
    meant_for: str


class RecordAccepted(Message):
    """This voter, or member, has accepted the record of that number."""

    term: Term
    number: Integer


class PeersDialled(Message):
    """Every node in `DialPeers` was dialled; `unreached` says how each failed dial ended (R13)."""

    term: Term
    number: Integer
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


class JoinAccepted(Message):
    """You are a member, under this name; `resumed`: your round stands, and is still yours.

    `is_over`: the job is, and its end follows; `is_founding`: it has no round yet. `number` is that
    of the newest round that the leader knows; `lease_s` as in `Heartbeat`.
    """

    term: Term
    name: str
    leader: str
    resumed: bool
    is_over: bool
    is_founding: bool
    number: Integer
    lease_s: Float | None


class DialPeers(Message):
    """Dial these nodes and report the unreachable ones (R13). Replaces an earlier order."""

    term: Term
    number: Integer
    peers: tuple[Node, ...]


class AppendRecord(Message):
    """Accept this record, which follows `base`, a decided one (AppendEntries)."""

    term: Term
    record: Record
    base: Record


class RecordDecided(Message):
    """The record is decided. With a store, the round that it made is started: start its workers.

    Of the end of the job, `unaware` (incarnations) may still come and ask.
    """

    term: Term
    number: Integer
    store_address: str = ""
    store_port: Integer = 0
    unaware: tuple[str, ...] = ()


class StopRound(Message):
    """The round is over: stop its workers, and say when they are gone."""

    term: Term
    round: Integer
    grace_s: Float
    reason: str


class Standby(Message):
    """A round goes on without you, for this reason; `roster` can be asked for the leader."""

    term: Term
    number: Integer
    round: Integer
    reason: str
    restarts_used: Integer
    roster: tuple[Node, ...]


class Dismissed(Message):
    """You are no member: for good (you were refused, or have left), or until you ask again.

    Then your round goes on without you, as you were too slow or silent: kill its workers first.
    """

    term: Term
    reason: str
    is_final: bool


class LeaderResigned(Message):
    """I lead no more. `successor` (an incarnation) is to stand at once (TimeoutNow); `left`: I go.

    `higher` is the counter of a term that another node has promised, 0 for none.
    """

    term: Term
    reason: str
    left: bool = False
    successor: str = ""
    higher: Integer = 0


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


class LeaderAddress(Value):
    """Where the leader of a term is. `is_founding`: nothing is decided there: it may give way."""

    term: Term
    name: str
    incarnation: str
    address: str
    port: Integer
    is_founding: bool = False

    @classmethod
    def of(cls, node: Node, term: Term, *, is_founding: bool = False) -> LeaderAddress:
        """Return where the leader of a term is that runs on a node."""
        return cls(
            term=term,
            name=node.name,
            incarnation=node.incarnation,
            address=node.address,
            port=node.port,
            is_founding=is_founding,
        )

    def goes_before(self, other: LeaderAddress) -> bool:
        """Tell whether this one leads, where both are heard of: a job that runs is no new one."""
        if self.is_founding is not other.is_founding:
            return other.is_founding
        return self.term > other.term


# What has the address, the port and the incarnation of an agent.
Agent = Node | LeaderAddress


class Question(Message):
    """Asks a node of this run which one it is, and what it knows of the job.

    `term`: and for its vote under that; of a pre-vote, nothing is promised (Raft thesis, 9.6).
    `leader`: it is told where that is, as the leader announces itself.
    """

    run_id: str
    term: Term | None = None
    is_pre_vote: bool = False
    leader: LeaderAddress | None = None


class Answer(Message):
    """Which agent is behind a port, and what it knows of the job; of another run, nothing more.

    A tombstone's keeper answers for an agent that has ended. `leader`: the one it follows, if it is
    in contact; `has_end`: whether it has accepted an end; `number` (of a round) and `restarts_used`
    are the highest that it knows. `base` is the newest decided record, said to who asks for a vote,
    and to others if it is the end.

    Only who asks for a vote is told the rest. `record` is the newest one that the voter has
    accepted, `base` the newest decided one below it, and `started` where the store of the record's
    round is, if it was started. `contact_age_s`: how long ago it heard a leader, or voted for
    another. `patience_s`: after how long to ask again. `up_s`: for how long a host of one of
    several endpoints has been up, which may have voted before.
    """

    incarnation: str
    is_tombstone: bool = False
    leader: LeaderAddress | None = None
    has_end: bool = False
    number: Integer = 0
    restarts_used: Integer = 0
    base: Record | None = None
    is_granted: bool = False
    reason: str = ""
    term: Term = NO_TERM
    record: Record | None = None
    started: RecordDecided | None = None
    contact_age_s: Float | None = None
    patience_s: Float = 0.0
    up_s: Float = 0.0


# --- as JSON objects -----------------------------------------------------------------------------

# Raised whenever a message changes its meaning; nodes of different formats refuse each other (R14).
FORMAT = 4


class BadMessage(RendezvousError):
    """What arrived is not a message of ours; the connection it came on is of no use."""


# All that is sent, by what it says that it is. (msgspec looks a union's classes up each time.)
_CLASS_OF: Mapping[object, type[Message]] = {
    cls.__struct_config__.tag: cls for cls in (Question, Answer, *get_args(Report | Order))
}


def encode(message: Message) -> dict[str, Any]:
    """Return the message as a JSON object with its `format` and its `kind`."""
    return {"format": FORMAT, **msgspec.to_builtins(message)}


def decode(fields: Mapping[str, Any]) -> Any:  # noqa: ANN401 (any message)
    """Return the message that a JSON object stands for; raises BadMessage for anything else."""
    values = dict(fields)
    found_format = values.pop("format", None)
    if found_format != FORMAT:
        raise BadMessage(
            f"cannot read a message of format {found_format!r}: this node speaks format {FORMAT}."
            " All nodes of a job need the same version of pytest-elastic."
        )
    kind = values.get("kind")
    message_class = _CLASS_OF.get(kind) if isinstance(kind, str) else None
    if message_class is None:
        raise BadMessage(f"cannot read a message of the unknown kind {kind!r:.80}")
    try:
        return msgspec.convert(values, message_class)
    except msgspec.ValidationError as error:
        raise BadMessage(f"cannot read a {kind}: {error!s:.80}") from error


# --- which of them are believed (R15) ------------------------------------------------------------

# 136 years of elections, one each second. Who wants to use up all numbers that way has to be
# believed two thousand million times, each of which costs an election.
_MOST_AHEAD = 2**32
# Of a job of which nothing is known: what is left above it is enough for all that follows.
_FARTHEST = 2**61
_NUMBERS = frozenset({"number", "round", "resumes_round", "higher"})
_RESTARTS = frozenset({"restarts_used", "restart_count"})
_NESTED = Record | LeaderAddress | RecordDecided


class Known(Value):
    """What a node knows: the counter of a term, the newest round (0: none), restarts allowed."""

    counter: int
    round: int
    max_restarts: int


def is_believable(number: int, known: int) -> bool:
    """Tell whether a term or a round may be that of a job that was at `known`, 0: not known."""
    return number <= (known + _MOST_AHEAD if known else _FARTHEST)


def what_is_unbelievable(message: Value, known: Known) -> str | None:
    """Say what a message tells that cannot be, None for nothing."""
    if isinstance(message, Heartbeat):  # most often, and it tells nothing
        return None
    for name, value in _numbers_in(message):
        if name in _RESTARTS:
            if value > known.max_restarts:
                return f"it tells of {value} restarts, and {known.max_restarts} are allowed"
        elif not is_believable(value, known.counter if name == "term" else known.round):
            return f"it tells of {name} {value}, to which no job comes"
    return None


def _numbers_in(message: Value) -> Iterator[tuple[str, int]]:
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if isinstance(value, Term):
            yield "term", value.counter
        elif name == "higher":
            yield "term", value
        elif name in _NUMBERS or name in _RESTARTS:
            yield name, value
        elif isinstance(value, _NESTED):
            yield from _numbers_in(value)
