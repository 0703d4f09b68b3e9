"""Clauses judged while the job runs: `eventually`, and events in `sometimes` and `never`."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Final

from elastic_harness.history.events import LogMatched
from elastic_harness.history.verdict import Outcome, Verdict, invalid, unknown, valid
from elastic_harness.scenario.engine.conditions import Watcher, watch, why_missed
from elastic_harness.scenario.engine.observed import ObservedRun
from elastic_harness.scenario.engine.timeline import EntryPhase, EntryState, first_that_acts
from elastic_harness.scenario.model import Clause, Eventually, Expect
from elastic_harness.scenario.triggers import AfterEntry, Condition, EventCondition, LogCondition
from pytest_elastic.events.model import Record

__all__ = ["Bucket", "ClauseState", "from_eventually", "from_expect"]


class Bucket(enum.Enum):
    """Where a clause stands: in `expect`; CHECK: in the timeline; WAIT: a running test waits."""

    EVENTUALLY = "eventually"
    SOMETIMES = "sometimes"
    NEVER = "never"
    CHECK = "check"
    WAIT = "wait"


# A clause that is not met in time is watched for as long again, in these bounds, so that "it came
# too late" can be told from "it never came".
_WATCH_ON_AT_LEAST_S: Final = 1.0
_WATCH_ON_AT_MOST_S: Final = 30.0


@dataclass(slots=True, kw_only=True)
class ClauseState:
    """One clause and how it stands. `key` is its place: `eventually[0]`, or the test's name for it.

    It has a `watcher` while it watches, and `base` is when its time began to run: between the two a
    fault is being injected: what it does must not be missed, what was before must not count.
    `patience` multiplies `within_s`, for slow machines.
    """

    key: str
    bucket: Bucket
    text: str
    condition: Condition | None = None
    within_s: float | None = None
    patience: float = 1.0
    after: AfterEntry | None = None
    watcher: Watcher | None = None
    base: float | None = None
    verdict: Verdict | None = None

    @property
    def deadline(self) -> float | None:
        """When it must have come to hold; None while that is not known, or does not matter."""
        if self.verdict is not None or self.base is None or self.within_s is None:
            return None
        return self.base + self.within_s * self.patience

    @property
    def watched_until(self) -> float | None:
        """When it is given up: some time after its deadline."""
        if (deadline := self.deadline) is None or self.base is None:
            return None
        longer_s = max(deadline - self.base, _WATCH_ON_AT_LEAST_S)
        return deadline + min(longer_s, _WATCH_ON_AT_MOST_S)

    def open(self, now: float) -> None:
        """Begin to watch."""
        assert self.condition is not None, "what has no condition is judged once, and not watched"
        rounds_since = now if self.after else -math.inf
        self.watcher = watch(self.condition, now, rounds_since=rounds_since)

    def begin(self, at: float) -> None:
        """Let its time run from `at`, and count only what begins after that."""
        if self.watcher is None:
            self.open(at)
        assert self.watcher is not None, "an open clause has a watcher"
        self.base = at
        self.watcher.restart(at)

    def follow(self, entries: list[EntryState]) -> None:
        """Open, or let its time run, according to the entry it waits for."""
        if self.after is None or self.base is not None or not entries:
            return
        entry = first_that_acts(entries)
        counts_the_fault = not self.after.healed and not self.after.delay_s
        if counts_the_fault and entry.fired_at is not None and self.watcher is None:
            self.open(entry.fired_at)
        start = entry.healed_at if self.after.healed else entry.in_force_at
        if start is not None and entry.phase is not EntryPhase.FAILED:
            self.begin(start + self.after.delay_s)

    def see(self, record: Record | None, run: ObservedRun, now: float) -> bool:
        """Take a record (None: the time) into account; tell whether that decided the clause."""
        if self.verdict is not None or self.watcher is None:
            return False
        if self.after is not None and record is not None and _is_older(record):
            return False  # it was printed before the clause asked: before the fault, then
        at = now if record is None else record.at
        is_early = self.base is not None and at < self.base
        if is_early and self.after is not None and self.after.delay_s:
            return False  # some time after the fault, its own work is none of what is waited for
        evidence = self.watcher.see(record, run)
        if evidence is None or (self.base is None and not self._counts_before_base):
            return False
        if self.bucket is Bucket.NEVER:
            self.verdict = invalid(f"{self.text}: seen: {evidence}")
        else:
            # A harness that is behind shall not make what came in time too late.
            self.verdict = self._verdict_at(at, evidence)
        return True

    def _verdict_at(self, now: float, evidence: str) -> Verdict:
        """Return the verdict on what was seen just now: in time, late but allowed, or too late."""
        deadline = self.deadline
        if deadline is None or self.base is None or self.within_s is None:
            return valid(f"{self.text}: {evidence}")
        late = f"{evidence}, after {now - self.base:.1f} s; {self.within_s:g} s were asked"
        if now > deadline:
            return invalid(f"{self.text}: too late: {late}")
        if now > self.base + self.within_s:
            return valid(f"{self.text}: {late}, and the patience of {self.patience:g} allows it")
        return valid(f"{self.text}: {evidence}")

    def expire(self, now: float, run: ObservedRun, *, is_last: bool = False) -> bool:
        """Give the clause up if it has been watched for long enough; tell whether it was.

        `is_last`: the run is about to end, so that there is no time to watch on.
        """
        until = self.deadline if is_last else self.watched_until
        if until is None or self.base is None or now < until or self.watcher is None:
            return False
        seen = self.watcher.last_seen(run)
        watched = f"not in time, nor after {now - self.base:.1f} s"
        self.verdict = self._not_seen(f"{watched}; last seen: {seen}", run)
        return True

    def close(self, run: ObservedRun, why: str, *, is_cut: bool) -> None:
        """Decide the clause by what is known, now that the run is over.

        `is_cut`: another clause has ended the run, before this one's time was up.
        """
        if self.verdict is not None:
            return
        if self.bucket is Bucket.NEVER:
            self.verdict = self._not_seen("never seen", run)
        elif self.base is None or self.watcher is None:
            waited_for = f"`{self.after}`" if self.after else "the run"
            self.verdict = unknown(f"{self.text}: {waited_for} never came, so its time never began")
        elif is_cut:
            self.verdict = unknown(f"{self.text}: another clause ended the run first")
        else:
            seen = self.watcher.last_seen(run)
            self.verdict = self._not_seen(f"{why} first; last seen: {seen}", run)

    def _not_seen(self, found: str, run: ObservedRun) -> Verdict:
        """Return the verdict on what was not seen: unknown, where it may have been missed."""
        if missed := why_missed(self.condition, run):
            return unknown(f"{self.text}: {missed}")
        judged = valid if self.bucket is Bucket.NEVER else invalid
        return judged(f"{self.text}: {found}")

    @property
    def is_unmet(self) -> bool:
        """Tell whether it was found not to hold."""
        return self.verdict is not None and self.verdict.outcome is Outcome.INVALID

    @property
    def _counts_before_base(self) -> bool:
        """Tell whether what is seen while the fault is being injected counts.

        Facts do; states do not, since the state before the fault looks the same.
        """
        return isinstance(self.condition, (EventCondition, LogCondition))


def _is_older(record: Record) -> bool:
    return isinstance(record.event, LogMatched) and record.event.was_there


def from_eventually(
    key: str, clause: Eventually, bucket: Bucket = Bucket.EVENTUALLY, *, patience: float = 1.0
) -> ClauseState:
    """Make a state for a clause of `eventually`, or for what a test waits for."""
    return ClauseState(
        key=key,
        bucket=bucket,
        text=str(clause),
        condition=clause.condition,
        within_s=clause.within,
        patience=patience,
        after=clause.after,
    )


def from_expect(expect: Expect, *, patience: float = 1.0) -> list[ClauseState]:
    """Return the clauses that the engine judges; those that only a checker knows are left out."""
    states = [
        from_eventually(f"eventually[{index}]", clause, patience=patience)
        for index, clause in enumerate(expect.eventually)
    ]
    for bucket, witnesses in ((Bucket.SOMETIMES, expect.sometimes), (Bucket.NEVER, expect.never)):
        states.extend(
            ClauseState(
                key=f"{bucket.value}[{index}]",
                bucket=bucket,
                text=f"{bucket.value} {witness}",
                condition=witness,
            )
            for index, witness in enumerate(witnesses)
            if not isinstance(witness, Clause)
        )
    return states
