"""Each boundary of the checkers of a training, and what each says, by the smallest history."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from elastic_harness.history.checkers.training import NO_GLOBAL_STEP, losses, why_no_step
from elastic_harness.history.events import SamplesDrawn, StepCompleted
from msgspec.structs import replace

from tests.unit.history.story import Story
from tests.unit.history.trained import Row, in_turn, judge, seqs

TWO = ("n1", "n2")
ONE = ("n1",)
ONCE = {"each_epoch": "exactly_once"}
OTHERS = "the optimizer of rank 1 counted 1 steps, and then not one more for each step"
NO_START = "it is not certain how many steps were done before"


def stepped(
    resumes: Sequence[int | None], *numbers: Sequence[int | None], finish: bool = True
) -> Story:
    """Let one round of as many ranks resume and make these steps; they end by themselves."""
    story = Story().round(1, [f"n{rank + 1}" for rank in range(len(numbers))])
    return made(story, 1, resumes, *numbers, finish=finish)


def made(
    story: Story,
    round: int,
    resumes: Sequence[int | None],
    *numbers: Sequence[int | None],
    finish: bool = True,
) -> Story:
    """Let each rank of a round resume (None: it does not say where) and make these steps."""
    for rank, (resumed, steps) in enumerate(zip(resumes, numbers, strict=True)):
        if resumed is not None:
            story.resume(round, rank, resumed)
        for step in steps:
            story.step(round, rank, step, step_source="script")
    return story.finish(round) if finish else story


def again(*rounds: tuple[Sequence[int | None], Sequence[Sequence[int | None]]]) -> Story:
    """Let rounds follow each other, each with where its ranks resume, and their steps."""
    story = Story()
    for number, (resumes, numbers) in enumerate(rounds, 1):
        story.round(number, [f"n{rank + 1}" for rank in range(len(numbers))])
        made(story, number, resumes, *numbers, finish=number == len(rounds))
        if number < len(rounds):
            story.gone(number)
    return story


def asked(resumed: int | None, *, steps: Sequence[int] = (), finish: bool) -> Story:
    """Rank 0 resumes at 3 and makes step 4; rank 1 does as is said."""
    story = Story().round(1, TWO).resume(1, 0, 3).step(1, 0, 4)
    if resumed is not None:
        story.resume(1, 1, resumed)
    for step in steps:
        story.step(1, 1, step)
    return story.finish(1) if finish else story.gone(1)


def forgot(
    resumed: int = 0,
    *,
    first: Sequence[int | None] = (0,),
    then: Sequence[int] = (1,),
    **more: object,
) -> Story:
    """Let a second round draw these epochs for its first step, and its optimizer resume there."""
    story = Story()
    for number, start, epochs in ((1, 0, first), (2, resumed, then)):
        story.round(number, ONE).resume(number, 0, start)
        for epoch in epochs:
            told = {"epoch": epoch, **(more if number == 2 else {})}
            story.drawn(number, 0, start + 1, *range(8), **told)  # type: ignore[arg-type]
        story.step(number, 0, start + 1)
        (story.gone if number == 1 else story.finish)(number)
    return story


def others(*steps: int | None, source: str = "state") -> Story:
    """Let rank 1 make these steps in the first of two rounds, whose ranks draw samples."""
    story = Story().round(1, TWO).resume(1, 0, 0)
    if steps[0] is not None:
        story.resume(1, 1, steps[0] - 1)
    for number in (1, 2):
        story.drawn(1, 0, number, *range(4)).step(1, 0, number)
    for number, step in enumerate(steps):
        story.drawn(1, 1, step, *range(4 * number, 4 * number + 4))
        story.step(1, 1, step, **({} if step is None else {"step_source": source}))
    return story.gone(1).round(2, TWO).steps(2, 3, 3).finish(2)


def drawn_by_another(story: Story) -> Story:
    """Let a process that is no worker draw samples."""
    last = story.drawn(2, 0, 1, *range(8), count=1).records[-1]
    story.records[-1] = replace(last, event=replace(last.event, pid=1))
    return story


FORGOT = "a sampler began round 2 with a later epoch than the job"
STEPS: tuple[Row, ...] = (
    # --- resumed_at ---
    ("resumed_at", {"round": 1, "step": 0}, Story, "unknown", "no worker was observed"),
    ("resumed_at", {"round": 1, "step": 3}, lambda: asked(3, finish=True), "valid", "every rank"),
    ("resumed_at", {"round": 1, "step": 3}, lambda: asked(3, finish=False), "unknown",
     "rank 1 made no step in round 1"),
    ("resumed_at", {"round": 1, "step": 3}, lambda: asked(None, finish=True), "unknown",
     "rank 1 made no step in round 1"),
    ("resumed_at", {"round": 1, "step": 3}, lambda: Story().round(1, ONE).resume(1, 0, 3),
     "unknown", "no step of round 1 was observed"),
    ("resumed_at", {"round": 1, "step": 3}, lambda: stepped([None], [None, None]), "unknown",
     NO_GLOBAL_STEP),
    ("resumed_at", {"round": 1, "step": 3}, lambda: stepped([None], [None, 5]), "unknown",
     NO_START),
    ("resumed_at", {"round": 1, "step": 4}, lambda: stepped([4], [5, None]), "valid", ""),
    ("resumed_at", {"round": 1, "step": 4}, lambda: stepped([4], [None, 6]), "valid", ""),
    ("resumed_at", {"round": 1, "step": 4}, lambda: stepped([4], [5, None, 7, 7]), "unknown",
     "rank 0 reported step 7 after step 7"),
    ("resumed_at", {"round": 1, "step": 2}, lambda: stepped([2], [3, 3]), "unknown",
     "rank 0 reported step 3 after step 3: that is no count"),
    # --- an optimizer that was forgotten ---
    ("steps_lost", 9, forgot, "unknown", FORGOT),
    ("resumed_at", {"round": 2, "step": 5}, forgot, "unknown", FORGOT),
    ("finished_at", 6, forgot, "unknown", FORGOT),
    ("samples", ONCE, forgot, "unknown", FORGOT),
    ("steps_lost", 9, lambda: forgot(then=(0,)), "valid", "1 resumes"),
    ("steps_lost", 9, lambda: forgot(1), "valid", "1 resumes"),
    ("steps_lost", 9, lambda: forgot(count=2), "valid", "1 resumes"),
    ("steps_lost", 9, lambda: forgot(epoch_source="script"), "valid", "1 resumes"),
    ("steps_lost", 9, lambda: forgot(loader="other"), "valid", "1 resumes"),
    ("steps_lost", 9, lambda: forgot(epoch=None), "valid", "1 resumes"),
    ("steps_lost", 9, lambda: forgot(first=(1, 0), then=(0, 1)), "valid", "1 resumes"),
    ("steps_lost", 9, lambda: forgot(first=(1,), then=(0, 2)), "unknown", FORGOT),
    ("steps_lost", 9, lambda: forgot(first=(None,)), "valid", "1 resumes"),
    ("steps_lost", 9, lambda: forgot(first=(None, 0)), "unknown", FORGOT),
    ("steps_lost", 9, lambda: drawn_by_another(forgot(then=(0,))), "valid", "1 resumes"),
    # --- an optimizer that counts something else ---
    ("steps_lost", 9, lambda: others(1, None), "unknown", OTHERS),
    ("resumed_at", {"round": 2, "step": 2}, lambda: others(1, None), "unknown", OTHERS),
    ("finished_at", 3, lambda: others(1, None), "unknown", OTHERS),
    ("samples", ONCE, lambda: others(1, None), "unknown", OTHERS),
    ("steps_lost", 9, lambda: others(1, 2), "valid", "1 resumes"),
    ("steps_lost", 9, lambda: others(1, None, source="script"), "unknown", NO_GLOBAL_STEP),
    ("resumed_at", {"round": 2, "step": 2}, lambda: others(None, 2), "valid", ""),
    # --- steps_lost ---
    ("steps_lost", 1, lambda: again(([0, 0], [[4], [4]]), ([3, 2], [[4], [4]])), "invalid",
     "round 2 executed 2 steps again, at most 1"),
    ("steps_lost", 2, lambda: again(([0, 0], [[4], [4]]), ([3, 2], [[4], [4]])), "valid",
     "1 resumes, at most 2 steps"),
    ("steps_lost", 0, lambda: again(([0, 0], [[4], [5]]), ([4, 4], [[6], [6]])), "invalid",
     "round 2 executed 1 steps again"),
    ("steps_lost", 0, lambda: again(([0], [[4]]), ([5], [[6]])), "unknown",
     "round 2 resumed 1 steps after the last one that was seen"),
    ("steps_lost", 9, lambda: again(([0], [[4]]), ([None], [[]]), ([3], [[5]])), "valid",
     "1 resumes, at most 1 steps"),
    ("steps_lost", 9, lambda: again(([0], [[4]]), ([2], [[5]]), ([5], [[6]])), "valid",
     "2 resumes, at most 2 steps"),
    ("steps_lost", 9, lambda: again(([0], [[4]]), ([3], [[5, None]])), "unknown", NO_GLOBAL_STEP),
    ("steps_lost", 9, lambda: again(([0], [[4]]), ([3], [[None, 5]])), "valid", "1 resumes"),
    ("steps_lost", 9, lambda: again(([0], [[4]]), ([None], [[5]])), "unknown", NO_START),
    ("steps_lost", 9, lambda: again(([None, None], [[], [4]]), ([3, 3], [[5], [5]])), "unknown",
     NO_START),
    ("steps_lost", 9, lambda: again(([None, None], [[None], [4]]), ([3, 3], [[5], [5]])),
     "unknown", NO_GLOBAL_STEP),
    ("steps_lost", 9, lambda: again(([0, 0], [[None], [4]]), ([None, 3], [[], [5]])),
     "unknown", NO_GLOBAL_STEP),
    ("steps_lost", 9, lambda: Story().round(1, ONE).gone(1), "unknown",
     "no step of any worker was observed"),
    ("steps_lost", 9, lambda: again(([0, None], [[4], []]), ([3, 3], [[5], [5]])), "valid", ""),
    # --- finished_at ---
    ("finished_at", 6, lambda: stepped([0], [0, 6]), "unknown", "reported step 0 as done"),
    ("finished_at", 6, lambda: stepped([None], []), "unknown", "rank 0: it made no step"),
    ("finished_at", 6, lambda: stepped([0], [None]), "unknown", f"rank 0: {NO_GLOBAL_STEP}"),
    ("finished_at", 6, lambda: stepped([0, None], [None], []), "unknown",
     f"rank 0: {NO_GLOBAL_STEP}"),
    ("finished_at", {"at_least": 6}, lambda: stepped([5], [7]), "valid", "ended after step 7"),
    ("finished_at", {"at_least": 6}, lambda: stepped([4], [5]), "invalid", "6 or a later one"),
    ("finished_at", {"at_least": 6}, lambda: stepped([6], []).round(2, TWO).step(2, 0, 6)
     .step(2, 1, 8).finish(2), "valid", "all 2 ranks ended after step 8"),
    ("finished_at", 6, lambda: stepped([6], []), "valid", "all 1 ranks ended after step 6"),
    ("finished_at", 6, lambda: stepped([5], [None, 6]), "valid", ""),
    ("finished_at", 6, lambda: stepped([4], [5], finish=False), "unknown",
     "rank 0 did not end by itself, after step 5"),
    ("finished_at", 6, lambda: stepped([4], [7], finish=False), "invalid", "ended after step 7"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "value", "make", "outcome", "reason"), STEPS)
def test_the_boundaries_of_what_is_said_of_steps(
    name: str, value: object, make: Callable[[], Story], outcome: str, reason: str
) -> None:
    """Where a round resumes, what that costs, where the job ends."""
    verdict = judge(name, value, make())
    assert (verdict.outcome.value, reason in verdict.reason) == (outcome, True), verdict.reason


def test_nobody_is_told_how_many_steps_were_lost_where_an_optimizer_was_forgotten() -> None:
    """Nor that it counts no steps, as is said of others."""
    history = forgot().history
    assert losses(history) is None
    proof = judge("steps_lost", 9, forgot()).events
    assert proof == tuple(entry.seq for entry in history.of_kind(SamplesDrawn))
    assert FORGOT in why_no_step(history)
    assert why_no_step(forgot(then=(0,)).history) == NO_GLOBAL_STEP
    pair = [e.seq for e in others(1, None).history.of_kind(StepCompleted) if e.event.rank == 1][:2]
    assert judge("steps_lost", 9, others(1, None)).events == tuple(pair)


def test_the_records_that_prove_what_is_said_of_steps_are_the_right_ones() -> None:
    """A person goes to them in the timeline."""
    story = again(([0], [[40]]), ([20], [[50]]))
    resumed = {"round": 2, "step": 20}
    assert judge("resumed_at", resumed, story).events == seqs(story, "resume_observed", step=20)
    wrong = {"round": 2, "step": 30}
    assert judge("resumed_at", wrong, story).events == seqs(story, "resume_observed", step=20)
    none = judge("resumed_at", {"round": 3, "step": 20}, story)
    assert (none.outcome.value, none.reason) == ("invalid", "there was no round 3")
    assert none.events == seqs(story, "worker_hello", round=2)
    before, last = (seqs(story, "step_completed", step=step)[0] for step in (40, 50))
    (resume,) = seqs(story, "resume_observed", step=20)
    assert judge("steps_lost", 19, story).events == (before, resume)
    assert judge("steps_lost", 20, story).events == (before, resume)
    assert judge("finished_at", 50, story).events == (last,)
    assert judge("finished_at", 60, story).events == (last,)
    done = stepped([6], [])
    assert judge("finished_at", 6, done).events == seqs(done, "resume_observed")
    unsure = stepped([None], [None, 5])
    first = seqs(unsure, "step_completed", step=None)
    assert judge("resumed_at", {"round": 1, "step": 3}, unsure).events == first


def test_steps_are_lost_or_unseen_and_never_less_than_none() -> None:
    """What one resume cost, as tests in Python read it."""
    for resume, lost, unseen in ((2, 2, 0), (4, 0, 0), (5, 0, 1)):
        found = losses(again(([0], [[4]]), ([resume], [[9]])).history)
        assert found is not None
        said = [(each.steps, each.unseen, each.world.ordinal) for each in found]
        assert said == [(lost, unseen, 2)]


# --- samples -------------------------------------------------------------------------------------


def fed(*steps: Sequence[int], epoch: int = 0, finish: bool = True, **drawn: object) -> Story:
    """Let one rank use these samples, step by step."""
    story = Story().round(1, ONE).resume(1, 0, 0)
    return feed(story, 1, 0, *steps, epoch=epoch, finish=finish, **drawn)


def feed(
    story: Story,
    round: int,
    first: int,
    *steps: Sequence[int],
    epoch: int = 0,
    finish: bool = True,
    **drawn: object,
) -> Story:
    """Let rank 0 of a round use these samples from a step on."""
    for number, used in enumerate(steps, first + 1):
        story.drawn(round, 0, number, *used, epoch=epoch, **drawn).step(round, 0, number)
    return story.finish(round).end() if finish else story


def epochs_of(*used: Sequence[int]) -> Story:
    """Let one rank use these samples, one epoch after the other, in one step each."""
    story = Story().round(1, ONE).resume(1, 0, 0)
    for number, indices in enumerate(used):
        story.drawn(1, 0, number + 1, *indices, epoch=number).step(1, 0, number + 1)
    return story.finish(1).end()


def beside(most: str, less: str) -> Story:
    """Let one rank use a loader for each step, and another one once before the last step."""
    story = Story().round(1, ONE).resume(1, 0, 0)
    story.drawn(1, 0, 1, 0, 1, 2, 3, loader=most).step(1, 0, 1)
    story.drawn(1, 0, 2, 0, loader=less).drawn(1, 0, 2, 4, 5, 6, 7, loader=most).step(1, 0, 2)
    return story.finish(1).end()


def blind(*loaders: tuple[str, str]) -> Story:
    """Let the samples of some loaders be unseen, for these reasons."""
    story = Story().round(1, ONE)
    for loader, reason in loaders:
        story.unseen(1, 0, loader, reason)
    return story


def counted(resumes: Sequence[int | None], *rounds: Sequence[Sequence[int]]) -> Story:
    """Let rounds of one rank use samples of an epoch that its process counts."""
    story, step = Story(), 0
    for number, (resumed, steps) in enumerate(zip(resumes, rounds, strict=True), 1):
        story.round(number, ONE)
        if resumed is not None:
            story.resume(number, 0, resumed)
        for used in steps:
            step += 1
            story.drawn(number, 0, step, *used, epoch_source="counted")
            story.step(number, 0, step, step_source="script")
        story.finish(number) if number == len(rounds) else story.gone(number)
    return story.end()


def mixed(resumed: int) -> Story:
    """One rank counts epochs and begins at 0; the other one resumed, and is told its epoch."""
    story = Story().round(1, TWO).resume(1, 0, 0).resume(1, 1, resumed)
    story.drawn(1, 0, 1, 0, 1, 2, 3, epoch_source="counted").step(1, 0, 1, step_source="script")
    story.drawn(1, 1, 1, 4, 5, 6, 7).step(1, 1, 1, step_source="script")
    return story.finish(1).end()


def shrunk(repeated: int) -> Story:
    """Use an epoch with three ranks, and one with a single rank, which repeats some."""
    story = Story(nodes=3).round(1, ["n1", "n2", "n3"])
    for rank, used in enumerate(((0, 1, 2), (3, 4, 5), (6, 7))):
        story.resume(1, rank, 0).drawn(1, rank, 1, *used).step(1, rank, 1)
    story.gone(1).round(2, ONE).resume(2, 0, 1)
    story.drawn(2, 0, 2, *range(8), *range(repeated), epoch=1).step(2, 0, 2)
    return story.finish(2).end()


def apart(*resumes: int) -> Story:
    """Let two ranks begin at different steps, and use half an epoch."""
    story = Story().round(1, TWO)
    for rank, resumed in enumerate(resumes):
        story.resume(1, rank, resumed)
        story.drawn(1, rank, 2, *range(rank * 2, rank * 2 + 2)).step(1, rank, 2)
    story.drawn(1, 0, 3, *range(8), epoch=1).step(1, 0, 3)
    return story.finish(1).end()


def begun_late(*used: Sequence[int]) -> Story:
    """Let a job that was resumed at step 1 use these samples, an epoch each."""
    story = Story().round(1, ONE).resume(1, 0, 1)
    for epoch, indices in enumerate(used):
        story.drawn(1, 0, epoch + 2, *indices, epoch=epoch).step(1, 0, epoch + 2)
    return story.finish(1).end()


def rolled_back(*resumes: int, is_numbered: bool = True) -> Story:
    """Let two ranks make two steps, and resume at different ones: the earlier one counts.

    `is_numbered`: the process knows its step before it draws for it.
    """
    story = Story().round(1, TWO)
    for rank in (0, 1):
        story.resume(1, rank, 0)
        for step in (1, 2):
            known = step if is_numbered else None
            story.drawn(1, rank, known, *in_turn(step, rank)).step(1, rank, step)
    story.gone(1).round(2, TWO)
    for rank, resumed in enumerate(resumes):
        story.resume(2, rank, resumed)
        story.drawn(2, rank, 2, *in_turn(2, rank)).step(2, rank, 2, step_source="script")
    return story.finish(2).end()


def killed_unheard(*, done: int, resumed: int = 2, drew: int = 2) -> Story:
    """Of two ranks that made two steps, rank 1 was killed before it had told of more than these.

    It told of so many steps that it had drawn samples for.
    """
    story = Story().round(1, TWO)
    for rank, last in enumerate((2, done)):
        story.resume(1, rank, 0)
        for step in range(1, last + 1):
            if rank == 0 or step <= drew:
                story.drawn(1, rank, step, *in_turn(step, rank))
            story.step(1, rank, step)
    story.gone(1).round(2, TWO)
    for rank in (0, 1):
        story.resume(2, rank, resumed)
        for step in range(resumed + 1, 5):
            story.drawn(2, rank, step, *in_turn(step, rank), epoch=1).step(2, rank, step)
    return story.finish(2).end()


def killed_unheard_and_on() -> Story:
    """The same, and the job goes on once more, from a later step."""
    story = killed_unheard(done=1).round(3, TWO)
    for rank in (0, 1):
        story.resume(3, rank, 4).drawn(3, rank, 5, *in_turn(1, rank), epoch=2).step(3, rank, 5)
    return story.finish(3).end()


def unnumbered(
    resumed: int | None, known: int | None, *, second: bool = True, first: int = 0
) -> Story:
    """Two rounds; in the second one samples are drawn before its step is known."""
    story = Story().round(1, ONE).resume(1, 0, first)
    story.drawn(1, 0, 1, 0, 1, 2, 3).step(1, 0, 1).gone(1).round(2, ONE)
    story.drawn(2, 0, None, 4, 5, 6, 7)
    if resumed is not None:
        story.resume(2, 0, resumed)
    story.step(2, 0, known, step_source="script") if second else None
    return story.finish(2).end()


def skipping(*reports: Sequence[Sequence[int]]) -> Story:
    """Resume at step 1, and draw these batches, in these reports, before the first step."""
    story = Story().round(1, ONE).resume(1, 0, 0)
    story.drawn(1, 0, 1, 0, 1).step(1, 0, 1).gone(1).round(2, ONE).resume(2, 0, 1)
    for batches in reports:
        story.drawn(2, 0, 2, batches=batches)
    story.step(2, 0, 2).drawn(2, 0, 3, 4, 5).step(2, 0, 3).drawn(2, 0, 4, 6, 7).step(2, 0, 4)
    return story.finish(2).end()


def strange() -> Story:
    """Samples of a process that never said hello."""
    story = fed(range(8))
    pid = story.pids[1, 0] + 1
    drawn = SamplesDrawn(
        pid=pid, rank=0, count=1, step=1, loader="Data[8] by DistributedSampler", size=8,
        epoch=0, batches=((0,),),
    )  # fmt: skip
    return story.tell("worker", "n1", drawn)


ALL = tuple(range(8))
HALF = {"last_epoch": "may_be_cut"}
SAMPLES: tuple[Row, ...] = (
    # --- what each clause allows ---
    ("samples", ONCE, lambda: fed(ALL), "valid", "exactly once: epoch 0: all 8 samples"),
    ("samples", {**ONCE, "last_epoch": "complete"}, lambda: fed(ALL[:7]), "invalid",
     "epoch 0 never used 1 of 8 samples, first 7 (epoch 0: 7 of 8)"),
    ("samples", {"each_epoch": "at_most_once"}, lambda: fed(ALL[:7]), "valid",
     "no sample twice: epoch 0: 7 of 8"),
    ("samples", {"each_epoch": "at_most_once"}, lambda: fed(ALL[:7], (6,)), "invalid",
     "epoch 0 used 1 samples more than once, first 6"),
    ("samples", {"each_epoch": "at_least_once"}, lambda: fed(ALL, (6, 7)), "valid",
     "at least once: epoch 0: all 8 samples, 2 of them again"),
    ("samples", ONCE, lambda: epochs_of(ALL, ALL[:6], ALL, ALL[:6]), "invalid",
     "(epoch 0: all 8 samples; epoch 1: 6 of 8; epoch 2: all 8 samples; epoch 3: 6 of 8)"),
    ("samples", ONCE, lambda: epochs_of(ALL[:6], ALL, ALL), "invalid",
     "(epoch 0: 6 of 8; epochs 1 to 2: all 8 samples)"),
    ("samples", {**ONCE, "last_epoch": "complete"}, lambda: fed(ALL[:3]), "invalid",
     "never used 5 of 8 samples, first 3, 4, 5, 6, 7 ("),
    ("samples", {**ONCE, "last_epoch": "complete"}, lambda: fed(ALL[:2]), "invalid",
     "never used 6 of 8 samples, first 2, 3, 4, 5, 6 ... ("),
    # --- padding ---
    ("samples", ONCE, lambda: fed(ALL, (0,)), "invalid", "used 1 samples more than once"),
    ("samples", {**ONCE, "padding": "allowed"}, lambda: fed(ALL, (0,)), "invalid", "first 0"),
    ("samples", {**ONCE, "padding": "allowed"}, lambda: shrunk(2), "valid", ""),
    ("samples", {**ONCE, "padding": "allowed"}, lambda: shrunk(3), "invalid", "epoch 1 used 3"),
    ("samples", ONCE, lambda: fed(ALL, ALL), "invalid", "(all of them 2 times: does the script"),
    ("samples", ONCE, lambda: fed(ALL[:4], ALL[:4]), "invalid", "first 0, 1, 2, 3 (epoch 0: 4"),
    ("samples", ONCE, lambda: fed(ALL, ALL, (0,)), "invalid", "3, 4 ... (epoch"),
    ("samples", ONCE, lambda: epochs_of(ALL + ALL, ALL), "invalid", "3, 4 ... (epoch 0: all"),
    # --- which epochs, of which loader ---
    ("samples", ONCE, lambda: beside("train", "eval"), "valid", "all 8"),
    ("samples", ONCE, lambda: beside("a", "b"), "valid", "all 8"),
    ("samples", ONCE, lambda: beside("b", "a"), "valid", "all 8"),
    ("samples", {**ONCE, "loader": "rai"}, lambda: beside("train", "eval"), "valid", "all 8"),
    ("samples", {**ONCE, **HALF, "loader": "eval"}, lambda: beside("train", "eval"), "valid",
     "1 of 8"),
    ("samples", {**ONCE, "loader": "Da"}, lambda: fed(ALL).unseen(1, 0, "x", "iterable"), "valid",
     ""),
    ("samples", {**ONCE, "loader": "x"}, lambda: fed(ALL).unseen(1, 0, "xy", "iterable"),
     "unknown", "the samples of xy cannot be seen, since an IterableDataset has no indices"),
    ("samples", ONCE,
     lambda: fed(ALL, loader="", epoch_source="script").unseen(1, 0, "x", "iterable"), "valid",
     "all 8"),
    ("samples", {**ONCE, "loader": "x"},
     lambda: fed(ALL, loader="", epoch_source="script").unseen(1, 0, "x", "iterable"), "unknown",
     "the samples of x cannot be seen"),
    ("samples", ONCE, lambda: blind(("b", "iterable"), ("a", "odd")), "unknown",
     "the samples of a cannot be seen, since odd: "),
    ("samples", ONCE, strange, "unknown", "by a process (1002) that is no worker"),
    ("samples", ONCE, lambda: feed(fed(ALL[:4], finish=False), 1, 1, ALL[4:], size=None), "valid",
     ""),
    ("samples", ONCE, lambda: feed(fed(ALL[:4], finish=False), 1, 1, ALL[4:], size=9), "unknown",
     "the job told 8, 9"),
    ("samples", ONCE,
     lambda: fed(ALL[:4], finish=False).drawn(1, 0, 2, *ALL[4:], epoch=None).step(1, 0, 2),
     "unknown", "the epoch or the size of Data[8]"),
    # --- where epochs are counted ---
    ("samples", ONCE, lambda: counted([None], [ALL[:4], ALL[4:]]), "valid", ""),
    ("samples", ONCE, lambda: counted([0], [ALL[:4], ALL[4:]]), "valid", ""),
    ("samples", ONCE, lambda: counted([5], [ALL[:4], ALL[4:]]), "unknown", "keeps no `epoch`"),
    ("samples", ONCE, lambda: counted([None, None], [ALL[:4]], [ALL[4:]]), "unknown",
     "keeps no `epoch`"),
    ("samples", ONCE, lambda: counted([0, 0], [ALL[:4]], [ALL]), "valid", ""),
    ("samples", ONCE, lambda: mixed(1), "valid", ""),
    ("samples", ONCE, lambda: apart(0, 1), "unknown", "the job began in the middle of it"),
    ("samples", ONCE, lambda: apart(1, 0), "unknown", "the job began in the middle of it"),
    ("samples", ONCE, lambda: apart(0, 0), "invalid", "epoch 0 never used 4"),
    ("samples", ONCE, lambda: begun_late(ALL[:4], ALL[:6], ALL), "invalid", "epoch 1 never used"),
    # --- what was done again ---
    ("samples", ONCE, lambda: rolled_back(1, 1), "valid", ""),
    ("samples", ONCE, lambda: rolled_back(1, 2), "valid", ""),
    ("samples", ONCE, lambda: rolled_back(2, 1), "valid", ""),
    ("samples", ONCE, lambda: rolled_back(1, 1, is_numbered=False), "valid", ""),
    ("samples", ONCE, lambda: unnumbered(1, 2), "valid", ""),
    ("samples", ONCE, lambda: unnumbered(1, 3), "unknown", NO_GLOBAL_STEP),
    ("samples", ONCE, lambda: unnumbered(1, None), "unknown", NO_GLOBAL_STEP),
    ("samples", ONCE, lambda: unnumbered(None, 2), "unknown", NO_GLOBAL_STEP),
    ("samples", ONCE, lambda: skipping(((0, 1), (2, 3))), "valid", ""),
    ("samples", ONCE, lambda: skipping(((0, 1),), ((2, 3),)), "valid", ""),
    ("samples", ONCE, lambda: skipping(((2, 3),)), "valid", ""),
    ("samples", ONCE, lambda: killed_unheard(done=2), "valid", ""),
    ("samples", ONCE, lambda: killed_unheard(done=1), "unknown",
     "rank 1 of round 1 was last seen at step 1, and the job went on from step 2"),
    ("samples", ONCE, killed_unheard_and_on, "unknown", "the job went on from step 2"),
    ("samples", ONCE, lambda: killed_unheard(done=2, drew=1), "invalid", "epoch 0 never used"),
    ("samples", ONCE, lambda: killed_unheard(done=1, resumed=3), "invalid", "epoch 0 never used"),
    # --- epochs ---
    ("epochs", 1, lambda: fed(ALL), "valid", "epoch 0: all 8 samples"),
    ("epochs", 1, lambda: fed(ALL[:7]), "invalid", "0 complete epochs, 1 were expected"),
    ("epochs", {"exactly": 1, "dropped": 2}, lambda: fed(ALL[:7]), "valid", "7 of 8"),
    ("epochs", 2, lambda: epochs_of(ALL, ALL[:6]), "invalid", "1 complete epochs, 2"),
    ("epochs", 1, lambda: epochs_of(ALL, ALL[:6]), "invalid", "1 complete epochs, 1"),
    ("epochs", 2, lambda: epochs_of(ALL, (), ALL), "invalid", "2 complete epochs, 2"),
    ("epochs", 1, lambda: fed(ALL, ALL, ALL), "invalid", "and epoch 0 was gone through again"),
    ("epochs", 1, lambda: fed(ALL, ALL[:7]), "valid", "7 of them again"),
    ("epochs", 1, lambda: fed(ALL, ALL), "invalid", "and epoch 0 was gone through again"),
    ("epochs", 1, lambda: fed(ALL[:4], ALL[4:], ALL[:5]), "invalid", "and epoch 0 was gone"),
    ("epochs", 1, lambda: fed(ALL[:4], ALL[4:], ALL[:4]), "valid", "4 of them again"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "value", "make", "outcome", "reason"), SAMPLES)
def test_the_boundaries_of_what_is_said_of_samples(
    name: str, value: object, make: Callable[[], Story], outcome: str, reason: str
) -> None:
    """Used once, again, never; by which loader, in which epoch."""
    verdict = judge(name, value, make())
    assert (verdict.outcome.value, reason in verdict.reason) == (outcome, True), verdict.reason


def test_what_is_unseen_beside_what_is_seen_can_be_left_out() -> None:
    """`loader` helps only where another one was seen."""
    assert "`loader` says" in judge("samples", ONCE, fed(ALL).unseen(1, 0, "x", "odd")).reason
    assert "`loader` says" not in judge("samples", ONCE, blind(("x", "odd"))).reason


def test_the_records_that_prove_what_is_said_of_samples_are_the_right_ones() -> None:
    """The uses of the first sample that was used again; of what is missing, the last eight."""
    story = Story().round(1, ONE).resume(1, 0, 0)
    story.drawn(1, 0, 1, 3).step(1, 0, 1).drawn(1, 0, 2, batches=((0, 1), (2,))).step(1, 0, 2)
    feed(story, 1, 2, (4, 1, 3))
    _, two, three = seqs(story, "samples_drawn")
    assert judge("samples", ONCE, story).events == (two, three)
    many = feed(Story().round(1, ONE).resume(1, 0, 0), 1, 0, *((n,) for n in range(9)), size=10)
    last = seqs(many, "samples_drawn")[1:]
    complete = {**ONCE, "last_epoch": "complete"}
    assert judge("samples", complete, many).events == last
    assert judge("epochs", 1, many).events == last
