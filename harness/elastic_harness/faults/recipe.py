"""How chance draws a fault: what a storm may aim at, and what comes out of it as plain data.

Pure. A recipe is given a source of chance and a `Sketch` of the job, and returns what an entry of a
timeline has beside its trigger. Those of the built-in faults are in `faults.recipes`; a fault of a
user brings its own (`FaultRegistry.add`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from pytest_elastic.errors import UsageError

__all__ = ["Drawn", "Recipe", "Sketch", "known_draws", "needs_of", "usable"]

Drawn = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """What a recipe may aim at: so many ranks, and these nodes by name, of `all_nodes`.

    `nodes` are those that may be hit as nodes. `proxies` are the names of the job's proxies.
    """

    ranks: int
    nodes: tuple[str, ...]
    all_nodes: tuple[str, ...]
    proxies: tuple[str, ...] = ()


def _always(_: Sketch) -> bool:
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
    draw: Callable[[Random, Sketch], Drawn]
    needs: str | None = None
    weight: int = 1
    fits: Callable[[Sketch], bool] = _always

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


def usable(
    recipes: Sequence[Recipe], faults: Collection[str], sketch: Sketch
) -> tuple[Recipe, ...]:
    """Return what may be drawn of these kinds or faults for such a job."""
    return tuple(
        each
        for each in recipes
        if (each.kind in faults or each.fault in faults) and each.fits(sketch)
    )
