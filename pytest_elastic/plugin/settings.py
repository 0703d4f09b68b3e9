"""What a test says about its job by name; what is none is refused with a UsageError."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_elastic.errors import UsageError

__all__ = ["flag_of", "settings_of_markers", "text_of", "words_of"]


def settings_of_markers(item: pytest.Item) -> Mapping[str, object]:
    """Return what the markers `elastic` of a test say, the closest one first."""
    settings: dict[str, object] = {}
    for marker in item.iter_markers("elastic"):
        if marker.args:
            raise UsageError(
                f"{item.nodeid}: the marker elastic takes settings by name, as in nodes=2"
            )
        settings = {**marker.kwargs, **settings}
    return settings


def text_of(merged: Mapping[str, object], name: str) -> str | None:
    """Return a text, or None where none was given."""
    value = merged.get(name)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name}={value!r}: a text is expected")
    return value


def flag_of(merged: Mapping[str, object], name: str) -> bool:
    """Return what is off where nothing was said."""
    value = merged.get(name, False)
    if not isinstance(value, bool):
        raise UsageError(f"{name}={value!r}: True or False is expected")
    return value


def words_of(merged: Mapping[str, object], name: str) -> list[str]:
    """Return one word, or a list of them, as a list."""
    value = merged.get(name, ())
    words = [value] if isinstance(value, str) else value
    if isinstance(words, (list, tuple)) and all(isinstance(word, str) for word in words):
        return list(words)
    raise UsageError(f"{name}={value!r}: a name or a list of names is expected")
