"""A small training job that loses nothing, and what can be changed in it.

Two ranks, eight samples, two steps an epoch, three epochs. Rank 1 is killed after step 4; both
resume at step 3 and end after step 6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic_harness.history.checkers import bind
from elastic_harness.history.checkers.final_state import reference_of
from elastic_harness.history.events import ReferenceObserved
from elastic_harness.history.verdict import Verdict

from tests.unit.history.story import Story

__all__ = ["CLAUSES", "INVALID", "UNKNOWN", "Job", "Row", "judge", "seqs", "trained"]

# A clause and its value, a story, and the verdict: its outcome, and a part of its reason.
Row = tuple[str, object, Callable[[], Story], str, str]


def judge(name: str, value: object, story: Story) -> Verdict:
    """Judge one clause."""
    return bind(name, value).run(story.history)


def seqs(story: Story, kind: str, **values: object) -> tuple[int, ...]:
    """Return the places of the records of a kind that have these values."""
    return tuple(
        entry.seq
        for entry in story.history
        if entry.event.kind == kind
        and all(getattr(entry.event, name) == value for name, value in values.items())
    )


def in_turn(step: int, rank: int) -> tuple[int, ...]:
    """Return the samples of a step: each epoch goes through all eight in order."""
    first = (step - 1) % 2 * 4 + rank * 2
    return first, first + 1


def two_steps_each(step: int) -> int | None:
    """Return the epoch of a step."""
    return (step - 1) // 2


def as_counted(_round: int, step: int, _rank: int) -> int | None:
    """Return the number that is known of a step."""
    return step


def alike(_rank: int) -> dict[str, Any]:
    """Return what a rank ends with."""
    return {"digest": "x", "norm": 2.0, "sketch": (1.0, 1.0), "optimizer": "o", "lr": (0.1,)}


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a job does; each field can be changed alone."""

    done: int = 4  # the last step of round 1
    resumes: Mapping[int, int | None] = field(default_factory=lambda: {0: 3, 1: 3})
    last: Mapping[int, int] = field(default_factory=lambda: {0: 6, 1: 6})
    uses: Callable[[int, int], tuple[int, ...]] = in_turn
    epoch: Callable[[int], int | None] = two_steps_each
    number: Callable[[int, int, int], int | None] = as_counted
    state: Callable[[int], dict[str, Any]] = alike
    reference: Callable[[int], dict[str, Any]] | None = alike
    reference_nodes: int = 2
    drawn: Mapping[str, Any] = field(default_factory=dict)
    is_resumed: bool = True
    ends: bool = True
    dropped: int = 0
    start: int = 0  # where round 1 resumes

    @property
    def story(self) -> Story:
        """Tell it."""
        nodes = ["n1", "n2"]
        story = Story()
        if self.reference is not None:
            story.tell("engine", "", self._reference())
        last = self.last[0] if not self.is_resumed else self.done
        self._steps(story, 1, {0: self.start, 1: self.start}, {0: last, 1: last})
        if self.is_resumed:
            story.fault("crash").gone(1)
            self._steps(story, 2, self.resumes, self.last)
        number = 2 if self.is_resumed else 1
        for rank in range(len(nodes)):
            if self.ends:
                state = self.state(rank)
                story.hashed(number, rank, state.pop("digest"), step=self.last[rank], **state)
        if self.ends:
            story.finish(number, dropped=self.dropped)
        return story.end("succeeded" if self.ends else "limit")

    def _steps(
        self, story: Story, number: int, resumes: Mapping[int, int | None], last: Mapping[int, int]
    ) -> None:
        story.round(number, ["n1", "n2"])
        for rank, resumed in resumes.items():
            if self.number(number, (resumed or 3) + 1, rank) is not None or resumed is None:
                story.resume(number, rank, resumed)
            begin = 3 if resumed is None else resumed
            for step in range(begin + 1, last[rank] + 1):
                known = self.number(number, step, rank)
                if used := self.uses(step, rank):
                    story.drawn(number, rank, known, *used, epoch=self.epoch(step), **self.drawn)
                story.step(number, rank, known)

    def _reference(self) -> ReferenceObserved:
        """Return what such a job ends with, undisturbed."""
        nodes = [f"n{number + 1}" for number in range(self.reference_nodes)]
        story = Story().round(1, nodes)
        for rank in range(len(nodes)):
            assert self.reference is not None, "asked before"
            state = self.reference(rank)
            story.step(1, rank, 6).hashed(1, rank, state.pop("digest"), step=6, **state)
        found = reference_of(story.finish(1).end().history)
        assert found is not None, "all was seen"
        return found


def trained(**changes: Any) -> Callable[[], Story]:  # noqa: ANN401 (the fields of `Job`)
    """Return what tells the job with some changes."""
    return lambda: Job(**changes).story


def _all_in(step: int, rank: int) -> tuple[int, ...]:
    """Use what two steps use in one, at step 5; nothing after it."""
    return (*in_turn(5, rank), *in_turn(6, rank)) if step == 5 else in_turn(step, rank)


def _none_after_6(step: int, rank: int) -> tuple[int, ...]:
    return () if step > 6 else in_turn(step, rank)


def _without(dropped: int) -> Callable[[int, int], tuple[int, ...]]:
    return lambda step, rank: () if step == dropped else in_turn(step, rank)


def _other(**changed: Any) -> Callable[[int], dict[str, Any]]:  # noqa: ANN401 (fields of an event)
    return lambda _: {**alike(0), **changed}


def _by_rank(name: str) -> Callable[[int], dict[str, Any]]:
    return lambda rank: {**alike(rank), name: f"of rank {rank}"}


def _unknown_number(*_: int) -> int | None:
    return None


def _iterable() -> Story:
    story = Story().round(1, ["n1"]).unseen(1, 0, "Stream[None] by _Infinite", "iterable")
    return story.step(1, 0, 1)


def _iterable_beside_another() -> Story:
    """The loader that can be seen may be that of the evaluation."""
    story = Job().story
    return story.unseen(2, 0, "Stream[None] by _Infinite", "iterable")


def _ahead() -> Story:
    """The process has drawn two batches before its first step, and nothing was to be left out."""
    story = Story().round(1, ["n1"]).resume(1, 0, 0)
    story.drawn(1, 0, 1, batches=((0, 1), (2, 3))).step(1, 0, 1)
    story.drawn(1, 0, 2, 4, 5).step(1, 0, 2)
    story.drawn(1, 0, 3, 6, 7).step(1, 0, 3).step(1, 0, 4)
    return story.finish(1).end()


def _resume_lacks(rank_with_steps: int) -> Story:
    """Only one rank of round 2 was seen to step; the other one said nothing."""
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, 4).gone(1).round(2, ["n1", "n2"])
    return story.resume(2, rank_with_steps, 3).step(2, rank_with_steps, 4)


def _resume_not_of_all() -> Story:
    """A rank of round 2 never said hello."""
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, 4).gone(1).hello(2, "n1", 0, 2)
    return story.resume(2, 0, 3).step(2, 0, 4)


# What holds for the job as it is, by a name of the clause.
CLAUSES: dict[str, tuple[str, Any]] = {
    "resumed_at": ("resumed_at", {"round": 2, "step": 3}),
    "steps_lost": ("steps_lost", {"at_most": 2}),
    "finished_at": ("finished_at", {"step": 6}),
    "parameters": ("parameters", "identical"),
    "parameters, reference": ("parameters", "same_as_uninterrupted"),
    "optimizer": ("optimizer", "identical"),
    "optimizer, reference": ("optimizer", "same_as_uninterrupted"),
    "samples": ("samples", {"each_epoch": "exactly_once"}),
    "epochs": ("epochs", 3),
}

# Stories that violate one of the clauses, and no other one (of those, and of the invariants).
INVALID: dict[str, tuple[Callable[[], Story], ...]] = {
    "resumed_at": (trained(resumes={0: 2, 1: 2}), trained(is_resumed=False)),
    "steps_lost": (trained(done=6),),
    "finished_at": (
        trained(last={0: 5, 1: 5}, uses=_all_in, reference=None),
        trained(last={0: 6, 1: 7}, uses=_none_after_6, reference=None),
    ),
    "parameters": (trained(state=_by_rank("digest"), reference=_by_rank("digest")),),
    "parameters, reference": (
        trained(state=_other(digest="y", sketch=(1.0, 1.002))),
        trained(state=_other(digest="y", sketch=())),
    ),
    "optimizer": (trained(state=_by_rank("optimizer"), reference=_by_rank("optimizer")),),
    "optimizer, reference": (trained(state=_other(optimizer="p")),),
    "samples": (trained(uses=lambda s, r: (*in_turn(s, r), 0)),),
    "epochs": (trained(uses=lambda _, r: tuple(range(4 * r, 4 * r + 4)), epoch=lambda step: step),),
}

UNKNOWN: dict[str, tuple[Callable[[], Story], ...]] = {
    "resumed_at": (
        trained(number=_unknown_number),
        trained(resumes={0: 3, 1: None}),
        lambda: _resume_lacks(0),
        lambda: _resume_lacks(1),
        _resume_not_of_all,
        lambda: Story().round(1, ["n1"]).gone(1).round(2, ["n1"]),
        trained(number=lambda r, s, _: s - 1 if r == 1 else s),  # "step 0" was done
    ),
    "steps_lost": (
        Story,
        trained(is_resumed=False),
        trained(number=_unknown_number),
        trained(resumes={0: 3, 1: None}),
        trained(resumes={0: 5, 1: 5}),
        trained(number=lambda _, s, __: 5 if s == 6 else s),  # steps go back
    ),
    "finished_at": (
        Story,
        trained(ends=False),
        trained(number=_unknown_number),
        _resume_not_of_all,
    ),
    "parameters": (
        Story,
        trained(ends=False),
        trained(state=_other(digest=None, reason="NotImplementedError: meta")),
        trained(state=_other(sharded=("parameters", "optimizer"))),
        lambda: Story().round(1, ["n1"]).step(1, 0, 1).hashed(1, 0, "x").finish(1).end(),
        lambda: Job().story.hello(3, "n1", 0, 2),
    ),
    "parameters, reference": (
        trained(reference=None),
        trained(reference_nodes=3),
        trained(ends=False),
    ),
    "optimizer": (
        trained(ends=False),
        trained(state=_other(optimizer=None)),
        trained(state=_other(sharded=("optimizer",))),
    ),
    "optimizer, reference": (
        trained(reference=None),
        trained(reference=_other(optimizer=None)),
    ),
    "samples": (
        trained(uses=lambda *_: ()),  # none were observed
        trained(uses=_without(6)),  # the last epoch is cut
        trained(number=_unknown_number),
        trained(resumes={0: 3, 1: None}),
        trained(epoch=lambda _: None),
        trained(drawn={"size": None}),
        trained(drawn={"epoch_source": "counted"}),  # which epoch does round 2 go on with?
        trained(dropped=3),
        trained(start=1),  # the job began in the middle of an epoch
        _iterable,
        _iterable_beside_another,
        _ahead,
    ),
    "epochs": (trained(uses=lambda *_: ()), trained(start=1), _iterable, _ahead),
}
