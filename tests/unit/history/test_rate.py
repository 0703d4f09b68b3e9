"""Each boundary of the checker of the learning rate, by the smallest history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from elastic_harness.history.events import SamplesDrawn

from tests.unit.history.story import Story
from tests.unit.history.trained import judge

THREE, TWO = ("n1", "n2", "n3"), ("n1", "n2")
SAME_ROUND = ("n2", "n3")


def resized(
    *rounds: tuple[Sequence[str], Sequence[float | None]],
    batches: int = 1,
    missing: int | None = None,
    **drawn: Any,  # noqa: ANN401 (fields of an event)
) -> Story:
    """Let rounds of these nodes make a step at each rate; each rank uses a sample for it.

    To get to its place, it draws so many `batches` before the first step of a later round. Rank
    `missing` draws none.
    """
    story = Story(nodes=3)
    for number, (nodes, rates) in enumerate(rounds, 1):
        story.round(number, nodes)
        for rank in range(len(nodes)):
            for step, rate in enumerate(rates, 1):
                used = tuple(
                    (n,) * n for n in range(batches if step == 1 and number > 1 else 1, 0, -1)
                )
                if rank != missing:
                    story.drawn(number, rank, step, batches=used, **drawn)
                story.step(number, rank, step, learning_rate=rate)
        story.gone(number)
    return story.end()


def other_job() -> Story:
    """The second round is of another run."""
    story = Story(nodes=3)
    for number, nodes, run_id in ((1, THREE, "job"), (2, TWO, "other")):
        story.round(number, nodes, run_id=run_id)
        for rank in range(len(nodes)):
            story.drawn(number, rank, 1, 0).step(number, rank, 1, learning_rate=3.0)
        story.gone(number)
    return story.end()


def with_evaluation(name: str) -> Story:
    """Between the steps, an evaluation draws as well, from a loader with this name."""
    story = Story(nodes=3)
    for number, nodes, rate in ((1, THREE, 3.0), (2, TWO, 2.0)):
        story.round(number, nodes)
        for rank in range(len(nodes)):
            story.drawn(number, rank, 1, *range(9), loader=name).drawn(number, rank, 1, 0)
            story.step(number, rank, 1, learning_rate=rate).drawn(number, rank, 2, 0)
            story.step(number, rank, 2, learning_rate=rate)
        story.gone(number)
    return story.end()


def with_more(**more: object) -> Story:
    """Something else is drawn before the first round: by a stranger, or nothing at all."""
    story = resized((THREE, [3.0]), (TWO, [2.0]))
    values: dict[str, Any] = {
        "pid": story.pids[1, 0], "rank": 0, "count": 1, "step": 1, "size": 8, "epoch": 0,
        "loader": "Data[8] by DistributedSampler", "batches": ((0,),), **more,
    }  # fmt: skip
    drawn = Story().tell("worker", "n1", SamplesDrawn(**values)).records[-1]
    place = next(n for n, each in enumerate(story.records) if each.event.kind == "samples_drawn")
    story.records.insert(place, drawn)
    return story


def fed(*rounds: tuple[Sequence[str], float, Sequence[Sequence[int]]]) -> Story:
    """Let rounds of these nodes, at this rate, use batches of these sizes for each step."""
    story = Story(nodes=3)
    for number, (nodes, rate, steps) in enumerate(rounds, 1):
        story.round(number, nodes)
        for rank in range(len(nodes)):
            for step, sizes in enumerate(steps, 1):
                story.drawn(number, rank, step, batches=tuple((0,) * size for size in sizes))
                story.step(number, rank, step, learning_rate=rate)
        story.gone(number)
    return story.end()


def uneven() -> Story:
    """Rank 1 of the first round tells another rate: it is rank 0's that counts."""
    story = Story(nodes=3)
    for number, nodes, rates in ((1, THREE, (3.0, 9.0, 9.0)), (2, TWO, (2.0, 9.0))):
        story.round(number, nodes)
        for rank, rate in enumerate(rates[: len(nodes)]):
            story.drawn(number, rank, 1, 0).step(number, rank, 1, learning_rate=rate)
        story.gone(number)
    return story.end()


@pytest.mark.parametrize(
    ("make", "outcome", "reason"),
    [
        (lambda: resized((THREE, [3.0]), (TWO, [2.0])), "valid", "over 1 changes of ranks"),
        (lambda: resized((THREE, [3.0]), (TWO, [2.0]), (THREE, [3.0])), "valid", "over 2 changes"),
        (lambda: resized((THREE, [3.0])), "unknown", "the number of ranks did not change"),
        (lambda: resized((TWO, [3.0]), (SAME_ROUND, [1.0])), "unknown", "did not change"),
        (lambda: resized((TWO, [2.0]), (SAME_ROUND, [9.0]), (THREE, [9.0])), "invalid", "13.5"),
        (other_job, "unknown", "did not change"),
        # A tenth more or less is the schedule's.
        (lambda: resized((TWO, [10.0]), (("n1",), [5.5])), "valid", ""),
        (lambda: resized((TWO, [10.0]), (("n1",), [5.51])), "invalid", "5 was expected"),
        (lambda: resized((TWO, [10.0]), (("n1",), [4.49])), "invalid", "from 10 to 4.49"),
        # The last step before the change, and the first one after it.
        (lambda: resized((THREE, [9.0, 3.0]), (TWO, [2.0, 9.0])), "valid", ""),
        (lambda: resized((THREE, [3.0, None]), (TWO, [None, 2.0])), "valid", ""),
        (lambda: resized((THREE, [None]), (TWO, [2.0])), "unknown", "batch of round 1 was not"),
        (lambda: resized((THREE, [3.0]), (TWO, [None])), "unknown", "batch of round 2 was not"),
        (lambda: resized((THREE, [3.0]), (TWO, [2.0]), missing=0), "unknown", "round 1 was not"),
        (lambda: resized((THREE, [3.0]), (TWO, [2.0]), missing=2), "unknown", "round 1 was not"),
        (lambda: resized((THREE, [3.0]), (TWO, [2.0]), batches=3), "valid", ""),
        (lambda: with_evaluation("Eval[8]"), "valid", ""),
        (uneven, "valid", ""),
        # The last batch of an epoch may be smaller.
        (lambda: fed((TWO, 3.0, [[4], [2]]), (("n1",), 3.0, [[4], [4]])), "invalid", "1.5 was"),
        (lambda: fed((TWO, 3.0, [[4], [2]]), (("n1",), 1.5, [[4], [4]])), "valid", ""),
        # Gradients of several batches make a step, so that fewer ranks may use as many samples.
        (lambda: fed((TWO, 3.0, [[4], [4]]), (("n1",), 1.5, [[4, 4]] * 2)), "invalid", "3 was"),
        (lambda: fed((TWO, 3.0, [[4], [4]]), (("n1",), 3.0, [[4, 4]] * 2)), "valid", ""),
        (lambda: fed((TWO, 3.0, [[4]] * 2), (("n1",), 3.0, [[4] * 5, [4, 4]])), "valid", ""),
        (lambda: with_more(pid=7), "valid", ""),
        (lambda: with_more(batches=()), "valid", ""),
    ],
)
def test_the_rate_follows_the_batch(make: Callable[[], Story], outcome: str, reason: str) -> None:
    """By the samples of all ranks, wherever the number of ranks changes."""
    verdict = judge("learning_rate", "follows_batch", make())
    assert (verdict.outcome.value, reason in verdict.reason) == (outcome, True), verdict.reason
