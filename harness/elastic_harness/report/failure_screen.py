"""A failure on one screen.

In the order of a reader's questions: what was expected and where that is written; why it does not
hold; what happened, a column for each node; how far things had come, and why the launcher ended the
job; whether leases were lost by no fault; what failed first, and what it said; where the ranks
of a job stand that hangs; where all of it lies; and, last, the command that does it again.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from elastic_harness.history.history import History
from elastic_harness.history.verdict import Outcome
from elastic_harness.report.cause import (
    failed_first,
    first_failure,
    is_about_others,
    leases_lost_unasked,
    lines_of,
    where_ranks_stand,
    why_it_ended,
)
from elastic_harness.report.moments import Moment, moments, where_it_stood
from pytest_elastic.rendezvous.model import natural_key

__all__ = ["Place", "UnmetClause", "failure_screen"]

_WIDTH = 100
_BESIDE_TITLE = _WIDTH - 15
_HEIGHT = 45
_TIME_WIDTH = 8
# Below this a column says nothing any more: the quietest nodes are left out instead.
_MIN_COLUMN = 17
# Moments this close stand on one line, each in its own column.
_SAME_LINE_S = 0.05
_MORE_CLAUSES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a clause is written.

    `source` is the line itself; `column` and `length` mark the clause in it (from 1; a length of 0
    marks the rest of the line).
    """

    file: str
    line: int
    column: int = 1
    source: str = ""
    length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmetClause:
    """A clause that does not hold, or could not be judged; `events` are the proof."""

    text: str
    outcome: Outcome
    reason: str
    place: Place | None = None
    events: tuple[int, ...] = ()


def failure_screen(
    history: History,
    unmet: Sequence[UnmetClause],
    *,
    run_directory: str,
    command: str,
    last_words: str = "",
    note: str = "",
) -> str:
    """Return the report of a failed run: at most 45 lines of at most 100 columns.

    The worst clause is shown in full, invalid before unknown; `last_words` were printed where it
    failed first; `note` is what else is known of the run.
    """
    ordered = sorted(unmet, key=lambda clause: clause.outcome is not Outcome.INVALID)
    head = _head(ordered)
    tail = [
        *_standing(history, unmet, last_words),
        *([f"shrunk         {note}"] if note else []),
        # These two are to be copied: they are never cut.
        f"run directory  {run_directory}",
        f"again          {command}",
    ]
    room = _HEIGHT - len(head) - len(tail) - 2
    proof = {seq for clause in ordered[:1] for seq in clause.events}
    strip = _strip(history, proof, room) if room >= 3 else []
    lines = [*head, *([""] if strip else []), *strip, "", *tail]
    return "\n".join(line.rstrip() for line in lines[:_HEIGHT])


def _head(unmet: Sequence[UnmetClause]) -> list[str]:
    if not unmet:
        return ["the run failed, and every clause holds"]
    first, *others = unmet
    lines = [_cut(f"{first.outcome.value.upper()}: {first.text}")]
    if first.place is not None:
        lines += _excerpt(first.place)
    lines += _folded(first.reason, _WIDTH - 2, 6)
    for clause in others[:_MORE_CLAUSES]:
        reason = clause.reason.splitlines()[0] if clause.reason else ""
        lines.append(_cut(f"{clause.outcome.value.upper()}: {clause.text}: {reason}"))
    if len(others) > _MORE_CLAUSES:
        lines.append(f"and {len(others) - _MORE_CLAUSES} more clauses")
    return lines


def _excerpt(place: Place) -> list[str]:
    lines = [_cut(f"  {place.file}:{place.line}:{place.column}")]
    if place.source:
        number = str(place.line)
        source = place.source.rstrip()
        length = place.length or max(1, len(source) - place.column + 1)
        lines.append(_cut(f"  {number} | {source}"))
        lines.append(_cut(f"  {' ' * len(number)} | {' ' * (place.column - 1)}{'^' * length}"))
    return lines


def _standing(history: History, unmet: Sequence[UnmetClause], last_words: str) -> list[str]:
    lines = [f"last seen      {where_it_stood(history)}"]
    ended = why_it_ended(history)
    _, _, reason = ended.partition(": ")
    if ended and not any(reason in clause.reason for clause in unmet):
        lines += _listed("job ended", _wrapped(ended))
    if lost := leases_lost_unasked(history):
        lines += _listed("leases lost", _wrapped(lost))
    failed = failed_first(history)
    failure = first_failure(history)
    said = [_fitted(line) for line in lines_of(history, failed)] if failed else []
    if not (said or last_words in failure or is_about_others(last_words)):
        said = [last_words]
    if failure:
        lines += _listed("first failure", _wrapped(failure))
        lines += _listed("", said)
    else:
        lines += _listed("last words", said)
    stands = [line for each in where_ranks_stand(history) for line in _wrapped(each)]
    lines += _listed("where it hangs", stands)
    return [_cut(line) for line in lines]


def _fitted(line: str) -> str:
    """Return a line of a traceback with the end of its path only, if it is too long beside a title.

    What stands behind the path, the line's number, must not be cut off.
    """
    if len(line) <= _BESIDE_TITLE:
        return line
    return re.sub(r'File "[^"]*/([^"/]+/[^"/]+)"', r'File "…/\1"', line)


def _wrapped(text: str) -> list[str]:
    """Return a text in two lines, if it does not fit into one beside a title."""
    return textwrap.wrap(
        text, _BESIDE_TITLE, max_lines=2, placeholder="…", subsequent_indent="  ", tabsize=4
    )


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    """Return lines beside a title."""
    titles = [title, *[""] * len(lines)]
    return [f"{title:<14} {line}" for title, line in zip(titles, lines, strict=False)]


def _strip(history: History, proof: set[int], room: int) -> list[str]:
    found = moments(history, proof)
    columns = _columns(found, proof)
    column_width = (_WIDTH - _TIME_WIDTH) // max(1, len(columns))
    lines = _lines_of([moment for moment in found if moment.node in ("", *columns)])
    kept = _kept(lines, proof, room - 1)
    out = [" " * _TIME_WIDTH + "".join(_cell(name, column_width) for name in columns)]
    skipped = 0
    for line in [*lines, None]:
        if line is not None and line not in kept:
            skipped += 1
            continue
        if skipped:
            out.append(f"{'':>{_TIME_WIDTH}}({skipped} more)")
            skipped = 0
        if line is not None:
            time = f"{line[0].at - history.start:{_TIME_WIDTH - 2}.2f}  "
            cells = {moment.node: _mark(moment, proof) + moment.text for moment in line}
            if "" in cells:
                out.append(_cut(time + cells[""]))
            else:
                row = (_cell(cells.get(name, ""), column_width) for name in columns)
                out.append(time + "".join(row))
    return out if len(out) > 1 else []


def _columns(found: list[Moment], proof: set[int]) -> list[str]:
    """Return the columns that fit: nodes in order of appearance, those with most to tell first."""
    names = sorted({moment.node for moment in found if moment.node}, key=natural_key)
    most = max(1, (_WIDTH - _TIME_WIDTH) // _MIN_COLUMN)
    if len(names) <= most:
        return names
    worth = {
        name: sum(
            moment.weight + 100 * bool(proof & set(moment.seqs))
            for moment in found
            if moment.node == name
        )
        for name in names
    }
    chosen = sorted(names, key=lambda name: -worth[name])[:most]
    return [name for name in names if name in chosen]


def _lines_of(found: list[Moment]) -> list[list[Moment]]:
    """Group moments that are close in time and stand in different columns."""
    lines: list[list[Moment]] = []
    for moment in found:
        last = lines[-1] if lines else []
        is_free = bool(last) and all(other.node not in ("", moment.node) for other in last)
        is_free = is_free and moment.node != ""
        if is_free and moment.at - last[0].at <= _SAME_LINE_S:
            last.append(moment)
        else:
            lines.append([moment])
    return lines


def _kept(lines: list[list[Moment]], proof: set[int], room: int) -> list[list[Moment]]:
    """Return the lines that fit: the weightiest, proof first, with room for the gaps' own lines."""
    if len(lines) <= room:
        return lines

    def weight(index: int) -> tuple[int, int]:
        is_proof = any(proof & set(moment.seqs) for moment in lines[index])
        return 100 * is_proof + max(moment.weight for moment in lines[index]), index

    by_weight = sorted(range(len(lines)), key=weight, reverse=True)
    for count in range(min(room, len(lines)), 0, -1):
        chosen = sorted(by_weight[:count])
        gaps = sum(b - a > 1 for a, b in zip([-1, *chosen], [*chosen, len(lines)], strict=True))
        if count + gaps <= room:
            return [lines[index] for index in chosen]
    return []


def _mark(moment: Moment, proof: set[int]) -> str:
    return "* " if proof & set(moment.seqs) else ""


def _cell(text: str, width: int) -> str:
    return _cut(text, width - 1).ljust(width)


def _cut(text: str, width: int = _WIDTH) -> str:
    text = " ".join(text.split("\n")) if "\n" in text else text
    return text if len(text) <= width else text[: width - 1] + "…"


def _folded(text: str, width: int, most: int) -> list[str]:
    """Return text in so many indented lines at most; the end stays, as in a traceback."""
    lines = [
        line
        for paragraph in text.splitlines() or [""]
        for line in textwrap.wrap(
            paragraph, width, break_on_hyphens=False, drop_whitespace=True, expand_tabs=False
        )
        or [""]
    ]
    if len(lines) > most:
        lines = [*lines[: most // 2], "...", *lines[-(most - most // 2 - 1) :]]
    return [f"  {line}" for line in lines]
