"""JSON as Go's `encoding/json` reads and writes it, as far as clients of a Toxiproxy server notice.

Keys match in any case, unknown ones are passed over, the last of several counts, null changes
nothing, what follows the first value is ignored. A value of a wrong type does not stop the reading:
the others are taken over all the same, and the first such problem is told in the end.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from typing import NoReturn

__all__ = ["JsonProblem", "Reading", "as_float32", "decode", "encode"]

_INT64 = range(-(2**63), 2**63)


class JsonProblem(Exception):
    """The text is no JSON, or JSON of another shape; in Go's words."""


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


class _Fields(list[tuple[str, object]]):
    """An object, with its fields in the order in which they were written."""


def decode(body: bytes) -> object:
    """Return the first value of `body`, for a `Reading`."""
    text = body.decode("utf-8", "replace").lstrip(" \t\r\n")
    if not text:
        raise JsonProblem("EOF")
    try:
        value, _ = _DECODER.raw_decode(text)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
            raise JsonProblem("unexpected EOF") from None
        raise JsonProblem(
            f"invalid character {text[error.pos]!r} looking for beginning of value"
        ) from None
    except RecursionError:
        raise JsonProblem("exceeded max depth") from None
    result: object = value
    return result


def encode(value: object) -> bytes:
    """Return `value` as Go writes it: compact, in UTF-8, safe inside HTML."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", "replace")


def as_float32(value: float) -> float | int:
    """Return the shortest decimal number that is `value` in 32 bits, whole ones as an integer."""
    exact = struct.unpack("f", struct.pack("f", value))[0]
    if exact == int(exact) and abs(exact) < 1e21:
        return int(exact)
    shortest = (float(f"{exact:.{digits}g}") for digits in range(1, 10))
    return next(
        number for number in shortest if struct.unpack("f", struct.pack("f", number))[0] == exact
    )


class Reading:
    """Takes fields out of a decoded value, and remembers the first of a wrong type."""

    def __init__(self) -> None:
        self._problem: str | None = None

    def check(self) -> None:
        """Raise JsonProblem if anything had a wrong type."""
        if self._problem is not None:
            raise JsonProblem(self._problem)

    def fields(
        self, value: object, what: str, readers: Mapping[str, Callable[[object], None]]
    ) -> None:
        """Hand the fields of an object to the reader of that name; `what` is Go's name for it."""
        if value is None:
            return
        if not isinstance(value, _Fields):
            self._wrong(value, f"Go value of type {what}")
            return
        for name, item in value:
            if item is not None and (reader := readers.get(name.lower())) is not None:
                reader(item)

    def items(self, value: object, what: str) -> list[object]:
        """Return the items of an array."""
        if value is None:
            return []
        if isinstance(value, _Fields) or not isinstance(value, list):
            self._wrong(value, f"Go value of type {what}")
            return []
        return list(value)

    def text(self, value: object, where: str) -> str | None:
        """Return a text, or None after noting the problem."""
        if isinstance(value, str) and not isinstance(value, _Number):
            # Halves of surrogate pairs cannot be written out again.
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        self._wrong(value, f"Go struct field {where} of type string")
        return None

    def truth(self, value: object, where: str) -> bool | None:
        """Return true or false, or None after noting the problem."""
        if isinstance(value, bool):
            return value
        self._wrong(value, f"Go struct field {where} of type bool")
        return None

    def integer(self, value: object, where: str) -> int | None:
        """Return an integer of 64 bits, or None after noting the problem. 5.0 is none."""
        if isinstance(value, _Number) and re.fullmatch(r"-?[0-9]{1,19}", value):
            number = int(value)
            if number in _INT64:
                return number
        self._wrong(value, f"Go struct field {where} of type int64")
        return None

    def float32(self, value: object, where: str) -> float | None:
        """Return a number that fits into 32 bits, or None after noting the problem."""
        if isinstance(value, _Number):
            try:
                return float(as_float32(float(value)))
            except OverflowError:
                pass
        self._wrong(value, f"Go struct field {where} of type float32")
        return None

    def _wrong(self, value: object, wanted: str) -> None:
        kind = {bool: "bool", _Number: f"number {value}", str: "string", _Fields: "object"}
        found = kind.get(type(value), "array")
        self._problem = self._problem or f"json: cannot unmarshal {found} into {wanted}"


def _no_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(name, name, 0)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Fields,
    parse_int=_Number,
    parse_float=_Number,
    parse_constant=_no_constant,
)
