from __future__ import annotations

import json
from dataclasses import asdict

from elastic_harness.history.checkers import STANDARD
from elastic_harness.history.events import ClausePlanned, RunClosed
from elastic_harness.history.judge import judge, judge_checks
from elastic_harness.report.session_page import (
    RunSummary,
    counts_of,
    in_order,
    session_html,
    summary_of,
)

from pytest_elastic.events.model import WorkerExited
from tests.unit.history.story import Story
from tests.unit.report.test_timeline import Checker


def run(name: str, outcome: str = "valid", **more: str) -> RunSummary:
    """Return a run of four seconds with seed 7."""
    cause = more.pop("cause", "")
    return RunSummary(name=name, outcome=outcome, cause=cause, seconds=4.04, seed=7, **more)


def test_a_run_is_summed_up_by_its_worst_clause_and_what_failed_first() -> None:
    """The fields can be sent to another process as they are."""
    planned = ClausePlanned(
        key="finally[0]", bucket="finally", text="restarts: 1", checker="restarts", expected=1
    )
    story = Story(nodes=1).tell("engine", "", planned).round(1, ["n1"]).steps(1, 1, 2)
    failed = WorkerExited(
        round=1, local_rank=0, rank=0, pid=1001, exit_code=3, signal=0, cause="failed"
    )
    story.tell("agent", "n1", failed).gone(1).end("failed", launchers=["n1"])
    history = story.tell("engine", "", RunClosed(digest="")).history
    summary = summary_of(history, judge(history), name="test_x", directory="/a/b", screen="all")
    assert summary.outcome == "invalid"
    assert summary.cause == (
        "restarts: 1: 0 restarts, 1 were expected (first failure: rank 0 on n1, exit code 3)"
    )
    assert round(summary.seconds, 1) == round(story.at - 100, 1)
    assert summary.seed == 7
    sent = json.loads(json.dumps(asdict(summary)))
    assert RunSummary(**sent) == summary


def test_a_valid_run_has_no_cause() -> None:
    """There is nothing to explain."""
    history = Story().round(1, ["n1", "n2"]).steps(1, 1, 2).finish(1).end().history
    judgements = [each for each in judge_checks(history, STANDARD.default_checks()) if each]
    assert summary_of(history, judgements, name="x").cause == ""


def test_the_page_lists_every_run_the_worst_first() -> None:
    """Each with verdict, cause, duration, seed, and a link where it was kept."""
    runs = [
        run("a::valid"),
        run("b::unknown", "unknown", cause="too little", directory="/art/b"),
        run("c::invalid", "invalid", cause="late", directory="/art/c d", screen="INVALID: x"),
    ]
    assert [each.name for each in in_order(runs)] == ["c::invalid", "b::unknown", "a::valid"]
    assert counts_of(runs) == "3 runs: 1 invalid, 1 unknown, 1 valid"
    assert counts_of(runs[:1]) == "1 run: 1 valid"
    page = session_html(runs, folder="/art")
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert checker.links == ["c%20d/timeline.html", "b/timeline.html"]
    assert page.index("c::invalid") < page.index("b::unknown") < page.index("a::valid")
    assert page.count("4.0 s") == 3
    assert page.count("(not kept)") == 1
    assert "<pre>INVALID: x</pre>" in page


def test_what_tests_and_workers_said_cannot_break_the_page() -> None:
    """Parameters of a test's name and messages of exceptions are text."""
    page = session_html(
        [run("x[<b>]", "invalid", cause="<script>1</script>", screen="</pre>")], folder="/"
    )
    assert "<script" not in page
    assert "x[&lt;b&gt;]" in page
    assert "<pre>&lt;/pre&gt;</pre>" in page


def test_runs_of_other_sessions_are_linked_below() -> None:
    """The page is replaced by each session; a failure of yesterday is still found from it."""
    page = session_html([run("a::valid")], folder="/art", earlier=[("/art/b c", 1_600_000_000.0)])
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert checker.links == ["b%20c/timeline.html"]
    assert "2020-09-13 12:26 UTC" in page
    assert "other sessions" not in session_html([run("a::valid")], folder="/art")
