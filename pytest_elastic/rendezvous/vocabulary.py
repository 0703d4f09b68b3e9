"""What a driver tells the two machines of a node, and what they tell it to do.

The rules for a driver, of whatever kind (over sockets, the simulator's, a test's world):

- A driver hands in one input at a time with the current time (seconds on this process's own
  CLOCK_BOOTTIME), and performs the commands it gets back, in order, before the next input.
- After every step it asks `wake_at()`: the time at which the machine wants a `TimePassed`, or None.
  One that is handed in early or twice is harmless; a late one is noticed, and the machine then
  doubts itself before it doubts the others.
- A follower has at most one connection. After `Hangup` or a new `Dial`, nothing more is said about
  the earlier connection: neither its messages nor its end.
- `Dial`, `Ask` and `FindLeader` are always answered: within a lease, the time that an `Ask` gives,
  and `FIND_S`.
- Questions that come to the listening port are the follower's (`Asked`).
- After `Lead` there is a leader in this process, and after `SteppedDown` there is none.
- The follower in the leader's process is one like the others. Its connection is in memory, has a
  connection id like any other, delivers in order, and is not lost while the process lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from pytest_elastic.events.model import Event
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.consensus.records import Mark, Record, Term
from pytest_elastic.rendezvous.consensus.replication import Recovered
from pytest_elastic.rendezvous.messages import (
    Agent,
    Answer,
    LeaderAddress,
    Order,
    Question,
    RecordDecided,
    Report,
)
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.wire import Value

__all__ = [
    "FIND_S",
    "Answered",
    "Ask",
    "Asked",
    "Bootstrap",
    "Connected",
    "ConnectionLost",
    "Dial",
    "DialFailed",
    "Disconnect",
    "Emit",
    "EndHeard",
    "FindLeader",
    "Finished",
    "FollowerCommand",
    "FollowerInput",
    "HandOver",
    "Hangup",
    "Lead",
    "LeaderCommand",
    "LeaderFound",
    "LeaderHeard",
    "LeaderInput",
    "LeaderNotFound",
    "LeaseExtended",
    "MessageReceived",
    "Moved",
    "Notify",
    "Outcome",
    "PeerLost",
    "PeerMessage",
    "RecordWritten",
    "Released",
    "Send",
    "SendTo",
    "Start",
    "SteppedDown",
    "TimePassed",
    "WriteRecord",
]


class Outcome(Enum):
    """What dialling an agent showed (R5)."""

    ALIVE = "alive"
    """The incarnation asked for answered."""

    TOMBSTONE = "tombstone"
    """The keeper of the incarnation asked for answered: agent ended, no worker left."""

    REFUSED = "refused"
    """The port refused, or another incarnation answered: the agent is not there."""

    SILENT = "silent"
    """No answer in time: nothing is known."""


# --- both machines --------------------------------------------------------------------------------


class TimePassed(Value):
    """The time of `wake_at()` has come."""


class Emit(Value):
    """Write this fact down."""

    event: Event


class Ask(Value):
    """Dial an agent, a suspect's (R5), a neighbour's (R13) or a voter's, and ask what it knows.

    With a `term`, for its vote as well, see `Question`. Answered by `Answered` within `within_s`,
    None: a lease, whatever happens.
    """

    node: Node
    term: Term | None = None
    is_pre_vote: bool = False
    within_s: float | None = None


class Answered(Value):
    """What `Ask` brought: what dialling the agent showed, and what that said, if it is alive.

    `incarnation`, `term` and `is_pre_vote` are those of `Ask`.
    """

    incarnation: str
    outcome: Outcome
    answer: Answer | None = None
    term: Term | None = None
    is_pre_vote: bool = False


class SendTo(Value):
    """Send this to a connection that others made; if it has just ended, drop it.

    Orders of the leader, answers of the follower to questions.
    """

    connection: int
    message: Order | Answer


# --- inputs of the follower (besides the agent's requests of `ports`) -----------------------------


class Start(Value):
    """Begin to look for the job; the first input, handed in once."""


class Moved(Value):
    """This node listens somewhere else from here on; only before it asks to join (R14)."""

    address: str
    port: int


class Bootstrap(Value):
    """This node hosts an endpoint: it may found the job, with the voters of `base`, the hosts.

    `mark`: what its machine remembers of the job that was here before. `seat`: with several
    endpoints, the voter that this host is, named by its place, as all that come back there are; it
    is said again when more hosts are known.
    """

    base: Record
    mark: Mark | None = None
    seat: str = ""


class LeaderFound(Value):
    """The registry names this leader, which may be in this process."""

    leader: LeaderAddress


class LeaderNotFound(Value):
    """The store could not be asked, or knows no leader."""

    reason: str


class LeaderHeard(Value):
    """The leader, as it announced itself, or as a node named it that follows it."""

    leader: LeaderAddress


class EndHeard(Value):
    """A peer that was asked has reported how the job ended."""

    record: Record


class Connected(Value):
    """The connection asked for by `Dial` is up."""


class DialFailed(Value):
    """The connection asked for by `Dial` could not be made.

    `outcome` is TOMBSTONE only when the leader's own keeper said that its agent has ended:
    then its lease need not be waited for.
    """

    reason: str
    outcome: Outcome


class ConnectionLost(Value):
    """The connection ended, or carried something that is not our protocol."""

    reason: str


class MessageReceived(Value):
    """The leader said something, or its keeper that its agent has ended."""

    message: Order | Answer


class Asked(Value):
    """A peer asks at our listening port; `connection` is where the answer goes."""

    connection: int
    question: Question


FollowerInput = (
    Start
    | Moved
    | Bootstrap
    | LeaderFound
    | LeaderNotFound
    | LeaderHeard
    | EndHeard
    | Connected
    | DialFailed
    | ConnectionLost
    | MessageReceived
    | Asked
    | Answered
    | TimePassed
    | ports.Request
)


# --- commands of the follower ---------------------------------------------------------------------


class Notify(Value):
    """Hand this notice to the agent. After `JobOver` the machine answers questions at most."""

    notice: ports.Notice


class Released(Value):
    """After `JobOver`: no other node needs this node's answers any more."""


# A registry may block for long; a dial is answered by a living host in one round trip.
FIND_S = 5.0


class FindLeader(Value):
    """Look the leader up in the endpoint's store (again), and ask `peers` for it.

    Answered by `LeaderFound` or `LeaderNotFound` within `FIND_S`. A leader that a peer
    names comes as `LeaderHeard`, at once, and the end of the job as `EndHeard`.
    """

    peers: Sequence[Agent] = ()


class Dial(Value):
    """Connect to the leader; gives up any earlier connection.

    Answered by `Connected` or `DialFailed` within a lease.
    """

    address: str
    port: int


class Send(Value):
    """Send this on the connection; if it has just ended, drop it: `ConnectionLost` follows."""

    message: Report


class Hangup(Value):
    """End the connection (after what was sent has left), or the dialling of it."""


class HandOver(Value):
    """This node has left, without a word to a leader here if there is one: that goes, too.

    It is an input of that leader as well.
    """

    reason: str


class Lead(Value):
    """This node was elected: run the leader, with what was recovered, and announce it."""

    recovered: Recovered


FollowerCommand = (
    Notify | FindLeader | Dial | Send | Hangup | Ask | Emit | SendTo | HandOver | Lead | Released
)


# --- inputs of the leader -------------------------------------------------------------------------


class PeerMessage(Value):
    """A peer sent a message; the first one of a connection id introduces it.

    The driver closes connections that say nothing for `Settings.lease_s`.
    """

    connection: int
    message: Report


class PeerLost(Value):
    """A connection ended that the machine did not end itself. Ids are never used twice."""

    connection: int
    reason: str


class LeaseExtended(Value):
    """The key outside that names this leader is granted until then (`key_holder`)."""

    until: float


class RecordWritten(Value):
    """The record of that number is written down."""

    number: int


_Peers = PeerMessage | PeerLost | Answered
_Rights = LeaderHeard | HandOver | LeaseExtended | RecordWritten
LeaderInput = _Peers | _Rights | TimePassed


# --- commands of the leader -----------------------------------------------------------------------


class Disconnect(Value):
    """End a connection, after what was sent to it has left; no `PeerLost` follows."""

    connection: int


class Finished(Value):
    """This leader waits for no other node any more (R10): the agent may go. Said once.

    `result` is the job's. The agent that hosts the leader stays until this is said and its own
    `JobOver` came, whichever is later; nodes that join meanwhile are told of the end.
    """

    result: str


class SteppedDown(Value):
    """This leader leads no more (R11): its last command. Members were told, and go on."""

    reason: str


class WriteRecord(Value):
    """Write this record down while the key is ours: that decides it. `decided` tells its store."""

    record: Record
    decided: RecordDecided


LeaderCommand = SendTo | Disconnect | Ask | Emit | Finished | SteppedDown | WriteRecord
