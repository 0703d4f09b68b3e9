"""The page of a session: every run with its verdict, cause, duration, seed and link."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone

from elastic_harness.history.history import History
from elastic_harness.history.judge import Judgement, overall, unmet
from elastic_harness.history.verdict import Outcome
from elastic_harness.report.moments import first_failure
from elastic_harness.report.rendered import render
from elastic_harness.report.spans import end_of

__all__ = ["RunSummary", "counts_of", "in_order", "session_html", "summary_of"]

_WORST_FIRST = (Outcome.INVALID.value, Outcome.UNKNOWN.value, Outcome.VALID.value)
# Longer ones are in the failure's screen.
_LONGEST_CAUSE = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run on the page of its session; all fields are plain, to be sent between processes.

    `outcome` is valid, invalid or unknown; `directory` is empty where the run was not kept, and
    `screen` where nothing failed.
    """

    name: str
    outcome: str
    cause: str
    seconds: float
    seed: int
    directory: str = ""
    screen: str = ""

    def to_plain(self) -> dict[str, object]:
        """Return the fields by name."""
        return asdict(self)

    @classmethod
    def from_plain(cls, fields: Mapping[str, object]) -> RunSummary:
        """Return the summary with these fields."""
        return cls(**fields)  # type: ignore[arg-type]  # of our own making


def summary_of(
    history: History,
    judgements: Sequence[Judgement],
    *,
    name: str,
    directory: str = "",
    screen: str = "",
) -> RunSummary:
    """Sum a run up; its cause is the worst clause with its reason, and what failed first."""
    run = history.run
    return RunSummary(
        name=name,
        outcome=overall(judgements).outcome.value,
        cause=_cause(history, judgements),
        seconds=end_of(history) - history.start,
        seed=run.event.seed if run is not None else 0,
        directory=directory,
        screen=screen,
    )


def _cause(history: History, judgements: Sequence[Judgement]) -> str:
    found = unmet(judgements)
    if not found:
        return ""
    reasons = found[0].verdict.reason.strip().splitlines() or [""]
    # Of a traceback the last line says what happened.
    cause = f"{found[0].title}: {reasons[-1]}"
    if failure := first_failure(history):
        cause += f" (first failure: {failure})"
    return cause if len(cause) <= _LONGEST_CAUSE else cause[: _LONGEST_CAUSE - 1] + "…"


def in_order(runs: Iterable[RunSummary]) -> list[RunSummary]:
    """Return runs as they are shown: invalid first, then unknown, then valid, each by name."""
    return sorted(runs, key=lambda run: (_WORST_FIRST.index(run.outcome), run.name))


def counts_of(runs: Iterable[RunSummary]) -> str:
    """Return how many runs there were, and of what verdict: `12 runs: 1 invalid, 11 valid`."""
    counted = Counter(run.outcome for run in runs)
    total = counted.total()
    parts = [f"{counted[name]} {name}" for name in _WORST_FIRST if counted[name]]
    return f"{total} {'run' if total == 1 else 'runs'}: {', '.join(parts)}"


def session_html(
    runs: Iterable[RunSummary], *, folder: str, earlier: Iterable[tuple[str, float]] = ()
) -> str:
    """Return the page; links to the runs' own pages are relative to `folder`.

    `earlier` are the folders of runs of other sessions, with their times (seconds since 1970).
    """
    ordered = in_order(runs)
    return render(
        "session.html.j2",
        title=counts_of(ordered),
        runs=[(run, _link(run, folder)) for run in ordered],
        earlier=[
            (os.path.basename(path), _page_of(path, folder), _shown_time(written_at))
            for path, written_at in earlier
        ],
    )


def _link(run: RunSummary, folder: str) -> str:
    if not run.directory:
        return ""
    return _page_of(run.directory, folder)


def _page_of(directory: str, folder: str) -> str:
    return os.path.join(os.path.relpath(directory, folder), "timeline.html")


def _shown_time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"
