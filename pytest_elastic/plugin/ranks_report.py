"""What the ranks of one test told, as one report: each difference once, the cause first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter
from elastic_harness.ranks.stacks import Place, brief, names, place_in, who_is_missing
from elastic_harness.ranks.task import RankEnd

__all__ = ["MergedReport", "merge"]

# What a rank says whose peer has gone: it followed, and did not cause.
_FOLLOWS = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|DistBackendError"
    r"|DistNetworkError|DistStoreError|gloo/transport"
)
# Each rank has its own connections: what else it says is the same.
_PORT = re.compile(r"(?<=\]):\d+")
_XPASS = "[XPASS(strict)]"


@dataclass(slots=True)
class _Told:
    """What is known of one rank."""

    rank: int
    ended_s: float
    reports: Sequence[pytest.TestReport] = ()
    wrong: str = ""  # one line, "" if it did not fail
    where: str = ""  # the crash, as "file:line"
    report: pytest.TestReport | None = None
    text: str = ""  # instead of a report: stacks
    gone: str = ""  # why it told nothing, if the test itself has asked for that

    @property
    def is_follower(self) -> bool:
        return _FOLLOWS.search(self.wrong) is not None

    @property
    def ended_as(self) -> str:
        """How its test ended, if that did not fail: passed, skipped or xfailed."""
        report = _decisive(self.reports) if self.reports else None
        if report is None or report.outcome != "skipped":
            return "passed"
        return "xfailed" if hasattr(report, "wasxfail") else "skipped"

    @property
    def key(self) -> tuple[str, str]:
        return (_PORT.sub("", self.wrong), self.where)


class RanksRepr(TerminalRepr):
    """The failure of a test on several ranks, as a terminal shows it."""

    def __init__(self, headline: str, groups: Sequence[tuple[str, _Told]]) -> None:
        self.headline = headline
        self._groups = groups
        first = next((told for _, told in groups), None)
        crash = getattr(getattr(first and first.report, "longrepr", None), "reprcrash", None)
        path, line = (crash.path, crash.lineno) if crash is not None else ("", 0)
        self.reprcrash = ReprFileLocation(path, line, headline.partition("\n")[0])

    def toterminal(self, tw: TerminalWriter) -> None:
        """Write the headline, then each difference."""
        for line in self.headline.splitlines():
            tw.line(line, red=True, bold=True)
        for title, told in self._groups:
            tw.sep("_ ", title)
            longrepr: Any = told.report.longrepr if told.report is not None else told.text
            if hasattr(longrepr, "toterminal"):
                longrepr.toterminal(tw)
            else:
                tw.line(str(longrepr))


@dataclass(slots=True)
class MergedReport:
    """The outcome of a test on ranks, in the fields of a `TestReport`."""

    outcome: str
    longrepr: Any = None
    reason: str = ""
    wasxfail: str | None = None
    sections: Sequence[tuple[str, str]] = ()
    user_properties: list[tuple[str, object]] = field(default_factory=list)

    def raise_as_outcome(self) -> None:
        """Raise what pytest is to see of it, if it has not passed."""
        if self.wasxfail is not None and self.outcome == "skipped":
            pytest.xfail(self.wasxfail)
        if self.outcome == "skipped":
            pytest.skip(self.reason)
        if self.outcome == "failed":
            pytest.fail(self.reason, pytrace=False)

    def complete(self, report: pytest.TestReport) -> None:
        """Write it into the report that pytest has made of the call."""
        report.outcome = self.outcome  # type: ignore[assignment]
        report.longrepr = self.longrepr
        if self.wasxfail is not None:
            report.wasxfail = self.wasxfail
        elif hasattr(report, "wasxfail"):
            del report.wasxfail
        report.sections = [*report.sections, *self.sections]
        report.user_properties = [*report.user_properties, *self.user_properties]


def merge(item: pytest.Item, size: int, ends: Sequence[RankEnd]) -> MergedReport:
    """Return the one report of a test; `pytest.exit` on a rank is obeyed here."""
    for end in ends:
        if isinstance(end.result, dict) and "exit" in end.result:
            pytest.exit(f"{end.result['exit']} (rank {end.rank})")
    told = [_told(item, end) for end in ends]
    sections = _sections([one for one in told if not one.is_follower])
    properties = list(told[0].reports[-1].user_properties) if told[0].reports else []
    if all(one.gone for one in told):
        told[0].wrong = "no rank is left to say whether the test passed"
    if any(one.ended_as == "xfailed" for one in told):
        for one in told:  # a test that was to fail has failed, though not on this rank
            one.wrong = "" if one.wrong.startswith(_XPASS) else one.wrong
    wrong = sorted((one for one in told if one.wrong), key=lambda one: one.ended_s)
    if wrong:
        longrepr = _failure(size, told, wrong, ends)
        return MergedReport(
            outcome="failed",
            longrepr=longrepr,
            reason=longrepr.headline,
            sections=sections,
            user_properties=properties,
        )
    reports = {one.ended_as: _decisive(one.reports) for one in reversed(told) if one.reports}
    chosen = next(reports[each] for each in ("xfailed", "passed", "skipped") if each in reports)
    return MergedReport(
        outcome=chosen.outcome,
        longrepr=chosen.longrepr,
        reason=_reason(chosen),
        wasxfail=getattr(chosen, "wasxfail", None),
        sections=sections,
        user_properties=properties,
    )


def _told(item: pytest.Item, end: RankEnd) -> _Told:
    told = _Told(end.rank, end.ended_s)
    from_plain = item.config.hook.pytest_report_from_serializable
    if end.result is not None:
        told.reports = [from_plain(config=item.config, data=data) for data in end.result["reports"]]
        told.report = next((report for report in told.reports if report.failed), None)
    if told.report is not None:
        crash = getattr(told.report.longrepr, "reprcrash", None)
        lines = (crash.message if crash is not None else told.report.longreprtext).splitlines()
        when = "" if told.report.when == "call" else f"{told.report.when}: "
        told.wrong = when + (lines[0] if lines else "failed")
        told.where = f"{crash.path}:{crash.lineno}" if crash is not None else ""
    elif end.asked and not end.overdue and not end.result:
        told.gone = end.asked
    elif end.overdue or (end.died and not end.asked):
        place = place_in(end.stacks)
        told.wrong = (f"{place}; " if place is not None else "") + (end.overdue or end.died)
        told.text = brief(end.stacks) or "It showed no stack."
    return told


def _failure(
    size: int, told: Sequence[_Told], wrong: Sequence[_Told], ends: Sequence[RankEnd]
) -> RanksRepr:
    overdue = {end.rank: place_in(end.stacks) for end in ends if end.overdue}
    # A rank that failed is the cause of all that waited for it; else a missing rank is. Where ranks
    # have only lost connections, or were ended, it is not known which was first: all are shown.
    causes = [one for one in wrong if not one.is_follower and one.rank not in overdue] or wrong
    groups: dict[tuple[str, str], list[_Told]] = {}
    for one in causes:
        groups.setdefault(one.key, []).append(one)
    if len(overdue) == len(wrong):  # the missing ranks are fewer than the waiting ones
        groups = dict(
            sorted(groups.items(), key=lambda each: (_waits(overdue, each[1]), len(each[1])))
        )
    sentences = [
        f"{names(sorted(each.rank for each in group))}: {group[0].wrong}"
        for group in groups.values()
    ]
    if len(overdue) == len(wrong):
        places = {one.rank: overdue.get(one.rank) for one in told}
        sentences = [*filter(None, [who_is_missing(places)]), *sentences]
    followed = [one.rank for one in wrong if one not in causes]
    if followed:
        sentences.append(f"{names(sorted(followed))} failed because of that")
    for one in told:
        if one.gone:
            sentences.append(f"rank {one.rank} {one.gone}")
    for word in ("passed", "xfailed", "skipped"):
        ended = [
            one.rank for one in told if not one.wrong and not one.gone and one.ended_as == word
        ]
        if ended:
            sentences.append(f"{names(ended)} {word}")
    shown = [
        (f"{names(sorted(each.rank for each in group))} of {size}", group[0])
        for group in groups.values()
    ]
    return RanksRepr("\n".join(sentences), shown)


def _waits(overdue: Mapping[int, Place | None], group: Sequence[_Told]) -> bool:
    """Tell whether a group of ranks was ended while it waited in a collective."""
    place = overdue.get(group[0].rank)
    return place is not None and bool(place.collective)


def _decisive(reports: Sequence[pytest.TestReport]) -> pytest.TestReport:
    """Return the report that says how a rank's test ended, which has not failed."""
    return next((report for report in reports if report.outcome != "passed"), reports[-1])


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return report.longreprtext


def _sections(told: Sequence[_Told]) -> list[tuple[str, str]]:
    """Return what ranks have printed, where it was the same once."""
    found: dict[tuple[str, str], list[int]] = {}
    for one in told:
        for report in one.reports[-1:]:
            for name, content in report.sections:
                found.setdefault((name, content), []).append(one.rank)
    return [(f"{name} ({names(ranks)})", content) for (name, content), ranks in found.items()]
