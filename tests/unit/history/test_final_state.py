"""Each boundary of the checkers of a final state, by the smallest history."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from elastic_harness.history.checkers import bind
from elastic_harness.history.checkers.final_state import reference_of
from elastic_harness.history.events import ParametersHashed, ReferenceObserved

from tests.unit.history.story import Story
from tests.unit.history.trained import Job, Row, alike, judge, seqs

ONE, TWO = ("n1",), ("n1", "n2")


def ended(*states: dict[str, Any], reference: Sequence[dict[str, Any]] | None = None) -> Story:
    """Let ranks end with these states; `reference` is what an undisturbed run ended with."""
    story = Story(nodes=3)
    if reference is not None:
        story.tell("engine", "", ReferenceObserved(world_size=len(reference), step=6, states=tuple(
            {"pid": 1, "rank": rank, "step": 6, **told(state)}
            for rank, state in enumerate(reference)
        )))  # fmt: skip
    story.round(1, [f"n{rank + 1}" for rank in range(len(states))])
    for rank, state in enumerate(states):
        story.step(1, rank, 6).hashed(1, rank, **{"step": 6, **told(state)})
    return story.finish(1).end()


def told(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state, with what is usual where nothing is said."""
    return {**alike(0), "optimizer_sketch": (3.0, 3.0), "optimizer_norm": 4.0, **state}


def resized(**changed: object) -> Story:
    """Make steps in a round of one rank, then in one of two, which ends otherwise than asked."""
    story = ended({**OTHER, **changed}, {}, reference=({}, {}))
    shrunk = Story().round(1, ONE).resume(1, 0, 0).step(1, 0, 1).gone(1)
    story.records[2:2] = shrunk.records[1:]
    return story


def small(value: float, beside: float = 2000.0) -> dict[str, Any]:
    """Return a state of a large tensor and a small one, of the norm 1 in the undisturbed run."""
    known = {"norm": 2000.0, "norms": (2000.0, 1.0), "sketch": (beside, value)}
    name = f"{value} {beside}"
    of_optimizer = {f"optimizer_{part}": each for part, each in known.items()}
    return {"digest": name, "optimizer": name, **known, **of_optimizer}


def large(factor: float) -> dict[str, Any]:
    """Return that state with another large tensor."""
    return small(1, beside=2000.0 * factor)


OTHER = {"digest": "y"}
SAME = {"are": "same_as_uninterrupted"}
NEAR = {**SAME, "within": 0.25}
SMALL = {**SAME, "within": 2e-5}
STATES: tuple[Row, ...] = (
    ("parameters", "identical", lambda: ended({"is_finite": False}, {}), "invalid", "rank 0 ended"),
    ("optimizer", "identical", lambda: ended({"optimizer_is_finite": False}, {}), "invalid",
     "rank 0 ended with an optimizer state that is not finite (nan or inf)"),
    ("parameters", "identical", lambda: ended({"optimizer_is_finite": False}, {}), "valid",
     "the same parameters"),
    ("parameters", "identical",
     lambda: Story().round(1, TWO).steps(1, 1, 2).hashed(1, 0, "x", is_finite=False).gone(1),
     "unknown", "no digest of rank 0's parameters in the last round: it did not end by itself"),
    ("parameters", "identical", lambda: Story().round(1, TWO).steps(1, 1, 2).finish(1), "unknown",
     "none was taken: no optimizer of torch made a step"),
    ("parameters", "identical", lambda: ended({"digest": None, "reason": "meta"}, {}), "unknown",
     "last round: meta"),
    ("parameters", "identical", lambda: ended({"digest": None}, {}), "unknown",
     "last round: none was taken"),
    ("parameters", "identical", lambda: ended({"sharded": ("parameters",)}, {}), "unknown",
     "each rank has only its shard of the parameters"),
    ("optimizer", "identical", lambda: ended({"sharded": ("parameters",)}, {}), "valid", ""),
    ("parameters", "identical", lambda: ended({}), "unknown", "there was one rank at the end"),
    ("parameters", "identical", lambda: ended({}, {}), "valid", "2 replicas ended with the same"),
    ("parameters", "identical", lambda: ended({}, OTHER, {**OTHER, "sketch": (9.0, 9.0)}),
     "invalid", "rank 0 and ranks 1, 2 ended with different parameters, by 0 (relative)"),
    # --- by a reference ---
    ("parameters", SAME, lambda: ended({}, reference=None), "unknown", "there is no uninterrupted"),
    ("parameters", SAME, lambda: ended({}, reference=({}, {})), "unknown",
     "the job ended with 1 ranks, uninterrupted with 2"),
    ("parameters", SAME, lambda: ended({}, {}, reference=({}, {})), "valid", "to the bit"),
    ("parameters", SAME, lambda: ended({}, OTHER, reference=({}, {})), "invalid",
     "rank 1 ended with different parameters than uninterrupted, by 0 (relative)"),
    ("parameters", SAME, lambda: ended({"step": None}, reference=({},)), "valid", ""),
    ("parameters", SAME, lambda: ended({**OTHER, "step": 5}, reference=({},)), "invalid",
     "rank 0 ended after step 5, uninterrupted after 6, and with different parameters, by 0"),
    ("parameters", SAME, lambda: ended({}, reference=({"digest": None},)), "unknown",
     "no digest of rank 0's parameters in the uninterrupted run"),
    ("parameters", SAME, lambda: ended({"step": 5}, reference=({"digest": None},)), "unknown",
     "no digest of rank 0's parameters in the uninterrupted run"),
    # The same to the bit after another number of steps: these were not counted right.
    ("parameters", SAME, lambda: ended({"step": 5}, {"step": 4}, reference=({}, {})), "unknown",
     "rank 0 ended after step 5, uninterrupted after 6, but with the same parameters to the bit"),
    ("optimizer", SAME, lambda: ended({"step": 5}, reference=({},)), "unknown",
     "but with the same optimizer state to the bit"),
    ("parameters", SAME, lambda: ended({"step": 5}, {**OTHER, "step": 5}, reference=({}, {})),
     "invalid", "rank 1 ended after step 5, uninterrupted after 6, and with different parameters"),
    ("parameters", SAME, lambda: ended({"step": 5}, OTHER, reference=({}, {})), "invalid",
     "rank 1 ended with different parameters than uninterrupted"),
    # The worst of all ranks, and the first of those that are equally far.
    ("parameters", SAME, lambda: ended({**OTHER, "sketch": (1.0, 1.5)}, OTHER, reference=({}, {})),
     "invalid", "rank 0 ended with different parameters than uninterrupted, by 0.25 (relative)"),
    ("parameters", SAME, lambda: ended(OTHER, {**OTHER, "sketch": (1.0, 1.5)}, reference=({}, {})),
     "invalid", "rank 1 ended with different parameters than uninterrupted, by 0.25 (relative)"),
    ("parameters", SAME, lambda: ended(OTHER, OTHER, reference=({}, {})), "invalid", "rank 0"),
    ("parameters", NEAR, lambda: ended({**OTHER, "sketch": (1.0, 1.5)}, reference=({},)), "valid",
     "by 0.25 (relative), 0.25 is allowed"),
    ("parameters", NEAR, lambda: ended({**OTHER, "sketch": (1.0, 1.51)}, reference=({},)),
     "invalid", ", 0.25 is allowed"),
    # A small tensor is not lost beside a large one, on whichever rank that is.
    ("parameters", SMALL, lambda: ended(small(1.0005), reference=(small(1),)), "valid", "by 2.5e-"),
    ("parameters", SMALL, lambda: ended(small(1.02), reference=(small(1),)), "invalid",
     "by 1e-05 (relative) of all, and some of the tensors by 0.02 (its optimizer's state differs)"),
    ("parameters", SMALL, lambda: ended(large(1.00002), small(1.0205), reference=(small(1),) * 2),
     "invalid", "rank 1 ended with different parameters than uninterrupted, by 1e-05"),
    ("parameters", SMALL, lambda: ended(large(1.2), small(1), reference=(small(1),) * 2),
     "invalid", "rank 0 ended with different parameters than uninterrupted, by 0.2 (relative)"),
    ("optimizer", SMALL,
     lambda: ended(small(1.0205), reference=(small(1),)), "invalid", "some of the tensors by 0.02"),
    # Sketches that cannot be compared are of no known distance.
    ("parameters", NEAR, lambda: ended({**OTHER, "sketch": (1.0,)}, reference=({},)), "invalid",
     "than uninterrupted, 0.25"),
    ("parameters", NEAR, lambda: ended({**OTHER, "sketch": ()}, reference=({},)), "invalid",
     "than uninterrupted, 0.25"),
    ("parameters", NEAR, lambda: ended({**OTHER, "sketch": ()}, reference=({"sketch": ()},)),
     "invalid", "than uninterrupted, 0.25"),
    ("parameters", NEAR, lambda: ended(OTHER, reference=({"norm": 0.0},)), "invalid",
     "than uninterrupted, 0.25"),
    ("optimizer", NEAR, lambda: ended({"optimizer": "p"}, reference=({},)), "valid", "by 0 (rel"),
    ("optimizer", NEAR,
     lambda: ended({"optimizer": "p", "optimizer_sketch": (3.0, 4.0)}, reference=({},)), "valid",
     "by 0.25 (relative)"),
    ("parameters", NEAR, lambda: ended({**OTHER, "lr": (1.0,)}, reference=({},)), "valid", "by 0"),
    # Its settings are in no sketch: a schedule that began anew shows in the learning rate.
    ("optimizer", NEAR, lambda: ended({"optimizer": "p", "lr": (0.125,)}, reference=({},)), "valid",
     "by 0.25 (relative)"),
    ("optimizer", NEAR, lambda: ended({"optimizer": "p", "lr": (1.0,)}, reference=({},)), "invalid",
     "by 9 (relative)"),
    ("optimizer", NEAR,
     lambda: ended({"optimizer": "p", "lr": (0.0,)}, reference=({"lr": (0.0,)},)), "valid", "by 0"),
    ("optimizer", NEAR, lambda: ended({"optimizer": "p"}, reference=({"lr": (0.0,)},)), "invalid",
     "(its learning rate is 0.1 instead of 0)"),
    ("optimizer", NEAR,
     lambda: ended({"optimizer": "p", "lr": (0, 0.11)}, reference=({"lr": (0, 0.1)},)), "valid",
     "by 0.1 (relative)"),
    ("optimizer", NEAR, lambda: ended({"optimizer": "p", "lr": (0.1, 0.1)}, reference=({},)),
     "invalid", "(its learning rate is 0.1, 0.1 instead of 0.1), 0.25 is allowed"),
    ("optimizer", NEAR,
     lambda: ended({"optimizer": "p"}, {"optimizer": "p", "optimizer_sketch": (math.nan, 0.0)},
                   reference=({}, {})),
     "invalid", "rank 1 ended with a different optimizer state than uninterrupted, 0.25"),
    # Rounds of other sizes add up in another order.
    ("parameters", SAME, resized, "unknown", "rounds of other sizes"),
    ("parameters", {**SAME, "within": 0}, resized, "valid", ""),
    ("parameters", {**SAME, "within": 0.1}, lambda: resized(sketch=(1.0, 1.5)), "invalid",
     "by 0.25 (relative), 0.1 is allowed"),
    # What else differs.
    ("parameters", SAME, lambda: ended(OTHER, reference=({},)), "invalid", "by 0 (relative)"),
    ("parameters", SAME, lambda: ended({**OTHER, "lr": ()}, reference=({},)), "invalid",
     "(its learning rate is none instead of 0.1)"),
    ("parameters", SAME, lambda: ended({**OTHER, "optimizer": "p"}, reference=({},)), "invalid",
     "(its optimizer's state differs)"),
    ("parameters", SAME,
     lambda: ended({**OTHER, "random": {"cuda": "a"}}, reference=({"random": {"torch": "b"}},)),
     "invalid", "(so do the random numbers of torch)"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "value", "make", "outcome", "reason"), STATES)
def test_the_boundaries_of_what_is_said_of_the_final_state(
    name: str, value: object, make: Callable[[], Story], outcome: str, reason: str
) -> None:
    """Of replicas, and against an uninterrupted run."""
    verdict = judge(name, value, make())
    assert (verdict.outcome.value, reason in verdict.reason) == (outcome, True), verdict.reason


def test_only_what_differs_is_said_to_differ() -> None:
    """No hints where all else is the same, and none of the optimizer about the optimizer."""
    same = judge("parameters", SAME, ended(OTHER, reference=({},)))
    assert same.reason.endswith("by 0 (relative)")
    optimizer = judge("optimizer", SAME, ended({"optimizer": "p"}, reference=({},)))
    assert optimizer.reason.endswith("by 0 (relative)")


def test_the_records_that_prove_a_final_state_are_the_right_ones() -> None:
    """The digests, and the reference."""
    story = ended({"is_finite": False}, {})
    first, second = seqs(story, "parameters_hashed")
    assert judge("parameters", "identical", story).events == (first,)
    alike_all = ended({}, {}, reference=({}, {}))
    first, second = seqs(alike_all, "parameters_hashed")
    assert judge("parameters", "identical", alike_all).events == (first, second)
    (reference,) = seqs(alike_all, "reference_observed")
    assert judge("parameters", SAME, alike_all).events == (reference, first, second)


def test_only_what_is_compared_with_an_uninterrupted_run_asks_for_one() -> None:
    """It costs as much as the run itself."""
    for name in ("parameters", "optimizer"):
        for value, is_needed in ((SAME, True), (NEAR, True), ("identical", False)):
            check = bind(name, value)
            assert check.checker.needs_reference(check.parameters) is is_needed
    loss = bind("loss", "as_uninterrupted")
    assert loss.checker.needs_reference(loss.parameters) is True
    plain = bind("restarts", 1)
    assert plain.checker.needs_reference(plain.parameters) is False


def test_the_newest_reference_is_compared_with() -> None:
    """A run that was made again, because its script had changed."""
    story = ended(OTHER, reference=({},))
    newer = ReferenceObserved(
        world_size=1, step=6, states=({"pid": 1, "rank": 0, "step": 6, **told(OTHER)},)
    )
    assert judge("parameters", SAME, story.tell("engine", "", newer)).is_valid


def test_a_run_of_which_something_is_missing_is_no_reference() -> None:
    """One round, formed, undisturbed; each rank ended by itself, all after the same step."""
    assert reference_of(ended({}, {}).history) is not None
    assert reference_of(ended({"step": 5}, {}).history) is None
    assert reference_of(Story().round(1, TWO).end().history) is None
    unheard = Story().round(1, TWO)
    for rank in (0, 1):
        unheard.step(1, rank, 6).hashed(1, rank, "x", step=6)
    assert reference_of(unheard.gone(1).end().history) is None
    half = Story().round(1, TWO).steps(1, 6, 6).hashed(1, 0, "x", step=6).finish(1).end()
    assert reference_of(half.history) is None
    alone = Story().hello(1, "n1", 0, 2).step(1, 0, 6).hashed(1, 0, "x", step=6).finish(1)
    assert reference_of(alone.end().history) is None
    assert reference_of(ended({}).hello(2, "n1", 0, 1).history) is None
    assert reference_of(Job(is_resumed=False).story.fault("late").history) is None


@pytest.mark.parametrize(
    ("losses", "outcome", "reason"),
    [
        ((1.0, 1.1, 1.0), "valid", "the last 3 losses have a mean of 1.033, uninterrupted 1.05"),
        ((0.1,), "valid", "mean of 0.1"),  # more steps of fewer ranks
        ((1.0, 2.0), "invalid", "mean of 1.5, uninterrupted 1.05; at most 1.214 is allowed"),
        ((1.0, None), "invalid", "mean of inf"),
        ((), "unknown", "no loss was seen in the last round"),
    ],
)
def test_the_loss_of_fewer_ranks_is_judged_by_the_noise_of_the_uninterrupted_run(
    losses: tuple[float | None, ...], outcome: str, reason: str
) -> None:
    """A higher mean than three standard deviations above is invalid, a lower one never."""
    wanted = {**alike(0), "losses": (1.0, 1.1, 1.0, 1.1, 1.0, 1.1)}
    states = tuple({"pid": 1, "rank": rank, "step": 6, **wanted} for rank in (0, 1))
    reference = ReferenceObserved(world_size=2, step=6, states=states)
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, 0).fault("fault").gone(1).round(2, ["n1"])
    story.resume(2, 0, 1).step(2, 0, 2).hashed(2, 0, "y", losses=losses)
    other = ReferenceObserved(world_size=2, step=6, states=())
    story.finish(2).tell("engine", "", other).tell("engine", "", reference).end()
    found = judge("loss", "as_uninterrupted", story)
    if outcome != "unknown":
        (digest,) = (each.seq for each in story.history.of_kind(ParametersHashed))
        assert found.events == (story.history.of_kind(ReferenceObserved)[1].seq, digest)
    assert (found.outcome.value, reason in found.reason) == (outcome, True), found.reason


def losing(
    *ranks: Sequence[float],
    wanted: Sequence[float | None] = (1.0,) * 5,
    ranks_before: int = 1,
    before: Mapping[str, Any] = MappingProxyType({}),
    **changed: Any,  # noqa: ANN401 (fields of an event)
) -> Story:
    """Let ranks end with these losses, and those of an undisturbed run with those wanted."""
    states: list[dict[str, Any]] = [
        {"sketch": (2.0, 0.0), **changed, "losses": tuple(losses)} for losses in ranks
    ]
    other = {"sketch": (0.0, 0.0), **before, "losses": tuple(wanted)}
    return ended(*states, reference=(other,) * ranks_before)


# A mean of 1 and a standard deviation of 0.5: at most 2.5 is allowed.
NOISY: dict[str, Any] = {"wanted": (0.5, 1.5, 0.5, 1.5, 1.0)}
# 0.001 of the norm away.
CLOSE: dict[str, Any] = {"sketch": (0.002, 0.0)}
# 0.01 of a block that has a norm of 0.1.
SMALL_BLOCK: dict[str, Any] = {"norms": (2.0, 0.1)}
SMALL_LOST: dict[str, Any] = {"sketch": (0.0, 0.001)}
SHARDED: dict[str, Any] = {"sharded": ("parameters",)}


FAR = {"sketch": (2.0, 0.0)}
ONES = {"losses": (1.0,) * 5, "sketch": (0.0, 0.0)}
HIGHER = {"losses": (9.0,), **CLOSE}


@pytest.mark.parametrize(
    ("make", "outcome", "reason"),
    [
        (lambda: losing((9.0,), **CLOSE), "valid",
         "but the parameters are only 0.001 (relative) from the uninterrupted run's"),
        (lambda: losing((9.0,), sketch=(0.00201, 0.0)), "invalid", "at most 1 is allowed"),
        (lambda: losing((9.0,), before=SMALL_BLOCK, **SMALL_LOST), "unknown",
         "but the parameters differ from the uninterrupted run's, by 0.0005 (relative), so that"),
        (lambda: losing((9.0,), before={"norms": (2.0, 1.0)}, **SMALL_LOST), "valid", "but the p"),
        (lambda: losing((9.0,), step=None, before={"step": None}, **CLOSE), "valid", "but the par"),
        (lambda: losing((9.0,), step=5, **CLOSE), "invalid", ""),
        (lambda: losing((9.0,), **SHARDED, **CLOSE), "invalid", ""),
        (lambda: losing((9.0,), before=SHARDED, **CLOSE), "invalid", ""),
        (lambda: losing((9.0,), sharded=("optimizer",), **CLOSE), "valid", "but the parameters"),
        # All have the same parameters, or it is not known which to compare.
        (lambda: ended(HIGHER, HIGHER, reference=(ONES, ONES, ONES)), "valid", "but the param"),
        (lambda: ended(HIGHER, {**HIGHER, **FAR}, reference=(ONES,)), "invalid", ""),
        (lambda: ended({**HIGHER, **FAR}, HIGHER, reference=(ONES,)), "invalid", ""),
        (lambda: ended(HIGHER, reference=(ONES, {**ONES, **FAR})), "invalid", ""),
        (lambda: ended(HIGHER, reference=({**ONES, **FAR}, ONES)), "invalid", ""),
        (lambda: losing((3.0,), ranks_before=2, **NOISY), "unknown",
         "but the mean times the number of ranks is as uninterrupted"),
        (lambda: losing((3.01,), ranks_before=2, **NOISY), "invalid", "at most 2.5 is allowed"),
        (lambda: losing((4.0,), ranks_before=8, **NOISY), "unknown", "but the mean times"),
        (lambda: losing((3.99,), ranks_before=8, **NOISY), "invalid", ""),
        (lambda: losing((3.0,), (3.0,), ranks_before=4, **NOISY), "unknown", "but the mean times"),
        (lambda: losing((2.5,), ranks_before=2, **NOISY), "valid", "the uninterrupted run's last"),
    ],
)  # fmt: skip
def test_a_higher_loss_may_be_another_measure_of_the_same(
    make: Callable[[], Story], outcome: str, reason: str
) -> None:
    """Where gradients are added over the ranks, the loss of each is its part of the whole."""
    verdict = judge("loss", "as_uninterrupted", make())
    assert (verdict.outcome.value, reason in verdict.reason) == (outcome, True), verdict.reason


def unfinished(*, is_hashed: bool) -> Story:
    """Let a rank lack its last word, or what its losses were."""
    story = losing((1.0,)).round(2, ONE).step(2, 0, 7)
    return story.hashed(2, 0, "y", losses=(1.0,)).gone(2) if is_hashed else story.finish(2)


@pytest.mark.parametrize(
    ("make", "outcome", "reason"),
    [
        (lambda: losing((1.0,)), "valid", "the last 1 losses have a mean of 1"),  # a constant one
        (lambda: losing((1.01,)), "invalid", "at most 1 is allowed"),
        (lambda: losing((9.0, 1.0), (1.0,)), "valid", "the last 1 losses"),
        (lambda: losing((1.0,), ()), "unknown", "no loss was seen in the last round"),
        (lambda: losing((1.0,), wanted=(1.0,) * 4), "unknown", "no loss of the uninterrupted run"),
        (lambda: losing((1.0,), wanted=(1.0, 1.0, 1.0, 1.0, None)), "unknown", "no loss of the"),
        (lambda: losing((1.0,)).hello(2, "n1", 0, 2), "unknown", "the last round did not form"),
        (Story, "unknown", "the last round did not form"),
        (lambda: unfinished(is_hashed=True), "unknown", "not every rank said at its end"),
        (lambda: unfinished(is_hashed=False), "unknown", "not every rank said at its end"),
    ],
)
def test_a_loss_that_cannot_be_compared_is_not_known(
    make: Callable[[], Story], outcome: str, reason: str
) -> None:
    """Of too few steps, of some ranks only, or of none."""
    verdict = judge("loss", "as_uninterrupted", make())
    assert (verdict.outcome.value, reason in verdict.reason) == (outcome, True), verdict.reason
