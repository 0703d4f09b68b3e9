# ruff: noqa: D103 (the name of a planted history says what is wrong with it)
"""Plants: for each checker a history that is invalid, one that is unknown, one that is valid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from elastic_harness.history.checkers import (
    STANDARD,
    Checker,
    NoParameters,
    bind,
    standard_checkers,
)
from elastic_harness.history.events import (
    ClockCompared,
    FaultIneffective,
    FaultPlanned,
    LogMatched,
    NodeStopped,
    OutputRead,
    ProcessExited,
    ProcessStarted,
    ReferenceObserved,
    RunEnded,
    SurvivorFound,
    SwitchDropped,
)
from elastic_harness.history.history import History
from elastic_harness.history.judge import judge_checks, overall
from elastic_harness.history.verdict import Outcome, Verdict, valid

from pytest_elastic.errors import UsageError
from pytest_elastic.events.model import RoundCommitted, WorkerExited, WorkersStarted, WorkersStopped
from tests.unit.history import trained
from tests.unit.history.never_began import NOT_TOLD, lost, never_began
from tests.unit.history.story import Story


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """Histories for one checker; `invalid` is None for checkers whose bad news is unknown."""

    value: Any = None
    invalid: tuple[Callable[[], Story], ...] = ()
    unknown: tuple[Callable[[], Story], ...]
    valid: tuple[Callable[[], Story], ...]


def empty() -> Story:
    return Story()


def clean() -> Story:
    """Two nodes, one crash, one resume, a good end."""
    story = Story().round(1, ["n1", "n2"]).group(1, "a").steps(1, 1, 6).fault("crash").gone(1)
    story.wait(0.5).round(2, ["n1", "n2"]).group(2, "b").steps(2, 6, 9)
    return story.hashed(2, 0, "x").hashed(2, 1, "x").finish(2).end()


def one_round() -> Story:
    return Story().round(1, ["n1", "n2"])


def unseen_steps() -> Story:
    return Story().round(1, ["n1", "n2"]).fault("crash").gone(1).round(2, ["n1", "n2"]).end()


def rank_twice() -> Story:
    return Story().round(1, ["n1", "n2"]).hello(1, "n3", 1, 2)


def rank_outside() -> Story:
    return Story().hello(1, "n1", 0, 2).hello(1, "n2", 2, 2)


def ranks_scattered() -> Story:
    return Story(nproc=2).hello(1, "n1", 0, 4).hello(1, "n1", 3, 4, local_rank=1, group_rank=0)


def group_ranks_with_gaps() -> Story:
    return Story().hello(1, "n1", 0, 2, group_rank=3).hello(1, "n2", 1, 2, group_rank=7)


def rank_missing_at_the_end() -> Story:
    """A launcher that names no rounds; all ends well, and of a rank nothing was ever heard."""
    story = Story().round(1, ["n1", "n2"], round=None).gone(1).hello(2, "n1", 0, 2, round=None)
    return story.finish(2).end().tell("cluster", "n1", NodeStopped(cause="teardown"))


def uneven_nodes() -> Story:
    """As many workers as were asked for, and three of them on one node."""
    story = Story(nproc=2)
    for rank in range(3):
        story.hello(1, "n1", rank, 4, local_rank=rank, group_rank=0)
    return story.hello(1, "n2", 3, 4, local_rank=0, group_rank=1)


def restarted_unheard() -> Story:
    """The workers of the second round died before their first word."""
    second = commit("n1", "n1", round=2, world_size=1, restart_count=1, master_port=30002)
    return Story().round(1, ["n1"]).gone(1).tell("agent", "n1", second).end("failed")


def lost_reports() -> Story:
    return Story().round(1, ["n1"]).steps(1, 1, 3).finish(1, dropped=4).end()


def two_worlds_one_in_part() -> Story:
    """The old round steps on; of the new one's ranks, only one was ever seen to step."""
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, 3)
    story.round(2, ["n3", "n4"]).step(2, 0, 4).wait(0.1)
    began = story.at
    return story.wait(0.1).step(1, 0, 4, began_at=began).end()


def two_worlds_one_in_part_and_more() -> Story:
    """In the end it is seen of a third one that the second goes on beside it."""
    story = two_worlds_one_in_part().round(3, ["n5", "n6"]).steps(3, 5, 6).wait(0.1)
    began = story.at
    return story.wait(0.1).step(2, 0, 5, began_at=began)


def two_worlds_one_in_part_by(began_s: float) -> Callable[[], Story]:
    """The old round begins a step so long after the first step of the newer one's first rank."""

    def tell() -> Story:
        story = Story(nodes=5).round(1, ["n1", "n2"]).steps(1, 1, 3).round(2, ["n3", "n4", "n5"])
        began = story.at + began_s
        story.step(2, 0, 4).wait(1.0).step(2, 1, 4).step(2, 0, 5)
        return story.step(1, 0, 4, began_at=began).end()

    return tell


def relaunched() -> Story:
    """The launcher on n2 ended well, and a new one still runs at the end."""
    story = Story().launcher_exits({"n1": 0, "n2": 0})
    story.tell("cluster", "n2", ProcessStarted(pid=6, role="launcher", argv=()))
    return story.tell("engine", "", RunEnded(outcome="stopped"))


def group_rank_shared() -> Story:
    return Story().hello(1, "n1", 0, 2).hello(1, "n2", 1, 2, group_rank=0)


def agent_says_otherwise() -> Story:
    started = WorkersStarted(round=1, pids=(5,), ranks=(0,), start="warm", start_reason="")
    return Story().tell("agent", "n2", started).round(1, ["n1", "n2"])


def commit(node: str, *roster: str, **more: object) -> RoundCommitted:
    """What a launcher was told of round 1: a world of two."""
    told: dict[str, Any] = {
        "round": 1,
        "term": 1,
        "group_rank": roster.index(node),
        "world_size": 2,
        "restart_count": 0,
        "master_addr": "10.77.0.1",
        "master_port": 30001,
        **more,
    }
    return RoundCommitted(roster=roster, **told)


def told_otherwise() -> Story:
    """The launcher was told of a first try, and its worker of a second one."""
    story = Story().tell("agent", "n1", commit("n1", "n1", world_size=1))
    return story.round(1, ["n1"], restart_count=1).end()


def step_twice() -> Story:
    return one_round().step(1, 0, 1, count=1).step(1, 0, 1, count=1)


def different_restart_counts() -> Story:
    return Story().hello(1, "n1", 0, 2, restart_count=1).hello(1, "n2", 1, 2)


def committed_differently() -> Story:
    story = one_round().tell("agent", "n1", commit("n1", "n1", "n2"))
    return story.tell("agent", "n2", commit("n2", "n2", "n1"))


def two_worlds(new: int = 2) -> Story:
    """The old round's rank 0 steps on while the new round has made progress."""
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, 3)
    for number in range(2, new + 1):
        story.round(number, ["n3", "n4"])
    story.steps(new, 4, 5).wait(0.1)
    began = story.at
    return story.wait(0.1).step(1, 0, 4, began_at=began).end()


def two_worlds_by_clocks_known_to(error_s: float) -> Callable[[], Story]:
    """The same on machines whose clocks are their own: the old rank is 0.1 s late."""
    return lambda: two_worlds().tell("cluster", "n1", ClockCompared(error_s=error_s))


def steps_before_by_clocks_known_to(error_s: float) -> Callable[[], Story]:
    """The old round's last step began well before, as far as clocks tell."""

    def tell() -> Story:
        story = Story().round(1, ["n1", "n2"]).steps(1, 1, 3).wait(0.1)
        story.round(2, ["n3", "n4"]).steps(2, 4, 5)
        return story.end().tell("cluster", "n1", ClockCompared(error_s=error_s))

    return tell


def overlapping_without_steps() -> Story:
    return Story().round(1, ["n1", "n2"]).round(2, ["n1", "n2"]).gone(1).end()


def just_resumed() -> Story:
    """A frozen node is continued, and its worker steps once before it is fenced."""
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, 3)
    story.fault("freeze", "pause", "n1", nodes=("n1",), pauses=True).wait(5.0)
    story.round(2, ["n2"]).steps(2, 4, 5).heal("freeze")
    began = story.at + 0.2
    return story.wait(0.3).step(1, 0, 4, began_at=began).gone(1).end()


def old_worker_alive() -> Story:
    story = Story().round(1, ["n1", "n2"])
    story.gone(1, 1).hello(2, "n1", 0, 2, alive_before=(story.pids[1, 0],))
    return story.hello(2, "n2", 1, 2)


def over_budget() -> Story:
    story = Story(max_restarts=1)
    for number in (1, 2, 3):
        story.round(number, ["n1", "n2"]).gone(number)
    return story


def count_goes_back() -> Story:
    return Story().round(1, ["n1"], restart_count=2).gone(1).round(2, ["n1"], restart_count=1)


def no_count() -> Story:
    return Story().round(1, ["n1", "n2"], restart_count=None, max_restarts=None)


def too_many_nodes() -> Story:
    return Story(nodes=2).round(1, ["n1", "n2", "n3"])


def too_few_nodes() -> Story:
    return Story(nodes=3, min_nodes=2).round(1, ["n1"])


def never_formed() -> Story:
    return Story().hello(1, "n1", 0, 2)


def survivor() -> Story:
    return clean().tell("cluster", "n1", SurvivorFound(pid=9, command="python train.py"))


def silent_fault() -> Story:
    return Story().fault("crash", works=False)


def failed_fault() -> Story:
    return Story().tell("fault", "", FaultIneffective(id="crash", reason="it never fired"))


def over_limit() -> Story:
    return one_round().wait(60.0).end("limit")


def mute_worker() -> Story:
    started = WorkersStarted(round=1, pids=(5, 6), ranks=(0, 1), start="warm", start_reason="")
    return Story(nproc=2).tell("agent", "n1", started).hello(1, "n1", 0, 2)


def mute_rank_of_a_stepping_round() -> Story:
    return Story().hello(1, "n1", 0, 2).step(1, 0, 1)


def steps_unheard() -> Story:
    return Story().round(1, ["n1"]).step(1, 0, 1, count=1).step(1, 0, 5, count=5)


def mute_job() -> Story:
    exited = ProcessExited(pid=3, role="launcher", exit_code=0)
    return Story().tell("cluster", "n1", exited)


def lossy_switch() -> Story:
    return clean().tell("cluster", "", SwitchDropped(packets=4))


def exits(code: int) -> Callable[[], Story]:
    return lambda: Story().launcher_exits({"n1": 0, "n2": code})


def logged(line: str) -> Callable[[], Story]:
    return lambda: Story().tell("worker", "n1", LogMatched(pattern="x", line=line))


def slow_recovery() -> Story:
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, 3).fault("crash").gone(1).wait(9.0)
    return story.round(2, ["n1", "n2"]).steps(2, 4, 5)


def no_recovery() -> Story:
    return Story().round(1, ["n1", "n2"]).steps(1, 1, 3).fault("crash").gone(1)


def swapped_ranks(**more: object) -> Story:
    return Story().round(1, ["n1", "n2"]).gone(1).round(2, ["n2", "n1"], **more)


def newcomer_first() -> Story:
    return Story(nodes=3).round(1, ["n1", "n2"]).gone(1).round(2, ["n0", "n1", "n2"])


def replaced() -> Story:
    """A replacement takes the place of the node that left."""
    return Story(nodes=3).round(1, ["n1", "n2", "n3"]).gone(1).round(2, ["n1", "n4", "n3"])


def ends_with_losses(*losses: float) -> Callable[[], Story]:
    """A node is gone for good, where an undisturbed run ends with losses around 1.05."""

    def story() -> Story:
        usual = (1.0, 1.1, 1.0, 1.1, 1.0, 1.1)
        states = tuple(
            {"pid": 1, "step": 9, **trained.alike(rank), "rank": rank, "losses": usual}
            for rank in (0, 1)
        )
        reference = ReferenceObserved(world_size=2, step=9, states=states)
        story = Story().round(1, ["n1", "n2"]).steps(1, 1, 6).fault("crash").gone(1)
        story.round(2, ["n1"]).steps(2, 6, 9).hashed(2, 0, "y", step=9, losses=losses)
        return story.finish(2).tell("engine", "", reference).end()

    return story


def rank_missing() -> Story:
    """Nobody knows whether rank 1 was given, and nothing kept it."""
    return Story().hello(1, "n1", 0, 2).end("limit")


def cut_while_forming() -> Story:
    """A fault came while the round formed: rank 1 had no time to speak."""
    story = Story().hello(1, "n1", 0, 2).fault("crash").gone(1)
    return story.round(2, ["n1", "n2"]).end()


def too_large_a_round() -> Story:
    """It never formed, and its one worker was told of a world that may not be."""
    return one_round().gone(1).hello(2, "n1", 0, 7).end()


def ran_unheard() -> Story:
    """A worker that the probe was not in, and that ended well: what it did is not known."""
    story = mute_worker()
    exited = WorkerExited(
        round=1, local_rank=1, rank=1, pid=6, exit_code=0, signal=0, cause="succeeded"
    )
    return story.tell("agent", "n1", exited).end()


def stopped_early() -> Story:
    """The test ended the run before rank 1 could speak."""
    return mute_worker().end("stopped")


def stopped_late() -> Story:
    """Rank 1 of round 1 was mute, and there was a second round before the test ended the run."""
    story = mute_worker().gone(1)
    started = WorkersStarted(round=2, pids=(7, 8), ranks=(0, 1), start="warm", start_reason="")
    return story.tell("agent", "n1", started).round(2, ["n1"]).end("stopped")


def restarted_without_a_step() -> Story:
    """The job "succeeded", and nobody did anything after the restart."""
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, 6).fault("crash").gone(1)
    return story.round(2, ["n1", "n2"]).finish(2).end()


def healed_at_teardown() -> Story:
    """What stays until the end is healed after it: nobody has to recover from that."""
    return clean().heal("late")


def planned_and_never_fired(*, is_optional: bool = False) -> Callable[[], Story]:
    planned = FaultPlanned(id="crash", fault="kill", is_optional=is_optional)
    return lambda: Story().tell("engine", "", planned).end("stopped")


def left_behind_unseen() -> Story:
    """A launcher ended, and nobody looked at what it had left."""
    return one_round().launcher_exits({"n1": 0}).tell("engine", "", RunEnded(outcome="failed"))


def killed_by_the_harness() -> Story:
    """The launcher on n2 still ran at the end, and was killed with the run."""
    return Story().launcher_exits({"n1": 0}).end("limit").launcher_exits({"n2": 0})


def started_and_stopped(*strays: str, is_stopped: bool = True) -> Callable[[], Story]:
    """A round of one worker, and what its launcher says of its end."""

    def tell() -> Story:
        started = WorkersStarted(round=1, pids=(5,), ranks=(0,), start="warm", start_reason="")
        story = Story().tell("agent", "n1", started).round(1, ["n1"]).finish(1)
        stopped = WorkersStopped(round=1, duration_s=0.1, strays=strays)
        return (story.tell("agent", "n1", stopped) if is_stopped else story).end()

    return tell


def resized(batch: int, rate: float | None) -> Callable[[], Story]:
    """Three ranks of one sample each at rate 3.0, then two ranks with so many, at this rate."""

    def tell() -> Story:
        story = Story(nodes=3)
        for number, nodes, size, lr in (
            (1, ["n1", "n2", "n3"], 1, 3.0),
            (2, ["n1", "n2"], batch, rate),
        ):
            story.round(number, nodes)
            for rank in range(len(nodes)):
                story.drawn(number, rank, 1, *range(size))
                story.step(number, rank, number, learning_rate=lr)
            story.gone(number)
        return story.end()

    return tell


WATCHED = {"log_patterns": ["lost n[0-9]"]}

PLANTS: dict[str, Plant] = {
    "ranks": Plant(
        invalid=(
            rank_twice,
            rank_outside,
            ranks_scattered,
            group_rank_shared,
            group_ranks_with_gaps,
            agent_says_otherwise,
        ),
        unknown=(empty, rank_missing, rank_missing_at_the_end, never_formed),
        valid=(
            clean,
            one_round,
            lambda: Story().round(1, ["n1", "n2"], group_rank=None),
            cut_while_forming,
            lambda: rank_missing().end("stopped"),
        ),
    ),
    "agreement": Plant(
        invalid=(different_restart_counts, committed_differently),
        unknown=(empty,),
        valid=(clean,),
    ),
    "one_world": Plant(
        invalid=(
            two_worlds,
            lambda: two_worlds(new=3),
            two_worlds_by_clocks_known_to(0.01),
            two_worlds_one_in_part_and_more,
        ),
        unknown=(
            empty,
            two_worlds_one_in_part_by(0.5),
            overlapping_without_steps,
            two_worlds_by_clocks_known_to(0.5),
            steps_before_by_clocks_known_to(60.0),
            two_worlds_one_in_part,
        ),
        valid=(
            clean,
            just_resumed,
            two_worlds_one_in_part_by(-0.001),
            steps_before_by_clocks_known_to(0.001),
        ),
    ),
    "no_overlap": Plant(invalid=(old_worker_alive,), unknown=(empty,), valid=(clean,)),
    "budget": Plant(
        invalid=(over_budget, count_goes_back), unknown=(empty, no_count), valid=(clean,)
    ),
    "membership": Plant(
        invalid=(too_many_nodes, too_few_nodes, too_large_a_round, uneven_nodes),
        unknown=(empty, never_formed),
        valid=(clean,),
    ),
    "split_brain": Plant(
        invalid=(clean,),
        unknown=(
            empty,
            overlapping_without_steps,
            two_worlds_by_clocks_known_to(0.5),
            two_worlds_one_in_part,
        ),
        valid=(two_worlds, two_worlds_by_clocks_known_to(0.01)),
    ),
    "no_survivors": Plant(
        invalid=(survivor,),
        unknown=(one_round, over_limit, left_behind_unseen),
        valid=(clean, lambda: one_round().end("stopped")),
    ),
    "faults_effective": Plant(
        unknown=(silent_fault, failed_fault, planned_and_never_fired()),
        valid=(clean, planned_and_never_fired(is_optional=True)),
    ),
    "ends_in_time": Plant(
        invalid=(over_limit,),
        unknown=(one_round, lambda: one_round().end("unmet"), lambda: one_round().end("aborted")),
        valid=(clean, lambda: one_round().end("stopped")),
    ),
    "workers_observed": Plant(
        unknown=(
            empty,
            mute_worker,
            mute_rank_of_a_stepping_round,
            steps_unheard,
            lost_reports,
            mute_job,
            ran_unheard,
            stopped_late,
        ),
        valid=(clean, stopped_early),
    ),
    "loss": Plant(
        value="as_uninterrupted",
        invalid=(ends_with_losses(1.5, 1.6), ends_with_losses(3.0, 3.1)),
        # Twice as high on half as many ranks may be each rank's part of a sum.
        unknown=(clean, ends_with_losses(), ends_with_losses(2.0, 2.1)),
        valid=(ends_with_losses(1.0, 1.1),),
    ),
    "switch_clean": Plant(unknown=(lossy_switch,), valid=(clean,)),
    "consistent": Plant(invalid=(told_otherwise,), unknown=(step_twice,), valid=(clean, empty)),
    "job": Plant(
        value="succeeded",
        invalid=(over_limit, lambda: Story().end("failed")),
        unknown=(one_round, lambda: Story().end("unmet")),
        valid=(clean,),
    ),
    "exit_codes": Plant(
        value={"n1": 0, "n2": 0},
        invalid=(exits(1),),
        unknown=(empty, killed_by_the_harness, relaunched),
        valid=(exits(0),),
    ),
    "no_workers": Plant(
        invalid=(clean, lambda: never_began("n1", "n2", starts_anyway=True)),
        unknown=(empty, *NOT_TOLD),
        valid=(lambda: never_began("n1", "n2"), lambda: never_began("n1", "n2", by=lost)),
    ),
    "no_strays": Plant(
        invalid=(started_and_stopped("python helper.py"), survivor),
        unknown=(
            clean,
            started_and_stopped(is_stopped=False),
            lambda: started_and_stopped()().tell(
                "agent",
                "n2",
                WorkersStarted(round=1, pids=(6,), ranks=(1,), start="warm", start_reason=""),
            ),
        ),
        valid=(started_and_stopped(),),
    ),
    "log_contains": Plant(
        value="lost n[0-9]",
        invalid=(lambda: Story(settings=WATCHED).end(),),
        unknown=(
            logged("all well"),
            lambda: Story(settings=WATCHED),
            lambda: Story(settings=WATCHED).tell("engine", "", OutputRead(unread=("n1/a.log",))),
            lambda: Story(settings=WATCHED).tell(
                "engine", "", OutputRead(unread=(), left_out={"lost n[0-9]": 3})
            ),
        ),
        valid=(logged("has lost n3"),),
    ),
    "restarts": Plant(
        value=1,
        invalid=(one_round,),
        unknown=(empty, no_count),
        valid=(clean, restarted_unheard),
    ),
    "world_sizes": Plant(value=[2, 2], invalid=(one_round,), unknown=(empty,), valid=(clean,)),
    "recovery_time": Plant(
        value={"at_most": "2s", "after": "crash"},
        invalid=(slow_recovery, no_recovery),
        unknown=(empty, unseen_steps),
        valid=(clean,),
    ),
    "progress": Plant(
        value={"steps": 4, "after": "crash"},
        invalid=(lambda: clean().round(3, ["n1", "n2"]),),
        unknown=(empty, unseen_steps),
        valid=(clean,),
    ),
    "recovered": Plant(
        invalid=(lambda: clean().fault("late").end("failed"),),
        unknown=(empty, one_round, restarted_without_a_step),
        valid=(clean, lambda: clean().fault("late").end("succeeded"), healed_at_teardown),
    ),
    "rank_stability": Plant(
        invalid=(swapped_ranks, newcomer_first),
        unknown=(one_round, lambda: swapped_ranks(run_id="other")),
        valid=(clean, replaced),
    ),
    "learning_rate": Plant(
        value="follows_batch",
        invalid=(resized(1, 3.0), resized(1, 1.75), resized(2, 3.0)),
        unknown=(clean, resized(1, None), lambda: Story(nodes=1).round(1, ["n1"])),
        valid=(resized(1, 2.0), resized(1, 2.15), resized(2, 4.0)),
    ),
    "rank_reassigned": Plant(invalid=(clean,), unknown=(empty,), valid=(swapped_ranks,)),
    **{
        clause: Plant(
            value=trained.CLAUSES[clause][1],
            invalid=trained.INVALID[clause],
            unknown=trained.UNKNOWN[clause],
            valid=(trained.trained(),),
        )
        for clause in trained.CLAUSES
        if clause in STANDARD.names
    },
}

# The clauses of these are on in every run.
DEFAULTS = [check.name for check in STANDARD.default_checks()]
# These cannot find a fault of the job: they find that the run proves nothing.
ONLY_UNKNOWN = {"faults_effective", "workers_observed", "switch_clean"}


@pytest.mark.parametrize("name", STANDARD.names)
def test_a_planted_fault_is_found_and_nothing_else(name: str) -> None:
    """Every checker says invalid, unknown and valid where it should, with proof for what is not."""
    plant = PLANTS[name]
    assert bool(plant.invalid) is (name not in ONLY_UNKNOWN)
    check = bind(name, plant.value)
    for stories, outcome in (
        (plant.invalid, Outcome.INVALID),
        (plant.unknown, Outcome.UNKNOWN),
        (plant.valid, Outcome.VALID),
    ):
        for story in stories:
            verdict = check.run(story().history)
            label = getattr(story, "__name__", "?")
            assert verdict.outcome is outcome, f"{label}: {verdict.reason}"
            assert "crashed" not in verdict.reason, verdict.reason
            assert verdict.reason


@pytest.mark.parametrize("name", [name for name in PLANTS if name not in ONLY_UNKNOWN])
def test_one_history_is_invalid_by_this_checker_alone(name: str) -> None:
    """Without it, the wrong run would have been called valid, or unknown at worst."""
    others = [bind(each) for each in DEFAULTS if each != name]
    check = bind(name, PLANTS[name].value)
    alone = [
        story
        for story in PLANTS[name].invalid
        if not any(other.run(story().history).outcome is Outcome.INVALID for other in others)
    ]
    assert alone, f"{check.text}: each of its histories is invalid by another checker, too"


def test_an_invalid_verdict_points_at_records_that_exist() -> None:
    """The seqs of a verdict are places in the history it judged."""
    for name, plant in PLANTS.items():
        for story in plant.invalid:
            history = story().history
            verdict = bind(name, plant.value).run(history)
            assert all(history[seq].seq == seq for seq in verdict.events)


def test_the_defaults_all_hold_for_an_ordinary_recovery() -> None:
    """A crash and a resume make no invariant fail."""
    judgements = judge_checks(clean().history, STANDARD.default_checks())
    assert overall(judgements).outcome is Outcome.VALID, overall(judgements).reason
    assert len(judgements) == 12


def test_an_invariant_can_be_named_off() -> None:
    """What is named off is not judged; a wrong name is refused, with the right one."""
    names = [check.name for check in STANDARD.default_checks(without=("budget",))]
    assert "budget" not in names
    with pytest.raises(UsageError, match="did you mean 'budget'"):
        STANDARD.default_checks(without=("bugdet",))


def test_a_checker_that_crashes_says_unknown_with_its_traceback() -> None:
    """A broken checker hides nothing and proves nothing."""

    def crash(history: History, parameters: NoParameters) -> Verdict:
        raise ZeroDivisionError("inside")

    registry = standard_checkers()
    registry.add(Checker(name="mine", summary="Mine.", parameters=NoParameters, check=crash))
    verdict = registry.bind("mine").run(empty().history)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "ZeroDivisionError: inside" in verdict.reason


def test_a_users_own_checker_is_named_like_any_other_and_no_name_is_taken_twice() -> None:
    """Users add to a registry; they cannot replace what is there."""
    registry = standard_checkers()
    mine = Checker(
        name="mine", summary="Mine.", parameters=NoParameters, check=lambda *_: valid("yes")
    )
    registry.add(mine)
    assert registry.bind("mine").run(empty().history).is_valid
    with pytest.raises(UsageError, match="a checker is called 'mine' already"):
        registry.add(mine)


def test_never_turns_an_occurrence_around() -> None:
    """`never: split_brain` is invalid when one was seen, and unknown stays unknown."""
    never = bind("split_brain", is_negated=True)
    assert never.run(two_worlds().history).outcome is Outcome.INVALID
    assert never.run(clean().history).outcome is Outcome.VALID
    assert never.run(empty().history).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("restart", 1, "did you mean 'restarts'"),
        ("resumed_at", {"round": 2, "stpe": 20}, "unknown key 'stpe' (did you mean 'step'?)"),
        ("resumed_at", {"round": 2}, "resumed_at: `step` is missing"),
        ("resumed_at", {"round": 2, "step": "20"}, "step: a whole number is expected, found '20'"),
        ("restarts", {}, "say how many"),
        ("restarts", True, "say how many"),
        ("world_sizes", 4, "a list is expected, found 4"),
        ("recovery_time", {"at_most": "2 parsecs"}, "is not a duration: write for example 10s"),
        ("recovery_time", {"at_most": True}, "True is not a duration"),
        ("job", "suceeded", "'succeeded', 'failed' or 'drained' is expected"),
        ("split_brain", {"by": 3}, "unknown key 'by'"),
        ("one_world", 3, "takes no parameters"),
        ("log_contains", "(", "no regular expression"),
        ("log_contains", "", "an empty pattern matches every line"),
    ],
)
def test_a_clause_that_makes_no_sense_is_refused_with_the_reason(
    name: str, value: object, message: str
) -> None:
    """Names, parameters and types are checked before anything runs."""
    with pytest.raises(UsageError) as caught:
        bind(name, value)
    assert message in str(caught.value)


def test_a_restart_that_only_a_launcher_was_told_of_is_proved_by_its_words() -> None:
    """Its workers died before they could say hello."""
    unheard = Story().tell("agent", "n1", commit("n1", "n1", world_size=1))
    assert bind("restarts", 0).run(unheard.history).is_valid
    history = restarted_unheard().history
    (told,) = history.of_kind(RoundCommitted)
    assert bind("restarts", 0).run(history).events == (told.seq,)


def test_exit_codes_are_for_all_launchers_or_for_some() -> None:
    """A number is for all; a mapping names nodes."""
    story = exits(3)()
    assert bind("exit_codes", {"n2": 3}).run(story.history).is_valid
    assert bind("exit_codes", {"n1": 0, "n2": 3}).run(story.history).is_valid
    assert not bind("exit_codes", {"n1": 1}).run(story.history).is_valid
