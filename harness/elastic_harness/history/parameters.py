"""From what a clause of a scenario says to a checker's typed parameters.

A checker's parameters are a frozen dataclass. `resumed_at: {round: 2, step: 20}` names its fields;
`restarts: 1` and `world_sizes: [4, 4]` give the one field that the checker declares as its
shorthand; a bare `split_brain` gives none.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
from collections.abc import Iterable, Mapping
from typing import (
    Any,
    Literal,
    NewType,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pytest_elastic.errors import UsageError

__all__ = [
    "ClauseError",
    "Seconds",
    "YamlValue",
    "did_you_mean",
    "parse_parameters",
    "parse_seconds",
]

Seconds = NewType("Seconds", float)
"""A duration in seconds; scenarios write it `500ms`, `10s`, `2min` or as a bare number."""

P = TypeVar("P")

# What YAML gives, and what typing.get_type_hints gives, have no useful static type.
YamlValue: TypeAlias = Any
TypeHint: TypeAlias = Any


class ClauseError(UsageError):
    """A clause asks a checker for something it does not know; `key` is the parameter at fault."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h)?\s*")


# What other tools call it.
_OTHER_WORDS = {
    "timeout": ("limit", "within", "limit_s"),
    "duration": ("for", "lasting"),
    "max": ("at_most",),
    "node": ("nodes",),
    "workers": ("nproc_per_node", "nproc"),
}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the closest known word, or all of them when none is close."""
    names = sorted(known)
    for other in _OTHER_WORDS.get(word, ()):
        if other in names:
            return f"did you mean {other!r}?"
    for name in names:
        if word.startswith(f"{name}_"):
            return f"did you mean '{name}: {word.removeprefix(f'{name}_')}'?"
        if len(word) > 3 and name.startswith(f"{word}_"):
            return f"did you mean {name!r}?"
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"


def parse_seconds(value: YamlValue) -> Seconds:
    """Return a duration in seconds; raises ValueError for what is none."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return Seconds(float(value))
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"a duration like 500ms, 10s or 2min is expected, not {value!r}")
    return Seconds(float(match[1]) * _UNITS[match[2] or "s"])


def parse_parameters(name: str, kind: type[P], shorthand: str | None, value: YamlValue) -> P:
    """Return the parameters of the checker `name` that a clause's value stands for.

    Raises ClauseError.
    """
    fields = {each.name: each for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
    given = _as_mapping(name, fields, shorthand, value)
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, item in given.items():
        if key not in fields:
            raise _problem(f"{name} has no parameter {key!r}: {did_you_mean(key, fields)}", key)
        try:
            values[key] = _convert(hints[key], item)
        except ValueError as error:
            named = f"{name}: {key}" if isinstance(value, Mapping) and key in value else name
            raise _problem(f"{named}: {error}", key) from error
    missing = [
        each.name
        for each in fields.values()
        if each.name not in values
        and each.default is dataclasses.MISSING
        and each.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise _problem(f"{name} needs {' and '.join(missing)}", missing[0])
    try:
        return kind(**values)
    except ValueError as error:
        raise _problem(f"{name}: {error}", None) from error


def _problem(message: str, key: str | None) -> ClauseError:
    return ClauseError(message, key=key)


def _as_mapping(
    name: str, fields: Mapping[str, Any], shorthand: str | None, value: YamlValue
) -> Mapping[str, Any]:
    if value is None or value is True:
        return {}
    if isinstance(value, Mapping) and (
        shorthand is None or not _is_mapping_field(fields, shorthand)
    ):
        return value
    if isinstance(value, Mapping) and set(value) <= set(fields):
        return value
    if shorthand is None:
        wanted = f"one of {', '.join(fields)}" if fields else "no parameters"
        raise _problem(f"{name} takes {wanted}, not {value!r}", None)
    return {shorthand: value}


def _is_mapping_field(fields: Mapping[str, Any], name: str) -> bool:
    return "Mapping" in str(fields[name].type)


def _convert(hint: TypeHint, value: YamlValue) -> YamlValue:
    """Return a value as a field's type has it; raises ValueError."""
    if hint is Seconds:
        return parse_seconds(value)
    origin: TypeHint = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(hint, value)
    if origin is Literal:
        if value not in get_args(hint):
            choices = ", ".join(map(repr, get_args(hint)))
            raise ValueError(f"{value!r} is none of {choices}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"a list is expected, not {value!r}")
        return tuple(_convert(get_args(hint)[0], item) for item in value)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"keys and values are expected, not {value!r}")
        return {str(key): _convert(get_args(hint)[1], item) for key, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        words = {int: "a whole number", str: "text", bool: "true or false", float: "a number"}
        raise ValueError(f"{words.get(hint, hint.__name__)} is expected, not {value!r}")
    return value


def _convert_union(hint: TypeHint, value: YamlValue) -> YamlValue:
    problems: list[str] = []
    for choice in get_args(hint):
        if choice is type(None):
            if value is None:
                return None
            continue
        try:
            return _convert(choice, value)
        except ValueError as error:
            problems.append(str(error))
    raise ValueError("; or ".join(problems))
