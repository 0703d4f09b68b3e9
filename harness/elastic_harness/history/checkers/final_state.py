"""What the training ended with: parameters, the optimizer's state and the loss, on every rank.

Compared are the ranks with each other, or each rank with the same rank of a reference: the same job
with the same seed, run once before without a fault (`ReferenceObserved`). With another number of
ranks the loss is compared: see `LossFound`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

from elastic_harness.history.checkers.distance import UNKNOWN, Distance, distance
from elastic_harness.history.checkers.liveness import formed_worlds
from elastic_harness.history.checkers.registry import Parameters, checker
from elastic_harness.history.events import FaultFired, ParametersHashed, ReferenceObserved
from elastic_harness.history.history import History
from elastic_harness.history.verdict import Verdict, invalid, unknown, valid
from elastic_harness.history.worlds import WorkerView

__all__ = [
    "NEARLY_SAME",
    "LossFound",
    "loss",
    "loss_found",
    "loss_limit",
    "losses_of",
    "optimizer",
    "parameters",
    "reference_of",
]

# Of fewer losses no spread can be told.
_FEWEST_LOSSES = 5
# Sums over another number of ranks are rounded otherwise, which makes about 1e-7 of the norm in
# hundreds of steps. Dropout that draws anew, or an optimizer that forgot, makes more than 4e-3.
NEARLY_SAME = 1e-3
_NAMES = {"parameters": "parameters", "optimizer": "optimizer state"}
_OTHER = {"parameters": "different parameters", "optimizer": "a different optimizer state"}


class FinalStateParameters(Parameters):
    """`parameters: identical`, or `same_as_uninterrupted`; `optimizer` likewise.

    `identical`: all ranks end with the same (data-parallel training). `same_as_uninterrupted`: each
    rank ends with what it ends with when nothing disturbs the job, to the bit, or `within: 1e-6`
    (the norm of the difference, divided by the norm; of a few tensors by themselves at most a
    thousand times as much).
    """

    are: Literal["identical", "same_as_uninterrupted"]
    within: float | None = None

    def model_post_init(self, context: object) -> None:
        if self.within is not None and self.are == "identical":
            raise ValueError("`within` goes with same_as_uninterrupted: replicas are identical")
        if self.within is not None and not 0 <= self.within < 1:
            raise ValueError(f"a part is expected, such as 1e-6, not {self.within}")


class LossParameters(Parameters):
    """`loss: as_uninterrupted`: the last losses are no higher than those of the undisturbed run."""

    rule: Literal["as_uninterrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFound:
    """The mean of a job's last losses, that of an uninterrupted run, and the highest allowed one.

    A loss differs from step to step, so the uninterrupted run's own last losses say what is noise:
    three of their standard deviations above their mean are allowed. A lower loss is no fault: fewer
    ranks may make more steps.

    A higher one may be another measure of the same: where gradients are added over the ranks, the
    loss of each rank is its part of the whole, and grows as the number of ranks shrinks. `apart` is
    how far the parameters are from the uninterrupted run's, and `rank_ratio` is how many times as
    many ranks there are.
    """

    steps: int
    value: float
    wanted: float
    at_most: float
    apart: Distance
    rank_ratio: float

    @property
    def is_nearly_same(self) -> bool:
        """The parameters are the uninterrupted run's, but for rounding."""
        return self.apart.worst <= NEARLY_SAME

    @property
    def is_part_of_a_sum(self) -> bool:
        """The mean times the number of ranks is as uninterrupted.

        The means of two right runs differ by less than one standard deviation of single losses;
        to allow three here would excuse losses that are really higher.
        """
        return 3 * abs(self.value * self.rank_ratio - self.wanted) <= self.at_most - self.wanted


def _compares_runs(asked: FinalStateParameters) -> bool:
    return asked.are == "same_as_uninterrupted"


@checker(
    "parameters",
    FinalStateParameters,
    shorthand="are",
    observes=("state",),
    needs_reference=_compares_runs,
    needs_end=True,
)
def parameters(history: History, asked: FinalStateParameters) -> Verdict:
    """All replicas end with the same parameters, or with those of an uninterrupted run."""
    return _judge("parameters", history, asked)


@checker(
    "optimizer",
    FinalStateParameters,
    shorthand="are",
    observes=("state",),
    needs_reference=_compares_runs,
    needs_end=True,
)
def optimizer(history: History, asked: FinalStateParameters) -> Verdict:
    """All replicas end with the same optimizer state, or with that of an uninterrupted run."""
    return _judge("optimizer", history, asked)


def _always(_: LossParameters) -> bool:
    return True


@checker(
    "loss",
    LossParameters,
    shorthand="rule",
    observes=("state",),
    needs_reference=_always,
    needs_end=True,
)
def loss(history: History, _: LossParameters) -> Verdict:
    """The last losses are no higher than those of an uninterrupted run, but for its own noise."""
    found = loss_found(history)
    if isinstance(found, str):
        return unknown(found)
    proof = [entry.seq for entry in history.of_kind(ReferenceObserved)][-1:]
    proof += [worker.digest_seq for worker in history.worlds.rounds[-1].workers.values()]
    said = (
        f"the last {found.steps} losses have a mean of {found.value:.4g}, uninterrupted "
        f"{found.wanted:.4g}; at most {found.at_most:.4g} is allowed (three standard deviations of "
        "the uninterrupted run's last losses)"
    )
    if found.value <= found.at_most:
        return valid(said, proof)
    if found.is_nearly_same:
        return valid(
            f"{said}; but the parameters are only {found.apart.of_all:.2g} (relative) from the "
            "uninterrupted run's, so that the loss is measured in another way",
            proof,
        )
    if found.apart.of_all <= NEARLY_SAME:
        return unknown(
            f"{said}; but the parameters differ from the uninterrupted run's{found.apart}, so that "
            "the loss may be measured in another way",
            proof,
        )
    if found.is_part_of_a_sum:
        return unknown(
            f"{said}; but the mean times the number of ranks is as uninterrupted, which is right "
            "if the loss of a rank is its part of a sum over all ranks",
            proof,
        )
    return invalid(said, proof)


def loss_found(history: History) -> LossFound | str:
    """Compare the last losses with the uninterrupted run's; a text says why they cannot be."""
    formed = formed_worlds(history)
    reference = history.last(ReferenceObserved)
    if not formed or history.worlds.rounds[-1] is not formed[-1]:
        return "the last round did not form"
    if reference is None:
        return "there is no uninterrupted run to compare with: none was made, or it failed"
    workers = formed[-1].workers.values()
    states = [worker.digest for worker in workers if worker.finished and worker.digest is not None]
    if len(states) != len(workers):
        return "not every rank said at its end what its losses were"
    others = [ParametersHashed(**state) for state in reference.event.states]
    wanted, found = losses_of(others), losses_of(states)
    at_most = loss_limit(wanted)
    if at_most is None:
        return "no loss of the uninterrupted run was seen: its steps called no backward() on one"
    if not found:
        return "no loss was seen in the last round"
    value = fmean(found)
    return LossFound(
        steps=len(found),
        value=math.inf if math.isnan(value) else value,
        wanted=fmean(wanted),
        at_most=at_most,
        apart=_replicas_apart(states, others),
        rank_ratio=len(states) / reference.event.world_size,
    )


def loss_limit(losses: Sequence[float]) -> float | None:
    """Return how high the mean loss may be beside these; None where that cannot be told."""
    if len(losses) < _FEWEST_LOSSES or any(map(math.isnan, losses)):
        return None
    return fmean(losses) + 3 * stdev(losses)


def losses_of(states: Sequence[ParametersHashed]) -> list[float]:
    """Return the losses of the last steps that all ranks have one of, each the mean of the ranks.

    nan stands for one that was not finite.
    """
    fewest = min((len(state.losses) for state in states), default=0)
    tails = [state.losses[len(state.losses) - fewest :] for state in states]
    numbers = [[math.nan if each is None else each for each in tail] for tail in tails]
    return [fmean(each) for each in zip(*numbers, strict=True)]


def reference_of(history: History) -> ReferenceObserved | None:
    """Return what an undisturbed run ended with; None if it was disturbed, or not all was seen."""
    rounds = history.worlds.rounds
    if len(rounds) != 1 or formed_worlds(history) != rounds or history.of_kind(FaultFired):
        return None
    (world,) = rounds
    workers = [worker for _, worker in sorted(world.workers.items())]
    states = [worker.digest for worker in workers if worker.finished and worker.digest is not None]
    steps = {state.step for state in states}
    if len(states) != len(workers) or len(steps) != 1:
        return None
    return ReferenceObserved(
        world_size=world.world_size,
        step=steps.pop(),
        states=tuple(
            {name: getattr(state, name) for name in state.__struct_fields__} for state in states
        ),
    )


def _judge(part: str, history: History, asked: FinalStateParameters) -> Verdict:
    formed = formed_worlds(history)
    if not formed:
        return unknown("no round formed")
    if history.worlds.rounds[-1] is not formed[-1]:
        return unknown(f"the last round, {history.worlds.rounds[-1].ordinal}, did not form")
    workers = [worker for _, worker in sorted(formed[-1].workers.items())]
    for worker in workers:
        state = worker.digest if worker.finished else None
        if state is not None and not state.is_finite:
            return invalid(
                f"rank {worker.rank} ended with parameters that are not finite (nan or inf)",
                (worker.digest_seq,),
            )
        if state is not None and part == "optimizer" and not state.optimizer_is_finite:
            return invalid(
                f"rank {worker.rank} ended with an optimizer state that is not finite (nan or inf)",
                (worker.digest_seq,),
            )
    states: list[ParametersHashed] = []
    for worker in workers:
        if (why := _why_none(part, worker)) is not None:
            return unknown(f"no digest of rank {worker.rank}'s {part} in the last round: {why}")
        assert worker.digest is not None, "or there was a reason why not"
        states.append(worker.digest)
    proof = [worker.digest_seq for worker in workers]
    if asked.are == "identical":
        return _judge_replicas(part, states, proof)
    return _judge_by_reference(part, history, states, proof, asked.within)


def _why_none(part: str, worker: WorkerView) -> str | None:
    if not worker.finished:
        return "it did not end by itself"
    if worker.digest is None:
        return "none was taken: no optimizer of torch made a step, or an exception ended it"
    if _digest_of(part, worker.digest) is None:
        return worker.digest.reason or "none was taken"
    return None


def _digest_of(part: str, state: ParametersHashed) -> str | None:
    return state.digest if part == "parameters" else state.optimizer


def _judge_replicas(part: str, states: list[ParametersHashed], proof: list[int]) -> Verdict:
    if any(part in state.sharded for state in states):
        return unknown(f"each rank has only its shard of the {_NAMES[part]}", proof)
    if len(states) < 2:
        return unknown("there was one rank at the end, and none to compare it with", proof)
    ranks: dict[str | None, list[int]] = defaultdict(list)
    for rank, state in enumerate(states):
        ranks[_digest_of(part, state)].append(rank)
    if len(ranks) == 1:
        return valid(f"{len(states)} replicas ended with the same {_NAMES[part]}", proof)
    groups = " and ".join(
        f"rank{'s' * (len(each) > 1)} {', '.join(map(str, each))}" for each in ranks.values()
    )
    one, other, *_ = (states[each[0]] for each in ranks.values())
    return invalid(
        f"{groups} ended with {_OTHER[part]}{_distance(part, other, one)}",
        proof,
    )


def _judge_by_reference(
    part: str,
    history: History,
    states: list[ParametersHashed],
    proof: list[int],
    within: float | None,
) -> Verdict:
    found = history.last(ReferenceObserved)
    if found is None:
        return unknown("there is no uninterrupted run to compare with: none was made, or it failed")
    reference, proof = found.event, [found.seq, *proof]
    if len(states) != reference.world_size:
        return unknown(
            f"the job ended with {len(states)} ranks, uninterrupted with "
            f"{reference.world_size}: another number of ranks adds up in another order",
            proof,
        )
    wanted = [ParametersHashed(**state) for state in reference.states]
    differ: dict[int, Distance] = {}
    miscounted = ""
    for rank, (state, other) in enumerate(zip(states, wanted, strict=True)):
        if _digest_of(part, other) is None:
            return unknown(f"no digest of rank {rank}'s {part} in the uninterrupted run", proof)
        is_same = _digest_of(part, state) == _digest_of(part, other)
        if not is_same:
            differ[rank] = _distance(part, state, other)
        if None in (state.step, other.step) or state.step == other.step:
            continue
        said = f"rank {rank} ended after step {state.step}, uninterrupted after {other.step}"
        if not is_same:
            how_far = f"{differ[rank]}{_hints(part, state, other)}"
            return invalid(f"{said}, and with {_OTHER[part]}{how_far}", proof)
        miscounted = miscounted or (
            f"{said}, but with the same {_NAMES[part]} to the bit: steps were miscounted, or "
            "changed nothing"
        )
    if not differ and miscounted:
        return unknown(miscounted, proof)
    if not differ:
        return valid(f"{_NAMES[part]} as of the uninterrupted run, to the bit", proof)
    are_allowed = within is not None and all(far.is_within(within) for far in differ.values())
    worst = max(differ, key=lambda rank: differ[rank].worst)
    state, other = states[worst], wanted[worst]
    said = f"rank {worst} ended with {_OTHER[part]} than uninterrupted{differ[worst]}"
    if are_allowed:
        return valid(f"{said}, {within:g} is allowed", proof)
    said += _hints(part, state, other)
    sizes = {each.world_size for each in history.worlds.rounds if each.last_step is not None}
    if within is None and sizes != {reference.world_size}:
        return unknown(
            f"{said}; steps were made in rounds of other sizes, which are not the same to the bit "
            "(`within` says how much is allowed)",
            proof,
        )
    return invalid(said if within is None else f"{said}, {within:g} is allowed", proof)


def _distance(part: str, state: ParametersHashed, other: ParametersHashed) -> Distance:
    if part == "parameters":
        return distance(state.sketch, other.sketch, other.norm, other.norms)
    found = distance(
        state.optimizer_sketch,
        other.optimizer_sketch,
        other.optimizer_norm,
        other.optimizer_norms,
    )
    if state.lr != other.lr:  # no part of the sketch
        return replace(found, of_all=max(found.of_all, _rates_apart(state.lr, other.lr)))
    return found


def _replicas_apart(
    states: Sequence[ParametersHashed], others: Sequence[ParametersHashed]
) -> Distance:
    """Return how far the parameters of two runs are apart at the same step."""
    if any("parameters" in state.sharded for state in (*states, *others)):
        return UNKNOWN
    if len({state.step for state in (*states, *others)}) > 1:
        return UNKNOWN
    found = [_distance("parameters", one, two) for one in states for two in others]
    return max(found, key=lambda far: (far.worst, far.of_all))


def _rates_apart(rates: Sequence[float], others: Sequence[float]) -> float:
    if len(rates) != len(others) or not any(others):
        return math.inf
    return math.dist(rates, others) / math.hypot(*others)


def _hints(part: str, state: ParametersHashed, other: ParametersHashed) -> str:
    """Say what else differs, and may be the reason."""
    found = []
    if state.lr != other.lr:
        found.append(f"its learning rate is {_numbers(state.lr)} instead of {_numbers(other.lr)}")
    if part == "parameters" and state.optimizer != other.optimizer:
        found.append("its optimizer's state differs")
    kinds = [name for name in sorted(other.random) if state.random.get(name) != other.random[name]]
    if kinds:
        found.append(f"so do the random numbers of {' and '.join(kinds)}")
    return f" ({', '.join(found)})" if found else ""


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values) or "none"
