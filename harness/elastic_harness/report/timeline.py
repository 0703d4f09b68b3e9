"""The page that shows a run at a glance: lanes by node and rank, round bands, shaded faults.

One file without links to elsewhere: it can be mailed, attached to a CI run, opened offline. It says
everything without its script too, which zooms, shows what was said around a cursor, and the records
that prove a clause. Everything on it carries what it stands for as a tooltip.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from elastic_harness.history.events import (
    FileWritten,
    LastLinesSeen,
    LogMatched,
    SamplesDrawn,
    StepCompleted,
)
from elastic_harness.history.history import History
from elastic_harness.history.judge import Judgement, overall, unmet
from elastic_harness.report.cause import failed_first, first_failure, lines_of, where_ranks_stand
from elastic_harness.report.moments import Moment, moments, where_it_stood
from elastic_harness.report.noted_times import LinkUse, LogLine, link_lines, reach
from elastic_harness.report.progress import goodput, places, steps_lost
from elastic_harness.report.recoveries import recoveries
from elastic_harness.report.rendered import render
from elastic_harness.report.spans import Span, end_of, fault_spans, lanes, round_spans
from pytest_elastic.events.codec import encode_record, kind_of

__all__ = ["timeline_html"]

_MANY = (StepCompleted, SamplesDrawn, FileWritten)
_WIDTH = 1400.0
_LABELS = 130.0
_LANE_HEIGHT = 22
_TOP = 46
# Boxes narrower than this cannot be seen or hit; steps narrower than that are drawn all the same.
_MIN_BOX = 2.0
# More would not fit beside each other.
_MAX_LABELS = 25
# A page stays below 300 kB without its log lines: history.jsonl and trace.json hold everything.
# Of more steps, those of a lane that follow each other are drawn as one box.
_MAX_STEPS = 800
_MAX_MOMENTS = 400
_MAX_RECORDS_BYTES = 90_000
_MAX_RECORD_BYTES = 2_000
# Above the drawing; the others are in the list of verdicts, so that the drawing is in sight.
_MAX_WORST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle of the drawing."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    label: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A lane's name and place."""

    y: float
    name: str
    is_node: bool


def timeline_html(
    history: History,
    judgements: Sequence[Judgement] = (),
    *,
    logs: Sequence[str] = (),
    lines: Sequence[LogLine] = (),
    links: Sequence[LinkUse] = (),
    command: str = "",
) -> str:
    """Return the page.

    `logs` are paths relative to it, `lines` what stands in them, `links` what these have delivered
    and dropped; `command` repeats the run.
    """
    drawing = _Drawing(history)
    failed = failed_first(history)
    run = history.run
    titles, rows = places(history)
    told = _weightiest(moments(history))
    shown = [*unmet(judgements), *filter(None, judgements)]
    records = _listed(history, [seq for each in shown for seq in each.verdict.events])
    return render(
        "timeline.html.j2",
        title=run.event.scenario if run is not None else "a run",
        outcome=overall(judgements).outcome.value if judgements else "",
        run=run.event if run is not None else None,
        drawing=drawing,
        recoveries=recoveries(history),
        steps_lost=steps_lost(history),
        goodput=goodput(history),
        rounds=titles,
        places=rows,
        reach=reach(links, history.start),
        judgements=shown,
        worst=unmet(judgements)[:_MAX_WORST],
        moments=[(f"{each.at - history.start:.3f}", each.node, each.text) for each in told],
        records=records,
        left_out=len(history) - len(records),
        first_failure=first_failure(history),
        last_lines=lines_of(history, failed) if failed is not None else [],
        hangs=where_ranks_stand(history),
        stood=where_it_stood(history),
        logs=logs,
        command=command,
        data={
            "width": _WIDTH,
            "labels": _LABELS,
            "length": drawing.length,
            "lines": [
                *((round(m.at - history.start, 3), m.node or "run", m.text, "told") for m in told),
                *_plain(lines or _known_lines(history), history.start),
                *_plain(link_lines(links), history.start),
            ],
        },
    )


def _weightiest(found: list[Moment]) -> list[Moment]:
    """Return the moments that are worth most, in their order, if there are too many."""
    if len(found) <= _MAX_MOMENTS:
        return found
    kept = sorted(range(len(found)), key=lambda index: (-found[index].weight, index))
    return [found[index] for index in sorted(kept[:_MAX_MOMENTS])]


def _known_lines(history: History) -> list[LogLine]:
    """Return the lines of logs that the history itself has with their times."""
    found = [
        LogLine(at=matched.at, who=f"{matched.node} {matched.event.by}".strip(), text=text)
        for matched in history.of_kind(LogMatched)
        if (text := matched.event.line.rstrip()) and not matched.event.was_there
    ]
    for seen in history.of_kind(LastLinesSeen):
        who = f"{seen.node} rank {seen.event.rank}"
        found += [LogLine(at=seen.at, who=who, text=line) for line in seen.event.lines]
    return found


def _plain(lines: Sequence[LogLine], start: float) -> list[tuple[float, str, str, str]]:
    """Return lines as the script has them: seconds, source, text, class of the cell."""
    return [(round(line.at - start, 3), line.who, line.text, "") for line in lines]


def _listed(history: History, proof: Sequence[int]) -> list[tuple[int, str, str, str, str]]:
    """Return the records that fit: what proves a clause first, and steps and samples last."""
    wanted = set(proof)
    entries = sorted(
        history.entries,
        key=lambda entry: (entry.seq not in wanted, isinstance(entry.event, _MANY), entry.seq),
    )
    room = _MAX_RECORDS_BYTES
    found = []
    for entry in entries:
        raw = encode_record(entry.record)
        if len(raw) > _MAX_RECORD_BYTES:
            raw = f"{raw[:_MAX_RECORD_BYTES]}…"
        # Quotes are five bytes longer on the page, and each row has some of its own.
        room -= len(raw) + 4 * raw.count('"') + 150
        if room < 0:
            break
        at = f"{entry.at - history.start:.3f}"
        found.append((entry.seq, at, entry.node, kind_of(entry.event), raw))
    return sorted(found)


def _fewer(steps: Sequence[Span], each: int) -> list[Span]:
    """Return steps with so many neighbours drawn as one."""
    if each <= 1:
        return list(steps)
    parts: list[list[Span]] = []
    for step in steps:
        # The detail names the rank and the round: steps of different workers stay apart.
        if not parts or len(parts[-1]) == each or step.detail != parts[-1][-1].detail:
            parts.append([])
        parts[-1].append(step)
    return [
        replace(
            part[0],
            end=part[-1].end,
            label=part[0].label
            if len(part) == 1
            else f"{part[0].label} to {part[-1].label.removeprefix('step ')}",
        )
        for part in parts
    ]


class _Drawing:
    """Places everything; the template only writes it down."""

    def __init__(self, history: History) -> None:
        self._start = history.start
        length = max(end_of(history) - self._start, 0.001)
        self._scale = (_WIDTH - _LABELS) / length
        self.width = _WIDTH
        self.labels = _LABELS
        self.length = round(length, 3)
        found = lanes(history)
        total = sum(span.kind == "step" for lane in found for span in lane.spans)
        each = -(-total // _MAX_STEPS)
        self.rows: list[Row] = []
        self.boxes: list[Box] = []
        y = float(_TOP)
        for lane in found:
            is_node = lane.name == lane.node
            y += 8 if is_node else 0
            self.rows.append(Row(y=y, name=lane.name, is_node=is_node))
            workers = [span for span in lane.spans if span.kind in ("node", "worker")]
            holds = [span for span in lane.spans if span.kind == "hold"]
            steps = _fewer([span for span in lane.spans if span.kind == "step"], each)
            self.boxes += [self._box(span, y) for span in (*workers, *steps, *holds)]
            y += _LANE_HEIGHT
        self.height = y + 30
        lane_height = y - _TOP
        self.rounds = [self._band(span, lane_height) for span in round_spans(history)]
        self.faults = [self._band(span, lane_height) for span in fault_spans(history)]
        self.ticks = self._ticks(length)

    def _x(self, at: float) -> float:
        return round(_LABELS + (at - self._start) * self._scale, 1)

    def _box(self, span: Span, y: float) -> Box:
        inset = {"node": 8, "worker": 3, "step": 5, "hold": 5}.get(span.kind, 3)
        x = self._x(span.start)
        return Box(
            x=x,
            y=y + inset,
            width=max(round(self._x(span.end) - x, 1), _MIN_BOX if span.kind != "step" else 0.5),
            height=_LANE_HEIGHT - 2 * inset,
            kind=span.kind,
            label=span.label if span.kind == "worker" else "",
            title=self._title(span),
        )

    def _band(self, span: Span, height: float) -> Box:
        x = self._x(span.start)
        return Box(
            x=x,
            y=_TOP,
            width=max(round(self._x(span.end) - x, 1), _MIN_BOX),
            height=height,
            kind=span.kind,
            label=span.label,
            title=self._title(span),
        )

    def _title(self, span: Span) -> str:
        start, end = span.start - self._start, span.end - self._start
        return f"{span.label}: {span.detail}\n{start:.3f} s to {end:.3f} s, record {span.seq}"

    def _ticks(self, length: float) -> list[tuple[float, str]]:
        """Return round times along the top, ten to twenty-five with a label, and what divides them.

        Their steps are 1, 2 or 5 of a power of ten; a tick between two labels has none.
        """
        power, factor = min(
            (power, factor)
            for power in range(-3, sys.float_info.max_10_exp + 1)  # a changed file may say anything
            for factor in (1, 2, 5)
            if length <= _MAX_LABELS * factor * 10.0**power
        )
        parts = 4 if factor == 2 else 5
        step = factor * 10.0**power
        return [
            (
                self._x(self._start + i * step / parts),
                "" if i % parts else f"{i // parts * step:g} s",
            )
            for i in range(int(parts * length / step) + 1)
        ]
