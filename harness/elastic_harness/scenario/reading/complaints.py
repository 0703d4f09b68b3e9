"""What pydantic says of a wrong value, in the words of this project."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from elastic_harness.history.parameters import did_you_mean

__all__ = ["explain", "misspelt", "plain"]

_PREFIXES: Final = ("Value error, ", "Assertion failed, ")
_WANTED: Final = {
    "int_type": "a whole number is expected",
    "int_from_float": "a whole number is expected",
    "float_type": "a number is expected",
    "string_type": "text is expected",
    "bool_type": "true or false is expected",
    "tuple_type": "a list is expected",
    "list_type": "a list is expected",
    "dict_type": "keys with values are expected",
    "mapping_type": "keys with values are expected",
    "model_type": "keys with values are expected",
    "model_attributes_type": "keys with values are expected",
}


_BOUNDS: Final = {
    "greater than or equal to": "at least",
    "greater than": "more than",
    "less than or equal to": "at most",
    "less than": "less than",
}
_BOUND: Final = re.compile(rf"Input should be ({'|'.join(_BOUNDS)}) (.+)")


def misspelt(found: object, known: Collection[str]) -> str | None:
    """Return what one of the keys was probably meant to be."""
    for key in found if isinstance(found, dict) else ():
        hint = did_you_mean(str(key), known)
        if hint.startswith("did you mean"):
            return hint
    return None


def explain(kind: str, message: str, found: object) -> tuple[str, str | None]:
    """Return pydantic's complaint in our words, with a suggestion where one is at hand."""
    if (wanted := _WANTED.get(kind)) is not None:
        what = "nothing" if found is None else repr(found)
        what = what if len(what) <= 40 else f"{what[:37]}..."
        is_words = kind in {"tuple_type", "list_type"} and isinstance(found, str) and found
        hint = f"did you mean [{', '.join(str(found).split())}]?" if is_words else None
        return f"{wanted}, found {what}", hint
    if (bound := _BOUND.fullmatch(message)) is not None:
        return f"{_BOUNDS[bound[1]]} {bound[2]} is expected, found {found!r}", None
    if kind == "literal_error":
        return f"{message.removeprefix('Input should be ')} is expected, found {found!r}", None
    if kind in {"too_short", "too_long"}:
        length = re.search(r"at (least|most) (\d+)", message)
        some = (
            f"{length[2]} or {'more' if length[1] == 'least' else 'fewer'}" if length else "others"
        )
        return f"{some} are expected here, found {found!r}", None
    if kind == "string_pattern_mismatch":
        return f"{found!r} has characters that cannot be here", None
    text = plain(message)
    if text.endswith("?)") and " (did you mean" in text:
        text, _, hint = text.rpartition(" (")
        return text, hint[:-1]
    return text, None


def plain(message: str) -> str:
    """Return a complaint of our own without what pydantic puts before it."""
    for prefix in _PREFIXES:
        message = message.removeprefix(prefix)
    return message
