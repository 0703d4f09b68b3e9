"""Dataclasses as JSON values: what is sent, and what is written down.

`dataclasses.asdict` copies every text and looks at every class anew. It is five times as slow, and
an agent that told 64 others of a round spent a third of its time in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["as_object", "field_names"]

_SCALARS = frozenset({str, int, float, bool, type(None)})
_names: dict[type[Any], Sequence[str]] = {}


def as_object(value: Any) -> dict[str, Any]:  # noqa: ANN401 (dataclasses have no common type)
    """Return the fields of a dataclass by name, as `dataclasses.asdict` does.

    Mappings and sequences are new ones; what is in them is not copied, so it must be a value.
    """
    return {name: _plain(getattr(value, name)) for name in field_names(type(value))}


def field_names(cls: type[Any]) -> Sequence[str]:
    """Return the names of a dataclass's fields; none for any other class."""
    names = _names.get(cls)
    if names is None:
        is_one = dataclasses.is_dataclass(cls)
        names = tuple(each.name for each in dataclasses.fields(cls)) if is_one else ()
        _names[cls] = names
    return names


def _plain(value: Any) -> Any:  # noqa: ANN401 (as above)
    if type(value) in _SCALARS:
        return value
    if isinstance(value, tuple | list):
        items = [_plain(each) for each in value]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return as_object(value) if field_names(type(value)) else value
