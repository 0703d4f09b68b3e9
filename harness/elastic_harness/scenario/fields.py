"""The kinds of value a scenario is written in: durations, percentages, rates, selectors, lists.

Each is read from its YAML text and printed back into it, so that a scenario survives the round trip
through `plan.json`. The parameters of faults and of checkers are models of these fields.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    InstanceOf,
    PlainSerializer,
    WithJsonSchema,
)

from elastic_harness.scenario.selectors import FORMS, Selector, parse_selector
from pytest_elastic.errors import UsageError

__all__ = [
    "Fraction",
    "Listed",
    "Mark",
    "ModuleName",
    "Name",
    "Rate",
    "ScenarioModel",
    "Seconds",
    "Select",
    "Size",
    "Text",
    "Title",
    "format_duration",
    "format_size",
    "from_shorthand",
    "parse_duration",
    "parse_fraction",
    "parse_rate",
    "parse_size",
]

_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_RATE_UNITS: Final = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_SIZE_UNITS: Final = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
}  # fmt: skip
_NUMBER = r"(\d+(?:\.\d+)?)"


class ScenarioModel(BaseModel):
    """The common rules: strict types, no unknown key, no change after reading."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, populate_by_name=True)


def from_shorthand(model: type[BaseModel], shorthand: str | None, value: object) -> object:
    """Return keys and values for what stands behind a name; raises ValueError for what is none.

    A bare value is that of the field `shorthand`, and so are keys and values that are no fields, if
    that field takes such.
    """
    fields = model.model_fields
    if isinstance(value, model):
        return value
    if isinstance(value, Mapping) and (
        shorthand is None
        or "Mapping" not in str(fields[shorthand].annotation)
        or set(value) <= set(fields)
    ):
        return value
    if shorthand is None:
        if not fields:
            raise ValueError(f"takes no parameters, not {value!r}")
        keys = ", ".join(each.alias or name for name, each in fields.items())
        raise ValueError(f"needs keys and values, of: {keys}")
    return {shorthand: value}


def parse_duration(value: object) -> float:
    """Return seconds for "10s", "500ms" or "2m"; a bare number could mean anything: refused."""
    if type(value) is float and math.isfinite(value) and value >= 0:
        return value  # already seconds: a default, or Python calling
    if isinstance(value, str) and (found := re.fullmatch(rf"{_NUMBER} ?(ms|s|min|m|h)", value)):
        return float(found[1]) * _UNITS_S[found[2]]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        # Pydantic reports a ValueError; a TypeError would pass for a bug.
        raise ValueError(f"{value} has no unit (did you mean '{value}s'?)")
    raise ValueError(f"{value!r} is not a duration: write for example 10s, 500ms or 2m")


def format_duration(seconds: float) -> str:
    """Return the shortest text that `parse_duration` reads as the same number."""
    millis = seconds * 1000
    if seconds < 1 and millis == int(millis):
        return f"{int(millis)}ms"
    return f"{int(seconds)}s" if seconds == int(seconds) else f"{seconds!r}s"


def parse_fraction(value: object) -> float:
    """Return 0.02 for "2%"."""
    if isinstance(value, str) and (found := re.fullmatch(rf"{_NUMBER} ?%", value)):
        fraction = float(found[1]) / 100
        if fraction <= 1:
            return fraction
    if isinstance(value, float) and 0 <= value <= 1:
        return value
    raise ValueError(f"{value!r} is not a percentage: write for example 2% (0% to 100%)")


def parse_rate(value: object) -> float:
    """Return bits per second for "10mbit"."""
    if isinstance(value, str) and (found := re.fullmatch(rf"{_NUMBER} ?([kmg]?bit)(/s)?", value)):
        return float(found[1]) * _RATE_UNITS[found[2]]
    if isinstance(value, float) and value > 0:
        return value
    raise ValueError(f"{value!r} is not a rate: write for example 10mbit or 1gbit")


def parse_size(value: object) -> int:
    """Return bytes for "300MB" or "64MiB"; a bare number but 0 could mean anything: refused."""
    if type(value) is int and value == 0:
        return 0
    if isinstance(value, str) and (found := re.fullmatch(rf"{_NUMBER} ?([kMGKi]*B)", value)):
        factor = _SIZE_UNITS.get(found[2])
        if factor is not None:
            return int(float(found[1]) * factor)
    raise ValueError(f"{value!r} is not a size: write for example 300MB or 64MiB")


def format_size(size: int) -> str:
    """Return the shortest text that `parse_size` reads as the same number."""
    fitting = [(size // factor, unit) for unit, factor in _SIZE_UNITS.items() if not size % factor]
    number, unit = min(fitting)
    return f"{number}{unit}"


def _select(value: object) -> Selector:
    try:
        return parse_selector(value)
    except UsageError as error:
        raise ValueError(error.message) from error


def _to_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _to_text(value: object) -> object:
    """Let `env: {PORT: 80}` mean what it says; True and None print in two ways: refused."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return value


def _seconds_schema() -> dict[str, Any]:
    return {"type": "string", "pattern": rf"^{_NUMBER} ?(ms|s|min|m|h)$", "examples": ["10s"]}


Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration),
    WithJsonSchema(_seconds_schema()),
]
Fraction = Annotated[
    float,
    BeforeValidator(parse_fraction),
    WithJsonSchema({"type": "string", "pattern": rf"^{_NUMBER} ?%$", "examples": ["2%"]}),
    PlainSerializer(lambda fraction: f"{fraction * 100:.10g}%"),
]
Rate = Annotated[
    float,
    BeforeValidator(parse_rate),
    PlainSerializer(lambda rate: f"{rate:.0f}bit"),
    WithJsonSchema({"type": "string", "pattern": rf"^{_NUMBER} ?[kmg]?bit(/s)?$"}),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(format_size),
    WithJsonSchema({"type": "string", "pattern": rf"^{_NUMBER} ?([kMG]|[KMG]i)?B$"}),
]
Select = Annotated[
    InstanceOf[Selector],
    BeforeValidator(_select),
    PlainSerializer(lambda selector: selector.as_data()),
    WithJsonSchema({"type": ["string", "array", "object"], "description": f"One of: {FORMS}."}),
]
Text = Annotated[str, BeforeValidator(_to_text)]

_Item = TypeVar("_Item")
# A YAML list, kept as a tuple: a scenario is a value.
Listed = Annotated[tuple[_Item, ...], BeforeValidator(_to_tuple)]


def _name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", value):
        raise ValueError(
            f"{value!r} is not a name: letters, digits, '-' and '_', beginning with a letter"
        )
    return value


Name = Annotated[str, AfterValidator(_name)]
_ID = r"[A-Za-z0-9][A-Za-z0-9._=,\[\]-]*"


def _scenario_id(value: str) -> str:
    if not re.fullmatch(_ID, value):
        raise ValueError(
            f"{value!r} is no id of a scenario: letters, digits and any of . _ = , - [ ] are "
            "expected, beginning with a letter or digit"
        )
    return value


ScenarioId = Annotated[
    str,
    AfterValidator(_scenario_id),
    WithJsonSchema({"type": "string", "pattern": f"^{_ID}$"}),
]


def _title(value: str) -> str:
    if not value.strip():
        raise ValueError("a title is a sentence, and not empty")
    return value


def _mark(value: str) -> str:
    if not value.isidentifier():
        raise ValueError(f"{value!r} is no marker of pytest: one word is expected")
    return value


def _module_name(value: str) -> str:
    if not all(part.isidentifier() for part in value.split(".")):
        raise ValueError(f"{value!r} is no module: write for example package.train")
    return value


Title = Annotated[str, AfterValidator(_title)]
ModuleName = Annotated[str, AfterValidator(_module_name)]
Mark = Annotated[str, AfterValidator(_mark)]
