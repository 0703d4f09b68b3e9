"""What is measured of a run without any fault, and which scripts cannot be checked."""

from __future__ import annotations

import pytest
from elastic_harness.checkup.measured import (
    ALL_ALIKE,
    NO_STEPS,
    Measured,
    measure,
    why_not_comparable,
    without_what_differs,
)
from elastic_harness.history.events import FilesUnseen, StepCompleted
from elastic_harness.history.history import History
from msgspec.structs import replace

from pytest_elastic.errors import UsageError
from pytest_elastic.events.model import AgentExited, Event, JobEnded
from tests.unit.checkup.undisturbed import Saved, undisturbed
from tests.unit.history.story import Story


def measured(story: Story) -> Measured:
    """Measure a run that ended well."""
    return measure(story.history, "succeeded", "", "train.py")


def refused(story: Story, outcome: str = "succeeded", reason: str = "") -> str:
    """Return why a script cannot be checked."""
    with pytest.raises(UsageError) as caught:
        measure(story.history, outcome, reason, "train.py")
    return caught.value.message


def test_steps_checkpoints_samples_and_the_final_state_are_measured() -> None:
    """All that the battery and the comparison need."""
    seen = measured(undisturbed())
    assert (seen.steps, seen.world_size, seen.is_global) == (12, 2, True)
    found = seen.checkpoints
    assert found is not None
    assert (found.written, found.named) == ("out/newest.pt.*", "out/newest.pt")
    assert (found.steps, found.interval) == ((3, 6, 9, 12), 3)
    assert seen.epoch_ends == {4, 8}
    assert seen.samples is not None
    assert {epoch: len(used) for epoch, used in seen.samples[1].items()} == {0: 8, 1: 8, 2: 8}
    assert seen.state is not None
    assert seen.loss_limit is not None
    assert 1.1 < seen.loss_limit < 1.3
    assert seen.unseen == {}


def numbered(step: int) -> Saved:
    """Return a file for each checkpoint, and a log that is written beside."""
    files = [(f"ckpt/step-{step}/model.bin", "written", 9000)] if step % 4 == 0 else []
    return [*files, ("log.txt", "written", 20000)]


def of_each_rank(step: int) -> Saved:
    """Return a folder with the weights, and larger files of each rank."""
    folder = f"step-{step}"
    files = [(f"{folder}/rng_{rank}.pth", "written", 9000) for rank in (0, 1)]
    return [*files, (f"{folder}/model.bin", "written", 800)] if step % 4 == 0 else []


def drawn_by_chance(step: int) -> Saved:
    """Return files whose temporary name is never the same."""
    return [(f"a/{chr(96 + step) * 6}", "written", 0), ("a/newest.pt", "moved", 900)]


def test_numbers_in_names_are_left_open_and_the_usual_names_are_preferred() -> None:
    """A log is written more often than a checkpoint, and is none."""
    found = measured(undisturbed(saves=numbered)).checkpoints
    assert found is not None
    assert (found.written, found.named) == ("ckpt/step-*/model.bin", "ckpt/step-*/model.bin")
    assert found.steps == (4, 8, 12)


def test_a_file_that_all_ranks_share_is_preferred() -> None:
    """Random numbers of each rank are larger than a small model; they are not what matters."""
    found = measured(undisturbed(saves=of_each_rank)).checkpoints
    assert found is not None
    assert found.named == "step-*/model.bin"


def test_a_file_of_all_ranks_is_one_where_it_is_told_of_twice_or_late() -> None:
    """As on a busy machine, in a new folder; each rank's own files have names of their own."""

    def saves(step: int) -> Saved:
        late = [("out/step-9/all.pt", "written", 5000)] if step == 12 else []
        shared = [(f"out/step-{step}/all.pt", "written", 5000)] * 2 if step in (3, 6, 12) else []
        own = [(f"out/step-{step}/{rank}.pt", "written", 9000) for rank in (0, 1)]
        return [*late, *shared, *(own if step % 3 == 0 else [])]

    found = measured(undisturbed(saves=saves)).checkpoints
    assert found is not None
    assert found.named == "out/step-*/all.pt"


def test_a_temporary_name_that_chance_draws_stands_for_any_file_beside_it() -> None:
    """The pattern of one of them would never be seen again."""
    found = measured(undisturbed(saves=drawn_by_chance)).checkpoints
    assert found is not None
    assert (found.written, found.named) == ("a/*", "a/newest.pt")


def test_what_was_not_seen_is_said() -> None:
    """No checkpoint, no final state: both with a reason."""
    seen = measured(undisturbed(saves=lambda _: [], digest=None))
    assert (seen.checkpoints, seen.state) == (None, None)
    assert seen.unseen["checkpoints"].startswith("no checkpoint was seen")
    assert seen.unseen["state"].startswith("what it ended with was not seen of any rank")


def test_parameters_that_never_change_tell_no_step() -> None:
    """An optimizer that counts nothing, and a loss without a gradient: a job may lose all steps."""
    assert measured(undisturbed(leaves=str)).is_global
    assert measured(undisturbed(leaves=lambda step: str(max(step, 2)))).is_global
    seen = measured(undisturbed(leaves=lambda _: "same"))
    assert not seen.is_global
    assert seen.unseen["steps"] == ALL_ALIKE


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
    ("story", "outcome", "said"),
    [
        (undisturbed(steps=9), "succeeded", "train.py ended well, but 9 steps were seen"),
        (undisturbed(steps=0), "succeeded", "train.py ended well, but no step was seen"),
        (Story(), "succeeded", "train.py ended well, but no Python process"),
        (undisturbed(begins=5), "succeeded", "train.py did not begin afresh"),
        (Story(), "limit", "train.py had not ended by its limit, without any fault"),
        (Story(), "failed", "train.py fails without any fault: it is broken"),
    ],
)
def test_a_script_that_cannot_be_checked_is_named_with_the_reason(
    story: Story, outcome: str, said: str
) -> None:
    """One sentence, before any fault is tried."""
    assert refused(story, outcome, "it is broken").startswith(said)


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


def test_checkpoints_are_not_known_where_files_may_be_missed() -> None:
    """Not even those that were seen: there may have been others between them."""
    story = undisturbed()
    story.tell("cluster", "", FilesUnseen(reason="no more watches"))
    seen = measured(story)
    assert seen.checkpoints is None
    assert seen.misses_files
    assert seen.unseen["checkpoints"].endswith("written unseen: no more watches")
