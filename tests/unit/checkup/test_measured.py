"""What is measured of a run without any fault, and which scripts cannot be checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_harness.checkup.measured import (
    NO_STEPS,
    Checkpoints,
    Measured,
    measure,
    why_not_comparable,
    without_what_differs,
)
from elastic_harness.history.events import StepCompleted
from elastic_harness.history.history import History
from msgspec.structs import replace

from pytest_elastic.errors import UsageError
from pytest_elastic.events.model import AgentExited, Event, JobEnded
from tests.unit.checkup.undisturbed import undisturbed
from tests.unit.checkup.written_measured import written
from tests.unit.history.story import Story


def measured(story: Story) -> Measured:
    """Measure a run that ended well."""
    return measure(story.history, "succeeded", "", "train.py")


def test_what_is_measured_of_each_run_is_as_it_is_written_down() -> None:
    """`written_measured` says how to write it anew: then read what has changed."""
    kept = Path(__file__).with_name("measured.txt").read_text("utf-8")
    assert written() == kept


def test_a_count_that_is_lost_on_the_way_is_none() -> None:
    """As where a script goes back to a checkpoint in its middle, and no optimizer counts."""
    story = undisturbed()
    records = list(story.records)
    number = max(n for n, each in enumerate(records) if isinstance(each.event, StepCompleted))
    lost = replace(records[number].event, step=None, step_source="process")
    records[number] = replace(records[number], event=lost)
    seen = measure(History.of(records), "succeeded", "", "train.py")
    assert not seen.is_global
    assert seen.unseen["steps"] == NO_STEPS


@pytest.mark.parametrize(
    ("why", "said", "told"),
    [
        (None, "OSError: no process left", "OSError: no process left"),
        (JobEnded(result="failed", reason="no restart is left"), "", "it is broken"),
        (JobEnded(result="lost", reason="1 of 2 came"), "", "lost: 1 of 2 came"),
        (AgentExited(exit_code=3, reason="no keeper"), "x", "n1 gave up: no keeper"),
    ],
)
def test_a_script_is_not_blamed_for_a_launcher_that_gives_up(
    why: Event | None, said: str, told: str
) -> None:
    """What it said itself goes before what was printed where it failed."""
    story = Story() if why is None else Story().tell("agent", "n1", why)
    with pytest.raises(UsageError, match=f"fails without any fault: {told}"):
        measure(story.history, "failed", "it is broken", "train.py", said=said)


def test_two_runs_that_differ_are_nothing_to_compare_with() -> None:
    """Else a script without seeds would be blamed for each fault."""
    one = measured(undisturbed())
    assert why_not_comparable(one, measured(undisturbed())) == ""
    assert "the other 13" in why_not_comparable(one, measured(undisturbed(steps=13)))
    assert "different parameters" in why_not_comparable(one, measured(undisturbed(digest="y")))
    assert "samples" in why_not_comparable(one, measured(undisturbed(per_epoch=3)))
    other = measured(undisturbed(leaves=str, began_with="b"))
    assert "began with different" in why_not_comparable(
        measured(undisturbed(leaves=str, began_with="a")), other
    )
    assert "of one only" in why_not_comparable(one, measured(undisturbed(digest=None)))


def test_a_third_run_is_not_compared_with_what_two_did_not_show_alike() -> None:
    """Where it begins with other parameters, and ends elsewhere, nothing tells its steps."""
    one = measured(undisturbed(leaves=str, began_with="a"))
    unseeded = measured(undisturbed(leaves=str, began_with="b"))
    kept = without_what_differs(one, unseeded)
    assert (kept.began_with, kept.is_global, kept.state) == (frozenset(), True, None)
    went_on = measured(undisturbed(leaves=str, began_with="b", steps=11))
    kept = without_what_differs(one, went_on)
    assert (kept.began_with, kept.is_global, kept.unseen["steps"]) == (frozenset(), False, NO_STEPS)
    more = measured(undisturbed(leaves=str, began_with="a", steps=11))
    assert without_what_differs(one, more).is_global


@pytest.mark.parametrize(
    ("saved", "number", "step", "lost"),
    [
        ((10, 20, 30, 40), 1, 25, 10),
        ((10, 20, 30, 40), 2, 25, 20),
        ((11, 20, 32, 40), 1, 25, 11),  # seen a step or two late
        ((5, 10, 20, 40, 80), 1, 25, 20),
        ((5, 10, 20, 40, 80), 1, 20, 20),
        ((5, 10, 20, 40, 80), 2, 25, 30),
        ((5, 10, 20, 40, 80), 1, 45, 40),
        ((5, 10, 20, 40, 80), 2, 3, 20),
        ((10, 20, 30, 70), 1, 45, 40),
        ((10, 20, 30, 70), 1, 25, 10),
        ((10, 20, 30, 70), 1, 75, 10),  # nothing is saved after it
        ((10, 20, 30, 70), 2, 75, 45),
        ((10, 20, 30, 44), 1, 35, 10),
        ((10, 20, 30, 45), 1, 35, 15),
        ((10, 20, 30, 45), 1, 45, 10),
        ((30, 40, 50, 60), 1, 3, 30),
    ],
)
def test_checkpoints_may_be_unequally_far_apart(
    saved: tuple[int, ...], number: int, step: int, lost: int
) -> None:
    """Those around the fault count, and what is usual where they differ by little."""
    found = Checkpoints(written="ck", named="ck", steps=saved, beside=0)
    assert found.most_lost(step, number) == lost
