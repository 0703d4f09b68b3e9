"""The verdict on a run: complete, from its history alone, and never green where it is not known."""

from __future__ import annotations

import dataclasses

import pytest
from elastic_harness.history.events import (
    ClauseJudged,
    ClausePlanned,
    OutputRead,
    ProcessStarted,
    RunClosed,
)
from elastic_harness.history.judge import Judgement, judge

from pytest_elastic.events.model import AgentStarted, Event
from tests.unit.history.story import Story

ROUND = ClausePlanned(key="eventually[0]", bucket="eventually", text="round 2 within 10s")
JOB = ClausePlanned(
    key="finally[0]", bucket="finally", text="job: succeeded", checker="job", expected="succeeded"
)
NEVER_LOST = ClausePlanned(key="never[0]", bucket="never", text="log /lost/", log="lost")
SEEN_LOST = ClausePlanned(key="sometimes[0]", bucket="sometimes", text="log /lost/", log="lost")
NEVER_FENCED = ClausePlanned(key="never[0]", bucket="never", text="", event="lease_lost")
SEEN_FENCED = dataclasses.replace(NEVER_FENCED, key="sometimes[0]", bucket="sometimes")

GAPS: list[dict[str, object]] = [
    {"unread": ("n1/a.log",)},
    {"unread": (), "left_out": {"lost": 2}},
]


def judged(key: str, outcome: str) -> ClauseJudged:
    """Return what the engine has found of a clause."""
    return ClauseJudged(key=key, text="", outcome=outcome, reason=f"found {outcome}")


def told(*events: Event) -> Story:
    """Return a run in which these were recorded before its end."""
    story = Story().round(1, ["n1", "n2"])
    for event in events:
        story.tell("engine", "", event)
    return story.end().tell("engine", "", RunClosed(digest=""))


def verdicts(story: Story) -> dict[str, str]:
    """Return the outcome of each clause by its key."""
    return {each.key: each.verdict.outcome.value for each in judge(story.history)}


@pytest.mark.parametrize(
    ("clause", "outcome", "with_gap"),
    [
        (NEVER_LOST, "valid", "unknown"),
        (NEVER_LOST, "invalid", "invalid"),
        (SEEN_LOST, "valid", "valid"),
        (SEEN_LOST, "invalid", "unknown"),
    ],
)
@pytest.mark.parametrize("gap", GAPS)
def test_a_line_that_was_not_seen_is_not_known_where_output_was_not_read(
    clause: ClausePlanned, outcome: str, with_gap: str, gap: dict[str, object]
) -> None:
    """What was seen was seen."""
    found = judged(clause.key, outcome)
    assert verdicts(told(clause, found))[clause.key] == outcome
    story = Story().tell("engine", "", clause).tell("engine", "", found)
    story.tell("engine", "", OutputRead(**gap))  # type: ignore[arg-type]
    assert verdicts(story)[clause.key] == with_gap
    other = {"unread": (), "left_out": {"found": 2}}
    story.tell("engine", "", OutputRead(**other))  # type: ignore[arg-type]
    assert verdicts(story)[clause.key] == outcome


def silent(*speak: str, exempt: tuple[str, ...] = ()) -> Story:
    """Return a run of two launchers, of which these state events; a fault ended the exempt ones."""
    story = Story().tell("engine", "", NEVER_FENCED).tell("engine", "", SEEN_FENCED)
    for node in ("n1", "n2"):
        story.tell("cluster", node, ProcessStarted(pid=3, role="launcher", argv=()))
        if node in speak:
            story.tell("agent", node, AgentStarted(pid=3, address="", port=1, slots=1))
    story.tell("engine", "", judged("never[0]", "valid"))
    return story.tell("engine", "", judged("sometimes[0]", "invalid")).end(exempt=exempt)


@pytest.mark.parametrize(
    ("story", "never", "sometimes"),
    [
        (silent("n1", "n2"), "valid", "invalid"),
        (silent("n1"), "unknown", "unknown"),
        (silent(), "unknown", "unknown"),
        (silent("n1", exempt=("n2",)), "valid", "invalid"),
    ],
)
def test_an_event_that_was_not_seen_is_not_known_where_a_launcher_states_none(
    story: Story, never: str, sometimes: str
) -> None:
    """As other launchers do; what the harness sees itself is known all the same."""
    found = verdicts(story)
    assert (found["never[0]"], found["sometimes[0]"]) == (never, sometimes)
    own = dataclasses.replace(NEVER_FENCED, key="never[1]", event="worker_gone")
    story.tell("engine", "", own).tell("engine", "", judged("never[1]", "valid"))
    assert verdicts(story)["never[1]"] == "valid"


def test_what_a_test_waited_for_is_no_clause() -> None:
    """Nobody has planned it: the test knows what to make of it."""
    assert verdicts(told(JOB, judged("wait-1", "invalid"))) == {
        "finally[0]": "valid",
        "harness": "valid",
    }


def test_a_judgement_is_true_only_if_it_is_valid_and_shows_itself() -> None:
    """So that `assert job.check(...)` means what it says."""
    found: dict[str, Judgement] = {}
    for outcome in ("valid", "invalid", "unknown"):
        found[outcome] = judge(told(ROUND, judged("eventually[0]", outcome)).history)[0]
    assert found["valid"]
    assert not found["invalid"]
    assert not found["unknown"]
    shown = "<eventually: round 2 within 10s: invalid: found invalid>"
    assert repr(found["invalid"]) == shown
