"""What a test waits for, as a clause of `eventually`: checked before anything is started for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from elastic_harness.finding import did_you_mean
from elastic_harness.scenario.model import Eventually
from elastic_harness.scenario.reading.loader import read_clause
from pytest_elastic.errors import UsageError

__all__ = ["read_wait"]


def read_wait(
    condition: Mapping[str, object],
    within: str | float,
    after: str | None,
    entries: Collection[str],
) -> Eventually:
    """Return the clause; raises UsageError, also for an `after` that is none of `entries`.

    `within` is text with a unit, or a number of seconds.
    """
    seconds = float(within) if type(within) is int else within
    moment = {} if after is None else {"after": after}
    clause = read_clause({**condition, "within": seconds, **moment})
    if clause.after is not None and clause.after.id not in entries:
        name = clause.after.id
        raise UsageError(
            f"after={after!r}: this job has no fault {name!r}", hint=did_you_mean(name, entries)
        )
    return clause
