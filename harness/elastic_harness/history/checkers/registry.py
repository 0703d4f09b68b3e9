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
from elastic_harness.history.verdict import Verdict, compose, negate, unknown
from pytest_elastic.errors import UsageError

__all__ = [
    "CHECKERS",
    "Check",
    "Checker",
    "Judgement",
    "NoParameters",
    "bind",
    "checker",
    "default_checks",
    "judge",
    "overall",
    "register",
]

P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoParameters:
    """The parameters of a checker that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker(Generic[P]):
    """One entry of the registry."""

    name: str
    summary: str
    parameters: type[P]
    check: Callable[[History, P], Verdict]
    shorthand: str | None = None
    is_default: bool = False
    is_occurrence: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A checker with its parameters: one clause. `text` is the clause as a person wrote it."""

    name: str
    text: str
    # The registry pairs each checker with its own parameter type; a list of checks cannot say so.
    checker: Checker[Any]
    parameters: Any
    is_negated: bool = False

    def run(self, history: History) -> Verdict:
        """Judge a history; a checker that crashes says unknown, with its traceback."""
        try:
            verdict = self.checker.check(history, self.parameters)
        except Exception:  # noqa: BLE001 (outermost: one broken checker must not hide the others)
            return unknown(f"the checker {self.name} crashed:\n{traceback.format_exc()}")
        return negate(verdict) if self.is_negated else verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One clause and the verdict on it."""

    name: str
    text: str
    verdict: Verdict


CHECKERS: dict[str, Checker[Any]] = {}


def register(entry: Checker[Any]) -> None:
    """Add a checker, a user's own for example. Raises UsageError when the name is taken."""
    if entry.name in CHECKERS:
        raise UsageError(f"cannot register the checker {entry.name!r}: there is one of that name")
    if entry.shorthand is not None:
        names = {each.name for each in dataclasses.fields(entry.parameters)}
        assert entry.shorthand in names, f"{entry.name}: no parameter is called {entry.shorthand}"
    CHECKERS[entry.name] = entry


def checker(
    name: str,
    parameters: type[P],
    *,
    shorthand: str | None = None,
    is_default: bool = False,
    is_occurrence: bool = False,
) -> Callable[[Callable[[History, P], Verdict]], Callable[[History, P], Verdict]]:
    """Register the decorated function under a name; its docstring's first line is the summary."""

    def add(function: Callable[[History, P], Verdict]) -> Callable[[History, P], Verdict]:
        register(
            Checker(
                name=name,
                summary=(function.__doc__ or name).strip().splitlines()[0],
                parameters=parameters,
                check=function,
                shorthand=shorthand,
                is_default=is_default,
                is_occurrence=is_occurrence,
            )
        )
        return function

    return add


def bind(name: str, value: YamlValue = None, *, is_negated: bool = False) -> Check:
    """Return the check that a clause `name: value` asks for (value None: a bare `name`).

    Raises ClauseError (a UsageError) for an unknown name or parameter, with a did-you-mean.
    """
    entry = CHECKERS.get(name)
    if entry is None:
        raise ClauseError(f"no checker is called {name!r}: {did_you_mean(name, CHECKERS)}")
    parameters = parse_parameters(name, entry.parameters, entry.shorthand, value)
    text = name if value is None else f"{name}: {_yaml_like(value)}"
    return Check(name=name, text=text, checker=entry, parameters=parameters, is_negated=is_negated)


def default_checks(*, without: Collection[str] = ()) -> tuple[Check, ...]:
    """Return the invariants that hold for every scenario, less those named off.

    Raises UsageError for a name that is no default invariant.
    """
    names = [entry.name for entry in CHECKERS.values() if entry.is_default]
    for name in without:
        if name not in names:
            raise ClauseError(f"no invariant is called {name!r}: {did_you_mean(name, names)}")
    return tuple(bind(name) for name in names if name not in without)


def judge(history: History, checks: Iterable[Check]) -> tuple[Judgement, ...]:
    """Run checks over a history, each on its own."""
    return tuple(
        Judgement(name=check.name, text=check.text, verdict=check.run(history)) for check in checks
    )


def overall(judgements: Iterable[Judgement]) -> Verdict:
    """Return the worst of some judgements as one verdict; its reasons are led by the clauses."""
    return compose(
        dataclasses.replace(each.verdict, reason=f"{each.text}: {each.verdict.reason}")
        for each in judgements
    )


def _yaml_like(value: YamlValue) -> str:
    match value:
        case dict():
            inside = ", ".join(f"{key}: {_yaml_like(item)}" for key, item in value.items())
            return f"{{{inside}}}"
        case list() | tuple():
            return f"[{', '.join(map(_yaml_like, value))}]"
        case bool():
            return "true" if value else "false"
        case _:
            return str(value)
