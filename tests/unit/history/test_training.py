"""What the training lost: each checker finds its own kind, and knows what it cannot know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from elastic_harness.history.checkers import STANDARD, bind
from elastic_harness.history.checkers.final_state import reference_of
from elastic_harness.history.events import ReferenceObserved
from elastic_harness.history.verdict import Outcome, Verdict
from msgspec.structs import replace

from pytest_elastic.events.codec import decode_record, encode_record
from pytest_elastic.events.model import Record
from tests.unit.history.story import Story
from tests.unit.history.trained import (
    CLAUSES,
    INVALID,
    UNKNOWN,
    Job,
    in_turn,
    judge,
    trained,
)


def verdicts(story: Story) -> dict[str, Verdict]:
    """Judge all clauses, and the invariants."""
    checks = {name: bind(*clause) for name, clause in CLAUSES.items()}
    checks |= {check.name: check for check in STANDARD.default_checks()}
    return {name: check.run(story.history) for name, check in checks.items()}


def test_a_job_that_lost_nothing_satisfies_every_clause() -> None:
    """What is changed below is wrong by that change alone."""
    found = verdicts(Job().story)
    assert {name for name, verdict in found.items() if not verdict.is_valid} == set()


@pytest.mark.parametrize("name", CLAUSES)
def test_what_is_wrong_is_found_by_its_own_clause_alone(name: str) -> None:
    """All others are valid, or do not know."""
    for tell in INVALID[name]:
        story = tell()
        found = verdicts(story)
        invalid = {each for each, verdict in found.items() if verdict.outcome is Outcome.INVALID}
        assert invalid == {name}, {each: found[each].reason for each in invalid ^ {name}}
        assert found[name].events, "nothing is proved"
        assert all(story.history[seq] for seq in found[name].events)


@pytest.mark.parametrize("name", CLAUSES)
def test_what_cannot_be_known_is_unknown(name: str) -> None:
    """And never green; the reason is a sentence and no traceback."""
    for number, tell in enumerate(UNKNOWN[name]):
        verdict = bind(*CLAUSES[name]).run(tell().history)
        assert verdict.outcome is Outcome.UNKNOWN, f"{number}: {verdict.reason}"
        assert "crashed" not in verdict.reason, verdict.reason


ONCE = {"each_epoch": "exactly_once"}


@pytest.mark.parametrize(
    ("changes", "more", "outcome", "reason"),
    [
        ({}, {}, "valid", "exactly once: epochs 0 to 2: all 8 samples"),
        ({"epoch": lambda step: 1 + (step - 1) // 2}, {}, "valid", "epochs 1 to 3"),
        (
            {"epoch": lambda step: (0, 1, 3)[(step - 1) // 2]},
            {},
            "invalid",
            "epoch 2 was skipped: epochs 0 to 1: all 8 samples; epoch 3: all 8 samples",
        ),
        ({"uses": lambda s, r: () if s == 1 else in_turn(s, r)}, {}, "invalid", "first 0, 1, 2, 3"),
        ({"uses": lambda s, r: () if s == 6 else in_turn(s, r)}, {}, "unknown", "may_be_cut"),
        (
            {"uses": lambda s, r: () if s == 6 else in_turn(s, r)},
            {"last_epoch": "may_be_cut"},
            "valid",
            "epochs 0 to 1: all 8 samples; epoch 2: 4 of 8",
        ),
        (
            {"uses": lambda s, r: () if s == 6 else in_turn(s, r)},
            {"last_epoch": "complete"},
            "invalid",
            "epoch 2 never used 4 of 8 samples, first 4, 5, 6, 7",
        ),
        ({"uses": lambda s, r: in_turn(s, r)[:1]}, {"dropped": 4}, "valid", "4 of 8"),
        ({"uses": lambda s, r: in_turn(s, r)[:1]}, {"dropped": 3}, "invalid", "never used 4 of 8"),
        ({"uses": lambda s, r: in_turn(s, r) * (1 + r)}, {}, "invalid", "4 of them again"),
        ({"uses": lambda s, r: in_turn(s, r) * (1 + r)}, {"padding": 4}, "valid", ""),
        ({"uses": lambda s, r: in_turn(s, r) * (1 + r)}, {"padding": "allowed"}, "invalid", ""),
        (
            {"uses": lambda s, r: (*in_turn(s, r), 0)[: 3 if (s, r) == (4, 1) else 2]},
            {"padding": "allowed"},  # two ranks need none to share eight samples
            "invalid",
            "1 of them again",
        ),
        (
            {"uses": lambda s, r: tuple(n % 7 for n in in_turn(s, r)), "drawn": {"size": 7}},
            {"padding": "allowed"},
            "valid",
            "1 of them again",
        ),
        (
            {"epoch": lambda _: 0},
            {},
            "invalid",
            "3 times: does the script call set_epoch",
        ),
        ({"is_resumed": False, "number": lambda *_: None}, {}, "valid", "epochs 0 to 2"),
        ({"is_resumed": False, "drawn": {"epoch_source": "counted"}}, {}, "valid", "epochs 0 to 2"),
        ({"resumes": {0: 0, 1: 0}, "drawn": {"epoch_source": "counted"}}, {}, "valid", ""),
        ({}, {"loader": "Other"}, "unknown", "no data loader is called 'Other': there are Data[8]"),
    ],
)
def test_samples_says_what_it_saw_of_each_epoch(
    changes: Mapping[str, Any], more: Mapping[str, Any], outcome: str, reason: str
) -> None:
    """Skipped epochs, cut ones, padding and dropped tails are told apart."""
    verdict = judge("samples", {**ONCE, **more}, trained(**changes)())
    assert verdict.outcome.value == outcome, verdict.reason
    assert reason in verdict.reason


def test_samples_of_steps_that_were_rolled_back_do_not_count() -> None:
    """Neither those of steps done again, nor those of steps never done again."""
    assert judge("samples", ONCE, trained(done=6, uses=in_turn)()).is_valid
    ended = trained(done=6, resumes={0: 3, 1: 3}, last={0: 4, 1: 4}, reference=None)
    assert "epochs 0 to 1: all 8 samples" in judge("samples", ONCE, ended()).reason


def test_the_first_batches_belong_to_the_step_that_follows() -> None:
    """Plain SGD knows no step before the script reports one; then the first is known as well."""
    story = Story()
    for number, begin in ((1, 0), (2, 2)):
        story.round(number, ["n1"])
        for count in (1, 2):
            step = begin + count
            known = None if count == 1 else step
            first = (step - 1) * 2
            story.drawn(number, 0, known, first, first + 1).step(number, 0, None, count=count)
            if count == 1:
                story.resume(number, 0, begin)
            story.step(number, 0, step, count=count)
        story.gone(number) if number == 1 else story.finish(number).end()
    assert bind("samples", ONCE).run(story.history).is_valid
    assert bind("resumed_at", {"round": 2, "step": 2}).run(story.history).is_valid


def by_parameters() -> Story:
    """Tell a job whose optimizer counts nothing: four steps, and three from the third on."""
    story = Story().round(1, ["n1"]).resume(1, 0, 0, "a")
    for step in (1, 2, 3, 4):
        story.step(1, 0, step, step_source="parameters")
    story.gone(1).round(2, ["n1"]).resume(2, 0, 3, "d")
    for step in (4, 5, 6):
        story.step(2, 0, step, step_source="parameters")
    return story.finish(2).end()


@pytest.mark.parametrize(
    ("clause", "value", "outcome"),
    [
        ("resumed_at", {"round": 2, "step": 3}, "valid"),
        ("resumed_at", {"round": 2, "step": 4}, "invalid"),
        ("finished_at", 6, "valid"),
        ("finished_at", 7, "invalid"),
        ("resumed_at", {"round": 1, "step": 0}, "unknown"),
        ("resumed_at", {"round": 1, "step": 30}, "unknown"),
    ],
)
def test_steps_that_parameters_tell_are_counted_from_where_the_run_began(
    clause: str, value: object, outcome: str
) -> None:
    """Whether that was step 0 of the training, nothing tells: the verdict says what it counts."""
    verdict = bind(clause, value).run(by_parameters().history)
    assert verdict.outcome.value == outcome, verdict.reason
    assert "counted from where the run began" in verdict.reason
    assert bind("steps_lost", 1).run(by_parameters().history).is_valid
    counted = Story().round(1, ["n1"]).step(1, 0, 1).finish(1).end()
    assert bind("resumed_at", {"round": 1, "step": 0}).run(counted.history).is_valid
    assert not bind("resumed_at", {"round": 1, "step": 30}).run(counted.history).is_valid
    assert not bind("steps_lost", 0).run(by_parameters().history).is_valid


def test_a_script_that_counts_for_itself_is_not_compared_with_its_parameters() -> None:
    """It reports epochs, say, and the first one comes after some steps; they still may not fall."""
    story = Story().round(1, ["n1"]).resume(1, 0, 0, "a")
    for step in (1, 2, 3):
        story.step(1, 0, step, step_source="parameters")
    story.step(1, 0, 1, step_source="log").step(1, 0, 2, step_source="log").finish(1)
    assert bind("finished_at", 2).run(story.end().history).is_valid
    story.step(1, 0, 1, step_source="log")
    assert bind("finished_at", 1).run(story.history).outcome is Outcome.UNKNOWN
    falls = Story().round(1, ["n1"]).step(1, 0, 2, step_source="log")
    falls.step(1, 0, 1, step_source="parameters").finish(1).end()
    assert bind("finished_at", 1).run(falls.history).outcome is Outcome.UNKNOWN


def test_a_reference_is_an_undisturbed_run_of_which_all_was_seen() -> None:
    """It survives being written down; a run with a restart, a fault or a gap is none."""
    story = Job(is_resumed=False, reference=None).story
    found = reference_of(story.history)
    assert found is not None
    assert (found.world_size, found.step, len(found.states)) == (2, 6, 2)
    record = Record(at=1.0, source="engine", node="", run_id="", event=found)
    read = decode_record(encode_record(record))
    assert read is not None
    assert isinstance(read.event, ReferenceObserved)
    again = Job(reference=None).story
    again.records.insert(1, replace(again.records[0], event=read.event))
    assert bind("parameters", "same_as_uninterrupted").run(again.history).is_valid
    assert reference_of(Job().story.history) is None
    assert reference_of(Job(is_resumed=False, ends=False).story.history) is None
    assert reference_of(Job(is_resumed=False).story.fault("late").history) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("resumed_at", {"round": 1, "step": 0}),
        ("steps_lost", 0),
        ("finished_at", 1),
        ("epochs", {"exactly": 1, "dropped": 0}),
        ("samples", {**ONCE, "dropped": 0, "padding": 0}),
        ("parameters", {"are": "same_as_uninterrupted", "within": 0}),
    ],
)
def test_the_smallest_values_make_sense(name: str, value: object) -> None:
    """Nothing lost, nothing forgiven, one step."""
    assert bind(name, value).name == name


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("resumed_at", {"round": 0, "step": 1}, "rounds are counted from 1"),
        ("resumed_at", {"round": 1, "step": -1}, "steps that are done from 0"),
        ("steps_lost", -1, "cannot be lost"),
        ("samples", {**ONCE, "dropped": -1}, "0 or more"),
        ("samples", {**ONCE, "padding": -1}, "0 or more"),
        ("samples", {**ONCE, "padding": "some"}, "'allowed' or 'forbidden' is expected"),
        ("epochs", 0, "one epoch or more"),
        ("epochs", {"exactly": 1, "dropped": -1}, "0 dropped samples or more"),
        ("finished_at", 0, "counted from 1, and none is 0"),
        ("parameters", {"are": "identical", "within": 0.1}, "same_as_uninterrupted"),
        ("optimizer", {"are": "same_as_uninterrupted", "within": 1}, "such as 1e-6"),
        ("optimizer", {"are": "same_as_uninterrupted", "within": -0.5}, "such as 1e-6"),
    ],
)
def test_a_clause_that_makes_no_sense_is_refused(name: str, value: object, message: str) -> None:
    """Before anything runs."""
    with pytest.raises(Exception, match=message):
        bind(name, value)
