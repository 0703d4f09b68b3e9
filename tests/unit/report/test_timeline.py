from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from elastic_harness.history.checkers import default_checks
from elastic_harness.history.events import LastLinesSeen, StackSeen, WorkerRaised
from elastic_harness.history.history import History
from elastic_harness.history.judge import judge_checks
from elastic_harness.report.timeline import timeline_html

from tests.unit.history.story import Story


def small() -> History:
    """One node, one worker, one step, one fault."""
    story = Story(nodes=1).round(1, ["n1"]).wait(0.5).steps(1, 1, 1).wait(0.5)
    return story.fault("crash", "kill", "rank 0").gone(1).end("failed", launchers=["n1"]).history


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
    """Tags close in order; the only links are to the logs beside it."""
    judgements = judge_checks(small(), default_checks())
    page = timeline_html(
        small(), judgements, logs=["logs/n1/rank 0.log"], command="pytest x --elastic-seed=7"
    )
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert checker.links == ["logs/n1/rank%200.log"]
    assert "<script" not in page
    assert "http" not in page
    assert "pytest x --elastic-seed=7" in page
    assert '<td class="unknown">' not in page


def test_what_users_wrote_cannot_break_the_page() -> None:
    """Names and messages are text, never markup."""
    story = Story().fault("<b>x</b>", "<script>alert(1)</script>", "n2")
    page = timeline_html(story.history)
    assert "<script>" not in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page


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


def test_the_drawing_of_a_small_run_shown_whole() -> None:
    """Ticks, the round's band, the lanes, the worker's life and its step, the fault."""
    page = timeline_html(small())
    drawing = re.search(r"<svg.*</svg>", page, re.DOTALL)
    assert drawing is not None
    expected = Path(__file__).with_name("small_drawing.svg").read_text()
    assert drawing[0] + "\n" == expected


def test_a_run_of_many_steps_stays_a_page() -> None:
    """Steps that could not be told apart are left out of the drawing, records out of the list."""
    story = Story(nodes=1).round(1, ["n1"]).steps(1, 1, 4000)
    page = timeline_html(story.history)
    assert len(page) < 4_000_000
    assert "more in history.jsonl" in page


def test_an_empty_history_is_a_page_too() -> None:
    """A run that never began has something to say as well."""
    assert "no worker said hello" in timeline_html(History())
