"""What a founder's driver tells it, what it tells its driver, and what it writes down (R12)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pytest_elastic.rendezvous.messages import Place
from pytest_elastic.rendezvous.vocabulary import Emit, TimePassed

__all__ = [
    "ANSWER_WITHIN_S",
    "FOUNDING_ALLOWED",
    "Answered",
    "Begin",
    "Claim",
    "Founded",
    "FoundingCommand",
    "FoundingInput",
    "Joined",
    "Look",
    "Record",
    "Stage",
    "Swap",
    "Wanted",
    "Yield",
]

ANSWER_WITHIN_S = 1.0
"""A store that is served answers in milliseconds; a frozen one costs a thread for so long."""


# --- what is written down ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A founder's, renewed again and again: `count` is new each time.

    `rank` is the founder's place among founders: that of its endpoint in the list, the first is 0.
    `is_final`: nobody may take this place from it any more but a job that runs.
    """

    count: int
    rank: int
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Who decides, or with `claim` who wants to begin."""

    place: Place
    claim: Claim | None = None


# --- the machine ---------------------------------------------------------------------------------


class Stage(Enum):
    """How far one founder is."""

    LOOKING = "looking"
    CLAIMING = "claiming"
    FOUNDING = "founding"
    FOUNDED = "founded"
    OVER = "over"


FOUNDING_ALLOWED: dict[Stage, frozenset[Stage]] = {
    Stage.LOOKING: frozenset({Stage.CLAIMING, Stage.OVER}),
    Stage.CLAIMING: frozenset({Stage.FOUNDING, Stage.LOOKING, Stage.OVER}),
    Stage.FOUNDING: frozenset({Stage.FOUNDED, Stage.CLAIMING, Stage.LOOKING, Stage.OVER}),
    Stage.FOUNDED: frozenset(),
    Stage.OVER: frozenset(),
}


# --- what a driver tells it ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What a `Look` or a `Swap` brought; every one is answered, within `ANSWER_WITHIN_S`.

    `text` is what the store holds now, empty for nothing; `record` is how that reads, None if it is
    nothing of ours. `error` is why the store did not answer.
    """

    endpoint: int
    text: str = ""
    record: Record | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The coordinator here has enough nodes for a first round: it counts for two beats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """This node belongs to a job, its own or another one: there is none to found any more."""


FoundingInput = Answered | Wanted | Joined | TimePassed


# --- what it tells its driver --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Read the record at an endpoint."""

    endpoint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Put a record (None: a text that is none) in the place of a text, if that is still there.

    `expected` is empty if nothing was. Whatever is there afterwards is the answer.
    """

    endpoint: int
    expected: str
    record: Record | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Run a coordinator here, and let it gather nodes."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Yield:
    """Run no coordinator here any more: it has decided nothing."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Founded:
    """The coordinator here may seal the first round."""


FoundingCommand = Look | Swap | Begin | Yield | Founded | Emit
