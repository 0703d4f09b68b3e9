"""The page that shows a run at a glance: lanes by node and rank, round bands, shaded faults.

One file without scripts or links to elsewhere: it can be mailed, attached to a CI run, opened
offline. Everything on it carries what it stands for as a tooltip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastic_harness.history.history import History
from elastic_harness.history.judge import Judgement, unmet
from elastic_harness.report.cause import failed_first, lines_of, where_ranks_stand
from elastic_harness.report.moments import first_failure, moments, where_it_stood
from elastic_harness.report.progress import goodput, places, steps_lost
from elastic_harness.report.recoveries import recoveries
from elastic_harness.report.rendered import render
from elastic_harness.report.spans import Span, end_of, fault_spans, lanes, round_spans
from pytest_elastic.events.codec import encode_record, kind_of

__all__ = ["timeline_html"]

_WIDTH = 1400.0
_LABELS = 130.0
_LANE_HEIGHT = 22
_TOP = 46
# Boxes narrower than this cannot be seen or hit; steps narrower than that are drawn all the same.
_MIN_BOX = 2.0
# More would not fit beside each other.
_MAX_LABELS = 25
# Beyond this many steps a lane's boxes would overlap: browsers take seconds for what nobody sees.
_MAX_STEPS_PER_LANE = 1500
# The list below the drawing is for reading; history.jsonl beside it holds everything.
_MAX_LISTED = 3000


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
    command: str = "",
) -> str:
    """Return the page. `logs` are paths relative to it; `command` repeats the run."""
    drawing = _Drawing(history)
    failed = failed_first(history)
    run = history.run
    titles, rows = places(history)
    return render(
        "timeline.html.j2",
        title=run.event.scenario if run is not None else "a run",
        run=run.event if run is not None else None,
        drawing=drawing,
        recoveries=recoveries(history),
        steps_lost=steps_lost(history),
        goodput=goodput(history),
        rounds=titles,
        places=rows,
        judgements=[*unmet(judgements), *filter(None, judgements)],
        moments=[
            (f"{moment.at - history.start:.3f}", moment.node, moment.text)
            for moment in moments(history)
        ],
        records=_listed(history),
        left_out=max(0, len(history) - _MAX_LISTED),
        first_failure=first_failure(history),
        last_lines=lines_of(history, failed) if failed is not None else [],
        hangs=where_ranks_stand(history),
        stood=where_it_stood(history),
        logs=logs,
        command=command,
    )


def _listed(history: History) -> list[tuple[int, str, str, str, str]]:
    return [
        (
            entry.seq,
            f"{entry.at - history.start:.3f}",
            entry.node,
            kind_of(entry.event),
            encode_record(entry.record),
        )
        for entry in history.entries[:_MAX_LISTED]
    ]


class _Drawing:
    """Places everything; the template only writes it down."""

    def __init__(self, history: History) -> None:
        self._start = history.start
        length = max(end_of(history) - self._start, 0.001)
        self._scale = (_WIDTH - _LABELS) / length
        self.width = _WIDTH
        self.labels = _LABELS
        self.rows: list[Row] = []
        self.boxes: list[Box] = []
        y = float(_TOP)
        for lane in lanes(history):
            is_node = lane.name == lane.node
            y += 8 if is_node else 0
            self.rows.append(Row(y=y, name=lane.name, is_node=is_node))
            steps = [span for span in lane.spans if span.kind == "step"]
            hidden = set(map(id, steps)) if len(steps) > _MAX_STEPS_PER_LANE else set()
            self.boxes += [self._box(span, y) for span in lane.spans if id(span) not in hidden]
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
            for power in range(-3, 9)
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
