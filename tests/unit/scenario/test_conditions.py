"""What proves a condition, record by record, and what is said of one that is not met."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_harness.history.events import FilesUnseen, LogMatched, SamplesDrawn, WriterHeld
from elastic_harness.scenario.engine.conditions import Watcher, watch
from elastic_harness.scenario.engine.observed import ObservedRun
from elastic_harness.scenario.reading.loader import read_clause
from elastic_harness.scenario.triggers import WritingCondition

from tests.unit.history.story import Story

TWO = ("n1", "n2")


def watcher(since: float = 0.0, **condition: object) -> Watcher:
    """Watch for a condition, as a clause has it."""
    return watch(read_clause({**condition, "within": "10s"}).condition, since)


def follow(watching: Watcher, story: Story) -> tuple[list[str], str]:
    """Return what proved the condition, each time, and what is said of it at the end."""
    run = ObservedRun(store_host="n1")
    assert watching.see(None, run) is None
    found: list[str] = []
    for record in story.records:
        run.observe(record)
        if (proof := watching.see(record, run)) is not None:
            found.append(proof)
    return found, watching.last_seen(run)


def said(line: str, *, node: str = "n1", by: str = "worker", pattern: str = "x") -> Story:
    """Find a line in a log, beside other things."""
    story = Story().tell("worker", node, LogMatched(pattern=pattern, line=line, by=by))
    return story.round(1, TWO)


def drawn(*batches: tuple[int, ...], loader: str = "a") -> Story:
    """Draw samples."""
    story = Story().round(1, ["n1"])
    event = SamplesDrawn(
        pid=1001, rank=0, count=1, step=1, loader=loader, size=8, epoch=0, batches=batches
    )
    return story.tell("worker", "n1", event)


def held(pattern: str, path: str | None = None) -> Story:
    """Hold a process in the middle of a write, beside other things."""
    story = Story().tell("cluster", "n1", WriterHeld(pattern=pattern, path=path, file="f"))
    return story.round(1, TWO)


def grown() -> Story:
    """A round of two makes a step, and one of one begins."""
    return Story().round(1, TWO).steps(1, 1, 2).gone(1).round(2, ["n1"])


ROWS: tuple[tuple[dict[str, Any], Story, list[str], str], ...] = (
    ({"event": "worker_gone"}, grown(), ["worker_gone on n1", "worker_gone on n2"],
     "2 of 1 such events"),
    ({"event": "worker_gone", "count": 2}, grown(), ["worker_gone on n2"], "2 of 2 such events"),
    ({"event": "worker_gone", "count": 3}, grown(), [], "2 of 3 such events"),
    ({"event": "worker_gone", "node": "n2"}, grown(), ["worker_gone on n2"], "1 of 1 such events"),
    ({"event": "worker_gone", "rank": 0}, grown(), ["worker_gone on n1"], "1 of 1 such events"),
    ({"event": "run_started"}, Story(), ["run_started"], "1 of 1 such events"),
    ({"event": "worker_gone"}, Story(), [], "0 of 1 such events"),
    ({"event": "samples_drawn", "batches": [(1, 2)]}, drawn((1, 2)), ["samples_drawn on n1"],
     "1 of 1 such events"),
    ({"event": "samples_drawn", "batches": [(1,)]}, drawn((1, 2)), [], "0 of 1 such events"),
    ({"log": "x"}, said(" y "), ["log line on n1: y"], "no such line"),
    ({"log": "z"}, said("y"), [], "no such line"),
    ({"log": "x"}, said("y", by="launcher"), [], "no such line"),
    ({"log": "x", "by": "launcher"}, said("y", by="launcher"), ["log line on n1: y"],
     "no such line"),
    ({"log": "x", "node": "n1"}, said("y"), ["log line on n1: y"], "no such line"),
    ({"log": "x", "node": "n2"}, said("y"), [], "no such line"),
    ({"log": "z", "node": "n1"}, said("y"), [], "no such line"),
    ({"log": "x"}, said("y" * 130), [f"log line on n1: {'y' * 120}"], "no such line"),
    ({"round": 1}, Story().round(1, TWO), ["round 1 formed with 2 ranks"], "round 1 with 2 ranks"),
    ({"round": 1}, Story(), [], "no worker has said hello"),
    ({"round": 1}, Story().hello(1, "n1", 0, 2), [], "round 1, 1 of 2 ranks said hello"),
    ({"round": 2}, Story().round(1, TWO), [], "round 1 with 2 ranks"),
    ({"round": 1}, Story().round(1, ["n1"]).gone(1).hello(2, "n1", 0, 2),
     ["round 1 formed with 1 ranks"] * 3, "round 2, 1 of 2 ranks said hello"),
    ({"world_size": 2}, Story().round(1, TWO), ["round 1 formed with 2 ranks"],
     "round 1 with 2 ranks, 0 of 1 steps by every rank"),
    ({"world_size": 3}, Story().round(1, TWO), [],
     "round 1 with 2 ranks, 0 of 1 steps by every rank"),
    ({"world_size": 2}, Story(), [], "no worker has said hello"),
    ({"world_size": 2}, Story().hello(1, "n1", 0, 2), [], "round 1, 1 of 2 ranks said hello"),
    ({"stable": {"world_size": 2, "steps": 2}}, Story().round(1, TWO).steps(1, 1, 2),
     ["2 steps in round 1 of 2 ranks"], "round 1 with 2 ranks, 2 of 2 steps by every rank"),
    ({"stable": {"world_size": 2, "steps": 2}}, Story().round(1, TWO).steps(1, 1, 1), [],
     "round 1 with 2 ranks, 1 of 2 steps by every rank"),
    ({"stable": {"world_size": 2, "steps": 1}}, Story().round(1, TWO).step(1, 0, 1), [],
     "round 1 with 2 ranks, 0 of 1 steps by every rank"),
    ({"stable": {"world_size": 1, "steps": 1}}, Story().round(1, TWO).steps(1, 1, 1), [],
     "round 1 with 2 ranks, 1 of 1 steps by every rank"),
    ({"progress": {"steps": 1}}, Story().round(1, TWO), [],
     "round 1 with 2 ranks, 0 of 1 steps by every rank"),
    ({"progress": {"steps": 2}}, Story().round(1, ["n1"]).steps(1, 1, 3),
     ["2 steps in round 1 of 1 ranks"] * 2, "round 1 with 1 ranks, 2 of 2 steps by every rank"),
)  # fmt: skip


@pytest.mark.parametrize(("condition", "story", "proofs", "last"), ROWS)
def test_a_condition_is_proved_by_the_records_that_it_names(
    condition: dict[str, Any], story: Story, proofs: list[str], last: str
) -> None:
    """Each proof is a sentence, and so is how far things have come."""
    assert follow(watcher(**condition), story) == (proofs, last)


@pytest.mark.parametrize(
    ("asked", "told", "is_met"),
    [
        ({"writing": "a"}, ("a", None), True),
        ({"writing": "b"}, ("a", None), False),
        ({"writing": "a", "node": "n1"}, ("a", None), True),
        ({"writing": "a", "node": "n2"}, ("a", None), False),
        ({"writing": "a", "path": "/d"}, ("a", None), False),
        ({"writing": "a", "path": "/d"}, ("a", "/d"), True),
    ],
)
def test_a_trigger_is_met_by_the_writer_that_is_held_for_it(
    asked: dict[str, str], told: tuple[str, str | None], *, is_met: bool
) -> None:
    """By its pattern and its path, on the node that it names."""
    watching = watch(WritingCondition.model_validate(asked), 0.0)
    expected = ["a process on n1 is held in the middle of writing f"] * is_met
    last = "no such file was written in more than one byte"
    assert follow(watching, held(*told)) == (expected, last)


def test_only_what_begins_since_counts_for_a_state() -> None:
    """The state before looks the same; the boundary itself counts."""
    story = Story().round(1, ["n1"]).steps(1, 1, 3)
    formed = story.records[1].at
    steps = story.history.worlds.rounds[0].workers[0].steps
    began = [step.began_at for step in steps]
    assert len(follow(watcher(formed, world_size=1), story)[0]) == 5
    assert (
        follow(watcher(formed + 0.001, world_size=1), story)[0]
        == ["1 steps in round 1 of 1 ranks"] * 2
    )
    for since, count in ((began[1], 1), (began[1] + 0.001, 0)):
        found, _ = follow(watcher(since, progress={"steps": 2}), story)
        assert len(found) == count
    watching = watcher(0.0, progress={"steps": 1})
    watching.restart(story.at)
    assert follow(watching, story) == (
        [],
        "round 1 with 1 ranks, 0 of 1 steps by every rank",
    )


def test_a_restart_forgets_no_event() -> None:
    """An event right at the fault's moment is what one waits for."""
    watching = watcher(event="worker_gone", count=2)
    follow(watching, Story().round(1, ["n1"]).gone(1))
    watching.restart(999.0)
    assert len(follow(watching, Story().round(1, ["n1"]).gone(1))[0]) == 1


def test_files_are_missed_only_where_some_may_be_unseen() -> None:
    """Else nothing was written, and that is known."""
    of_files = watcher(event="file_written")
    assert follow(of_files, Story().round(1, TWO)) == ([], "0 of 1 such events")
    unseen = Story().round(1, TWO).tell("cluster", "", FilesUnseen(reason="no more watches"))
    _, why = follow(of_files, unseen)
    assert why.endswith("files may have been written unseen: no more watches")


@pytest.mark.parametrize(("later_s", "is_met"), [(-0.1, True), (0.0, True), (0.1, False)])
def test_a_round_may_have_to_form_after_a_moment(later_s: float, *, is_met: bool) -> None:
    """From that very moment on; what had formed before is told."""
    story = Story().round(1, TWO)
    formed_at = max(record.at for record in story.records)
    asked = read_clause({"round": 1, "within": "10s"}).condition
    found, last = follow(watch(asked, 0.0, rounds_since=formed_at + later_s), story)
    assert bool(found) is is_met
    assert last.endswith(", and round 1 had formed before that") is not is_met


def test_a_list_stands_for_a_tuple_and_for_nothing_else() -> None:
    """A scenario knows lists only."""
    story = drawn((1, 2), loader="ab")
    assert follow(watcher(event="samples_drawn", loader=["a", "b"]), story)[0] == []
    assert follow(watcher(event="samples_drawn", loader="ab"), story)[0] != []
    hello = Story().hello(1, "n1", 0, 1, argv=("a", "b"))
    assert follow(watcher(event="worker_hello", argv="ab"), hello)[0] == []
    assert follow(watcher(event="worker_hello", argv=["a", "b"]), hello)[0] != []
    assert follow(watcher(event="samples_drawn", batches=[[1, 2]]), drawn((1, 2)))[0] != []
