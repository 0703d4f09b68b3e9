"""Looks at names and values before a Toxiproxy server sees them, and says what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from elastic_harness.toxiproxy.toxics import TOXIC_TYPES
from pytest_elastic.errors import UsageError

__all__ = ["checked_attributes", "checked_toxicity", "quoted"]

# Attributes that mean nothing, or worse, at 0 or when left out.
_AT_LEAST_ONE = {("slicer", "average_size")}


def quoted(name: str) -> str:
    """Return a name as it stands in a path; raise UsageError for one that no path can hold."""
    if not name or "/" in name or name in (".", ".."):
        raise UsageError(
            f"a proxy or toxic cannot be named {name!r}: no request could ever address it",
            hint="Use letters, digits, '.', '_' and '-'.",
        )
    return quote(name, safe="")


def checked_toxicity(toxicity: float) -> float:
    """Return a toxicity that means something; raise UsageError."""
    if not 0 <= toxicity <= 1:
        raise UsageError(f"toxicity is a share of connections between 0 and 1, not {toxicity!r}")
    return toxicity


def checked_attributes(
    kind: str, attributes: Mapping[str, float], *, all_of_them: bool
) -> dict[str, int]:
    """Return the attributes as the server wants them: whole numbers, none below 0.

    Raises UsageError. Attributes of an unknown type are looked at as numbers only.
    """
    known = TOXIC_TYPES.get(kind)
    checked: dict[str, int] = {}
    for name, value in attributes.items():
        if known is not None and name not in known.attributes:
            has = ", ".join(known.attributes) or "none"
            raise UsageError(f"toxic {kind!r} has no attribute {name!r}; it has {has}")
        least = 1 if (kind, name) in _AT_LEAST_ONE else 0
        if not float(value).is_integer() or value < least:
            raise UsageError(
                f"{name} of toxic {kind!r} is a whole number, at least {least}, not {value!r}"
            )
        checked[name] = int(value)
    for kind_with, name in _AT_LEAST_ONE:
        if all_of_them and kind == kind_with and name not in checked:
            raise UsageError(
                f"toxic {kind!r} needs {name}", hint="Without it, the real server crashes."
            )
    return checked
