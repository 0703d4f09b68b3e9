"""One clause that is judged while the job runs: when its time runs, and what becomes of it."""

from __future__ import annotations

import pytest
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.history.events import LogMatched, WorkerGone
from elastic_harness.history.verdict import Outcome
from elastic_harness.scenario.engine.clauses import (
    Bucket,
    ClauseState,
    from_eventually,
    from_expect,
)
from elastic_harness.scenario.engine.observed import ObservedRun
from elastic_harness.scenario.engine.timeline import EntryPhase, EntryState
from elastic_harness.scenario.reading.loader import read_clause
from msgspec.structs import replace

from pytest_elastic.events.model import Record
from tests.unit.history.story import Story
from tests.unit.scenario.bench import CRASH, scenario

RUN = ObservedRun(store_host="n1")
GONE = WorkerGone(pid=1, rank=0)


def clause(*, within: str = "10s", patience: float = 1.0, after: str | None = None) -> ClauseState:
    """Ask for the end of a worker."""
    asked = read_clause({"event": "worker_gone", "within": within, "after": after})
    return from_eventually("eventually[0]", asked, patience=patience)


def begun(*, within: str = "10s", patience: float = 1.0) -> ClauseState:
    """Ask for it from moment 100 on."""
    state = clause(within=within, patience=patience)
    state.begin(100.0)
    return state


def gone(at: float) -> Record:
    """Say that a worker is gone."""
    return Record(at=at, source="worker", node="n1", run_id="job", event=GONE)


def entry(
    *, fired: float | None = None, acts: float | None = None, healed: float | None = None
) -> EntryState:
    """A fault and how far it is."""
    (asked,) = scenario(CRASH).timeline
    crash = built_in_faults().read(asked.action.name, asked.action.value)
    state = EntryState(id="crash", name="crash", entry=asked, action=crash, is_optional=False)
    state.fired_at, state.in_force_at, state.healed_at = fired, acts, healed
    return state


@pytest.mark.parametrize(
    ("after", "at", "is_decided"),
    [
        ("crash", 100.0, True),
        ("crash", 100.5, True),
        ("crash + 2s", 100.5, False),
        ("crash + 2s", 102.9, False),
        ("crash + 2s", 103.0, True),
    ],
)
def test_what_a_fault_does_itself_counts_unless_a_later_moment_was_asked_for(
    after: str, at: float, *, is_decided: bool
) -> None:
    """It fires at 100 and acts at 101: two seconds later is 103, for what is seen before, too."""
    state = clause(after=after)
    state.follow([entry(fired=100.0)])
    state.follow([entry(fired=100.0, acts=101.0)])
    assert state.see(gone(at), RUN, now=at) is is_decided


@pytest.mark.parametrize(
    ("within", "patience", "deadline", "until"),
    [
        ("10s", 1.0, 110.0, 120.0),
        ("10s", 2.0, 120.0, 140.0),
        ("0.5s", 1.0, 100.5, 101.5),
        ("1s", 1.0, 101.0, 102.0),
        ("20s", 1.0, 120.0, 140.0),
        ("40s", 1.0, 140.0, 170.0),
    ],
)
def test_a_clause_is_watched_for_as_long_again_in_bounds(
    within: str, patience: float, deadline: float, until: float
) -> None:
    """At least a second, at most half a minute; patience multiplies what was asked."""
    state = begun(within=within, patience=patience)
    assert (state.deadline, state.watched_until) == (deadline, until)
    assert not state.expire(until - 0.001, RUN)
    assert state.verdict is None
    assert state.expire(until, RUN)
    assert state.is_unmet
    assert (state.deadline, state.watched_until) == (None, None)


def test_the_last_look_is_at_the_deadline() -> None:
    """When the run is about to end there is no time to watch on."""
    state = begun()
    assert not state.expire(109.9, RUN, is_last=True)
    assert state.expire(110.0, RUN, is_last=True)
    assert state.verdict is not None
    assert state.verdict.reason == (
        "event worker_gone within 10s: not in time, nor after 10.0 s; last seen: 0 of 1 such events"
    )


def test_a_clause_that_has_not_begun_has_no_deadline_and_expires_never() -> None:
    """Nor is it decided by what is seen, until something opens it."""
    state = clause()
    assert (state.deadline, state.watched_until) == (None, None)
    assert not state.expire(1e9, RUN)
    assert not state.see(gone(100.0), RUN, 100.0)
    assert not state.is_unmet
    endless = ClauseState(key="a", bucket=Bucket.SOMETIMES, text="a", condition=state.condition)
    endless.begin(100.0)
    assert (endless.deadline, endless.watched_until) == (None, None)
    assert not endless.expire(1e9, RUN)
    assert endless.see(gone(1e9), RUN, 1e9)
    assert endless.verdict is not None
    assert endless.verdict.is_valid


@pytest.mark.parametrize(
    ("at", "patience", "outcome", "reason"),
    [
        (110.0, 1.0, Outcome.VALID, "worker_gone on n1"),
        (110.1, 1.0, Outcome.INVALID, "too late: worker_gone on n1, after 10.1 s; 10 s were asked"),
        (110.0, 2.0, Outcome.VALID, "worker_gone on n1"),
        (
            120.0,
            2.0,
            Outcome.VALID,
            "worker_gone on n1, after 20.0 s; 10 s were asked, and the patience of 2 allows it",
        ),
        (120.1, 2.0, Outcome.INVALID, "too late: worker_gone on n1, after 20.1 s; 10 s were asked"),
    ],
)
def test_what_comes_in_time_is_told_from_what_comes_too_late(
    at: float, patience: float, outcome: Outcome, reason: str
) -> None:
    """By when it happened, however late the harness learned of it."""
    state = begun(patience=patience)
    assert state.see(gone(at), RUN, 999.0)
    assert state.verdict is not None
    assert state.verdict.outcome is outcome
    assert state.verdict.reason == f"{state.text}: {reason}"
    assert state.is_unmet is (outcome is Outcome.INVALID)
    assert not state.see(gone(at), RUN, 999.0), "it is decided once"


def test_what_proves_nothing_decides_nothing() -> None:
    """Time that passes, and what others do."""
    state = begun()
    assert not state.see(None, RUN, 101.0)
    assert state.verdict is None


def test_a_clause_after_a_fault_opens_with_it_and_its_time_runs_once_it_acts() -> None:
    """What the fault does while it is injected counts; a heal's clause is not opened before."""
    state = clause(after="crash")
    state.follow([])
    state.follow([entry()])
    before = state.watcher
    state.follow([entry(fired=50.0)])
    opened = state.watcher
    state.follow([entry(fired=60.0)])
    assert (before is None, opened is None) == (True, False)
    assert (state.watcher, state.base) == (opened, None)
    state.follow([entry(fired=50.0, acts=55.0), entry(fired=70.0, acts=75.0)])
    assert state.base == 55.0
    state.follow([entry(fired=50.0, acts=90.0)])
    assert state.base == 55.0
    healed = clause(after="crash.healed")
    healed.follow([entry(fired=50.0, acts=55.0)])
    assert (healed.watcher, healed.base) == (None, None)
    healed.follow([entry(fired=50.0, acts=55.0, healed=58.0)])
    assert healed.base == 58.0


def test_a_line_that_was_there_before_anybody_asked_is_older_than_the_fault() -> None:
    """It decides nothing that is to follow the fault; without a fault, it counts."""
    for was_there, after, is_decided in (
        (True, "crash", False), (False, "crash", True), (True, None, True),
    ):  # fmt: skip
        asked = read_clause({"log": "x", "within": "10s", "after": after})
        state = from_eventually("a", asked)
        state.open(50.0)
        line = LogMatched(pattern="x", line="x", by="worker", was_there=was_there)
        record = replace(gone(51.0), event=line)
        assert state.see(record, RUN, 51.0) is is_decided


def test_a_clause_some_time_after_a_fault_begins_then_and_after_one_that_failed_never() -> None:
    """`after: crash + 2s`; a fault that did nothing begins nothing; none asked, none followed."""
    state = clause(after="crash + 2s")
    state.follow([entry(fired=50.0, acts=55.0)])
    assert state.base == 57.0
    state = clause(after="crash")
    failed = entry(fired=50.0, acts=55.0)
    failed.phase = EntryPhase.FAILED
    state.follow([failed])
    assert state.watcher is not None
    assert state.base is None
    state = clause()
    state.follow([entry(fired=50.0, acts=55.0)])
    assert (state.watcher, state.base) == (None, None)


def test_an_event_counts_while_its_fault_is_injected_and_a_state_does_not() -> None:
    """The state before the fault looks the same."""
    state = clause(after="crash")
    state.open(50.0)
    assert state.see(gone(51.0), RUN, 51.0)
    assert state.verdict is not None
    assert state.verdict.is_valid
    asked = read_clause({"log": "x", "within": "10s", "after": "crash"})
    assert from_eventually("a", asked)._counts_before_base
    asked = read_clause({"round": 1, "within": "10s", "after": "crash"})
    assert not from_eventually("a", asked)._counts_before_base


@pytest.mark.parametrize(
    ("opened", "begins", "after", "outcome", "reason"),
    [
        (True, True, None, Outcome.INVALID, "the job ended first; last seen: 0 of 1 such events"),
        (False, False, None, Outcome.UNKNOWN, "the run never came, so its time never began"),
        (True, False, "crash", Outcome.UNKNOWN, "`crash` never came, so its time never began"),
        (False, False, "crash", Outcome.UNKNOWN, "`crash` never came, so its time never began"),
    ],
)
def test_a_clause_that_is_open_at_the_end_is_not_met_or_never_began(
    *, opened: bool, begins: bool, after: str | None, outcome: Outcome, reason: str
) -> None:
    """Without its moment it proves nothing."""
    state = clause(after=after)
    if opened:
        state.open(50.0)
    if begins:
        state.begin(50.0)
    state.close(RUN, "the job ended", is_cut=False)
    assert state.verdict is not None
    assert (state.verdict.outcome, state.verdict.reason) == (outcome, f"{state.text}: {reason}")
    before = state.verdict
    state.close(RUN, "again", is_cut=True)
    assert state.verdict is before


def test_what_must_never_be_seen_is_valid_at_the_end_and_invalid_at_once() -> None:
    """And what must be seen sometimes is the other way round."""
    given = scenario(
        expect={"never": [{"event": "worker_gone"}], "sometimes": [{"event": "worker_gone"}]}
    )
    sometimes, never = from_expect(given.expect)
    assert (sometimes.bucket, never.bucket) == (Bucket.SOMETIMES, Bucket.NEVER)
    assert sometimes.patience == 1.0
    for state in (sometimes, never):
        state.begin(100.0)
        assert state.see(gone(101.0), RUN, 101.0)
    assert [state.is_unmet for state in (sometimes, never)] == [False, True]
    _, unseen = from_expect(given.expect)
    unseen.begin(100.0)
    unseen.close(RUN, "the job ended", is_cut=True)
    assert unseen.verdict is not None
    assert (unseen.verdict.outcome, unseen.verdict.reason) == (
        Outcome.VALID,
        "never event worker_gone: never seen",
    )


@pytest.mark.parametrize(("after", "is_decided"), [("crash", True), ("crash + 2s", False)])
def test_what_is_seen_while_a_fault_begins_is_its_own(after: str, *, is_decided: bool) -> None:
    """Before it acts, and so before any time is counted from it."""
    state = clause(after=after)
    state.follow([entry(fired=100.0)])
    assert state.see(gone(100.5), RUN, now=100.5) is is_decided


def test_what_waits_for_no_fault_counts_what_came_just_before() -> None:
    """A record may be read late: its own time is before the clause's."""
    assert begun().see(gone(99.9), RUN, now=100.1)


@pytest.mark.parametrize(("after", "is_met"), [(None, True), ("crash", False)])
def test_a_round_that_formed_before_a_fault_is_none_after_it(
    after: str | None, *, is_met: bool
) -> None:
    """Without a fault it is what is there already that counts."""
    story = Story().round(1, ["n1", "n2"])
    run = ObservedRun(store_host="n1")
    for record in story.records:
        run.observe(record)
    asked = read_clause({"round": 1, "within": "10s", "after": after})
    state = from_eventually("a", asked)
    state.begin(story.at + 1.0)
    assert state.see(None, run, now=story.at + 1.0) is is_met


def test_what_was_cut_short_by_another_clause_is_not_known() -> None:
    """It might have been seen in the time that was left."""
    state = clause()
    state.open(50.0)
    state.begin(50.0)
    state.close(RUN, "the run was over", is_cut=True)
    assert state.verdict is not None
    said = f"{state.text}: another clause ended the run first"
    assert (state.verdict.outcome, state.verdict.reason) == (Outcome.UNKNOWN, said)


def test_patience_is_one_unless_somebody_asks_for_more() -> None:
    """The engine hands it on to each clause."""
    asked = read_clause({"round": 2, "within": "10s"})
    assert from_eventually("a", asked).patience == 1.0
    expect = scenario(expect={"eventually": [{"round": 2, "within": "10s"}]}).expect
    assert [each.patience for each in from_expect(expect)] == [1.0]
    assert [each.patience for each in from_expect(expect, patience=3.0)] == [3.0]
    assert ClauseState(key="a", bucket=Bucket.WAIT, text="a").patience == 1.0
