"""How chance draws a fault: what a storm may aim at, and what comes out of it as plain data.

Pure. A recipe is given a random generator and the `JobShape`, and returns what an entry of a
timeline has beside its trigger. Those of the built-in faults are in `faults.recipes`; a fault of a
user brings its own (`FaultRegistry.add`). A scenario, a Python test and a user's own `faker` draw
alike, by `draw_fault` and `draw_plan`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from elastic_harness.scenario.fields import format_duration
from pytest_elastic.errors import UsageError

__all__ = [
    "Drawn",
    "JobShape",
    "Recipe",
    "choose",
    "draw_fault",
    "draw_plan",
    "known_draws",
    "needs_of",
    "usable",
]

# Two faults of a drawn plan are at least so far apart.
_LEAST_APART_S = 0.05

Drawn = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """What a job has that faults can hit: so many ranks, and these nodes by name, of `all_nodes`.

    `nodes` are those that may be hit as nodes. `proxies` are the names of the job's proxies.
    """

    ranks: int
    nodes: tuple[str, ...]
    all_nodes: tuple[str, ...]
    proxies: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, nodes: int, nproc: int, *, exclude: Collection[str] = (), proxies: Iterable[str] = ()
    ) -> JobShape:
        """Return the shape of a job on so many nodes, of which some are not hit as nodes."""
        for what, number in (("nodes", nodes), ("nproc", nproc)):
            if type(number) is not int or number < 1:
                raise UsageError(f"{what}={number!r}: a whole number of at least 1 is expected")
        names = tuple(f"n{number}" for number in range(1, nodes + 1))
        return cls(
            ranks=nodes * nproc,
            nodes=tuple(name for name in names if name not in exclude),
            all_nodes=names,
            proxies=tuple(proxies),
        )


def _always(_: JobShape) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one fault is drawn: what is added to an entry. `needs` is a capability, if it needs one.

    What is drawn must be survivable by a job with enough restarts: nodes that go come back, and
    what can be healed has a `for`. `kind` is what a storm asks for it by, beside the fault's name.
    `weight` is how often it comes up among the recipes of its kind, and `fits` tells whether a job
    has what it aims at. Raises UsageError for a kind that is no word, or a weight below 1.
    """

    fault: str
    kind: str
    draw: Callable[[Random, JobShape], Drawn]
    needs: str | None = None
    weight: int = 1
    fits: Callable[[JobShape], bool] = _always

    def __post_init__(self) -> None:
        if re.fullmatch(r"[a-z][a-z0-9_]*", self.kind) is None:
            raise UsageError(
                f"the recipe of {self.fault!r} is of the kind {self.kind!r}: a word in small "
                "letters is expected"
            )
        if self.weight < 1:
            raise UsageError(
                f"the recipe of {self.fault!r} has the weight {self.weight}: 1 or more is expected"
            )


def known_draws(recipes: Sequence[Recipe]) -> tuple[str, ...]:
    """Return everything that a storm's `faults` may name: kinds first."""
    kinds = [each.kind for each in recipes]
    return tuple(dict.fromkeys([*kinds, *(each.fault for each in recipes)]))


def needs_of(recipes: Sequence[Recipe], faults: Collection[str]) -> tuple[str, ...]:
    """Return the capabilities that a cluster must have for whatever may be drawn."""
    chosen = [each for each in recipes if each.kind in faults or each.fault in faults]
    return tuple(dict.fromkeys(each.needs for each in chosen if each.needs is not None))


def usable(recipes: Sequence[Recipe], faults: Collection[str], job: JobShape) -> tuple[Recipe, ...]:
    """Return what may be drawn of these kinds or faults for such a job."""
    return tuple(
        each for each in recipes if (each.kind in faults or each.fault in faults) and each.fits(job)
    )


def choose(
    recipes: Sequence[Recipe], faults: Sequence[str], job: JobShape, *, exclude: Iterable[str] = ()
) -> Sequence[Recipe]:
    """Return what may be drawn; raises UsageError for words that mean nothing, and for nothing."""
    known = known_draws(recipes)
    for each in faults:
        if each not in known:
            raise UsageError(f"{each!r} cannot be drawn: expected one of {', '.join(known)}")
    for each in exclude:
        if each not in job.all_nodes:
            raise UsageError(
                f"{each!r} cannot be left out of what is drawn: the nodes are "
                f"{', '.join(job.all_nodes)}"
            )
    chosen = usable(recipes, faults, job)
    if not chosen:
        raise UsageError(
            f"there is nothing to draw {', '.join(faults) or 'no faults'} from: of "
            f"{len(job.all_nodes)} nodes {len(job.nodes)} may be hit, and there are "
            f"{len(job.proxies)} proxies"
        )
    return chosen


def draw_fault(random: Random, recipes: Sequence[Recipe], job: JobShape) -> Drawn:
    """Draw one fault, as a scenario's entry without its trigger."""
    # First the kind, so that a kind with many recipes does not crowd out the others.
    kind = random.choice(list(dict.fromkeys(each.kind for each in recipes)))
    several = [each for each in recipes if each.kind == kind]
    (recipe,) = random.choices(several, weights=[each.weight for each in several])
    return recipe.draw(random, job)


def draw_plan(
    random: Random,
    recipes: Sequence[Recipe],
    job: JobShape,
    *,
    seconds: float,
    steps: int | None,
    max_faults: int,
) -> list[Drawn]:
    """Draw half of `max_faults` to `max_faults` entries of a scenario's timeline, in order.

    Each has a trigger `at`: a time below `seconds`, or, with `steps`, a step of rank 0 up to that
    one. Raises UsageError where that is nothing.
    """
    if seconds <= 0 or max_faults < 1:
        raise UsageError(
            f"a plan of {max_faults} faults in {seconds:g} s cannot be drawn: both must be "
            "more than nothing"
        )
    # Rather many than few: a user who asks for six faults does not mean one.
    count = random.randint((max_faults + 1) // 2, max_faults)
    if steps is not None:
        moments = sorted(random.randint(1, steps) for _ in range(count))
        triggers: list[object] = [{"step": step, "rank": 0} for step in moments]
    else:
        times = sorted(random.uniform(0, seconds) for _ in range(count))
        apart = [t + number * _LEAST_APART_S for number, t in enumerate(times)]
        triggers = [format_duration(round(time, 2)) for time in apart]
    return [{"at": trigger, **draw_fault(random, recipes, job)} for trigger in triggers]
