"""What a driver tells the two machines, and what they tell it to do.

The rules of the game, for whoever writes a driver (the c10d one, the simulator, a test's world):

- A driver hands in one input at a time with the current time (seconds on this process's own
  CLOCK_BOOTTIME), and performs the commands it gets back, in order, before the next input.
- After every step it asks `wake_at()`: the time at which the machine wants a `TimePassed`, or None.
  One that is handed in early or twice is harmless; a late one is noticed, and the machine then
  doubts itself before it doubts the others.
- A member has at most one connection. After `Hangup` or a new `Dial`, nothing more is said about
  the earlier connection: neither its messages nor its end.
- `Dial`, `FindCoordinator`, `Probe` and `AskVote` are always answered, within `answer_within_s`.
- Questions that come to the listening port are the member's (`Asked`), but for `ProbeRequest`.
- After `Lead` there is a coordinator in this process, and after `SteppedDown` there is none. The
  driver tells the member of its own process, too, what it announces to the others (`Announced`).
- The coordinator's own member is a member like the others. Its connection is in memory, has a
  connection id like any other, delivers in order, and is not lost while the process lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pytest_elastic.events.model import Event
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.heritage import Heritage
from pytest_elastic.rendezvous.messages import (
    Answer,
    JobEnding,
    Message,
    Order,
    Place,
    PlaceRequest,
    Report,
    VoteAnswer,
    VoteRequest,
)
from pytest_elastic.rendezvous.model import RosterEntry

__all__ = [
    "Announced",
    "AnswerTo",
    "AskVote",
    "Asked",
    "Connected",
    "ConnectionLost",
    "CoordinatorCommand",
    "CoordinatorFound",
    "CoordinatorInput",
    "CoordinatorNotFound",
    "Dial",
    "DialFailed",
    "Disconnect",
    "Emit",
    "EndHeard",
    "FindCoordinator",
    "Finished",
    "FoundJob",
    "FoundingLost",
    "HandOver",
    "Hangup",
    "JobFound",
    "JobFounded",
    "Lead",
    "MandateExtended",
    "MemberCommand",
    "MemberInput",
    "MessageReceived",
    "Moved",
    "Notify",
    "Outcome",
    "PeerLost",
    "PeerMessage",
    "Probe",
    "ProbeAnswered",
    "Released",
    "Send",
    "SendTo",
    "Start",
    "SteppedDown",
    "Supersede",
    "Superseded",
    "TimePassed",
    "VoteAnswered",
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


# --- both machines -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed:
    """The time of `wake_at()` has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emit:
    """Write this fact down."""

    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Dial an agent, a suspect's (R5) or a neighbour's (R13), and ask for its incarnation.

    Answered by `ProbeAnswered` within `answer_within_s`, whatever happens. With `ended`, say how
    the job has ended (R10), which comes there as `EndHeard`.
    """

    name: str
    incarnation: str
    address: str
    port: int
    answer_within_s: float
    ended: JobEnding | None = None

    @classmethod
    def of(
        cls, entry: RosterEntry, answer_within_s: float, *, ended: JobEnding | None = None
    ) -> Probe:
        """Return the probe of a node that is where its entry says."""
        return cls(
            name=entry.name,
            incarnation=entry.incarnation,
            address=entry.address,
            port=entry.port,
            answer_within_s=answer_within_s,
            ended=ended,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswered:
    """What dialling an agent showed; `name` and `incarnation` as in the `Probe`.

    `newest_round`, `restarts_used`: what it has heard of, if it is alive; `is_ending`: it was told
    of an end; `ended`: an end it knows.
    """

    name: str
    incarnation: str
    outcome: Outcome
    newest_round: int = 0
    restarts_used: int = 0
    is_ending: bool = False
    ended: JobEnding | None = None


# --- inputs of the member (besides the agent's requests of `ports`) ------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Begin to look for the job; the first input, handed in once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorFound:
    """The coordinator of `term` listens at `address:port`.

    `is_here`: it runs in this process, so that no lease is needed from it. `incarnation` is its
    agent's, so that a tombstone can be told from a successor; empty if the store did not say.
    """

    address: str
    port: int
    term: int
    is_here: bool = False
    incarnation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """This node listens somewhere else from here on; only before it greets (R14)."""

    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorNotFound:
    """The store could not be asked, or knows no coordinator."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The connection asked for by `Dial` is up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialFailed:
    """The connection asked for by `Dial` could not be made.

    `outcome` is TOMBSTONE only when the coordinator's own keeper said that its agent has ended:
    then nobody needs to wait for it.
    """

    reason: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLost:
    """The connection ended, or carried something that is not our protocol."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReceived:
    """The coordinator said something."""

    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """Somebody said who decides now: a successor, or a node that is in contact with it."""

    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class EndHeard:
    """Who was asked, or has dialled us, said how the job ends; `holds`: that it has."""

    ending: JobEnding
    holds: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Somebody asks at our listening port; `connection` is where an `AnswerTo` goes."""

    connection: int
    question: VoteRequest | PlaceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteAnswered:
    """What `AskVote` brought; `answer` is None if nobody answered who could, and `outcome` how."""

    incarnation: str
    request: VoteRequest
    answer: VoteAnswer | None
    outcome: Outcome


_News = Announced | Asked | EndHeard | VoteAnswered
_Link = CoordinatorFound | CoordinatorNotFound | Connected | DialFailed | ConnectionLost
MemberInput = (
    Start | Moved | _News | _Link | MessageReceived | ProbeAnswered | TimePassed | ports.Request
)


# --- commands of the member ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Hand this notice to the agent. After `JobOver` the machine answers questions at most."""

    notice: ports.Notice


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """After `JobOver`: nobody needs this node's answers any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinator:
    """Look the coordinator up in the endpoint's store (again), and ask `peers` who decides.

    Answered by `CoordinatorFound` or `CoordinatorNotFound` within `answer_within_s`. A place that a
    peer names comes as `Announced`, at once, and the end of the job as `EndHeard`.
    """

    answer_within_s: float
    peers: Sequence[RosterEntry] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dial:
    """Connect to the coordinator; gives up any earlier connection.

    Answered by `Connected` or `DialFailed` within `answer_within_s`.
    """

    address: str
    port: int
    answer_within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send this on the connection; if it has just ended, drop it: `ConnectionLost` follows."""

    message: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Hangup:
    """End the connection (after what was sent has left), or the dialling of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskVote:
    """Ask an agent for its vote, over a short connection; answered by `VoteAnswered`."""

    incarnation: str
    address: str
    port: int
    request: VoteRequest
    answer_within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTo:
    """Answer a question; if its connection has ended, drop it."""

    connection: int
    message: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Supersede:
    """This node has voted in an election of `term`: a coordinator here decides no more."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """This node has left, without a word to a coordinator here if there is one: that goes, too.

    It is an input of that coordinator as well.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """This node was elected: run the coordinator, with this heritage, and announce it."""

    heritage: Heritage


MemberCommand = (
    Notify
    | FindCoordinator
    | Dial
    | Send
    | Hangup
    | Probe
    | Emit
    | AskVote
    | AnswerTo
    | Supersede
    | HandOver
    | Lead
    | Released
)


# --- inputs of the coordinator -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerMessage:
    """Somebody said something; the first message of a connection id introduces it.

    The driver closes connections that say nothing for `Settings.lease_s`, and answers
    `ProbeRequest` itself: neither reaches the machine.
    """

    connection: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLost:
    """A connection ended that the machine did not end itself. Ids are never used twice."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """This coordinator's own node has voted for somebody else, under a higher term."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFound:
    """The job is decided elsewhere: that was announced, and whoever is there has said so (R12)."""

    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFounded:
    """The first round may be sealed: a majority of the endpoints is this coordinator's (R12)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundingLost:
    """Somebody else is about to found the job, or has: this coordinator has decided nothing."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MandateExtended:
    """Whoever grants the mandate from outside (`GrantedMandate`) has granted it until then."""

    until: float


_Rights = Superseded | HandOver | JobFound | JobFounded | FoundingLost | MandateExtended
CoordinatorInput = PeerMessage | PeerLost | ProbeAnswered | EndHeard | TimePassed | _Rights


# --- commands of the coordinator -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTo:
    """Send this to a connection; if it has just ended, drop it: `PeerLost` follows."""

    connection: int
    message: Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """End a connection, after what was sent to it has left; no `PeerLost` follows."""

    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """This coordinator waits for nobody any more (R10): the agent may go. Said once.

    `result` is the job's. The agent that hosts the coordinator stays until this is said and its own
    `JobOver` came, whichever is later; whoever greets meanwhile is told of the end.
    """

    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJob:
    """Enough nodes are ready, said once a beat: make a majority of the endpoints ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedDown:
    """This coordinator decides no more (R11): its last command. Members were told, and go on."""

    reason: str


CoordinatorCommand = SendTo | Disconnect | Probe | Emit | Finished | FoundJob | SteppedDown
