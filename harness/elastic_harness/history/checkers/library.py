"""All checkers that come with the harness, and the registry that scenarios use."""

from __future__ import annotations

from elastic_harness.history.checkers import (
    conduct,
    consistent,
    final_state,
    limits,
    liveness,
    rate,
    safety,
    samples,
    training,
)
from elastic_harness.history.checkers.registry import Check, Checker, Registry, YamlValue

__all__ = ["STANDARD", "bind", "standard_checkers"]


def standard_checkers() -> Registry:
    """Return a registry with everything that comes with the harness, to which users may add."""
    rooms = (safety, limits, conduct, consistent, liveness, training, final_state, samples, rate)
    found = (each for room in rooms for each in vars(room).values() if isinstance(each, Checker))
    return Registry(found)


STANDARD = standard_checkers()


def bind(name: str, value: YamlValue = None, *, is_negated: bool = False) -> Check:
    """Return the check that a clause asks for; see `Registry.bind`."""
    return STANDARD.bind(name, value, is_negated=is_negated)
