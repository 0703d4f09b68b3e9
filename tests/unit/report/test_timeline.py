from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from elastic_harness.history.checkers import STANDARD
from elastic_harness.history.events import (
    LastLinesSeen,
    LogMatched,
    RankHeld,
    StackSeen,
    WorkerGone,
    WorkerRaised,
)
from elastic_harness.history.history import History
from elastic_harness.history.judge import Judgement, judge_checks
from elastic_harness.history.verdict import Verdict, invalid, unknown, valid
from elastic_harness.report.spans import lanes
from elastic_harness.report.timeline import timeline_html

from tests.unit.history.story import Story


def small() -> History:
    """One node, one worker, one step, one fault."""
    story = Story(nodes=1).round(1, ["n1"]).wait(0.5).steps(1, 1, 1).wait(0.5)
    return story.fault("crash", "kill", "rank 0").gone(1).end("failed", launchers=["n1"]).history


def data_of(page: str) -> dict[str, Any]:
    """Return what the page's script is given."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


class Checker(HTMLParser):
    """Finds out whether tags are closed in order and nothing is fetched from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_fetches_nothing() -> None:
    """Tags close in order; the only links are to the logs beside it, and nothing else may load."""
    judgements = judge_checks(small(), STANDARD.default_checks())
    page = timeline_html(
        small(), judgements, logs=["logs/n1/rank 0.log"], command="pytest x --elastic-seed=7"
    )
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert checker.links == ["logs/n1/rank%200.log"]
    assert "://" not in page
    assert "content=\"default-src 'none'; " in page
    assert "pytest x --elastic-seed=7" in page
    assert '<td class="unknown">' not in page


def test_what_users_wrote_cannot_break_the_page() -> None:
    """Names and messages are text, never markup."""
    story = Story().fault("<b>x</b>", "<script>alert(1)</script>", "n2")
    page = timeline_html(story.history)
    assert "<script>alert" not in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page


def test_a_line_of_a_log_cannot_end_the_pages_data() -> None:
    """The script reads what it shows from an element of the page."""
    line = "</script><script>alert(1)</script>"
    story = Story(nodes=1).round(1, ["n1"])
    story.tell("worker", "n1", LogMatched(pattern="alert", line=line, by="rank 0"))
    page = timeline_html(story.history)
    assert "<script>alert" not in page
    assert page.count("</script>") == 2
    assert [0.02, "n1 rank 0", line, ""] in data_of(page)["lines"]


def test_the_cause_stands_at_the_top_as_text() -> None:
    """What the first failed worker said, and where ranks hang."""
    story = Story(nodes=1).round(1, ["n1"])
    pid = story.pids[1, 0]
    story.tell("worker", "n1", WorkerRaised(pid=pid, rank=0, error="OSError", message="<in use>"))
    lines = ("  bind(<address>)", "OSError: <in use>")
    story.tell("worker", "n1", LastLinesSeen(pid=pid, rank=0, file="launcher.log", lines=lines))
    frames = ("/me/train.py:88 in <module>",)
    page = timeline_html(
        story.end("limit").tell("worker", "n1", StackSeen(pid=pid, rank=0, frames=frames)).history
    )
    assert "first failure: rank 0 on n1: OSError: &lt;in use&gt;" in page
    assert "<pre>  bind(&lt;address&gt;)</pre>" in page
    assert "<pre>rank 0 on n1: train.py:88 in &lt;module&gt;</pre>" in page


def test_the_verdict_stands_beside_the_title() -> None:
    """A reader of a page that was sent to them sees first how the run came out."""
    page = timeline_html(small(), [judgement("job", valid("it ended well"))])
    assert '<span class="valid">valid</span></h1>' in page


def test_the_worst_clauses_stand_above_the_drawing() -> None:
    """Why a run failed is on the first screen: up to three clauses, invalid before unknown."""
    found = [
        judgement("seen", valid("all <fine>")),
        judgement("unseen", unknown("too little")),
        *(judgement(f"late {n}", invalid("by 3 s")) for n in range(3)),
    ]
    top = timeline_html(small(), found).partition("<svg")[0]
    assert re.findall(r'<p class="worst"><span class="(\w+)">.*?<b>(.*?)</b>', top) == [
        ("invalid", f"late {n}") for n in range(3)
    ]
    top = timeline_html(small(), found[:2]).partition("<svg")[0]
    assert '<span class="unknown">unknown</span> <b>unseen</b>: too little' in top
    assert 'class="worst"' not in timeline_html(small(), found[:1])


def test_the_drawing_of_a_small_run_shown_whole() -> None:
    """Ticks, the round's band, the lanes, the worker's life and its step, the fault."""
    page = timeline_html(small())
    drawing = re.search(r"<svg.*</svg>", page, re.DOTALL)
    assert drawing is not None
    expected = Path(__file__).with_name("small_drawing.svg").read_text()
    assert drawing[0] + "\n" == expected


def test_the_first_step_is_a_mark_and_not_the_time_since_the_workers_start() -> None:
    """When its work began is not recorded: imports and the process group came before it."""
    story = Story(nodes=1).round(1, ["n1"]).wait(12).steps(1, 1, 2)
    (worker,) = (lane for lane in lanes(story.history) if lane.name != lane.node)
    first, second = (span for span in worker.spans if span.kind == "step")
    assert first.start == first.end
    assert second.start == pytest.approx(first.end, abs=0.02)


def test_a_hold_ends_with_its_worker() -> None:
    """A rank that is killed while it is held is not held in the next round."""
    story = Story(nodes=1).round(1, ["n1"]).steps(1, 1, 1)
    pid = story.pids[1, 0]
    story.tell("worker", "n1", RankHeld(pid=pid, rank=0, step=1)).gone(1)
    history = story.wait(5).round(2, ["n1"]).wait(5).finish(2).history
    (hold,) = (span for lane in lanes(history) for span in lane.spans if span.kind == "hold")
    gone = history.first(WorkerGone)
    assert gone is not None
    assert hold.end == gone.at


def test_nodes_stand_in_the_order_of_their_numbers() -> None:
    """By number, not by who reported first: n1, n2, n10."""
    story = Story(nodes=3).round(1, ["n2", "n10", "n1"])
    names = [lane.name for lane in lanes(story.history) if lane.name == lane.node]
    assert names == ["n1", "n2", "n10"]


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [(0.4, "0.02 s"), (13, "1 s"), (30, "2 s"), (60, "5 s"), (9000, "500 s")],
)
def test_ticks_are_as_close_as_their_labels_allow(seconds: float, labels: str) -> None:
    """At most 25 labels, and unlabelled ticks between them."""
    story = Story(nodes=1).round(1, ["n1"]).wait(seconds - 0.02).finish(1)
    page = timeline_html(story.history)
    shown = re.findall(r'class="tick-label"[^>]*>([^<]*)', page)
    assert shown[:2] == ["0 s", labels]
    assert 10 <= len(shown) <= 26
    assert page.count('class="tick"') > 3 * len(shown)


def test_a_long_run_stays_a_small_page() -> None:
    """Steps are drawn several at a time, and of the records those are listed that fit."""
    story = Story(nodes=4, nproc=2)
    for number in range(1, 6):
        story.round(number, ["n1", "n2", "n3", "n4"]).steps(number, number * 200, number * 200 + 99)
        story.fault(f"f{number}").gone(number)
    page = timeline_html(story.history)
    assert len(page.encode()) < 300_000
    assert f"({len(story.records) - page.count('<tr id=')} more in history.jsonl)" in page
    assert re.search(r"<title>step 200 to \d+: rank 0, round 1,", page)
    # What faults and rounds say is listed before the steps.
    assert page.count("<td>worker_hello</td>") == 40


def test_the_records_that_prove_a_clause_are_on_the_page() -> None:
    """Also those that would not have been listed; the worst clause is the first."""
    story = Story(nodes=1).round(1, ["n1"]).steps(1, 1, 3000)
    last = len(story.records)
    judgements = [
        judgement("holds", valid("fine")),
        judgement("unknown", unknown("too little")),
        judgement("broken", invalid("late", [last - 1, last])),
    ]
    page = timeline_html(story.history, judgements)
    assert f'<tr id="r{last}">' in page
    assert f'<tr id="r{last - 20}">' not in page
    assert f'<tr class="clause" data-proof="{last - 1},{last}">' in page
    assert page.index("<td>broken") < page.index("<td>unknown") < page.index("<td>holds")


def judgement(text: str, verdict: Verdict) -> Judgement:
    """Return a judgement of a clause that nobody planned."""
    return Judgement(key=text, bucket="asked", name="", text=text, verdict=verdict)


def test_an_empty_history_is_a_page_too() -> None:
    """A run that never began has something to say as well."""
    assert "no worker said hello" in timeline_html(History())
