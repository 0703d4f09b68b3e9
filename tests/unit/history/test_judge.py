"""The verdict on a run: complete, from its history alone, and never green where it is not known."""

from __future__ import annotations

import pytest
from elastic_harness.history.checkers import bind
from elastic_harness.history.events import (
    ClauseJudged,
    ClausePlanned,
    HarnessFailed,
    OutputRead,
    ProcessStarted,
    PythonTestFailed,
    RunClosed,
    SwitchDropped,
)
from elastic_harness.history.judge import Judgement, judge, judge_checks, overall, unmet
from elastic_harness.history.verdict import Outcome
from msgspec.structs import replace

from pytest_elastic.events.codec import UnknownEvent
from pytest_elastic.events.model import AgentStarted, Event
from tests.unit.history.story import Story

ROUND = ClausePlanned(key="eventually[0]", bucket="eventually", text="round 2 within 10s")
JOB = ClausePlanned(
    key="finally[0]", bucket="finally", text="job: succeeded", checker="job", expected="succeeded"
)
NEVER_LOST = ClausePlanned(key="never[0]", bucket="never", text="log /lost/", log="lost")
SEEN_LOST = ClausePlanned(key="sometimes[0]", bucket="sometimes", text="log /lost/", log="lost")
NEVER_FENCED = ClausePlanned(key="never[0]", bucket="never", text="", event="lease_lost")
SEEN_FENCED = replace(NEVER_FENCED, key="sometimes[0]", bucket="sometimes")

GAPS: list[dict[str, object]] = [
    {"unread": ("n1/a.log",)},
    {"unread": (), "left_out": {"lost": 2}},
]


def judged(key: str, outcome: str) -> ClauseJudged:
    """Return what the engine has found of a clause."""
    return ClauseJudged(key=key, text="", outcome=outcome, reason=f"found {outcome}")


def told(*events: Event, outcome: str = "succeeded", is_closed: bool = True) -> Story:
    """Return a run in which these were recorded before its end."""
    story = Story().round(1, ["n1", "n2"])
    for event in events:
        story.tell("engine", "", event)
    story.end(outcome)
    return story.tell("engine", "", RunClosed(digest="")) if is_closed else story


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
    own = replace(NEVER_FENCED, key="never[1]", event="worker_gone")
    story.tell("engine", "", own).tell("engine", "", judged("never[1]", "valid"))
    assert verdicts(story)["never[1]"] == "valid"


def test_what_a_test_waited_for_is_no_clause() -> None:
    """Nobody has planned it: the test knows what to make of it."""
    assert verdicts(told(JOB, judged("wait-1", "invalid"))) == {
        "finally[0]": "valid",
        "harness": "valid",
    }


def test_nothing_is_invalid_where_the_harness_itself_lost_packets() -> None:
    """What failed may have failed for that; what was found is still said, with its proof."""
    met = ClausePlanned(key="eventually[1]", bucket="eventually", text="round 1 within 10s")
    failed = (judged("eventually[0]", "invalid"), PythonTestFailed(test="t", reason="x"))
    planned = (ROUND, JOB, met, judged(met.key, "valid"))
    story = told(*planned, *failed, outcome="failed", is_closed=False)
    before = {each.key: each.verdict for each in judge(story.history)}
    story.tell("cluster", "", SwitchDropped(packets=2)).tell("engine", "", RunClosed(digest=""))
    (lost,) = (entry.seq for entry in story.history.of_kind(SwitchDropped))
    found = {each.key: each.verdict for each in judge(story.history)}
    assert overall(judge(story.history)).outcome is Outcome.UNKNOWN
    for key in ("eventually[0]", "finally[0]", "test"):
        assert before[key].outcome is Outcome.INVALID
        assert found[key].outcome is Outcome.UNKNOWN
        assert found[key].reason.startswith(f"{before[key].reason}; packets that the harness")
        assert found[key].events == (*before[key].events, lost)
    assert found[met.key] == before[met.key]
    (checked,) = judge_checks(story.history, [bind("job", "succeeded")])
    assert checked.verdict == found["finally[0]"]


def test_nothing_is_known_of_a_history_with_a_record_that_cannot_be_read() -> None:
    """It lacks what its kind must have; a kind that this version does not know is passed over."""
    story = told(ROUND, JOB, judged("eventually[0]", "invalid"), UnknownEvent(name="of_later"))
    assert verdicts(story)["harness"] == "valid"
    assert overall(judge(story.history)).outcome is Outcome.INVALID
    story.tell("agent", "n1", UnknownEvent(name="worker_exited"))
    torn = len(story.history)
    found = {each.key: each.verdict for each in judge(story.history)}
    assert {each.outcome for each in found.values()} <= {Outcome.UNKNOWN, Outcome.VALID}
    assert found["harness"].outcome is Outcome.UNKNOWN
    assert found["harness"].reason == "worker_exited is not as this version writes it"
    assert found["harness"].events == (torn,)
    assert torn in found["eventually[0]"].events
    assert "a record that is not as this version writes it may be the cause" in (
        found["eventually[0]"].reason
    )


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


def test_the_worst_comes_first_among_what_is_unmet() -> None:
    """Invalid before unknown, as they were planned; what the harness failed at explains these."""
    other = ClausePlanned(key="eventually[1]", bucket="eventually", text="round 3 within 10s")
    failed = HarnessFailed(what="a machine was lost")
    found = judge(told(ROUND, other, judged("eventually[1]", "invalid"), failed).history)
    assert [each.key for each in unmet(found)] == ["eventually[1]", "harness", "eventually[0]"]
