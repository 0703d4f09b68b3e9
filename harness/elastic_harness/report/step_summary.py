"""The summary of a session as GitHub shows it on the page of a workflow's run.

Its format is GitHub's Markdown, in which a table may be HTML: so nothing that a test or a worker
has said can be taken for markup, once it is escaped as HTML.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from elastic_harness.history.verdict import Outcome
from elastic_harness.report.session_page import RunSummary, counts_of, in_order

__all__ = ["step_summary"]

# What is said of parts that do not fit takes less than this.
_FOR_THE_NOTE = 200


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
