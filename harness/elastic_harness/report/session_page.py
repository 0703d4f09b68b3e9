"""The page of a session: every run with its verdict, cause, duration, seed and link.

The same is told to GitHub, for the page of a workflow's run, in its Markdown. There a table may be
HTML, so nothing that a test or a worker has said can be taken for markup, once it is escaped.
"""

from __future__ import annotations

import html
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from elastic_harness.history.history import History
from elastic_harness.history.judge import Judgement, overall, unmet
from elastic_harness.history.verdict import Outcome
from elastic_harness.report.cause import first_failure
from elastic_harness.report.rendered import render
from elastic_harness.report.spans import end_of

__all__ = ["RunSummary", "counts_of", "in_order", "session_html", "step_summary", "summary_of"]

_WORST_FIRST = (Outcome.INVALID.value, Outcome.UNKNOWN.value, Outcome.VALID.value)
# What is said of parts that do not fit a summary takes less than this.
_FOR_THE_NOTE = 200
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


# --- for GitHub ----------------------------------------------------------------------------------


def step_summary(runs: Iterable[RunSummary], *, at_most: int) -> str:
    """Return the summary in at most so many bytes; what matters most is left out last.

    First the table of runs that are not valid, then their screens, then the valid ones. Empty
    where not even the heading fits.
    """
    ordered = in_order(runs)
    unmet = [run for run in ordered if run.outcome != Outcome.VALID.value]
    heading = f"### pytest-elastic: {counts_of(ordered)}\n\n"
    room = at_most - len(heading.encode()) - _FOR_THE_NOTE
    if room < 0:
        return ""
    rows, room = _fitting((_row(run) for run in unmet), room)
    screens, room = _fitting((_screen(run) for run in unmet if run.screen), room)
    valid, room = _fitting((_row(run) for run in ordered if run not in unmet), room)
    left_out = len(ordered) - len(rows) - len(valid)
    cut = sum(bool(run.screen) for run in unmet) - len(screens)
    text = heading
    if rows or valid:
        text += f"<table>\n{''.join([*rows, *valid])}</table>\n\n"
    text += "".join(screens)
    if left_out or cut:
        text += f"Left out, as this summary has a limit: {left_out} runs, {cut} screens.\n"
    return text


def _fitting(parts: Iterable[str], room: int) -> tuple[list[str], int]:
    """Return the first parts that fit, and the room that is left."""
    found: list[str] = []
    for part in parts:
        size = len(part.encode())
        if size > room:
            # What comes later is worth less, even if it were shorter.
            return found, 0
        found.append(part)
        room -= size
    return found, room


def _row(run: RunSummary) -> str:
    cells = (run.outcome, run.name, run.cause, f"{run.seconds:.1f} s", f"seed {run.seed}")
    # A blank line would end the table.
    shown = (html.escape(" ".join(cell.split())) for cell in cells)
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in shown) + "</tr>\n"


def _screen(run: RunSummary) -> str:
    name = html.escape(" ".join(run.name.split()))
    return (
        f"<details><summary>{name}</summary>\n\n"
        f"<pre>\n{html.escape(run.screen)}\n</pre>\n\n</details>\n\n"
    )
