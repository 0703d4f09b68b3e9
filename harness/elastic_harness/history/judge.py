"""The verdict on a run, from its history alone.

What was to hold is in the history (`ClausePlanned`), and so is what was found of it while the job
ran (`ClauseJudged`), what the harness itself failed at (`HarnessFailed`), and that all is over
(`RunClosed`). `judge` makes one judgement of each clause, in the order in which they were planned,
and one of the harness. Screens, pages, exit codes and `pytest-elastic check` show these judgements
and decide nothing.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_harness.history.checkers.conduct import why_unheard, why_unread
from elastic_harness.history.checkers.library import STANDARD
from elastic_harness.history.checkers.registry import Check, Registry
from elastic_harness.history.events import (
    ClauseJudged,
    ClausePlanned,
    FaultPlanned,
    HarnessFailed,
    PythonTestFailed,
    RunClosed,
    RunEnded,
    SwitchDropped,
)
from elastic_harness.history.history import Entry, History
from elastic_harness.history.verdict import (
    Outcome,
    Verdict,
    compose,
    invalid,
    unknown,
    valid,
)
from pytest_elastic.errors import UsageError
from pytest_elastic.events.codec import UnknownEvent
from pytest_elastic.events.model import EVENT_KINDS

__all__ = ["Judgement", "judge", "judge_checks", "overall", "unmet"]

_SHOWN_BUCKETS = frozenset({"never", "sometimes", "eventually", "check"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One clause and the verdict on it; true only if that is valid.

    `key` is its place (`finally[0]`), `bucket` what stands before the bracket there, and `name` the
    checker's, if one judged it.
    """

    key: str
    bucket: str
    name: str
    text: str
    verdict: Verdict

    @property
    def title(self) -> str:
        """The clause as it is shown: with its bucket, where that says what is asked."""
        return f"{self.bucket}: {self.text}" if self.bucket in _SHOWN_BUCKETS else self.text

    def __bool__(self) -> bool:
        return self.verdict.is_valid

    def __repr__(self) -> str:
        return f"<{self.title}: {self.verdict.outcome.value}: {self.verdict.reason}>"


def judge(history: History, registry: Registry = STANDARD) -> tuple[Judgement, ...]:
    """Judge everything that was planned in a run, and the run itself: the complete verdict.

    `registry` knows the checkers; a clause whose checker it does not know is unknown.
    """
    found: dict[str, list[Verdict]] = {}
    for entry in history.of_kind(ClauseJudged):
        said = entry.event
        verdict = Verdict(
            outcome=Outcome(said.outcome), reason=said.reason, events=said.proof or (entry.seq,)
        )
        found.setdefault(said.key, []).append(verdict)
    judgements = [
        Judgement(
            key=planned.event.key,
            bucket=planned.event.bucket,
            name=planned.event.checker,
            text=planned.event.text,
            verdict=_verdict_on(planned.event, found.get(planned.event.key, []), history, registry),
        )
        for planned in history.of_kind(ClausePlanned)
    ]
    judgements += [
        Judgement(
            key="test",
            bucket="test",
            name="",
            text=f"test {failed.event.test}",
            verdict=invalid(failed.event.reason),
        )
        for failed in history.of_kind(PythonTestFailed)
    ]
    doubted = (
        dataclasses.replace(each, verdict=_doubted(each.verdict, history)) for each in judgements
    )
    return (*doubted, _judge_harness(history))


def judge_checks(history: History, checks: Iterable[Check]) -> tuple[Judgement, ...]:
    """Judge a history by checks that were not planned in it, each on its own."""
    return tuple(
        Judgement(
            key=check.name,
            bucket="asked",
            name=check.name,
            text=check.text,
            verdict=_doubted(check.run(history), history),
        )
        for check in checks
    )


def overall(judgements: Iterable[Judgement]) -> Verdict:
    """Return the worst of some judgements as one verdict; each reason is led by its clause."""
    return compose(
        dataclasses.replace(each.verdict, reason=f"{each.title}: {each.verdict.reason}")
        for each in judgements
    )


def unmet(judgements: Iterable[Judgement]) -> Sequence[Judgement]:
    """Return the judgements that are not valid: the invalid ones, then what others follow from."""
    first = ("harness", "faults_effective")

    def rank(each: Judgement) -> tuple[bool, int]:
        place = each.name or each.key
        order = first.index(place) if place in first else len(first)
        return each.verdict.outcome is not Outcome.INVALID, order

    return sorted((each for each in judgements if not each), key=rank)


def _verdict_on(
    planned: ClausePlanned, found: list[Verdict], history: History, registry: Registry
) -> Verdict:
    verdicts = list(found)
    why = why_unread(history, planned.log) if planned.log else why_unheard(history, planned.event)
    if why is not None:
        # What was seen was seen; that something was not seen is not known then.
        seen = Outcome.INVALID if planned.bucket == "never" else Outcome.VALID
        verdicts = [each if each.outcome is seen else unknown(why) for each in found]
    if planned.checker:
        try:
            check = registry.bind(planned.checker, planned.expected, is_negated=planned.is_negated)
        except UsageError as error:
            verdicts.append(unknown(error.message))
        else:
            verdicts.append(check.run(history))
    if not verdicts and planned.is_optional:
        return valid("it was optional, and never reached")
    if not verdicts:
        return unknown(f"it was never reached: {_how_it_ended(history)}")
    return compose(verdicts)


def _doubted(verdict: Verdict, history: History) -> Verdict:
    """Return unknown for invalid where that may be the harness's own doing."""
    if verdict.outcome is not Outcome.INVALID:
        return verdict
    aborted = [each for each in history.of_kind(RunEnded) if each.event.outcome == "aborted"]
    causes: Sequence[tuple[Sequence[Entry[Any]], str]] = (
        (aborted, "the early end of the run"),
        (history.of_kind(SwitchDropped), "packets that the harness itself lost, or kept back,"),
        (_unreadable(history), "a record that is not as this version writes it"),
    )
    for entries, cause in causes:
        if entries:
            events = (*verdict.events, *(entry.seq for entry in entries))
            return unknown(f"{verdict.reason}; {cause} may be the cause", events)
    return verdict


def _unreadable(history: History) -> Sequence[Entry[UnknownEvent]]:
    """Return the records of known kinds that have not what they must have."""
    return [each for each in history.of_kind(UnknownEvent) if each.event.name in EVENT_KINDS]


def _how_it_ended(history: History) -> str:
    ended = history.last(RunEnded)
    if ended is None:
        return "the history has no end"
    return f"the run ended first ({ended.event.reason or ended.event.outcome})"


def _judge_harness(history: History) -> Judgement:
    """Judge whether the harness did its part: nothing failed, and the history is complete."""
    verdicts = [unknown(entry.event.what, (entry.seq,)) for entry in history.of_kind(HarnessFailed)]
    verdicts += [
        unknown(f"{entry.event.name} is not as this version writes it", (entry.seq,))
        for entry in _unreadable(history)
    ]
    if history.damage:
        verdicts.append(unknown(f"the history is damaged: {history.damage}"))
    if not history.of_kind(ClausePlanned):
        verdicts.append(unknown("the history does not say what was to hold"))
    ended = history.last(RunEnded)
    if ended is not None:
        verdicts += _judge_plan(history, ended)
    if ended is None:
        verdicts.append(unknown("the history has no end: the harness was stopped before"))
    elif history.last(RunClosed) is None:
        verdicts.append(unknown("the history ends before everything was undone"))
    return Judgement(
        key="harness",
        bucket="harness",
        name="",
        text="the harness did its part",
        verdict=compose(verdicts) if verdicts else valid("nothing failed, and all is undone"),
    )


def _judge_plan(history: History, ended: Entry[RunEnded]) -> Iterator[Verdict]:
    """Judge whether all that was planned is there: a clause that is missing asks for nothing."""
    clauses = history.of_kind(ClausePlanned)
    planned = [
        entry for entry in (*clauses, *history.of_kind(FaultPlanned)) if entry.seq < ended.seq
    ]
    if ended.event.planned not in (None, len(planned)):
        yield unknown(
            f"{ended.event.planned} clauses and faults were planned, and {len(planned)} are known",
            (ended.seq,),
        )
    for key, count in Counter(entry.event.key for entry in clauses).items():
        if count > 1:
            yield unknown(f"{key} was planned {count} times")
    once = Counter(entry.event.key for entry in history.of_kind(ClauseJudged))
    for entry in clauses:
        if once[entry.event.key] > 1:
            yield unknown(f"{entry.event.text} was judged {once[entry.event.key]} times")
        if entry.event.is_negated and not entry.event.checker:
            yield unknown(f"{entry.event.text} is turned round, and no checker judges it")
