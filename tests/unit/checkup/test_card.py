"""The report card: numbers from the history, one screen, a cause and what mends it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from elastic_harness.checkup.card import (
    Row,
    card_text,
    row_of,
    row_without_run,
    what_is_wrong_without_a_fault,
)
from elastic_harness.checkup.measured import measure
from elastic_harness.history.checkers import bind
from elastic_harness.history.judge import judge_checks

from pytest_elastic.events.model import AgentExited, Event, JobEnded
from tests.unit.checkup.undisturbed import undisturbed
from tests.unit.checkup.written_cards import ALL, resumed, use, written
from tests.unit.history import trained
from tests.unit.history.story import Story


def test_rows_and_their_card_are_as_they_are_written_down() -> None:
    """`written_cards` says how to write them anew: then read what has changed."""
    assert written() == Path(__file__).with_name("cards.txt").read_text("utf-8")


def row(story: Story, name: str = "worker-killed") -> Row:
    """Return the row of a run."""
    judged = judge_checks(story.history, [bind(name, value) for name, value in ALL])
    seen = measure(undisturbed().history, "succeeded", "", "train.py")
    return row_of(name, "A title", story.history, judged, seen, tolerance=1e-6, directory="runs/x")


@pytest.mark.parametrize(
    ("clause", "advice"),
    [
        ("steps_lost", "Save more often"),
        ("samples", "Save the place in the data"),
        ("parameters, reference", "random numbers together"),
        ("optimizer, reference", "Save and load the optimizer's state"),
        ("finished_at", "let an error end the script with an exit code"),
    ],
)
def test_each_clause_that_does_not_hold_says_what_mends_it(clause: str, advice: str) -> None:
    """Scripts that are wrong so are in examples/broken."""
    history = trained.INVALID[clause][0]().history
    judged = judge_checks(history, [bind("job", "succeeded"), bind(*trained.CLAUSES[clause])])
    seen = measure(undisturbed().history, "succeeded", "", "train.py")
    found = row_of("worker-exits", "", history, judged, seen, tolerance=1e-6, directory="runs/x")
    assert (found.survived, found.outcome) == (True, "invalid")
    assert advice in found.causes[-1], found.causes


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (JobEnded(result="failed", reason="no restart is left"), "to mend it: "),
        (JobEnded(result="lost", reason="1 of 2 nodes came"), "job ended: lost: 1 of 2 nodes came"),
        (
            AgentExited(exit_code=3, reason="the keeper ended with -9"),
            "job ended: n1 gave up: the keeper ended with -9",
        ),
        (AgentExited(exit_code=143, reason="SIGTERM"), "to mend it: "),  # it was told to leave
    ],
)
def test_a_job_that_its_launcher_gave_up_is_no_fault_of_the_script(why: Event, said: str) -> None:
    """What it saves would not have mended that."""
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, 0)
    story.fault("fault").gone(1).tell("agent", "n1", why)
    found = row(story.end(outcome="failed"), "killed-while-saving")
    assert [cause.partition(":")[0] for cause in found.causes] == ["job", said.partition(":")[0]]
    assert found.causes[-1].startswith(said)


def test_samples_that_fewer_ranks_do_not_come_to_are_not_lost() -> None:
    """As many steps of one rank end in an earlier epoch; what was left out before that is lost."""
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, 0)
    use(story, 1, range(1, 7), 0)
    story.fault("fault").wait(1).gone(1).round(2, ["n1"]).resume(2, 0, 6)
    for step in range(7, 10):  # of the second epoch, three samples are left out
        epoch, sample = (1, 6) if step == 7 else (2, step - 8)
        story.drawn(2, 0, step, sample, epoch=epoch).step(2, 0, step)
    found = row(story.finish(2).end())
    assert (found.samples_lost, found.samples_again) == (3, 0)


def test_a_sample_that_was_repeated_to_fill_up_is_not_lost_where_it_is_used_once() -> None:
    """Three ranks share eight samples by repeating one; two ranks need not."""
    seen = measure(undisturbed().history, "succeeded", "", "train.py")
    assert seen.samples is not None
    size, uses = seen.samples
    padded = {epoch: used + Counter([0]) for epoch, used in uses.items()}
    history = resumed(6).history
    judged = judge_checks(history, [bind("job", "succeeded")])
    seen = replace(seen, samples=(size, padded))
    found = row_of("one", "One", history, judged, seen, tolerance=1e-6, directory="runs/x")
    assert (found.samples_lost, found.samples_again) == (0, 0)


@pytest.mark.parametrize(("began_with", "outcome"), [("a", "valid"), ("b", "unknown")])
def test_where_only_parameters_tell_steps_a_run_begins_with_those_of_the_undisturbed_one(
    began_with: str, outcome: str
) -> None:
    """Others are those of a checkpoint, and its steps are not counted from the same place."""
    seen = measure(undisturbed(leaves=str, began_with="a").history, "succeeded", "", "train.py")
    story = undisturbed(leaves=str, began_with=began_with)
    judged = judge_checks(story.history, [bind("job", "succeeded")])
    found = row_of("one", "One", story.history, judged, seen, tolerance=1e-6, directory="runs/x")
    assert found.outcome == outcome


def test_an_optimizer_that_counts_nothing_has_no_count_to_save() -> None:
    """The steps are lost, and what mends it is not the optimizer's state."""
    story = Story().round(1, ["n1"]).resume(1, 0, 0, "a").step(1, 0, 1, step_source="parameters")
    story.gone(1).round(2, ["n1"]).resume(2, 0, 0, "a")
    story.step(2, 0, 1, step_source="parameters").finish(2).end()
    seen = measure(undisturbed(leaves=str, began_with="a").history, "succeeded", "", "train.py")
    judged = judge_checks(story.history, [bind("job", "succeeded"), bind("finished_at", 12)])
    found = row_of("one", "One", story.history, judged, seen, tolerance=1e-6, directory="runs/x")
    assert found.outcome == "invalid"
    assert "Save and load the optimizer's state" not in " ".join(found.causes)


def rows(**more: Any) -> list[Row]:  # noqa: ANN401 (the fields of a row)
    """Return two rows that fail alike, and one that was not run."""
    bad = {"outcome": "invalid", "survived": False, "causes": ("job: it failed",), **more}
    return [
        Row(name="one", title="One", **bad),
        Row(name="two", title="Two", **bad),
        row_without_run("three", "Three", "there is no link to cut"),
        row_without_run("four", "Four", "files were missed", "unknown"),
    ]


def test_the_card_says_a_cause_once() -> None:
    """The second row that fails alike points to the first."""
    text = card_text("train.py", rows(), ["no samples were seen"])
    assert text.startswith("Check-up of train.py: 2 invalid, 1 unknown, 1 skipped\n")
    assert text.count("it failed") == 1
    assert "  for the same reason as one\n" in text
    assert "Note: no samples were seen" in text
    assert "there is no link to cut" in text
    assert re.search(r"^four +unknown +- ", text, re.MULTILINE)
    assert "four: unknown. Four.\n  files were missed\n" in f"{text}\n"


def test_the_card_is_no_wider_than_a_screen() -> None:
    """Whatever a cause says."""
    text = card_text("train.py", rows(causes=("a: " + "word " * 200,)), [])
    assert max(map(len, text.splitlines())) <= 100


def test_no_option_is_broken_over_two_lines() -> None:
    """Wherever it comes to stand in a line: it is copied from there."""
    for words in range(60):
        assert "--observe-step=" in card_text("train.py", [], [f"{'w ' * words}--observe-step='x'"])


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"digest": "x"}, ""),
        (
            {"digest": "y"},
            "without any fault, rank 0 and rank 1 ended with different parameters",
        ),
        ({"digest": "y", "sharded": ("parameters",)}, ""),  # none has the whole model
        (
            {"digest": "x", "is_finite": False},
            "without any fault, rank 1 ended with parameters that are not finite (nan or inf)",
        ),
    ],
)
def test_what_is_wrong_without_a_fault_is_said(second: dict[str, Any], said: str) -> None:
    """A rank whose learning rate follows its own loss goes its own way, whatever is saved."""
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, 0).steps(1, 1, 1)
    story.hashed(1, 0, "x").hashed(1, 1, **second)
    assert what_is_wrong_without_a_fault(story.finish(1).end().history) == said
