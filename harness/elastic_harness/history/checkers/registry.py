"""Checkers by the names that scenarios use.

A checker is a pure function from a history and typed parameters to a verdict, with a name, one
sentence, and a flag saying whether it is on by default. Most say that something *holds*; an
*occurrence* (`split_brain`, `rank_reassigned`) says that something was seen: `sometimes` wants it,
`never` wants the opposite.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from elastic_harness.history.history import History
from elastic_harness.history.parameters import (
    ClauseError,
    YamlValue,
    did_you_mean,
    parse_parameters,
)
from elastic_harness.history.verdict import Verdict, negate, unknown
from pytest_elastic.errors import UsageError

__all__ = [
    "OBSERVABLES",
    "Check",
    "Checker",
    "NoParameters",
    "Registry",
    "checker",
]

P = TypeVar("P")

# What workers report only where a clause asks for it, because it costs.
OBSERVABLES = frozenset({"samples", "state", "learning_rate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NoParameters:
    """The parameters of a checker that has none."""


def _needs_none(_: object) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker(Generic[P]):
    """One thing that can be judged.

    `shorthand` is the parameter that a clause gives when it does not name any (`restarts: 1`).
    `observes` is what workers have to report for it, of `OBSERVABLES`; `needs_reference` tells
    whether it compares the run with an uninterrupted one of the same job.
    """

    name: str
    summary: str
    parameters: type[P]
    check: Callable[[History, P], Verdict]
    shorthand: str | None = None
    is_default: bool = False
    is_occurrence: bool = False
    observes: frozenset[str] = frozenset()
    needs_reference: Callable[[P], bool] = _needs_none

    def __post_init__(self) -> None:
        if self.shorthand is not None:
            names = {each.name for each in dataclasses.fields(self.parameters)}  # type: ignore[arg-type]
            assert self.shorthand in names, f"{self.name} has no parameter {self.shorthand}"
        assert self.observes <= OBSERVABLES, f"{self.name}: nobody can observe {self.observes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A checker with its parameters: one clause. `text` is the clause as a person writes it."""

    name: str
    text: str
    # A list of checks cannot say that each checker goes with its own type of parameters.
    checker: Checker[Any]
    parameters: Any
    is_negated: bool = False

    def run(self, history: History) -> Verdict:
        """Judge a history; a checker that crashes says unknown, with its traceback."""
        try:
            verdict: object = self.checker.check(history, self.parameters)
        except Exception:  # noqa: BLE001 (outermost: one broken checker must not hide the others)
            return unknown(f"the checker {self.name} crashed:\n{traceback.format_exc()}")
        if not isinstance(verdict, Verdict):  # a user's may return anything
            return unknown(f"the checker {self.name} returned {verdict!r}: a Verdict is expected")
        return negate(verdict) if self.is_negated else verdict


def checker(
    name: str,
    parameters: type[P],
    *,
    shorthand: str | None = None,
    is_default: bool = False,
    is_occurrence: bool = False,
    observes: Iterable[str] = (),
    needs_reference: Callable[[P], bool] = _needs_none,
) -> Callable[[Callable[[History, P], Verdict]], Checker[P]]:
    """Make the decorated function a checker; its docstring's first line is the summary."""

    def make(function: Callable[[History, P], Verdict]) -> Checker[P]:
        return Checker(
            name=name,
            summary=(function.__doc__ or name).strip().splitlines()[0],
            parameters=parameters,
            check=function,
            shorthand=shorthand,
            is_default=is_default,
            is_occurrence=is_occurrence,
            observes=frozenset(observes),
            needs_reference=needs_reference,
        )

    return make


class Registry:
    """The checkers that clauses can name. `standard_checkers()` makes one; users add their own."""

    def __init__(self, checkers: Iterable[Checker[Any]] = ()) -> None:
        self._checkers: dict[str, Checker[Any]] = {}
        for each in checkers:
            self.add(each)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in order of registration."""
        return tuple(self._checkers)

    def add(self, new: Checker[Any]) -> None:
        """Make a checker known. Raises UsageError when its name is taken."""
        if new.name in self._checkers:
            raise UsageError(f"cannot add the checker {new.name!r}: there is one of that name")
        self._checkers[new.name] = new

    def find(self, name: str) -> Checker[Any]:
        """Return a checker by name. Raises ClauseError with a did-you-mean."""
        found = self._checkers.get(name)
        if found is None:
            raise ClauseError(f"no checker is called {name!r}: {did_you_mean(name, self.names)}")
        return found

    def bind(self, name: str, value: YamlValue = None, *, is_negated: bool = False) -> Check:
        """Return the check that a clause `name: value` asks for (None: a bare `name`).

        `is_negated` is for clauses of `never`. Raises ClauseError (a UsageError) for a name or a
        parameter that is not known.
        """
        found = self.find(name)
        parameters = parse_parameters(name, found.parameters, found.shorthand, value)
        text = name if value is None or value is True else f"{name}: {as_text(value)}"
        return Check(
            name=name, text=text, checker=found, parameters=parameters, is_negated=is_negated
        )

    def default_checks(self, *, without: Collection[str] = ()) -> tuple[Check, ...]:
        """Return the invariants of every scenario, less those named off.

        Raises ClauseError for a name that is no invariant.
        """
        names = [each.name for each in self._checkers.values() if each.is_default]
        for name in without:
            if name not in names:
                raise ClauseError(f"no invariant is called {name!r}: {did_you_mean(name, names)}")
        return tuple(self.bind(name) for name in names if name not in without)


def as_text(value: YamlValue) -> str:
    """Return a clause's value as a person writes it in YAML."""
    match value:
        case dict():
            inside = ", ".join(f"{key}: {as_text(item)}" for key, item in value.items())
            return f"{{{inside}}}"
        case list() | tuple():
            return f"[{', '.join(map(as_text, value))}]"
        case bool():
            return "true" if value else "false"
        case _:
            return str(value)
