"""The tests of a check-up: each is a scenario file, made to the measure of the undisturbed run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from elastic_harness.checkup.measured import UNDER_WAY, Checkpoints, Measured
from elastic_harness.scenario.reading.yaml_tree import dump

__all__ = [
    "BATTERY",
    "UNDISTURBED",
    "Checkup",
    "FaultTest",
    "NotKnown",
    "Unfit",
    "reference_scenario",
    "scenario_text",
]

# The run that the others are compared with.
UNDISTURBED = "uninterrupted"
# What a job is given beyond four times its undisturbed time.
_MARGIN_S = 60.0
# A node that joins needs about a second; a job must not be over by then.
_SECONDS_TO_JOIN = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """What is checked: the job as a scenario has it, and on how many nodes it runs.

    `tolerance` is the relative difference of parameters and optimizer that is allowed against the
    undisturbed run; `limit_s` what the undisturbed run may take.
    """

    job: Mapping[str, Any]
    nodes: int = 3
    tolerance: float = 1e-6
    limit_s: float = 300.0

    @property
    def fewest(self) -> int:
        """The nodes that are left when one is gone."""
        return max(1, self.nodes - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTest:
    """One test: what happens, what it stands for, and how its part of a scenario is made.

    `make` returns a timeline and what is expected of this test alone, or raises Unfit. With
    `is_fixed`, the job keeps its number of nodes, and ends with what the undisturbed run ended
    with; else it goes on with one less. `allows` says how many steps may be done again, or None
    where that is not known; `also` are clauses of this test alone.
    """

    name: str
    title: str
    stands_for: str
    make: Callable[[Checkup, Measured], Sequence[Mapping[str, Any]]]
    is_fixed: bool = True
    allows: Callable[[Checkup, Measured], int | None] | None = None
    may_restart: bool = True


class Unfit(Exception):
    """A test cannot be made for a script; the text is the reason."""


class NotKnown(Exception):
    """Whether a test can be made for a script is not known; the text is the reason."""


def reference_scenario(checkup: Checkup, seen: Measured | None = None) -> str:
    """Return the run that nothing disturbs; once it was measured, it asks for what was seen."""
    # What these clauses need is observed; whether they hold is not asked yet.
    to_observe = ({"parameters": "identical"}, {"samples": "exactly_once"})
    clauses = ({"job": "succeeded"}, *to_observe) if seen is None else _what_was_seen(seen)
    scenario = {
        **_head(UNDISTURBED, "The job without any fault", checkup, checkup.limit_s),
        "nodes": checkup.nodes,
        "expect": {"finally": list(clauses)},
    }
    return _as_yaml("What the other runs are compared with.", scenario)


def scenario_text(test: FaultTest, checkup: Checkup, seen: Measured) -> str:
    """Return a test as a scenario file; raises Unfit where the script cannot be tested so.

    Raises NotKnown where what it takes was not seen.
    """
    timeline = test.make(checkup, seen)
    limit_s = 4 * (seen.start_s + seen.seconds + 5) + _MARGIN_S
    nodes: object = checkup.nodes
    if not test.is_fixed:
        nodes = {"initial": checkup.nodes, "min": checkup.fewest, "max": checkup.nodes}
    scenario = {
        **_head(test.name, test.title, checkup, limit_s),
        "nodes": nodes,
        "timeline": list(timeline),
        "expect": {"finally": list(_clauses(test, checkup, seen))},
    }
    return _as_yaml(test.stands_for, scenario)


def _head(name: str, title: str, checkup: Checkup, limit_s: float) -> dict[str, Any]:
    return {
        "version": 1,
        "id": name,
        "title": title,
        "job": dict(checkup.job),
        "limit": f"{limit_s:.0f}s",
    }


def _what_was_seen(seen: Measured) -> Iterator[Mapping[str, Any]]:
    yield {"job": "succeeded"}
    if seen.is_global:
        yield {"finished_at": {"step": seen.steps}}
    if seen.samples is not None:
        yield {"samples": _samples_as_uninterrupted(seen, is_fixed=True)}


def _clauses(test: FaultTest, checkup: Checkup, seen: Measured) -> Iterator[Mapping[str, Any]]:
    yield {"job": "succeeded"}
    if not test.may_restart:
        yield {"world_sizes": [seen.world_size]}
    if seen.is_global:
        # With fewer ranks, a script that ends after so many epochs makes more steps.
        yield {"finished_at": {"step" if test.is_fixed else "at_least": seen.steps}}
    # Asked for where steps are not known, too: a job that lost all of them may end with the same.
    if test.allows is not None and (at_most := test.allows(checkup, seen)) is not None:
        yield {"steps_lost": {"at_most": at_most}}
    if seen.samples is not None and (seen.is_global or test.allows is None):
        yield {"samples": _samples_as_uninterrupted(seen, is_fixed=test.is_fixed)}
    if test.is_fixed and seen.state is not None:
        same = {"are": "same_as_uninterrupted", "within": checkup.tolerance}
        yield {"parameters": same}
        yield {"optimizer": same}
    if not test.is_fixed and seen.loss_limit is not None:
        yield {"loss": "as_uninterrupted"}


def _samples_as_uninterrupted(seen: Measured, *, is_fixed: bool) -> Mapping[str, Any]:
    """Return what is asked of the samples, so that the undisturbed run meets it.

    Where the number of ranks changes, what is left over of an epoch is another number. A
    DistributedSampler then repeats less than one sample for each rank, which the undisturbed run
    need not show; other samplers, and `drop_last`, repeat or leave out less than a step uses.
    """
    assert seen.samples is not None, "asked for where they were seen"
    size, uses = seen.samples
    last = max(uses)
    again = max(used.total() - len(used) for used in uses.values())
    dropped = max((size - len(used) for epoch, used in uses.items() if epoch != last), default=0)
    if again or not is_fixed:
        again = max(again, seen.world_size - 1)
    if not is_fixed:
        of_a_step = math.ceil(sum(used.total() for used in uses.values()) / seen.steps) - 1
        again = max(again, of_a_step) if again >= seen.world_size else again
        dropped = max(dropped, of_a_step) if dropped else 0
    asked: dict[str, Any] = {"each_epoch": "exactly_once", "last_epoch": "may_be_cut"}
    if again:
        asked["padding"] = again
    if dropped:
        asked["dropped"] = dropped
    return asked


# --- when, and how many steps that may cost -----------------------------------------------------


def _middle(seen: Measured) -> int:
    """Return a step in the middle of the job, and between two checkpoints.

    A job that resumes at the end of an epoch does not show that it has forgotten its place in the
    data: the checkpoint before is another one, if there is one.
    """
    middle = round(seen.steps * 0.55)
    saved, half = _saved_in_time(seen)
    if seen.checkpoints is None or not saved:
        return middle
    # On a busy machine it may be seen as late as the next one is written.
    late = max(UNDER_WAY, seen.checkpoints.interval - 1)
    return half + min(
        saved,
        key=lambda step: (
            _ends_an_epoch(step, seen, UNDER_WAY),
            # Saved once an epoch, all but the first may be late: it would cost the job's beginning.
            step < seen.steps * 0.25,
            _ends_an_epoch(step, seen, late),
            abs(step + half - middle),
        ),
    )


def _after_an_epoch(seen: Measured) -> int:
    """Return a step behind a checkpoint at the end of an epoch; the middle, if there is none.

    What is done between two epochs (a schedule, an evaluation) may be lost or done twice there.
    """
    middle = _middle(seen)
    saved, half = _saved_in_time(seen)
    ends = [each + half for each in saved if _ends_an_epoch(each, seen, UNDER_WAY)]
    return min(ends, key=lambda step: abs(step - middle), default=middle)


def _one_later(seen: Measured) -> int:
    """Return a step behind the checkpoint that follows that of the middle, if there is one.

    What is right at every second checkpoint only (with gradients that are half accumulated) is
    wrong there. If names have got another digit by the end (`epoch_10`), it is behind the last one:
    sorted as text, the newest is not the last, which costs the more the later it is.
    """
    middle = _middle(seen)
    saved, half = _saved_in_time(seen)
    longer = None if seen.checkpoints is None else seen.checkpoints.longer
    if longer is not None and middle - half <= longer < max(saved, default=0):
        return saved[-1] + half
    return min((each + half for each in saved if each + half > middle), default=middle)


def _saved_in_time(seen: Measured) -> tuple[list[int], int]:
    """Return the checkpoints that a job can go on from, and how long after one a fault comes."""
    if seen.checkpoints is None:
        return [], 0
    half = max(1, seen.checkpoints.interval // 2)
    return [each for each in seen.checkpoints.steps if each + half < seen.steps * 0.9], half


def _ends_an_epoch(saved: int, seen: Measured, late: int) -> bool:
    """Tell whether a checkpoint that is seen so many steps late may be that of an epoch's end."""
    return not seen.epoch_ends.isdisjoint(range(saved - late, saved + 1))


def _intervals(
    number: int,
    *,
    step: Callable[[Measured], int] = _middle,
    of_fewer: bool = False,
    in_a_save: bool = False,
) -> Callable[[Checkup, Measured], int | None]:
    """Allow the steps of so many times from one checkpoint to the next, and those under way.

    `of_fewer`: steps that fewer ranks made, of which an epoch has more. `in_a_save`: it is over
    before the next one begins, however long it takes; the folder is a slower one then.
    """

    def allows(checkup: Checkup, seen: Measured) -> int | None:
        if seen.misses_files:
            return None
        if seen.checkpoints is None:
            return seen.steps // 10  # of ten steps at least, or there is no check-up
        found = seen.checkpoints
        moments = [_before_a_save(found, seen) if in_a_save else step(seen)]
        if of_fewer:  # the node leaves early, and the other one comes whenever it does
            moments = [0, *found.steps]
        lost = max(found.most_lost(at or 0, number) for at in moments)
        if of_fewer and _may_save_by_epochs(found, seen):
            lost = math.ceil(lost * checkup.nodes / checkup.fewest)
        beside = found.beside
        if in_a_save and beside:
            beside = max(beside, found.interval)
        return lost + beside + UNDER_WAY

    return allows


def _may_save_by_epochs(saved: Checkpoints, seen: Measured) -> bool:
    """Tell whether each checkpoint but the last may be that of an epoch's end."""
    if not seen.epoch_ends:
        return True
    return all(_ends_an_epoch(step, seen, UNDER_WAY) for step in saved.steps[:-1])


def _checkpoints(seen: Measured) -> Checkpoints:
    if seen.checkpoints is None:
        raise (NotKnown if seen.misses_files else Unfit)(seen.unseen["checkpoints"])
    return seen.checkpoints


def _rank(seen: Measured) -> str:
    return f"rank {seen.world_size - 1}"


def _at(seen: Measured, step: Callable[[Measured], int] = _middle) -> Mapping[str, Any]:
    return {"step": step(seen), "rank": seen.world_size - 1}


def _on_worker(
    action: str, step: Callable[[Measured], int] = _middle, **more: object
) -> Callable[[Checkup, Measured], Any]:
    def make(_: Checkup, seen: Measured) -> Sequence[Mapping[str, Any]]:
        value: object = {"worker": _rank(seen), **more} if more else _rank(seen)
        return [{"at": _at(seen, step), "id": "fault", action: value}]

    return make


def _on_last_node(action: str, **more: object) -> Callable[[Checkup, Measured], Any]:
    def make(checkup: Checkup, seen: Measured) -> Sequence[Mapping[str, Any]]:
        _needs_two(checkup)
        node = f"n{checkup.nodes}"
        value: object = {"node": node, **more} if more else node
        return [{"at": _at(seen), "id": "fault", action: value}]

    return make


def _needs_two(checkup: Checkup) -> None:
    if checkup.nodes < 2:
        raise Unfit("the check-up was asked to use one node: --nodes=2 or more has others left")


def _rank0_host(checkup: Checkup, seen: Measured) -> Sequence[Mapping[str, Any]]:
    if checkup.nodes < 3:
        raise Unfit("of two nodes, the one that hosts the rendezvous cannot be spared: --nodes=3")
    return [{"at": {"step": _middle(seen), "rank": 0}, "id": "fault", "crash": "rank 0 host"}]


def _down_and_up(checkup: Checkup, seen: Measured) -> Sequence[Mapping[str, Any]]:
    _needs_two(checkup)
    step = round(seen.steps * 0.25)
    left_s = (seen.steps - step) * seen.step_s
    if left_s < _SECONDS_TO_JOIN:
        raise Unfit(
            f"the job is over {left_s:.1f} s after the node has left, before another one can join: "
            f"give it {math.ceil(seen.steps * _SECONDS_TO_JOIN / max(left_s, 0.01))} steps"
        )
    return [
        {
            "at": {"step": step, "rank": seen.world_size - 1},
            "id": "fault",
            "leave": f"n{checkup.nodes}",
        },
        {
            "when": {"stable": {"world_size": _left(checkup, seen), "steps": 2}},
            "id": "arrival",
            "join": {"nodes": 1},
        },
    ]


def _left(checkup: Checkup, seen: Measured) -> int:
    return checkup.fewest * seen.world_size // checkup.nodes


def _while_saving(_: Checkup, seen: Measured) -> Sequence[Mapping[str, Any]]:
    found = _checkpoints(seen)
    step = _before_a_save(found, seen)
    if step is None:
        raise Unfit("it saved too seldom for a kill in the middle of it: two checkpoints or more")
    # The smaller the overlaid folder, the less of the job passes through a slower file system.
    folders = found.written.split("/")[:-1]
    fixed = list(takewhile(lambda name: "*" not in name, folders))
    below = {"path": "/".join(fixed)} if fixed else {}
    writing = "/".join(found.written.split("/")[len(fixed) :])
    when = {"writing": writing, **below, "step": step}
    return [{"when": when, "id": "fault", "kill": "rank 0"}]


def _before_a_save(found: Checkpoints, seen: Measured) -> int | None:
    """Return a step between two checkpoints; None if there are not two, but for the beginning."""
    later = [step for step in found.steps if step > seen.steps // 4]
    # Not the very step at which it saves: then it may be in the middle of that already.
    return later[0] + max(1, found.interval // 2) if len(later) > 1 else None


def _torn(_: Checkup, seen: Measured) -> Sequence[Mapping[str, Any]]:
    found = _checkpoints(seen)
    if found.steps[0] >= _middle(seen):
        raise Unfit("no checkpoint was complete in the middle of the job: let it save more often")
    tear = {"file": found.named, "how": "torn"}
    return [
        {"at": _at(seen), "id": "tear", "corrupt": tear},
        {"after": "tear", "id": "fault", "kill": _rank(seen)},
    ]


def _slow_link(checkup: Checkup, seen: Measured) -> Sequence[Mapping[str, Any]]:
    _needs_two(checkup)
    slow = {"node": f"n{checkup.nodes}", "latency": "25ms", "jitter": "5ms"}
    return [{"at": _at(seen), "id": "fault", "degrade": slow, "for": "3s"}]


BATTERY: Sequence[FaultTest] = (
    FaultTest(
        name="worker-killed",
        title="A worker is killed between two checkpoints",
        stands_for="The kernel's out-of-memory killer, a crash in native code.",
        make=_on_worker("kill"),
        allows=_intervals(1),
    ),
    FaultTest(
        name="worker-raises",
        title="An exception ends a worker",
        stands_for="A bad sample, an error of a device, a bug that comes once.",
        make=_on_worker(
            "raise", _after_an_epoch, error="RuntimeError", message="injected by the check-up"
        ),
        allows=_intervals(1, step=_after_an_epoch),
    ),
    FaultTest(
        name="worker-exits",
        title="A worker ends by itself with exit code 3",
        stands_for="A health check that gives up, a library that calls exit().",
        make=_on_worker("exit", _one_later, code=3),
        allows=_intervals(1, step=_one_later),
    ),
    FaultTest(
        name="preempted",
        title="A node is preempted: SIGTERM, and all its processes are killed 5 s later",
        stands_for="A spot machine that is reclaimed, a scheduler that needs the node.",
        make=_on_last_node("preempt", notice="5s", by="crash"),
        is_fixed=False,
        allows=lambda _, __: 1,
    ),
    FaultTest(
        name="node-silent",
        title="A node falls silent: no connection is closed",
        stands_for="A power cut, a dead switch, a kernel panic.",
        make=_on_last_node("power_cut"),
        is_fixed=False,
        allows=_intervals(1),
    ),
    FaultTest(
        name="rank0-host-lost",
        title="The host of rank 0 and of the store crashes",
        stands_for="The one node that most launchers cannot lose.",
        make=_rank0_host,
        is_fixed=False,
        allows=_intervals(1),
    ),
    FaultTest(
        name="node-replaced",
        title="A node dies, and another one with an empty disk takes its place",
        stands_for="What a cloud or Kubernetes does after a hardware fault.",
        make=_on_last_node("replace"),
        allows=_intervals(1),
    ),
    FaultTest(
        name="down-and-up",
        title="A node leaves, and later another one joins",
        stands_for="Capacity that goes and comes back.",
        make=_down_and_up,
        is_fixed=False,
        allows=_intervals(1, of_fewer=True),
    ),
    FaultTest(
        name="killed-while-saving",
        title="Rank 0 is killed in the middle of writing a checkpoint",
        stands_for="A crash that leaves half a file.",
        make=_while_saving,
        allows=_intervals(1, in_a_save=True),
    ),
    FaultTest(
        name="checkpoint-torn",
        title="The newest checkpoint is damaged, and a worker is killed",
        stands_for="A crash between write and flush, a file system that lost a tail.",
        make=_torn,
        allows=_intervals(2),
    ),
    FaultTest(
        name="slow-link",
        title="One node's links take 25 ms longer for 3 s",
        stands_for="A congested switch: slowness is no failure, and nothing may restart.",
        make=_slow_link,
        may_restart=False,
    ),
)


def _as_yaml(comment: str, scenario: Mapping[str, Any]) -> str:
    return f"# {comment}\n{dump(scenario)}"
