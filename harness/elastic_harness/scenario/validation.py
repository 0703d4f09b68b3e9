"""What pydantic says of a wrong value, in the words of this project."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from elastic_harness.finding import AstPath, Finding, did_you_mean
from elastic_harness.scenario.triggers import CONDITION_KEYS

__all__ = ["explain", "findings_of", "first_message", "keys_of", "path_in"]

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


def explain(kind: str, message: str, found: object) -> tuple[str, str | None]:
    """Return pydantic's message in our words, with a suggestion where one is at hand."""
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
    if kind == "string_too_short":
        return f"text that is not empty is expected, found {found!r}", None
    text = message
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    if text.endswith("?)") and " (did you mean" in text:
        text, _, hint = text.rpartition(" (")
        return text, hint[:-1]
    return text, None


def keys_of(model: type[BaseModel]) -> list[str]:
    """Return the keys of a model as they are written."""
    return [each.alias or name for name, each in model.model_fields.items()]


_KINDS: Final = ("int", "float", "str", "bool", "list", "dict")


def first_message(error: ValidationError, known: Collection[str]) -> str:
    """Return what is wrong first, in one sentence, with the way to it.

    `known` are keys that may have been meant.
    """
    # An unknown key first: a misspelt key is also a missing one.
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    # Pydantic names in between what kind of value it has tried: `int`, `constrained-int`.
    keys = (str(part) for part in first["loc"])
    where = ".".join(key for key in keys if key not in _KINDS and re.fullmatch(r"[\w*]+", key))
    if first["type"] == "extra_forbidden":
        meant = did_you_mean(str(first["loc"][-1]), known)
        return f"unknown key {where!r}" + (f" ({meant})" if meant.startswith("did") else "")
    if first["type"] == "missing":
        return f"`{where}` is missing"
    message, hint = explain(first["type"], first["msg"], first["input"])
    message = f"{message} ({hint})" if hint else message
    return f"{where}: {message}" if where else message


def findings_of(
    error: ValidationError,
    data: object,
    prefix: AstPath,
    keys_around: Callable[[AstPath], Collection[str]],
) -> Iterator[Finding]:
    """Yield what is wrong with the value at `prefix` of a document's data.

    `keys_around(path)` are the keys that may stand at a place, as far as that is known.
    """
    guessed: list[str | None] = []
    seen: list[AstPath] = []
    # Unknown keys first: a misspelt key is also a missing one, and that need not be said.
    for each in sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden"):
        kind, found = each["type"], each["input"]
        path = path_in(data, (*prefix, *each["loc"]))
        if path in seen and kind not in {"extra_forbidden", "missing"}:
            continue  # what another kind of value would have had to be
        seen.append(path)
        if kind == "extra_forbidden":
            known = keys_around(path[:-1])
            guessed.append(did_you_mean(str(path[-1]), known) if known else None)
            yield Finding(f"unknown key {path[-1]!r}", path, guessed[-1], is_key=True)
        elif kind == "missing":
            key = str(each["loc"][-1])
            if f"did you mean {key!r}?" not in guessed:
                yield Finding(f"`{key}` is missing here", path, is_key=True)
        elif kind == "condition_kind":
            keys = map(str, found) if isinstance(found, dict) else ()
            hints = (did_you_mean(key, CONDITION_KEYS) for key in keys)
            meant = next((hint for hint in hints if hint.startswith("did")), None)
            yield Finding(each["msg"], path, meant)
        else:
            message, hint = explain(kind, each["msg"], found)
            yield Finding(message, path, hint)


_NOTHING: Final = object()


def path_in(data: object, path: AstPath) -> AstPath:
    """Return a path as it is written down.

    Pydantic adds tags of unions to paths, and a shorthand leaves its parameter out.
    """
    written: AstPath = ()
    for part, following in zip(path, (*path[1:], None), strict=False):
        child = _child(data, part)
        # A condition's tag is the name of one of its keys.
        is_tag = not isinstance(child, (dict, list)) and _child(data, following) is not _NOTHING
        if child is _NOTHING or is_tag:
            continue
        written, data = (*written, part), child
    return written


def _child(data: Any, part: int | str | None) -> object:  # noqa: ANN401 (as YAML has it)
    if isinstance(data, dict):
        return data.get(part, _NOTHING)
    if isinstance(data, list) and isinstance(part, int) and part < len(data):
        return data[part]
    return _NOTHING
