"""Checkers by the names that scenarios use.

A checker is a pure function from a history and typed parameters to a verdict, with a name, one
sentence, and a flag saying whether it is on by default. Most say that something *holds*; an
*occurrence* (`split_brain`, `rank_reassigned`) says that something was seen: `sometimes` wants it,
`never` wants the opposite.
"""

from __future__ import annotations

import dataclasses
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, get_type_hints

from pydantic import Field, ValidationError, create_model, model_validator

from elastic_harness import registry
from elastic_harness.finding import did_you_mean
from elastic_harness.history.history import History
from elastic_harness.history.verdict import Outcome, Verdict, negate, unknown
from elastic_harness.scenario.actions import Parameters
from elastic_harness.scenario.fields import from_shorthand
from elastic_harness.scenario.validation import first_message
from pytest_elastic.errors import UsageError

__all__ = [
    "OBSERVABLES",
    "Check",
    "Checker",
    "NoParameters",
    "Parameters",
    "Registry",
    "YamlValue",
    "as_text",
    "checker",
]

P = TypeVar("P", bound=Parameters)

# What YAML gives has no useful static type.
YamlValue: TypeAlias = Any

# What workers report only where a clause asks for it, because it costs.
OBSERVABLES = frozenset({"samples", "state", "learning_rate"})


class NoParameters(Parameters):
    """The parameters of a checker that has none."""


def _needs_none(_: object) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker(Generic[P]):
    """One thing that can be judged.

    `shorthand` is the parameter that a clause gives when it does not name any (`restarts: 1`).
    `is_said_once`: two such clauses in one scenario say the same, or contradict each other.
    `is_occurrence`: it is seen or not, and stands in `never` or `sometimes`; `may_be_seen`: there
    as well as where something has to hold. `needs_workers`: a job that starts none is not judged by
    it. `observes` is what workers have to report for it, of `OBSERVABLES`; `needs_reference` tells
    whether it compares the run with an uninterrupted one of the same job. `knows_clock_errors`: it
    looks itself at how far times of several clocks can be compared. `needs_end`: nothing is known
    of it before the job has ended.
    """

    name: str
    summary: str
    parameters: type[P]
    check: Callable[[History, P], Verdict]
    shorthand: str | None = None
    is_default: bool = False
    is_occurrence: bool = False
    may_be_seen: bool = False
    is_said_once: bool = False
    needs_workers: bool = True
    observes: frozenset[str] = frozenset()
    needs_reference: Callable[[P], bool] = _needs_none
    knows_clock_errors: bool = False
    needs_end: bool = False

    def __post_init__(self) -> None:
        fields = self.parameters.model_fields
        assert self.shorthand in {None, *fields}, f"{self.name} has no parameter {self.shorthand}"
        assert self.observes <= OBSERVABLES, f"{self.name}: {self.observes} cannot be observed"

    def read(self, value: YamlValue) -> P:
        """Return the parameters that a clause's value stands for (None, True: a bare name).

        Raises pydantic's ValidationError, or UsageError for a value that is no parameter's.
        """
        if value is None or value is True:
            value = {}
        try:
            given = from_shorthand(self.parameters, self.shorthand, value)
        except ValueError as error:
            raise UsageError(f"{self.name} {error}") from error
        return self.parameters.model_validate(given)


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
        """Judge a history; what depends on what is not known of the nodes' clocks is unknown.

        A checker that crashes says unknown, with its traceback.
        """
        verdict = self._judge(history)
        if verdict.outcome is Outcome.UNKNOWN or self.checker.knows_clock_errors:
            return verdict
        for other in history.by_other_clocks():
            otherwise = self._judge(other)
            if otherwise.outcome is not verdict.outcome:
                return unknown(
                    f"{verdict.reason}; but the nodes' clocks are not known well enough to say "
                    f"that: within their error it may be that {otherwise.reason}",
                    verdict.events,
                )
        return verdict

    def _judge(self, history: History) -> Verdict:
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
    may_be_seen: bool = False,
    is_said_once: bool = False,
    needs_workers: bool = True,
    observes: Iterable[str] = (),
    needs_reference: Callable[[P], bool] = _needs_none,
    knows_clock_errors: bool = False,
    needs_end: bool = False,
) -> Callable[[Callable[[History, P], Verdict]], Checker[P]]:
    """Make the decorated function a checker; its docstring's first line is the summary."""

    def make(function: Callable[[History, P], Verdict]) -> Checker[P]:
        # A user's may be a dataclass.
        kind: type = parameters
        model, check = parameters, function
        if not issubclass(kind, Parameters):
            model, check = _of_dataclass(name, kind, function)
        return Checker(
            name=name,
            summary=(function.__doc__ or name).strip().splitlines()[0],
            parameters=model,
            check=check,
            shorthand=shorthand,
            is_default=is_default,
            is_occurrence=is_occurrence,
            may_be_seen=may_be_seen,
            is_said_once=is_said_once,
            needs_workers=needs_workers,
            observes=frozenset(observes),
            needs_reference=needs_reference,
            knows_clock_errors=knows_clock_errors,
            needs_end=needs_end,
        )

    return make


# A dataclass of a user's may be of any type.
def _of_dataclass(name: str, kind: Any, function: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """Return a model of the same fields, and a check that is given the dataclass as in 0.1."""
    warnings.warn(
        f"the parameters of the checker {name!r} are a dataclass, which is accepted up to release "
        "0.2: derive them from elastic_harness.history.checkers.Parameters",
        DeprecationWarning,
        stacklevel=3,
    )
    hints = get_type_hints(kind)
    fields: dict[str, Any] = {}
    for each in dataclasses.fields(kind):
        default: Any = ... if each.default is dataclasses.MISSING else each.default
        if each.default_factory is not dataclasses.MISSING:
            default = each.default_factory()
        fields[each.name] = (hints[each.name], Field(default, strict=False))
    fits = model_validator(mode="after")(lambda model: kind(**dict(model)) and model)
    fields |= {"__base__": Parameters, "__validators__": {"fits": fits}}
    model = create_model(kind.__name__, **fields)
    return model, lambda history, asked: function(history, kind(**dict(asked)))


class Registry(registry.Registry[Checker[Any]]):
    """The checkers that clauses can name. `standard_checkers()` makes one; users add their own."""

    kind: ClassVar[str] = "checker"

    def bind(self, name: str, value: YamlValue = None, *, is_negated: bool = False) -> Check:
        """Return the check that a clause `name: value` asks for (None: a bare `name`).

        `is_negated` is for clauses of `never`. Raises UsageError for a name or a parameter that is
        not known.
        """
        found = self.find(name)
        try:
            parameters = found.read(value)
        except ValidationError as error:
            known = found.parameters.model_fields
            raise UsageError(f"{name}: {first_message(error, known)}") from error
        text = name if value is None or value is True else f"{name}: {as_text(value)}"
        return Check(
            name=name, text=text, checker=found, parameters=parameters, is_negated=is_negated
        )

    def default_checks(self, *, without: Collection[str] = ()) -> tuple[Check, ...]:
        """Return the invariants of every scenario, less those named off.

        Raises UsageError for a name that is no invariant.
        """
        names = [each.name for each in self if each.is_default]
        for name in without:
            if name not in names:
                raise UsageError(f"no invariant is called {name!r}: {did_you_mean(name, names)}")
        return tuple(self.bind(name) for name in names if name not in without)

    def schema(self, name: str) -> dict[str, Any]:
        """Return the JSON Schema of what may stand behind a checker's name."""
        found = self.find(name)
        schema = found.parameters.model_json_schema()
        forms: list[Any] = [schema, {"type": "boolean"}, {"const": "off"}]
        if found.shorthand is not None:
            forms.insert(0, schema["properties"][found.shorthand])
        return {"description": found.summary, "anyOf": forms}


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
