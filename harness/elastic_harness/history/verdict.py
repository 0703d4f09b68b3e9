"""Three verdicts, the worst first: invalid, unknown, valid. Unknown is not green."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Outcome", "Verdict", "compose", "invalid", "negate", "unknown", "valid"]


class Outcome(str, enum.Enum):
    """What a checker found."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a checker found, in one sentence, and the records (by seq) that prove it."""

    outcome: Outcome
    reason: str
    events: tuple[int, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Tell whether what was checked holds."""
        return self.outcome is Outcome.VALID


def valid(reason: str, events: Iterable[int] = ()) -> Verdict:
    """Return the verdict that it holds."""
    return Verdict(outcome=Outcome.VALID, reason=reason, events=tuple(events))


def invalid(reason: str, events: Iterable[int] = ()) -> Verdict:
    """Return the verdict that it does not hold, and what proves that."""
    return Verdict(outcome=Outcome.INVALID, reason=reason, events=tuple(events))


def unknown(reason: str, events: Iterable[int] = ()) -> Verdict:
    """Return the verdict that it could not be judged, and why."""
    return Verdict(outcome=Outcome.UNKNOWN, reason=reason, events=tuple(events))


_BADNESS = {Outcome.VALID: 0, Outcome.UNKNOWN: 1, Outcome.INVALID: 2}


def compose(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of some verdicts: invalid, then unknown, then valid."""
    given = tuple(verdicts)
    if not given:
        return unknown("nothing was judged")
    worst = max((verdict.outcome for verdict in given), key=_BADNESS.__getitem__)
    guilty = [verdict for verdict in given if verdict.outcome is worst]
    return Verdict(
        outcome=worst,
        reason="; ".join(dict.fromkeys(verdict.reason for verdict in guilty)),
        events=tuple(sorted({seq for verdict in guilty for seq in verdict.events})),
    )


def negate(verdict: Verdict) -> Verdict:
    """Return the verdict on the opposite: what `never` asks of an occurrence."""
    match verdict.outcome:
        case Outcome.VALID:
            return invalid(verdict.reason, verdict.events)
        case Outcome.INVALID:
            return valid(verdict.reason, verdict.events)
        case _:
            return verdict
